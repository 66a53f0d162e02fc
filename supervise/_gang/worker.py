"""A Worker actor: one rank, one process."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from supervise import messages as say
from supervise._core import steps
from supervise._gang import orders
from supervise._gang.error_files import recorded_ns
from supervise._process import platform
from supervise._process.launch import return_value
from supervise._process.launch.program import UnreapedError
from supervise._process.lifeline import lifeline
from supervise._runtime.actor import LoopActor
from supervise._runtime.future import Reply

if TYPE_CHECKING:
    import pykka

    from supervise._process.containment.groups import Member
    from supervise._process.exits.handle import Exit, Process
    from supervise._process.exits.slots import ExitSlots
    from supervise._process.launch.function import Launched
    from supervise._runtime.loop import Loop, Timer

_FIRST_RETRY_S, _LAST_RETRY_S = 0.01, 1.0
_LOOK_S = 0.05
_SERVER_PATIENCE_S = 5.0
"""How long a fork server may keep to itself how a process has ended."""
_REAP_S = 5.0
"""How long the report of a failed start waits until the killed process is reaped."""
_STOPS = frozenset({signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})


class Launcher(Protocol):
    """What starts one rank's process. The fakes of `supervise.testing` are others."""

    def launch(self) -> Launched:
        """Start the process without waiting for it.

        Raises:
            UnreapedError: The process was started and killed, and is to be reaped.
            Exception: Nothing of the process is left.
        """


