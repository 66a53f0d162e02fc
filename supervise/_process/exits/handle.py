"""The interface of a worker's process as the host holds it, and of the notice of its exit; the notice by pidfd."""

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
    """Whether the kernel has killed it for want of memory."""


class Process(Protocol):
    """A started process that leads its own session: notice of its exit, its status, its group.

    No method blocks. `child.Child` and `forkserver.ForkServerChild` are the real ones.
    """

    pid: int

    @property
    def noticed_ns(self) -> int | None:
        """When a waiting thread has noticed the exit, monotonic; None if there is no such thread."""

    @property
    def holds_members(self) -> bool:
        """Whether only this handle knows the members of the group, so that they must be watched."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable at the exit; -1 if the process was gone at once."""

    def ring_if_dead(self) -> None:
        """Make the descriptor readable now if the process is dead: without pidfds, a thread may have yet to run."""

    def reap(self) -> Exit | None:
        """Reap the process if that is possible now; None: not yet (it runs, or a tracer holds it). Idempotent."""

    def give_up(self) -> Exit | None:
        """Return the exit although the parent of the process does not tell it; None: the parent may yet."""

    def signal_group(self, sig: signal.Signals) -> bool:
        """Signal the group, also after its leader was reaped; tell whether a process was there."""

    def group_alive(self) -> bool:
        """Whether the group has members although its leader was reaped; the handle holds them from now on."""

    def members(self) -> list[Member]:
        """Return the live members of the group of a reaped process. OSError: too few descriptors to find out."""

    def stopped_by(self) -> signal.Signals | None:
        """Return the signal that has stopped the process, once for each stop; None: it runs, or the stop was told."""

    def kernel_state(self) -> str:
        """Return the state letter of /proc, such as D or t; "?" if it cannot be read."""

    def close(self) -> None:
        """Close the descriptors; unwatch them first. Idempotent."""


class ExitNotice(Protocol):
    """A descriptor that tells of a process's exit, and what can be done with the process through it."""

    @property
    def dead(self) -> bool:
        """Whether the exit was noticed."""

    @property
    def at_ns(self) -> int | None:
        """When a waiting thread has noticed the exit, monotonic; None if there is no such thread."""

    @property
    def found(self) -> os.waitid_result | None:
        """The status that a waiting thread has seen before another reaper took it; None if there is none."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable at the exit; -1 after `close`."""

    def look(self) -> None:
        """Make the descriptor readable now if the process is dead."""

    def peek(self) -> os.waitid_result | None:
        """Return the status of our child without reaping it; None: it runs, or a tracer holds it.

        Raises:
            ChildProcessError: It is reaped already.
        """

    def stop(self) -> os.waitid_result | None:
        """Return how our child was stopped, once for each stop. OSError: it is gone."""

    def send(self, sig: int, flags: int) -> None:
        """Signal the process. OSError: it is gone, or may not be signaled."""

    def lost_status(self) -> tuple[int | None, bool]:
        """Return what the kernel remembers of a reaped process: exit code and core dump; (None, False): nothing."""

    def is_being_reaped(self) -> bool:
        """Whether another reaper is about to finish: the kernel tells the end some microseconds before the status."""

    def close(self) -> None:
        """Close the descriptor. Idempotent."""


class Pidfd:
    """The exit notice of a kernel that has pidfds: it needs no thread."""

    at_ns: int | None = None
    found: os.waitid_result | None = None

    def __init__(self, pidfd: int) -> None:
        """Take over a pidfd; -1 is a process that was gone before it could be opened."""
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
        """Return the status of our child without reaping it; see `ExitNotice.peek`."""
        return os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def stop(self) -> os.waitid_result | None:
        """Return how our child was stopped."""
        return os.waitid(os.P_PIDFD, self._fd, os.WSTOPPED | os.WNOHANG)

    def send(self, sig: int, flags: int) -> None:
        """Signal the process, or with a flag its group."""
        signal.pidfd_send_signal(self._fd, sig, None, flags)

    def lost_status(self) -> tuple[int | None, bool]:
        """Return what the kernel remembers, since Linux 6.15."""
        return remembered(self._fd)

    def is_being_reaped(self) -> bool:
        """Whether the process can be signaled still, and its status is not kept yet."""
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
    """Return the notice of a process's exit: by pidfd, or by a thread where there are no pidfds.

    Args:
        pid: A child of ours that is not reaped. Or, with `parents_word`, another's child.
        pidfd: Of the process, taken over; -1: it is opened here.
        parents_word: A descriptor that becomes readable when the parent has reaped the process, or is gone.

    Raises:
        OSError: There can be no descriptor for it, or no thread where that takes one.
    """
    if not platform.PIDFD:
        from supervise._process.exits.thread import ExitThread

        return ExitThread(pid, parents_word=parents_word)
    try:
        return Pidfd(os.pidfd_open(pid) if pidfd < 0 else pidfd)
    except ProcessLookupError:  # dead, and reaped already: by its parent, or by other code of this program
        return Pidfd(-1)
