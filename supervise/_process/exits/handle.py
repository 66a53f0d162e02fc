"""Interfaces: the host's handle of a process of a rank, and the notice of its exit."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import os
    import signal

    from supervise._process.containment.groups import Member


class Exit(NamedTuple):
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

    def members(self, *, since_s: float | None = None) -> list[Member]:
        """Return the live members of the group of a reaped process.

        Args:
            since_s: A monotonic time: a scan that began after it is used again. None: scan now.

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
        """Whether other code is reaping the process now, so that its status becomes available microseconds later."""

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
