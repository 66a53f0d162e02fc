"""The decisions of a gang over several hosts: a pure function of the gang's state and one event.

If one host fails in any way, the attempt ends: the other hosts are asked to stop at once. The attempt is over when none
of its ranks can run any more. The ranks of a lost host can run until the lease of the host ends. Then the policy
decides whether another attempt begins. The engine chooses the hosts again for each attempt. Restarts are counted for
the whole gang.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise._hosts import steps
from supervise._hosts.model import OVER, Host
from supervise.errors import SuperviseError

if TYPE_CHECKING:
    from signal import Signals

    from supervise._hosts.model import HostsGang, Stopping
    from supervise.result import RunProcsResult


def decide(gang: HostsGang, event: steps.Event, now_ns: int) -> list[steps.Action]:  # noqa: C901, PLR0911, PLR0912 - one case an event
    """Change the state of the gang by one event; return the actions, in order.

    Args:
        gang: The state.
        event: The event. An event of an earlier attempt has no effect.
        now_ns: Monotonic nanoseconds of the driver, for the policy.
    """
    if gang.phase == "finished" or getattr(event, "epoch", gang.epoch) != gang.epoch:
        return []
    match event:
        case steps.StartAsked():
            return _place(gang) if gang.phase == "new" else []
        case steps.Placed():
            return _launch(gang) if gang.phase == "placing" else []
        case steps.NotPlaced():
            return _not_placed(gang, event.error) if gang.phase == "placing" else []
        case steps.HostStarted():
            return _started(gang, event)
        case steps.HostNotStarted():
            return _not_started(gang, event, now_ns)
        case steps.RankFailed():
            return _rank_failed(gang, event)
        case steps.HostEnded():
            return _ended(gang, event, now_ns)
        case steps.HostLost():
            return _lost(gang, event)
        case steps.LeaseOver():
            host = gang.hosts[event.host]
            if host.state == "lost":
                host.state = "gone"
            return _advance(gang, now_ns)
        case steps.CloseAsked():
            return _stop(gang, "close", event.sig, event.timeout_s)
        case steps.TimeUp():
            return _stop(gang, "timeout", None, None) if gang.stopping != "close" else []
        case steps.BackoffOver():
            return _place(gang) if gang.phase == "backoff" else []


def _place(gang: HostsGang) -> list[steps.Action]:
    gang.phase = "placing"
    gang.hosts = [Host() for _ in range(gang.nnodes)]
    gang.causes, gang.stopping = [], None
    return [steps.Place(gang.epoch)]


def _launch(gang: HostsGang) -> list[steps.Action]:
    gang.phase = "launching"
    for host in gang.hosts:
        host.state = "launching"
    return [steps.Launch(gang.epoch, number) for number in range(gang.nnodes)]


def _not_placed(gang: HostsGang, error: BaseException) -> list[steps.Action]:
    gang.error = error
    return _finish(gang, error)


def _started(gang: HostsGang, event: steps.HostStarted) -> list[steps.Action]:
    host = gang.hosts[event.host]
    host.pids = event.pids
    if host.state == "launching":
        host.state = "running"
    return _answer_start(gang)


def _answer_start(gang: HostsGang) -> list[steps.Action]:
    """Answer the start once the driver knows that all ranks have been ready. Then process the failures so far."""
    if gang.phase == "launching" and all(host.pids for host in gang.hosts):
        gang.phase, gang.started = "running", True
        heeded = _stop(gang, "failure", None, None) if gang.causes else []
        return [steps.AnswerStart(gang.epoch), *heeded]
    return []


def _not_started(gang: HostsGang, event: steps.HostNotStarted, now_ns: int) -> list[steps.Action]:
    host = gang.hosts[event.host]
    if host.state in OVER:
        return []
    host.state, host.error = "not_started", event.error
    actions = [] if host.told_to_stop else _fails(gang, event.host)
    return [*actions, *_advance(gang, now_ns)]


def _rank_failed(gang: HostsGang, event: steps.RankFailed) -> list[steps.Action]:
    host = gang.hosts[event.host]
    if host.failed_first is None and not host.told_to_stop:
        host.failed_first = event.local_rank
        return _fails(gang, event.host)
    return []


def _ended(gang: HostsGang, event: steps.HostEnded, now_ns: int) -> list[steps.Action]:
    host = gang.hosts[event.host]
    if host.state in OVER:
        return []
    host.state, host.result = "ended", event.result  # also for a host that counted as lost but has answered since then
    if not host.pids and event.result.outcome in ("succeeded", "failed"):
        # The reply to the launch is late, because the network does not keep the order of replies and news.
        host.pids = {local: end.pid for local, end in event.result.ends.items() if end.pid is not None}
    actions = _answer_start(gang)
    if _failed_by_itself(event.result, host):
        actions += _fails(gang, event.host)
    return [*actions, *_advance(gang, now_ns)]


def _failed_by_itself(result: RunProcsResult, host: Host) -> bool:
    return result.outcome == "failed" or (result.outcome != "succeeded" and not host.told_to_stop)


def _lost(gang: HostsGang, event: steps.HostLost) -> list[steps.Action]:
    host = gang.hosts[event.host]
    if host.state in OVER or host.state == "lost":
        return []
    host.state, host.lost = "lost", event.why
    return [*_fails(gang, event.host), steps.AwaitLease(gang.epoch, event.host)]


def _fails(gang: HostsGang, number: int) -> list[steps.Action]:
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


def _stop(gang: HostsGang, why: Stopping, sig: Signals | None, timeout_s: float | None) -> list[steps.Action]:
    """Ask each host that may run ranks to stop. A later close may repeat this with a stronger signal."""
    if gang.phase in ("new", "placing", "backoff"):
        gang.stopping = why
        return _finish(gang, None)
    gang.stopping = why if gang.stopping in (None, "failure") and why != "failure" else gang.stopping or why
    gang.phase, gang.sig, gang.timeout_s = "stopping", sig, timeout_s
    actions: list[steps.Action] = []
    for number, host in enumerate(gang.hosts):
        if host.state in ("launching", "running"):
            host.told_to_stop = True
            actions.append(steps.StopHost(gang.epoch, number, sig, timeout_s))
    return actions


def _advance(gang: HostsGang, now_ns: int) -> list[steps.Action]:
    """End the attempt if none of its ranks can run any more."""
    if gang.phase in ("new", "placing", "backoff", "finished") or any(host.state not in OVER for host in gang.hosts):
        return []
    if not gang.started and gang.stopping == "failure":
        return _finish(gang, _start_error(gang))
    delay_s = _delay_s(gang, now_ns)
    if delay_s is None:
        return _finish(gang, None)
    before, gang.epoch, gang.phase = gang.epoch, gang.epoch + 1, "backoff"
    return [steps.Release(before), steps.Restart(gang.epoch, delay_s)]


def _start_error(gang: HostsGang) -> BaseException:
    for number in gang.causes:
        host = gang.hosts[number]
        if host.error is not None:
            return host.error
        if host.lost:
            return SuperviseError(f"host {number} did not start its ranks: {host.lost}")
    failed = [number for number in gang.causes if gang.hosts[number].failed_first is not None]
    if failed:
        rank = gang.hosts[failed[0]].failed_first
        return SuperviseError(f"local rank {rank} of host {failed[0]} failed before all hosts had started")
    return SuperviseError("the gang ended before its start had")


def _delay_s(gang: HostsGang, now_ns: int) -> float | None:
    """Return the delay before the next attempt, and count the restart. None if no attempt follows."""
    policy = gang.policy
    if policy is None or gang.stopping != "failure" or not gang.causes:
        return None
    code = _exit_code(gang)
    if code is not None and code in policy.never_restart_exit_codes:
        return None
    gang.restarts_ns = policy.counting(gang.restarts_ns, now_ns)
    uncounted = code is not None and code in policy.uncounted_exit_codes
    if not uncounted:
        if len(gang.restarts_ns) >= policy.max_restarts:
            return None
        gang.restarts_ns = (*gang.restarts_ns, now_ns)
    gang.in_a_row = max(len(gang.restarts_ns), gang.in_a_row + 1 if policy.within_s is None else 1)
    delay_s = policy.delay_s(gang.in_a_row - 1)
    return max(delay_s, 0.1) if uncounted else delay_s


def _exit_code(gang: HostsGang) -> int | None:
    """Return the exit code of the root cause.

    None if the host of the root cause was lost, or could not start its ranks.
    """
    host = gang.hosts[gang.causes[0]]
    if host.result is None or host.result.root_cause is None:
        return None
    return host.result.failures[host.result.root_cause].exitcode


def _finish(gang: HostsGang, error: BaseException | None) -> list[steps.Action]:
    placed, gang.phase = gang.phase not in ("new", "backoff"), "finished"
    release: list[steps.Action] = [steps.Release(gang.epoch)] if placed else []
    return [*release, steps.Finish(error)]
