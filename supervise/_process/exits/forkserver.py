"""Handle of a child of the fork server, which reaps the child and reports the exit code."""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING

from supervise import _platform as platform
from supervise._process.containment.procfs import look, reading
from supervise._process.exits import oom
from supervise._process.exits.leader import Exit, Process, as_signal, exit_notice

if TYPE_CHECKING:
    from supervise._process.launch.fork_server import ServerStatus


class ForkServerChild(Process):
    """A process that the fork server has forked."""

    def __init__(self, pid: int, parent: ServerStatus) -> None:
        """Take over a process.

        Args:
            pid: Its pid.
            parent: The reports of the fork server, which has reported the pid.

        Raises:
            OSError: No descriptor is left, or no thread is available.
        """
        self._parent = parent
        self._stopped = False
        seen = None if platform.GROUP_BY_PIDFD else look(pid)
        self._started = 0.0 if seen is None else seen.started
        super().__init__(pid, exit_notice(pid, parents_word=parent.fileno()), execs=True)

    def _take_exit(self) -> Exit | None:
        try:
            code = self._parent.read()
        except EOFError:  # the server died: this process may now be the parent, or the kernel may have kept the status
            return None if self._is_between_parents() else self._reap_own()
        if code is None:
            return None
        self._mark(code)
        return Exit(code=code, oom_kill=code == -signal.SIGKILL and not self._killed and oom.killed_for_memory(None))

    def give_up(self) -> Exit | None:
        """Return the exit without waiting for the server's report; None if the server may still report it.

        If there is an exit, its code is the one that the kernel still has, or else None. The host cannot always wait
        for EOF of the pipe: after a kill of the server, another process may still hold the write end.
        """
        try:
            seen = None if self._number_is_anothers() else reading(self.pid)
        except OSError:  # such as EMFILE
            return None
        if seen is not None and self._parent.is_process(seen.parent):
            return None
        if self._ended is None:
            self._ended = self._reap_own() or self._reaped_by_other(None)
        return self._ended

    def _peek(self) -> os.waitid_result | None:
        if self._notice.dead and self._number_is_anothers():
            raise ChildProcessError(errno.ECHILD, "reaped by its parent")
        return self._notice.peek()

    def _is_between_parents(self) -> bool:
        """Return whether the child runs, or is a zombie between two parents.

        A zombie's next parent is not known while its parent is exiting. True also if no descriptor is left to find out.
        """
        try:
            seen = reading(self.pid)
        except OSError:  # such as EMFILE
            return True
        if seen is None or self._number_is_anothers():
            return False
        if not seen.dead:
            return not self._notice.dead
        if seen.parent in (0, os.getpid()):
            return False
        above = look(seen.parent)
        return above is None or above.dead or self._parent.is_process(seen.parent)

    def stopped_by(self) -> signal.Signals | None:
        """Return the signal that has suspended the child, once per suspension; None if there is no new suspension.

        The state is read from /proc, because `waitid` reports only on children of the caller.
        """
        seen = look(self.pid) if self.fileno() >= 0 and not self._notice.dead else None
        before, self._stopped = self._stopped, seen is not None and seen.state == "T"
        return as_signal(seen.stop_signal) if seen is not None and self._stopped and not before else None

    def _holds_number(self) -> bool:
        try:
            seen = reading(self.pid)
        except OSError:  # such as EMFILE; the pid is in use until the server reports the reap
            return not self._reaped and not self._notice.dead
        return not self._reaped and seen is not None and seen.started == self._started and not seen.dead

    def _knows_members(self) -> bool:
        return True

    def _number_is_anothers(self) -> bool:
        seen = look(self.pid)
        return seen is not None and (self._gone_at_once or 0 < self._started != seen.started)
