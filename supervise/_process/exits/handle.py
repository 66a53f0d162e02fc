"""Interfaces: the host's handle of a process of a rank, and the notice of the exit of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import os
    import signal

    from supervise._process.containment.groups import Member


class Exit(NamedTuple):
    """How a process ended."""

    code: int | None
    """0 to 255; ``-N`` for signal N; None if the status is lost."""
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
        """Monotonic time at which a waiting thread noticed the exit; None if no thread waits."""

    @property
    def holds_members(self) -> bool:
        """Whether only this handle knows the members of the group, so that the Worker must watch them."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable at the exit.

        -1 if other code reaped the process before its descriptor was opened.
        """

    def ring_if_dead(self) -> None:
        """Make the descriptor readable now if the process is dead.

        The method is needed without pidfds, because the exit thread may run late.
        """

    def reap(self) -> Exit | None:
        """Reap the process if it is dead, and return its exit. Idempotent.

        None if the process runs, or if a tracer holds it.
        """

    def give_up(self) -> Exit | None:
        """Return the exit without waiting for the fork server's report; None if the server may still report it.

        For a child of the host, the method does the same as `reap`.
        """

    def signal_group(self, sig: signal.Signals) -> bool:
        """Signal the group, also after the reap of its leader; return whether a process received the signal."""

    def group_alive(self) -> bool:
        """Return whether the group of a reaped leader has members.

        If this needed a scan of /proc, the handle keeps the members that it found; see `holds_members`.
        """

    def members(self, *, since_s: float | None = None) -> list[Member]:
        """Return the live members of the group of a reaped process.

        Args:
            since_s: A monotonic time. The last scan is reused if it began after this time. None: scan now.

        Raises:
            OSError: There are too few descriptors to find out.
        """

    def stopped_by(self) -> signal.Signals | None:
        """Return the signal that has suspended the process, once per suspension; None if there is no new suspension."""

    def kernel_state(self) -> str:
        """Return the state letter of /proc, such as D or t; "?" if it cannot be read."""

    def survivor(self) -> tuple[int, str] | None:
        """Return pid and state of a process that is left: the leader, or a member of its group; None if none is.

        Reaps a dead leader; `reap` returns its exit.
        """

    def close(self) -> None:
        """Close the descriptors, which the caller has unwatched before. Idempotent."""


class ExitNotice(Protocol):
    """Descriptor that becomes readable at the exit of a process, and the system calls that use it."""

    @property
    def dead(self) -> bool:
        """Whether the exit was noticed."""

    @property
    def at_ns(self) -> int | None:
        """Monotonic time at which a waiting thread noticed the exit; None if no thread waits."""

    @property
    def found(self) -> os.waitid_result | None:
        """Status that a waiting thread saw before other code reaped the process; None if it saw none."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable at the exit; -1 after `close`."""

    def look(self) -> None:
        """Make the descriptor readable now if the process is dead."""

    def peek(self) -> os.waitid_result | None:
        """Return the status of a child of the host without reaping it.

        None if the child runs, or if a tracer holds it.

        Raises:
            ChildProcessError: The child is reaped already.
        """

    def stop(self) -> os.waitid_result | None:
        """Return how a child of the host was suspended, once per suspension; None if there is no new suspension.

        Raises:
            OSError: The child is reaped.
        """

    def send(self, sig: int, flags: int) -> None:
        """Signal the process.

        Raises:
            OSError: The process is gone, or this process has no permission.
        """

    def lost_status(self) -> tuple[int | None, bool]:
        """Return exit code and core dump of a process that other code has reaped; (None, False) if they are unknown."""

    def is_being_reaped(self) -> bool:
        """Return whether other code is reaping the process now. Its status will be known microseconds later."""

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
