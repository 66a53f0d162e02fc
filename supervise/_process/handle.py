"""A worker's process as the host holds it: notice of its exit, its status, its group."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervise._process import capability

if TYPE_CHECKING:
    from collections.abc import Callable

_PIDFD_GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a process ended."""

    code: int | None
    """0 to 255, ``-N`` for signal N, None when nobody can tell."""
    core_dumped: bool = False
    max_rss_bytes: int | None = None
    cpu_time_s: float | None = None


class Process:
    """A started process that leads its own session, held by a pidfd.

    It is never waited for with a blocking call, and its group is signalled through the pidfd, so
    that a reused number cannot hit a stranger.
    """

    def __init__(self, pid: int, *, keep: object = None, told_code: Callable[[], int | None] | None = None) -> None:
        """Take over a process.

        Args:
            pid: Its number. Not reaped yet, if it is our child.
            keep: What must live as long (a `Popen`, which would otherwise reap by itself).
            told_code: Where it is not our child: asks its parent's word for the exit code, None while
                there is none.

        Raises:
            OSError: There can be no descriptor for it.
        """
        self.pid = pid
        self.keep = keep
        self._told_code = told_code
        self._reaped = False
        try:
            self._fd = os.pidfd_open(pid)
        except ProcessLookupError:  # dead, and reaped already: by its parent, or behind our back
            self._fd = -1

    def fileno(self) -> int:
        """The descriptor that becomes readable when the process is dead; -1 where it was gone at once."""
        return self._fd

    def reap(self) -> Exit | None:
        """Reap, if it can be reaped at this moment; None: not yet (it runs, or a tracer holds it)."""
        return self._reap_own() if self._told_code is None else self._ask_parent(self._told_code)

    def _reap_own(self) -> Exit | None:
        if self._fd < 0:
            return Exit(code=None)
        try:
            if os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        except ChildProcessError:
            return self._reaped_by_other()
        if pid == 0:
            return None
        code = os.waitstatus_to_exitcode(status)
        self._mark(code)
        return Exit(
            code=code,
            core_dumped=os.WCOREDUMP(status),
            max_rss_bytes=usage.ru_maxrss * 1024,
            cpu_time_s=usage.ru_utime + usage.ru_stime,
        )

    def _mark(self, code: int | None) -> None:
        """Note the end where a Popen keeps it, so that it never waits for the number by itself."""
        self._reaped = True
        if self.keep is not None and getattr(self.keep, "returncode", 0) is None:
            self.keep.returncode = code if code is not None else 0  # type: ignore[attr-defined]

    def _reaped_by_other(self) -> Exit:
        """Somebody waited for our child: ask the kernel, then the launcher's own record."""
        code, dumped = self._kernel_memory()
        if code is None:
            code = getattr(self.keep, "returncode", None) or None  # Popen says 0 when it lost the status
        self._mark(code)
        return Exit(code=code, core_dumped=dumped)

    def _ask_parent(self, told_code: Callable[[], int | None]) -> Exit | None:
        try:
            code = told_code()
        except EOFError:  # its parent died: whoever inherited it may be we, or the kernel may still know
            return self._reap_own()
        if code is None:
            return None
        self._mark(code)
        return Exit(code=code)

    def _kernel_memory(self) -> tuple[int | None, bool]:
        """Return (exit code, core dumped) of a process that is reaped, where the kernel remembers (Linux 6.15)."""
        info = bytearray(64)
        struct.pack_into("Q", info, 0, _PIDFD_INFO_EXIT)
        try:
            fcntl.ioctl(self._fd, _PIDFD_GET_INFO, info)
        except OSError:
            return None, False
        (mask,) = struct.unpack_from("Q", info, 0)
        if not mask & _PIDFD_INFO_EXIT:
            return None, False
        (status,) = struct.unpack_from("i", info, 60)
        return os.waitstatus_to_exitcode(status), os.WCOREDUMP(status)

    def signal_group(self, sig: signal.Signals) -> bool:
        """Signal the process's group, also after its leader was reaped; tell whether anybody was there."""
        if self._fd < 0:
            return False
        if capability.GROUP_BY_PIDFD:
            return self._send(sig, capability.PIDFD_SIGNAL_PROCESS_GROUP) or self._send(sig, 0)
        if self._reaped:  # the number may be a stranger's by now
            return False
        try:
            os.killpg(self.pid, sig)
        except ProcessLookupError:  # it does not lead its group yet
            return self._send(sig, 0)
        except PermissionError:
            return False
        return True

    def _send(self, sig: int, flags: int) -> bool:
        try:
            signal.pidfd_send_signal(self._fd, sig, None, flags)
        except OSError as error:
            if error.errno in (errno.ESRCH, errno.EPERM):
                return False
            raise
        return True

    def group_alive(self) -> bool:
        """Whether anything, be it a zombie, is in the group of a process that was reaped."""
        if self._fd < 0 or not capability.GROUP_BY_PIDFD:
            return False
        try:
            signal.pidfd_send_signal(self._fd, 0, None, capability.PIDFD_SIGNAL_PROCESS_GROUP)
        except OSError as error:
            return error.errno == errno.EPERM
        return True

    def kernel_state(self) -> str:
        """The state letter of /proc, such as D or t; "?" where it cannot be read."""
        try:
            with open(f"/proc/{self.pid}/stat", encoding="ascii", errors="replace") as file:
                return file.read().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return "?"

    def close(self) -> None:
        """Let the descriptor go; unwatch it first. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
