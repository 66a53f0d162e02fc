"""The notice of an exit by pidfd, and the choice between this notice and a thread."""

from __future__ import annotations

import os
import signal
from typing import Any

from supervise import _platform as platform
from supervise._process.containment.groups import readable
from supervise._process.containment.procfs import look
from supervise._process.exits.leader import Exit, ExitNotice, GroupLeader, as_signal, remembered
from supervise._runtime.wakeup import OwnedFd


class Pidfd(OwnedFd):
    """The exit notice of a kernel that has pidfds: it needs no thread. Its descriptor is the pidfd.

    The pidfd is -1 if other code reaped the process before its descriptor was opened.
    """

    at_ns: int | None = None
    found: os.waitid_result | None = None

    @property
    def dead(self) -> bool:
        """Whether the pidfd is readable."""
        return readable(self._fd)

    def look(self) -> None:
        """Do nothing, because the kernel makes a pidfd readable at once."""

    def peek(self) -> os.waitid_result | None:
        """Return the status of a child without reaping it; see `ExitNotice.peek`."""
        return os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def stop(self) -> os.waitid_result | None:
        """Return how a child was suspended; see `ExitNotice.stop`."""
        return os.waitid(os.P_PIDFD, self._fd, os.WSTOPPED | os.WNOHANG)

    def send(self, sig: int, flags: int) -> None:
        """Signal the process; with the flag for it, the group of the process."""
        signal.pidfd_send_signal(self._fd, sig, None, flags)

    def lost_status(self) -> tuple[int | None, bool]:
        """Return exit code and core dump, which the kernel keeps since Linux 6.15."""
        return remembered(self._fd)

    def is_being_reaped(self) -> bool:
        """Return whether other code is reaping the process now.

        During the reap, the process can still be signaled, and the kernel does not keep its status yet.
        """
        try:
            self.send(0, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return self.lost_status()[0] is None


def exit_notice(pid: int, *, pidfd: int = -1, parents_word: int | None = None) -> ExitNotice:
    """Return the exit notice of a process: by pidfd, or by a thread if the kernel lacks pidfds.

    Args:
        pid: A child of this process that is not reaped. With `parents_word`: a child of another process.
        pidfd: Pidfd of the process, which the notice takes over; -1 to open one.
        parents_word: A descriptor that becomes readable when the parent has reaped the process or has exited.

    Raises:
        OSError: No descriptor is left, or no thread is available.
    """
    if not platform.PIDFD:
        from supervise._process.exits.thread import ExitThread

        return ExitThread(pid, parents_word=parents_word)
    try:
        return Pidfd(os.pidfd_open(pid) if pidfd < 0 else pidfd)
    except ProcessLookupError:  # reaped already by its parent or by other code of this program
        return Pidfd(-1)


# Handle of a child of the host


class Child(GroupLeader):
    """A process that this process has started and reaps."""

    def __init__(self, pid: int, *, keep: Any = None, execs: bool = True, pidfd: int = -1) -> None:
        """Take over a child that is not reaped yet.

        Args:
            pid: Its pid.
            keep: The `Popen` of the child, if there is one. The handle stores the exit code in the `Popen`, which
                then does not reap.
            execs: Whether the child executes a program. Until the exec, the kernel counts the host's memory as the
                child's peak.
            pidfd: Pidfd of the child, taken over; -1 to open one.

        Raises:
            OSError: No descriptor is left, or no thread is available.
        """
        super().__init__(pid, exit_notice(pid, pidfd=pidfd), execs=execs)
        self._keep = keep

    def _take_exit(self) -> Exit | None:
        return self._reap_own()

    def give_up(self) -> Exit | None:
        """Do the same as `reap`: the kernel, not another process, reports the exit of a child."""
        return self.reap()

    def stopped_by(self) -> signal.Signals | None:
        """Return the signal that has suspended the child, once per suspension; None if there is no new suspension."""
        try:
            found = self._notice.stop()
        except OSError:  # reaped by other code of this program
            return None
        return None if found is None else as_signal(found.si_status)

    def _mark(self, code: int | None) -> None:
        """Store the exit code in the `Popen`, so that it never waits for the pid, which may be reused."""
        super()._mark(code)
        if getattr(self._keep, "returncode", 0) is None:
            self._keep.returncode = code if code is not None else 0

    def _is_being_reaped(self) -> bool:
        return self._notice.is_being_reaped()

    def _code_of_launcher(self) -> int | None:
        return getattr(self._keep, "returncode", None) or None  # Popen has 0 if it lost the status

    def _holds_number(self) -> bool:
        if self._reaped:
            return False
        try:
            self._peek()
        except ChildProcessError:
            return False
        return True

    def _knows_members(self) -> bool:
        return self._reaped

    def _number_is_anothers(self) -> bool:
        """Whether a new process has the pid. Only for a child that is reaped."""
        return look(self.pid) is not None