class Worker(LoopActor):
    """Launches one rank, notices its exit at once, reaps it, and signals its group.

    Tells its Supervisor `WorkerStarted` or `WorkerFailedToStart`, and after a start exactly one
    `WorkerExited` (or `WorkerUnkillable`, where even SIGKILL did not end it in time).
    """

    def __init__(
        self,
        loop: Loop,
        *,
        local_rank: int,
        launcher: Launcher,
        owner: pykka.ActorRef[Any],
        slots: ExitSlots,
        log_paths: tuple[str, ...] = (),
        error_file: str = "",
    ) -> None:
        """Make a Worker whose process is not started yet.

        Args:
            loop: The gang's.
            local_rank: Which rank it is.
            launcher: Starts its process.
            owner: Its Supervisor.
            slots: Where its process is listed while it lives.
            log_paths: Files that the rank writes.
            error_file: Where the rank records an exception; "" is nowhere.
        """
        super().__init__(loop)
        self._rank = local_rank
        self._launcher = launcher
        self._owner = owner
        self._slots = slots
        self._log_paths = log_paths
        self._error_file = error_file
        self._launched: Launched | None = None
        self._process: Process | None = None
        self._outcome: return_value.OutcomeFile | None = None
        self._pid = 0
        self._read_end = -1
        self._watched: set[int] = set()
        self._retry_s = _FIRST_RETRY_S
        self._ended_ns: int | None = None
        self._members: list[Member] = []
        """Of the reaped leader's group, while they are waited for."""
        self._stop_sent: signal.Signals | None = None
        self._last_sent: signal.Signals | None = None
        self._patience: Timer | None = None
        self._reaped = False
        self._signaled = False
        self._stop_replies: list[Reply[None]] = []

    # Messages

    def on_receive(self, message: Any) -> None:
        """Do what the Supervisor says."""
        match message:
            case orders.Launch():
                self._launch()
            case orders.Deliver():
                self._deliver(message.sig)
                if message.wake:
                    self._deliver(signal.SIGCONT)
            case orders.Leave():
                self.leave()
            case orders.LookForStop():
                self._look_for_stop()
            case orders.ReportStuck():
                self._report_stuck()
            case _:
                super().on_receive(message)

    def on_stop_request(self) -> Reply[None]:
        """A stranger cannot stop a Worker from under its Supervisor: the whole gang is closed instead."""
        self._owner.tell(orders.MemberStopRequested())
        reply: Reply[None] = Reply()
        self._stop_replies.append(reply)
        return reply

    def on_stop(self) -> None:
        """Give everything back. The Supervisor has seen to it that nothing of the process is left."""
        self._let_go()
        for reply in self._stop_replies:
            reply.set(None)

    def on_crash(self, error: BaseException) -> None:
        """Have the gang killed: this rank is not supervised any more."""
        self._owner.tell(orders.ActorDown(who=f"the worker of rank {self._rank}", error=error))

    # Start

    def _launch(self) -> None:
        try:
            launched = self._launcher.launch()
        except UnreapedError as unreaped:
            self._fail_once_reaped(unreaped, time.monotonic() + _REAP_S)
            return
        except Exception as error:
            self._owner.tell(steps.WorkerFailedToStart(local_rank=self._rank, error=error))
            return
        self._launched, self._outcome, self._read_end = launched, launched.outcome, launched.read_end
        if launched.outcome is not None:
            self._slots.outcomes[self._rank] = launched.outcome
        if launched.process is not None:
            self._run(launched.process)
        elif launched.status is not None:
            self._watch(launched.status.fileno(), self._arrive)

    def _fail_once_reaped(self, unreaped: UnreapedError, deadline_s: float) -> None:
        """Report the failed start when its process is reaped. The process has no pidfd, so a timer polls."""
        if unreaped.is_reaped() or time.monotonic() >= deadline_s:
            self._owner.tell(steps.WorkerFailedToStart(local_rank=self._rank, error=unreaped.error))
            return
        again = partial(self._fail_once_reaped, unreaped, deadline_s)
        self.loop.call_later(_FIRST_RETRY_S, partial(self._guarded, again))

    def _arrive(self) -> None:
        """The fork server has said something: the number of our process, or nothing any more."""
        assert self._launched is not None  # noqa: S101 - watched since
        assert self._launched.status is not None  # noqa: S101
        self._unwatch(self._launched.status.fileno())
        try:
            launched = self._launched.arrived()
        except Exception as error:
            self._launched.status.close()
            self._owner.tell(steps.WorkerFailedToStart(local_rank=self._rank, error=error))
            return
        if launched is None or launched.process is None:
            self._watch(self._launched.status.fileno(), self._arrive)
            return
        self._launched = launched
        self._run(launched.process)

    def _run(self, process: Process) -> None:
        self._process, self._pid = process, process.pid
        self._slots.processes[self._rank] = process
        status = self._launched.status if self._launched is not None else None
        if process.fileno() >= 0:
            self._watch(process.fileno(), self._exited)
        elif status is not None:  # gone at once: the fork server has its exit code
            self._watch(status.fileno(), self._exited)
        else:  # gone at once, and reaped by somebody else
            self.loop.post(self._guarded, self._exited)
        self._owner.tell(say.WorkerStarted(local_rank=self._rank, pid=self._pid, started_ns=time.monotonic_ns()))

    # Exit

    def _exited(self) -> None:
        """The process is dead: reap it if that is possible now."""
        assert self._process is not None  # noqa: S101
        if self._ended_ns is None:
            self._ended_ns = self._process.noticed_ns or time.monotonic_ns()
        ended = self._process.reap()
        status = self._launched.status if self._launched is not None else None
        if ended is None and status is not None and time.monotonic_ns() - self._ended_ns >= _SERVER_PATIENCE_S * 1e9:
            ended = self._process.give_up()
        if ended is not None:
            self._report_exit(ended, self._ended_ns)
            return
        self._unwatch_all()
        if status is not None and status.fileno() >= 0 and self._retry_s == _FIRST_RETRY_S:
            self._retry_s *= 2  # its parent, the fork server, tells the code in a moment, or never
            self._watch(status.fileno(), self._exited)
            later = partial(self._guarded, self._exited_unless_given_up)
            self._patience = self.loop.call_later(_SERVER_PATIENCE_S, later)
            return
        # Readable but not reapable: a tracer holds it. Nobody tells when it lets go, so look again.
        self.loop.call_later(self._retry_s, partial(self._guarded, self._exited_unless_given_up))
        self._retry_s = min(self._retry_s * 2, _LAST_RETRY_S)

    def _exited_unless_given_up(self) -> None:
        if not self.actor_stopped.is_set() and not self._reaped:
            self._exited()

    def _report_exit(self, ended: Exit, ended_ns: int) -> None:
        assert self._process is not None  # noqa: S101
        self._reaped = True
        self._unwatch_all()
        if self._patience is not None:
            self._patience.cancel()
        if self._launched is not None and self._launched.status is not None:
            self._launched.status.close()
        # Closed by now, if we were given up once
        kind = self._outcome.kind() if self._outcome is not None and self._outcome.fd >= 0 else None
        group_left = self._process.group_alive()
        if group_left:
            self._stay_under_lifeline()
        else:
            self._let_go()
        self._owner.tell(
            say.WorkerExited(
                local_rank=self._rank,
                pid=self._pid,
                exitcode=ended.code,
                ended_ns=ended_ns,
                core_dumped=ended.core_dumped,
                error_ns=recorded_ns(self._error_file),
                complaint=_complaint(ended.code, kind),
                has_value=kind in ("value", "None") and ended.code == 0,
                log_bytes={path: size for path in self._log_paths if (size := _size(path)) is not None},
                max_rss_bytes=ended.max_rss_bytes,
                cpu_time_s=ended.cpu_time_s,
                group_left=group_left,
                oom_kill=ended.oom_kill,
            )
        )
        # They were signalled with their leader, and may be gone already; or nobody but we knows who they are.
        if group_left and (self._signaled or self._process.holds_members):
            self._watch_group()

    # Signals

    def _deliver(self, sig: signal.Signals) -> None:
        if self._process is None:
            return
        self._signaled = True
        if sig != signal.SIGCONT:
            self._last_sent = sig
        if sig in _STOPS:
            self._stop_sent = sig
        elif sig == signal.SIGCONT:
            self._stop_sent = None
        self._process.signal_group(sig)
        if self._reaped:
            self._unwatch_members()
            self._watch_group()

    def _watch_group(self) -> None:
        """Wait for what the reaped leader left behind: each member by its pidfd, then look again."""
        if self._process is None or self._members:
            return
        try:
            if self._process.group_alive():
                self._members = self._process.members()
        except OSError:  # too few descriptors to find out: look again
            self.loop.call_later(_LOOK_S, partial(self._guarded, self._signal_again))
            return
        if not self._members:
            self._let_go()
            self._owner.tell(steps.GroupEmptied(local_rank=self._rank))
            return
        if not platform.PIDFD:
            again = partial(self._guarded, partial(self._look_at_group_again, self._members))
            self.loop.call_later(_LOOK_S, again)
            return
        for member in self._members:
            self._watch(member.fileno(), partial(self._member_gone, member))

    def _signal_again(self) -> None:
        """Who could not be found may not have heard the last signal, where it goes to each member by itself."""
        if self._process is not None and self._last_sent is not None and not platform.GROUP_BY_PIDFD:
            self._process.signal_group(self._last_sent)
        self._watch_group()

    def _look_at_group_again(self, members: list[Member]) -> None:
        """The named fallback where there is no pidfd: nobody tells when a process that is not our child ends."""
        if members is self._members:  # otherwise a later look is due
            self._members = []
            self._watch_group()

    def _member_gone(self, member: Member) -> None:
        self._unwatch(member.fileno())
        self._members.remove(member)
        member.close()
        self._watch_group()

    def _unwatch_members(self) -> None:
        for member in self._members:
            self._unwatch(member.fileno())
        self._members = []

    def _look_for_stop(self) -> None:
        """Tell of a stop once; not of one that we were asked for."""
        if self._process is None or self._ended_ns is not None:
            return
        sig = self._process.stopped_by()
        if sig is not None and sig != self._stop_sent:
            self._owner.tell(say.WorkerStopped(local_rank=self._rank, pid=self._pid, sig=sig))

    def _report_stuck(self) -> None:
        """SIGKILL has had its time: say what the kernel says."""
        if self._process is not None:
            state = self._process.kernel_state()
            self._owner.tell(steps.WorkerUnkillable(local_rank=self._rank, pid=self._pid, state=state))

    # Descriptors

    def _watch(self, fd: int, callback: Any) -> None:
        self._watched.add(fd)
        self.loop.watch(fd, lambda: self._guarded(callback))

    def _guarded(self, callback: Any) -> None:
        try:
            callback()
        except BaseException as error:
            self._unwatch_all()
            self.on_crash(error)

    def _unwatch(self, fd: int) -> None:
        self._watched.discard(fd)
        self.loop.unwatch(fd)

    def _unwatch_all(self) -> None:
        for fd in list(self._watched):
            self._unwatch(fd)

    def _let_go(self) -> None:
        self._unwatch_all()
        self._members = []
        self._slots.processes.pop(self._rank, None)
        if self._launched is not None and self._launched.status is not None:
            self._launched.status.close()
        lifeline.release(self._read_end)
        self._read_end = -1
        if self._process is not None:
            self._process.close()
            self._process = None

    def _stay_under_lifeline(self) -> None:
        """Others are left in the group of the reaped process."""
        line = self._launched.line if self._launched is not None else None
        if line is not None:
            self._read_end = line.leader_reaped(self._pid, self._read_end)


def _complaint(code: int | None, kind: str | None) -> str | None:
    """Say what is wrong beside the exit code; None where that is all there is to say."""
    if code is None:
        return "exit status lost: another part of this program reaped the process"
    if kind == "closed":
        return return_value.CHANNEL_CLOSED
    if code == 0 and kind == "absent":
        return "exited with code 0 without a return value (os._exit, or a crash in a C library)"
    return None


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None
