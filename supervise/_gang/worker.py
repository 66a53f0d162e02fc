"""The Worker actor, which owns the process of one rank."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from supervise import _platform as platform, messages as say
from supervise._blame import lost_peer
from supervise._core import steps
from supervise._files import closing, is_mark, open_regular, size_of
from supervise._gang.asks import ActorDown, MemberStopRequested
from supervise._process import lifeline
from supervise._process.containment.procfs import tracks_resources
from supervise._process.launch.program import Launched, Launcher, UnreapedError
from supervise._record import NamedTuple
from supervise._runtime.actor import LoopActor
from supervise._runtime.future import Reply
from supervise._runtime.loop import NO_TIMER, Loop
from supervise.recording import write_file

if TYPE_CHECKING:
    import pykka

    from supervise._process.containment.groups import Member
    from supervise._process.exits.leader import Exit, ExitSlots, Process
    from supervise._process.launch.fork_server import ServerStatus
    from supervise._process.launch.hold import Hold
    from supervise._process.launch.return_value import OutcomeFile


# The orders of a Supervisor to a Worker


class Launch(say.Bare):
    """Start the rank's process. Supervisor -> Worker."""


class Deliver(NamedTuple):
    """Send a signal to the rank's process group, or to its own process. Supervisor -> Worker."""

    sig: signal.Signals
    group: bool
    """Whether the signal goes to the whole group."""
    wake: bool = False
    """Whether to send SIGCONT to the group after `sig`. A suspended process handles a signal only after SIGCONT."""
    since_s: float | None = None
    """Monotonic time of the request, so that one scan of the processes serves all ranks of a stop."""


class Release(say.Bare):
    """Let the rank exit, whose function has returned. Supervisor -> Worker."""


class LookForStop(say.Bare):
    """Report `WorkerStopped` if the rank's process was suspended since the last report. Supervisor -> Worker."""


class SuspendedAsAsked(NamedTuple):
    """A signal of the caller has suspended the rank's process: no event follows. Worker -> Supervisor."""

    local_rank: int


class ReportStuck(say.Bare):
    """Report `WorkerUnkillable` if a process has survived SIGKILL for the whole bounded wait. Supervisor -> Worker."""


# The time at which a rank recorded an exception


def recorded_ns(error_file: str, outcome: OutcomeFile | None, code: int | None = None) -> int | None:
    """Return the monotonic ns at which an exception has ended a rank; None if none has, or it is not recorded.

    A function tells this by its result channel, and its error file may be that of an exception that it has handled, or
    of one of its children. If the function could not write its error file, the record from the channel is written.

    Args:
        error_file: Path of the error file of the rank.
        outcome: The result channel of a function; None for a program.
        code: The exit code of the rank; None if it runs.
    """
    exists = os.access(error_file, os.F_OK)
    if outcome is not None and outcome.fd >= 0 and outcome.kind() != "closed":
        raised = outcome.raised()
        if raised is None:
            return None
        at_ns, text = raised
        if code is not None and text and error_file and not exists:
            with contextlib.suppress(OSError):
                write_file(error_file, text, at_ns + _epoch_ns())
        return at_ns
    if not exists:
        return None
    try:
        found = os.lstat(error_file)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode) or not (found.st_size or is_mark(found)):
        return None
    return found.st_mtime_ns - _epoch_ns()


_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)")
_RECORD = re.compile(rb'\s*\{"message": \{"message": "((?:[^"\\]|\\.){0,2000})')


def message_of(error_file: str) -> str:
    """Return the beginning of the recorded message; "" if it has another format."""
    try:
        with closing(open_regular(error_file)) as fd:
            found = _RECORD.match(os.read(fd, 8192))
    except OSError:
        return ""
    text = found[1].decode(errors="replace") if found is not None else ""
    return _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)) if escape[1] else " ", text)


def _epoch_ns() -> int:
    """Return the difference between wall clock and monotonic clock in ns, from the shortest of three readings."""
    readings = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(3)]
    before, wall, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return wall - (before + after) // 2


