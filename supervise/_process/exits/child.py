"""Handle of a child of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervise._process.containment.procfs import look
from supervise._process.exits.leader import GroupLeader, as_signal
from supervise._process.exits.pidfd import exit_notice

if TYPE_CHECKING:
    import signal

    from supervise._process.exits.handle import Exit


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
