"""The decisions of a gang over several hosts: a pure function of the gang's state and one event.

If one host fails in any way, the attempt ends: the other hosts are asked to stop at once. The attempt is over when none
of its ranks can run any more. The ranks of a lost host can run until the lease of the host ends. Then the policy
decides whether another attempt begins. The engine chooses the hosts again for each attempt. Restarts are counted for
the whole gang.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from supervise._core.backoff import Backoff
from supervise._printable import ending, one_line
from supervise.errors import SpawnError, SuperviseError

if TYPE_CHECKING:
    from signal import Signals

    from supervise.messages import WorkerExited
    from supervise.restarts import RestartPolicy
    from supervise.result import RunProcsResult


# The state of a gang over several hosts. Only `decide` changes it


HostState = Literal["waiting", "launching", "running", "ended", "not_started", "lost", "gone"]
"""The states of a host.

``lost``: it is dead or cannot be reached, so its ranks may run until its lease is over. ``gone``: its lease is over.
"""
Phase = Literal["new", "placing", "launching", "running", "stopping", "backoff", "finished"]
Stopping = Literal["failure", "close", "timeout"]
"""The reason why the hosts are stopped."""

OVER: frozenset[HostState] = frozenset({"ended", "not_started", "gone"})
"""The states of a host that has no running rank."""


@dataclass(slots=True)
class Host:
    """One host of the present attempt."""

    state: HostState = "waiting"
    pids: dict[int, int] = field(default_factory=dict)
    """Local rank to pid."""
    result: RunProcsResult | None = None
    error: BaseException | None = None
    """The reason why the ranks of the host could not be started."""
    started_ns: int = 0
    """Monotonic time (ns) of the driver at which it learned that all ranks run; before, that of the launch."""
    lost: str = ""
    """The reason why the host is lost."""
    lost_ns: int = 0
    """Monotonic time (ns) of the driver at which it lost the host."""
    told_to_stop: bool = False
    """Whether the host was asked to stop. Ends of ranks after that are not failures by themselves."""
    failed_first: WorkerExited | None = None
    """The end of the rank that failed first on this host, before the host was asked to stop."""


@dataclass(slots=True)
class HostsGang:
    """A gang over several hosts."""

    nnodes: int
    policy: RestartPolicy | None = None
    notifies: bool = False
    """Whether the start waits until the ranks have reported that they are ready.

    If so, a failure before that fails the first start.
    """
    phase: Phase = "new"
    epoch: int = 0
    """Number of the present attempt."""
    hosts: list[Host] = field(default_factory=list)
    causes: list[int] = field(default_factory=list)
    """The hosts that failed by themselves, in the order in which the driver learned it. The first one is the cause."""
    stopping: Stopping | None = None
    started: bool = False
    """Whether in some attempt all ranks were ready."""
    backoff: Backoff = field(default_factory=lambda: Backoff(by_count=True))
    """The restarts, by the times at which the driver learned that an attempt was over."""


# The events and the actions of the core of a gang over several hosts. Hosts are numbered from 0


@dataclass(frozen=True, slots=True)
class _OfAttempt:
    """An event or an action of one attempt. The core drops events of earlier attempts."""

    epoch: int
    """Number of the attempt."""


@dataclass(frozen=True, slots=True)
class _OfHost(_OfAttempt):
    """An event or an action of one host in one attempt."""

    host: int


# Events


@dataclass(frozen=True, slots=True)
class StartAsked:
    """The caller asks for the first attempt."""


@dataclass(frozen=True, slots=True)
class Placed(_OfAttempt):
    """Each host of an attempt exists and has answered."""


@dataclass(frozen=True, slots=True)
class NotPlaced(_OfAttempt):
    """The engine has no room for an attempt, or the caller's settings are not valid on a host."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class HostStarted(_OfHost):
    """All ranks of a host are ready."""

    pids: dict[int, int]
    """Local rank to pid."""