_NOT_LAUNCHED = Launched()
_FIRST_RETRY_S, _LAST_RETRY_S = 0.01, 1.0
_LOOK_S = 0.05
_SERVER_PATIENCE_S = 5.0
"""Time to wait for the fork server's report of an exit status."""
_TRACKERS_S = 0.5
"""Time that resource trackers have at a SIGKILL to unlink what the other processes of the group have left."""
_REAP_S = 5.0
"""Time for which the report of a failed start waits until the killed process is reaped."""
_STOPS = frozenset({signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})


class Worker(LoopActor):
    """Actor that launches one rank, reaps it as soon as it exits, and signals it or its process group.

    A Worker sends its Supervisor `WorkerStarted` or `WorkerFailedToStart`. After a start, it sends exactly one
    `WorkerExited`; or `WorkerUnkillable`, if the process survived SIGKILL for the bounded wait.
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
        attempt: int = 0,
    ) -> None:
        """Make a Worker whose process is not started yet.

        Args:
            loop: The gang's loop.
            local_rank: The rank's number.
            launcher: The launcher of its process.
            owner: The Supervisor.
            slots: The exit slots, which have the process while it is alive.
            log_paths: The rank's log files.
            error_file: Path of the rank's error file; "" for none.
            attempt: Number of the rank's life.
        """
        super().__init__(loop)
        self._rank = local_rank
        self._launcher = launcher
        self._owner = owner
        self._slots = slots
        self._log_paths = log_paths
        self._error_file = error_file
        self._attempt = attempt
        self._launched = _NOT_LAUNCHED
        self._process: Process | None = None
        self._pid = self._launch_ns = 0
        self._read_end = -1
        self._watched: set[int] = set()
        self._retry_s = _FIRST_RETRY_S
        self._ended_ns: int | None = None
        self._members: list[Member] = []
        """Members of the reaped leader's group for whose end the Worker waits."""
        self._list_since_s: float | None = None
        """Monotonic time from which on a listing of the group is pending; None if no listing is pending."""
        self._stop_sent: signal.Signals | None = None
        self._last_sent: signal.Signals | None = None
        self._sparing = NO_TIMER
        """The timer until which SIGKILL spares the resource trackers of the group."""
        self._reaped = False
        self._signaled = False
        self._stop_replies: list[Reply[None]] = []

    # Messages

    def on_receive(self, message: Any) -> None:
        """Carry out an order of the Supervisor."""
        match message:
            case Launch():
                self._launch()
            case Deliver():
                self._deliver(message.sig, group=message.group, since_s=message.since_s)
                if message.wake and self._process is not None:  # after the stop's signal, nothing holds the rank
                    self._stop_sent = None
                    self._process.signal_group(signal.SIGCONT)
                    if self._launched.outcome is not None:
                        self._release()
            case Release():
                self._release()
            case LookForStop():
                self._look_for_stop()
            case ReportStuck():
                self._report_stuck()
            case _:
                super().on_receive(message)

    def on_stop_request(self) -> Reply[None]:
        """Request the close of the whole gang, because other code must not stop a single Worker."""
        self._owner.tell(MemberStopRequested())
        reply: Reply[None] = Reply()
        self._stop_replies.append(reply)
        return reply

    def on_stop(self) -> None:
        """Release resources. The Supervisor stops a Worker only when its processes have ended."""
        if self._process is not None or not self._reaped:  # otherwise it has let go of all
            self._let_go()
        for reply in self._stop_replies:
            reply.set(None)

    def on_crash(self, error: BaseException) -> None:
        """Report the crash. The Supervisor then kills the gang."""
        self._owner.tell(ActorDown(who=f"the worker of rank {self._rank}", error=error))

    # Start

    def _launch(self) -> None:
        self._launch_ns = time.monotonic_ns()
        try:
            launched = self._launcher()
        except UnreapedError as unreaped:
            self._fail_once_reaped(unreaped, time.monotonic() + _REAP_S)
            return
        except Exception as error:
            self._failed_to_start(error)
            return
        self._launched, self._read_end = launched, launched.read_end
        if launched.outcome is not None:
            self._slots.outcomes[self._rank] = launched.outcome
        if launched.process is not None:
            self._run(launched.process)
        elif launched.status is not None:
            self._watch(launched.status.fileno(), partial(self._arrive, launched.status))

    def _fail_once_reaped(self, unreaped: UnreapedError, deadline_s: float) -> None:
        """Report the failed start when its process is reaped. A timer polls, because the process has no pidfd."""
        if unreaped.is_reaped() or time.monotonic() >= deadline_s:
            self._failed_to_start(unreaped.error)
            return
        again = partial(self._fail_once_reaped, unreaped, deadline_s)
        self.loop.call_later(_FIRST_RETRY_S, partial(self._guarded, again))

    def _failed_to_start(self, error: Exception) -> None:
        if isinstance(error, OSError) and error.strerror:
            error.strerror = platform.why_refused(error.errno or 0, error.strerror)
        self._owner.tell(steps.WorkerFailedToStart(self._rank, error, at_ns=time.monotonic_ns()))

    def _arrive(self, status: ServerStatus) -> None:
        """Read the fork server's reply. It is the pid of the process, or EOF."""
        self._unwatch(status.fileno())
        try:
            launched = self._launched.arrived()
        except Exception as error:
            status.close()
            self._failed_to_start(error)
            return
        if launched is None or launched.process is None:
            self._watch(status.fileno(), partial(self._arrive, status))
            return
        self._launched = launched
        self._run(launched.process)

    def _run(self, process: Process) -> None:
        self._process, self._pid = process, process.pid
        self._slots.processes[self._rank] = process
        status = self._launched.status
        if (fd := process.fileno()) >= 0:
            self._watch(fd, self._exited)
        elif status is not None:  # the process is already dead, and the fork server has its exit code
            self._watch(status.fileno(), self._exited)
        else:  # the process is already dead, and other code of the host has reaped it
            self.loop.post(self._guarded, self._exited)
        if (hold := self._hold) is not None:
            self._watch(hold.fileno(), partial(self._returned, hold))
        self._owner.tell(
            say.WorkerStarted(local_rank=self._rank, pid=self._pid, started_ns=self._launch_ns, attempt=self._attempt)
        )

    # Hold

    @property
    def _hold(self) -> Hold | None:
        """The hold of the rank, as long as its result channel is open."""
        outcome = self._launched.outcome
        return outcome.hold if outcome is not None and outcome.fd >= 0 else None

    def _returned(self, hold: Hold) -> None:
        self._unwatch(hold.fileno())
        if hold.has_returned():
            self._owner.tell(steps.RankReturned(local_rank=self._rank))

    def _release(self) -> None:
        if (hold := self._hold) is not None:
            hold.release()

    # Exit

    def _exited(self) -> None:
        """Try to reap the process, which is dead."""
        assert self._process is not None  # noqa: S101
        if self._ended_ns is None:
            self._ended_ns = self._process.noticed_ns or time.monotonic_ns()
        ended = self._process.reap()
        status = self._launched.status
        if ended is None and status is not None and time.monotonic_ns() - self._ended_ns >= _SERVER_PATIENCE_S * 1e9:
            ended = self._process.give_up()
        if ended is not None:
            self._report_exit(ended, self._ended_ns)
            return
        self._unwatch_all()
        if status is not None and status.fileno() >= 0 and self._retry_s == _FIRST_RETRY_S:
            self._retry_s *= 2  # the fork server, the parent of the process, reports the code soon or never
            self._watch(status.fileno(), self._exited)
            self.loop.call_later(_SERVER_PATIENCE_S, partial(self._guarded, self._exited_unless_given_up))
            return
        # The pidfd is readable, but a tracer delays the reap. The kernel does not report the tracer's detach, so poll.
        self.loop.call_later(self._retry_s, partial(self._guarded, self._exited_unless_given_up))
        self._retry_s = min(self._retry_s * 2, _LAST_RETRY_S)

    def _exited_unless_given_up(self) -> None:
        if not self.actor_stopped.is_set() and not self._reaped:
            self._exited()

    def _report_exit(self, ended: Exit, ended_ns: int) -> None:
        assert self._process is not None  # noqa: S101
        self._reaped = True
        # The channel is already closed if this rank was reported as unkillable before
        outcome = self._launched.outcome
        kind = outcome.kind() if outcome is not None and outcome.fd >= 0 else None
        has_value, complaint = kind in ("value", "None"), None
        if ended.code is None:
            complaint = "exit status lost: another part of this program reaped the process"
        elif kind is not None:  # a function
            from supervise._process.launch.return_value import complaint as of_function  # loaded with the launcher

            complaint = of_function(ended.code, kind)
        group_left = self._process.group_alive()
        if group_left:
            self._unwatch_all()
            self._stay_under_lifeline()
        else:
            self._let_go()
        told = outcome is not None or os.access(self._error_file, os.F_OK)  # most programs record no exception
        error_ns = recorded_ns(self._error_file, outcome, ended.code) if told else None
        self._owner.tell(
            say.WorkerExited(
                local_rank=self._rank,
                pid=self._pid,
                exitcode=ended.code,
                ended_ns=ended_ns,
                core_dumped=ended.core_dumped,
                error_ns=error_ns,
                lost_peer=error_ns is not None and lost_peer(message_of(self._error_file)),
                complaint=complaint,
                has_value=has_value,
                lingered=outcome.note() if outcome is not None and has_value and ended.code else "",
                log_bytes={path: size for path in self._log_paths if (size := size_of(path)) is not None},
                max_rss_bytes=ended.max_rss_bytes,
                cpu_time_s=ended.cpu_time_s,
                group_left=group_left,
                oom_kill=ended.oom_kill,
                attempt=self._attempt,
            )
        )
        if group_left and self._sparing.pending:
            self._spare_trackers()  # again, because the end of a large process may have taken all of the time
        # Watch members that have been signaled, since they may end, and members that only `_process` can identify.
        if group_left and (self._signaled or self._process.holds_members):
            self._watch_group()

    # Signals

    def _deliver(self, sig: signal.Signals, *, group: bool, since_s: float | None = None) -> None:
        if self._process is None:
            return
        if sig in _STOPS:
            self._stop_sent = sig
        elif sig == signal.SIGCONT:
            self._stop_sent = None
        if not group:
            self._process.signal_process(sig)
            return
        self._signaled = True
        if sig != signal.SIGCONT:
            self._last_sent = sig
        if sig != signal.SIGKILL:
            self._process.signal_group(sig, since_s=since_s)
        elif not self._sparing.pending:
            self._spare_trackers()
            self._process.signal_process(sig)  # without effect once it is reaped
        if self._reaped:
            self._unwatch_members()
            self._watch_group()  # while trackers are spared, it also kills the members

    def _spare_trackers(self) -> None:
        """Spare the resource trackers of the group from now on, for at most `_TRACKERS_S`."""
        self._sparing.cancel()
        self._sparing = self.loop.call_later(_TRACKERS_S, partial(self._guarded, self._kill_group))

    def _kill_group(self) -> None:
        self._sparing.cancel()
        if self._process is not None:
            self._process.signal_group(signal.SIGKILL)

    def _kill_members(self) -> None:
        """Kill the members of the reaped leader's group, but spare resource trackers, which are about to end.

        A resource tracker of multiprocessing unlinks the shared memory of its clients when all of them have ended. If
        SIGKILL ended it with them, the memory would stay in use until the machine restarts.
        """
        others = [member for member in self._members if not tracks_resources(member.pid)]
        if len(others) == len(self._members):
            self._kill_group()
        for member in others:
            member.send(signal.SIGKILL)

    def _watch_group(self) -> None:
        """List the group of the reaped leader, but only after the exits that are ready now.

        So one scan serves the groups of all these exits.
        """
        if self._list_since_s is None:
            self._list_since_s = time.monotonic()
            self.loop.call_later(0, partial(self._guarded, self._list_group))

    def _list_group(self) -> None:
        """Watch the pidfd of each process in the group. After the ends of these processes, list the group again."""
        since_s, self._list_since_s = self._list_since_s, None
        if self._process is None or self._members:
            return
        try:
            if self._process.group_alive():
                self._members = self._process.members(since_s=since_s)
        except OSError:  # such as EMFILE: retry later
            self.loop.call_later(_LOOK_S, partial(self._guarded, self._signal_again))
            return
        if not self._members:
            self._let_go()
            self._owner.tell(steps.GroupEmptied(local_rank=self._rank))
            return
        if self._sparing.pending:
            self._kill_members()
        if not platform.PIDFD:
            again = partial(self._guarded, partial(self._look_at_group_again, self._members))
            self.loop.call_later(_LOOK_S, again)
            return
        for member in self._members:
            self._watch(member.fileno(), partial(self._member_gone, member))

    def _signal_again(self) -> None:
        """Send the last signal again if it goes to each member separately. A failed scan may have missed members."""
        if self._process is not None and self._last_sent is not None and not platform.GROUP_BY_PIDFD:
            self._process.signal_group(self._last_sent)
        self._watch_group()

    def _look_at_group_again(self, members: list[Member]) -> None:
        """Poll the group. This is the fallback without pidfd, because the kernel reports only the end of children."""
        if members is self._members:  # otherwise a later poll is pending
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
        """Report a suspension: `SuspendedAsAsked` if a signal of the caller has caused it."""
        if self._process is None or self._ended_ns is not None:
            return
        sig = self._process.stopped_by()
        if sig is None:
            return
        asked, self._stop_sent = sig == self._stop_sent, None  # another program may cause the next suspension
        said = say.WorkerStopped(local_rank=self._rank, pid=self._pid, sig=sig)
        self._owner.tell(SuspendedAsAsked(self._rank) if asked else said)

    def _report_stuck(self) -> None:
        """Report a process that survived SIGKILL. None has if the loop could not run before the deadline."""
        if self._process is None:
            return
        if self._sparing.pending:  # the loop could not run since the SIGKILL
            self._kill_group()
            self.loop.call_later(_TRACKERS_S, partial(self._guarded, self._report_stuck))
            return
        left = self._process.survivor()
        if left is not None:
            if (hold := self._hold) is not None:  # it is closed at the end of the gang; the exit may still come
                self._unwatch(hold.fileno())
            self._owner.tell(steps.WorkerUnkillable(local_rank=self._rank, pid=left[0], state=left[1]))
        elif not self._reaped:
            self._exited()
        else:
            self._unwatch_members()
            self._watch_group()

    # Descriptors

    def _watch(self, fd: int, callback: Any) -> None:
        self._watched.add(fd)
        self.loop.watch(fd, partial(self._guarded, callback))

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
        for fd in self._watched:
            self.loop.unwatch(fd)
        self._watched.clear()

    def _let_go(self) -> None:
        self._unwatch_all()
        self._members = []
        self._slots.processes.pop(self._rank, None)
        if self._launched.status is not None:
            self._launched.status.close()
        if self._read_end >= 0:
            lifeline.release(self._read_end)
            self._read_end = -1
        if self._process is not None:
            self._process.close()
            self._process = None

    def _stay_under_lifeline(self) -> None:
        """Keep the lifeline for members that are left in the group of the reaped process."""
        launched = self._launched
        if launched.status is not None:
            launched.status.close()
        if launched.line is not None:
            self._read_end = launched.line.leader_reaped(self._pid, self._read_end)
