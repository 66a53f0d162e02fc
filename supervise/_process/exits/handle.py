"""Interfaces of the host's handle of a worker process and of its exit notice, and the exit notice by pidfd."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from supervise._process import platform
from supervise._process.containment.groups import readable
from supervise._process.exits.status import remembered

if TYPE_CHECKING:
    from supervise._process.containment.groups import Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a process ended."""

    code: int | None
    """0 to 255, ``-N`` for signal N, None if the status is lost."""
    core_dumped: bool = False
    max_rss_bytes: int | None = None
    cpu_time_s: float | None = None
    oom_kill: bool = False
    """Whether the kernel's OOM killer has probably killed the process."""


class Process(Protocol):
    """Handle of a started process that leads its own session: exit notice, status and group.

    No method blocks. The implementations are `child.Child` and `forkserver.ForkServerChild`.
    """

    pid: int

    @property
    def noticed_ns(self) -> int | None:
        """Monotonic time at which a waiting thread noticed the exit; None if there is no such thread."""

    @property
    def holds_members(self) -> bool:
        """Whether only this handle knows the members of the group, so that the Worker must watch them."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable at the exit; -1 if the process was reaped before the open."""

    def ring_if_dead(self) -> None:
        """Make the descriptor readable now if the process is dead: without pidfds, the exit thread may run late."""

    def reap(self) -> Exit | None:
        """Reap the process if it is dead; None if it runs or a tracer holds it. Idempotent."""

    def give_up(self) -> Exit | None:
        """Return the exit without the report of the parent of the process; None if the parent may still report it."""

    def signal_group(self, sig: signal.Signals) -> bool:
        """Signal the group, also after its leader was reaped; return whether a process received the signal."""

    def group_alive(self) -> bool:
        """Return whether the group of a reaped leader has members; the handle may hold them from now on."""

    def members(self) -> list[Member]:
        """Return the live members of the group of a reaped process.

        Raises:
            OSError: There are too few descriptors to find out.
        """

    def stopped_by(self) -> signal.Signals | None:
        """Return the signal that has suspended the process, once for each time; None if there is nothing new."""

    def kernel_state(self) -> str:
        """Return the state letter of /proc, such as D or t; "?" if it cannot be read."""

    def close(self) -> None:
        """Close the descriptors. The caller unwatches them first. Idempotent."""


class ExitNotice(Protocol):
    """A descriptor that becomes readable at the exit of a process, and the system calls through it."""

    @property
    def dead(self) -> bool:
        """Whether the exit was noticed."""

    @property
    def at_ns(self) -> int | None:
        """Monotonic time at which a waiting thread noticed the exit; None if there is no such thread."""

    @property
    def found(self) -> os.waitid_result | None:
        """The status that a waiting thread saw before other code reaped the process; None if there is none."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable at the exit; -1 after `close`."""

    def look(self) -> None:
        """Make the descriptor readable now if the process is dead."""

    def peek(self) -> os.waitid_result | None:
        """Return the status of a child of the host without reaping it; None if it runs or a tracer holds it.

        Raises:
            ChildProcessError: The child is reaped already.
        """

    def stop(self) -> os.waitid_result | None:
        """Return how a child of the host was suspended, once for each time; None if there is nothing new.

        Raises:
            OSError: The child is reaped.
        """

    def send(self, sig: int, flags: int) -> None:
        """Signal the process.

        Raises:
            OSError: The process is gone, or this process has no permission.
        """

    def lost_status(self) -> tuple[int | None, bool]:
        """Return exit code and core dump of a process that other code has reaped; (None, False) if unknown."""

    def is_being_reaped(self) -> bool:
        """Whether other code is reaping: the kernel releases the process microseconds before it keeps the status."""

    def close(self) -> None:
        """Close the descriptor. Idempotent."""


class Pidfd:
    """The exit notice of a kernel that has pidfds: it needs no thread."""

    at_ns: int | None = None
    found: os.waitid_result | None = None

    def __init__(self, pidfd: int) -> None:
        """Take over a pidfd; -1 if the process was reaped before the open."""
        self._fd = pidfd

    @property
    def dead(self) -> bool:
        """Whether the pidfd is readable."""
        return readable(self._fd)

    def fileno(self) -> int:
        """Return the pidfd."""
        return self._fd

    def look(self) -> None:
        """Do nothing: the kernel makes a pidfd readable at once."""

    def peek(self) -> os.waitid_result | None:
        """Return the status of a child without reaping it; see `ExitNotice.peek`."""
        return os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def stop(self) -> os.waitid_result | None:
        """Return how a child was suspended; see `ExitNotice.stop`."""
        return os.waitid(os.P_PIDFD, self._fd, os.WSTOPPED | os.WNOHANG)

    def send(self, sig: int, flags: int) -> None:
        """Signal the process, or with a flag its group."""
        signal.pidfd_send_signal(self._fd, sig, None, flags)

    def lost_status(self) -> tuple[int | None, bool]:
        """Return the status that the kernel keeps since Linux 6.15."""
        return remembered(self._fd)

    def is_being_reaped(self) -> bool:
        """Whether the process can still be signaled and the kernel does not keep its status yet."""
        try:
            self.send(0, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return self.lost_status()[0] is None

    def close(self) -> None:
        """Close the pidfd. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def exit_notice(pid: int, *, pidfd: int = -1, parents_word: int | None = None) -> ExitNotice:
    """Return the exit notice of a process: by pidfd, or by a thread if the kernel has no pidfds.

    Args:
        pid: An unreaped child of this process. Or, with `parents_word`, a child of another process.
        pidfd: Pidfd of the process, taken over; -1 to open one.
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