@dataclass(frozen=True, slots=True)
class HostNotStarted(_OfHost):
    """The ranks of a host could not be started. The host has reaped those of its ranks that ran."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class RankFailed(_OfHost):
    """A rank has failed. If it was the first one of its host, its host stops the other ranks."""

    end: WorkerExited


@dataclass(frozen=True, slots=True)
class HostEnded(_OfHost):
    """All ranks of a host have ended, and nothing of them is left."""

    result: RunProcsResult


@dataclass(frozen=True, slots=True)
class HostLost(_OfHost):
    """A host is dead or does not answer. Its ranks may run until its lease is over."""

    why: str


@dataclass(frozen=True, slots=True)
class LeaseOver(_OfHost):
    """The lease of a lost host is over, so none of its ranks runs."""


@dataclass(frozen=True, slots=True)
class CloseAsked:
    """The caller asks for the end of the gang."""

    sig: Signals | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class TimeUp:
    """The gang has reached its time limit."""


@dataclass(frozen=True, slots=True)
class BackoffOver(_OfAttempt):
    """The delay before the next attempt is over."""


Event = (
    StartAsked
    | Placed
    | NotPlaced
    | HostStarted
    | HostNotStarted
    | RankFailed
    | HostEnded
    | HostLost
    | LeaseOver
    | CloseAsked
    | TimeUp
    | BackoffOver
)


# Actions


@dataclass(frozen=True, slots=True)
class Place(_OfAttempt):
    """Ask the engine for the hosts of an attempt."""


@dataclass(frozen=True, slots=True)
class Launch(_OfHost):
    """Start the ranks of a host."""


@dataclass(frozen=True, slots=True)
class StopHost(_OfHost):
    """Stop the ranks of a host. Send `sig` at once (None: the gang's first signal), and SIGKILL after the grace."""

    sig: Signals | None
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class AwaitLease(_OfHost):
    """Stop the renewals of a host's lease, and report when the lease is over."""


@dataclass(frozen=True, slots=True)
class Release(_OfAttempt):
    """Give the hosts of an attempt back to the engine."""


@dataclass(frozen=True, slots=True)
class AnswerStart(_OfAttempt):
    """Answer the start, if it is not answered yet. All ranks are ready, in the first attempt or in a later one."""


@dataclass(frozen=True, slots=True)
class Restart:
    """An attempt has failed, and all its ranks have ended. The next attempt begins after the delay."""

    epoch: int
    """Number of the next attempt."""
    delay_s: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The gang has ended. `error` is set if its first start failed, or if a later attempt could not be placed."""

    error: BaseException | None = None
    host: int | None = None
    """The host whose error it is, which has local ranks; None if it is not of one host."""


Action = Place | Launch | StopHost | AwaitLease | Release | AnswerStart | Restart | Finish


def decide(gang: HostsGang, event: Event, now_ns: int) -> list[Action]:  # noqa: C901, PLR0911, PLR0912 - one case an event
    """Change the state of the gang by one event; return the actions, in order.

    Args:
        gang: The state.
        event: The event. An event of an earlier attempt has no effect.
        now_ns: Monotonic nanoseconds of the driver, for the policy.
    """
    if gang.phase == "finished" or getattr(event, "epoch", gang.epoch) != gang.epoch:
        return []
    match event:
        case StartAsked():
            return _place(gang) if gang.phase == "new" else []
        case Placed():
            return _launch(gang, now_ns) if gang.phase == "placing" else []
        case NotPlaced():
            return _finish(gang, Finish(event.error)) if gang.phase == "placing" else []
        case HostStarted():
            return _started(gang, event, now_ns)
        case HostNotStarted():
            return _not_started(gang, event, now_ns)
        case RankFailed():
            return _rank_failed(gang, event)
        case HostEnded():
            return _ended(gang, event, now_ns)
        case HostLost():
            return _lost(gang, event, now_ns)
        case LeaseOver():
            host = gang.hosts[event.host]
            if host.state == "lost":
                host.state = "gone"
            return _advance(gang, now_ns)
        case CloseAsked():
            return _stop(gang, "close", event.sig, event.timeout_s)
        case TimeUp():
            return _stop(gang, "timeout", None, None) if gang.stopping != "close" else []
        case BackoffOver():
            return _place(gang) if gang.phase == "backoff" else []


def _place(gang: HostsGang) -> list[Action]:
    gang.phase = "placing"
    gang.hosts = [Host() for _ in range(gang.nnodes)]
    gang.causes, gang.stopping = [], None
    return [Place(gang.epoch)]


def _launch(gang: HostsGang, now_ns: int) -> list[Action]:
    gang.phase = "launching"
    for host in gang.hosts:
        host.state, host.started_ns = "launching", now_ns
    return [Launch(gang.epoch, number) for number in range(gang.nnodes)]


def _started(gang: HostsGang, event: HostStarted, now_ns: int) -> list[Action]:
    host = gang.hosts[event.host]
    host.pids, host.started_ns = event.pids, now_ns
    if host.state == "launching":
        host.state = "running"
    return _answer_start(gang)


def _answer_start(gang: HostsGang) -> list[Action]:
    """Answer the start once the driver knows that all ranks have been ready. Then process the failures so far."""
    if gang.phase == "launching" and all(host.pids for host in gang.hosts):
        gang.phase, gang.started = "running", True
        heeded = _stop(gang, "failure", None, None) if gang.causes else []
        return [AnswerStart(gang.epoch), *heeded]
    return []


def _not_started(gang: HostsGang, event: HostNotStarted, now_ns: int) -> list[Action]:
    host = gang.hosts[event.host]
    if host.state in OVER:
        return []
    host.state, host.error = "not_started", event.error
    actions = [] if host.told_to_stop else _fails(gang, event.host)
    return [*actions, *_advance(gang, now_ns)]


def _rank_failed(gang: HostsGang, event: RankFailed) -> list[Action]:
    host = gang.hosts[event.host]
    if host.failed_first is None and not host.told_to_stop:
        host.failed_first = event.end
        return _fails(gang, event.host)
    return []


def _ended(gang: HostsGang, event: HostEnded, now_ns: int) -> list[Action]:
    host = gang.hosts[event.host]
    if host.state in OVER:
        return []
    host.state, host.result = "ended", event.result  # also for a host that counted as lost but has answered since then
    outcome = event.result.outcome
    ran = all(end.pid for end in event.result.ends.values())
    unready = outcome == "failed" and gang.started and (gang.notifies or not ran)  # perhaps, if ranks notify
    if not host.pids and outcome in ("succeeded", "failed") and not unready:
        # The reply to the launch is late, because the network does not keep the order of replies and news.
        host.pids = {local: end.pid for local, end in event.result.ends.items() if end.pid is not None}
    actions = _answer_start(gang)
    if outcome == "failed" or (outcome != "succeeded" and not host.told_to_stop):  # it failed by itself
        actions += _fails(gang, event.host)
    return [*actions, *_advance(gang, now_ns)]


def _lost(gang: HostsGang, event: HostLost, now_ns: int) -> list[Action]:
    host = gang.hosts[event.host]
    if host.state in OVER or host.state == "lost":
        return []
    host.state, host.lost, host.lost_ns = "lost", event.why, now_ns
    return [*_fails(gang, event.host), AwaitLease(gang.epoch, event.host)]


def _fails(gang: HostsGang, number: int) -> list[Action]:
    """Record a host as a cause. Stop the others once the replies to pending launches have arrived.

    So if a rank fails at once, the gang still counts as started and has a result, as on one host. The failure is not an
    error of the start.
    """
    if number not in gang.causes:
        gang.causes.append(number)
    launching = gang.phase == "launching" and not gang.notifies
    if gang.stopping is not None or (launching and all(host.pids or host.state == "launching" for host in gang.hosts)):
        return []
    return _stop(gang, "failure", None, None)


def _stop(gang: HostsGang, why: Stopping, sig: Signals | None, timeout_s: float | None) -> list[Action]:
    """Ask each host that may run ranks to stop. A later close may repeat this with a stronger signal."""
    if gang.phase in ("new", "placing", "backoff"):
        gang.stopping = why
        return _finish(gang)
    gang.stopping = why if gang.stopping in (None, "failure") and why != "failure" else gang.stopping or why
    gang.phase = "stopping"
    actions: list[Action] = []
    for number, host in enumerate(gang.hosts):
        if host.state in ("launching", "running"):
            host.told_to_stop = True
            actions.append(StopHost(gang.epoch, number, sig, timeout_s))
    return actions


def _advance(gang: HostsGang, now_ns: int) -> list[Action]:
    """End the attempt if none of its ranks can run any more."""
    if gang.phase in ("new", "placing", "backoff", "finished") or any(host.state not in OVER for host in gang.hosts):
        return []
    if not gang.started and gang.stopping == "failure":
        return _finish(gang, _failed_start(gang))
    delay_s = _delay_s(gang, now_ns)
    if delay_s is None:
        return _finish(gang)
    before, gang.epoch, gang.phase = gang.epoch, gang.epoch + 1, "backoff"
    return [Release(before), Restart(gang.epoch, delay_s)]


def _failed_start(gang: HostsGang) -> Finish:
    for number in gang.causes:
        host = gang.hosts[number]
        if host.error is not None:
            return Finish(host.error, number)
        if host.lost and host.failed_first is None:
            return Finish(SuperviseError(f"host {number} did not start its ranks: {host.lost}"))
    for number in gang.causes:
        host = gang.hosts[number]
        root = None if host.result is None else host.result.root_cause
        failure = None if host.result is None or root is None else host.result.failures[root]
        if (found := failure or host.failed_first) is not None:
            how = ending(found.exitcode)
            if failure is not None and isinstance(failure.message, dict):  # the exception that it has recorded
                said = str(failure.message.get("message")).partition("\n")[0]
                how = f"{how}, {one_line(said)}"
            rank, code = found.local_rank, found.exitcode
            error = SpawnError(how, local_rank=rank, exitcode=code, what="failed before all hosts had started")
            return Finish(error, number)
    return Finish(SuperviseError("the gang ended before its start was complete"))


def _delay_s(gang: HostsGang, now_ns: int) -> float | None:
    """Return the delay before the next attempt, and count the restart. None if no attempt follows."""
    policy = gang.policy
    if policy is None or gang.stopping != "failure" or not gang.causes:
        return None
    codes = [_exit_code(gang)]
    if gang.backoff.gives_up(policy, now_ns, codes):
        return None
    gang.backoff = gang.backoff.next(policy, now_ns, codes)
    return gang.backoff.delay_s


def _exit_code(gang: HostsGang) -> int | None:
    """Return the exit code of the root cause.

    None if no rank of its host has failed before the host was lost, or if the host could not start its ranks.
    """
    host = gang.hosts[gang.causes[0]]
    if host.result is None or host.result.root_cause is None:
        return None if host.failed_first is None else host.failed_first.exitcode
    return host.result.failures[host.result.root_cause].exitcode


def _finish(gang: HostsGang, end: Finish = Finish()) -> list[Action]:
    placed, gang.phase = gang.phase not in ("new", "backoff"), "finished"
    release: list[Action] = [Release(gang.epoch)] if placed else []
    return [*release, end]
