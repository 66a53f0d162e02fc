"""Hosts as the core of a gang over several hosts sees them, and a search through all orders of their events.

A host's ranks change their state by themselves, and what they report waits in two channels: the reply to the launch,
and the news. Their order is kept within a channel only, as on a network whose calls may be repeated.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from supervise._hosts import decide, decide as module
from supervise._hosts.decide import Host, HostsGang
from supervise.errors import SuperviseError
from supervise.messages import WorkerExited
from supervise.restarts import RestartPolicy
from supervise.result import ProcessFailure, RankEnd, RunProcsResult
from tests.model.timed import ALL, UNIT_NS, UNIT_S, Calendar, Time

Ranks = Literal["none", "starting", "running", "failing", "dead"]
NO_ROOM, NOT_STARTED = SuperviseError("no room"), SuperviseError("not started")
CODE, UNCOUNTED = 3, 75
TIMELESS = Time()
LEAST_S = 0.134
"""The delay of a restart that does not count, if the backoff is shorter."""


def do_not_wait_for_the_lease(patch: Any) -> None:
    """Plant a bug: a lost host is taken for one whose ranks have ended."""
    patch.setattr(decide, "OVER", decide.OVER | {"lost"})


def ended(outcome: Any = "failed", code: int = CODE) -> RunProcsResult:
    """Return the result of a host with one rank."""
    result = RunProcsResult(outcome=outcome)
    codes = {"failed": code, "succeeded": 0}
    exitcode = codes.get(outcome, -15)
    role: Any = {"failed": "root_cause", "succeeded": "finished"}.get(outcome, "bystander")
    result.ends[0] = RankEnd(local_rank=0, pid=7, exitcode=exitcode, role=role, started_ns=1, ended_ns=2)
    if exitcode:
        result.failures[0] = ProcessFailure.of(0, 7, exitcode, "", message="")
    return result


def failed(epoch: int, number: int, code: int = CODE) -> decide.RankFailed:
    """Return the event of the failure of local rank 0 of a host."""
    return decide.RankFailed(epoch, number, WorkerExited(local_rank=0, pid=7, exitcode=code, ended_ns=1))


RESULTS = {outcome: ended(outcome) for outcome in ("failed", "succeeded", "stopped")}
RESULTS["preempted"] = ended("failed", UNCOUNTED)


class Machine(NamedTuple):
    """One host of the present attempt."""

    ranks: Ranks = "none"
    reply: str = ""
    """The reply to the launch that the driver has not got yet: ``pids`` or ``error``."""
    news: tuple[str, ...] = ()
    """The news that the driver has not got yet: ``failed``, ``preempted``, or the outcome of the host."""
    stopped: bool = False
    """Whether the host was asked to stop."""
    failed: bool = False
    """Whether a rank has failed by itself."""
    lost: bool = False
    """Whether the driver has given the host up: it hears nothing of it any more."""
    leased: bool = False
    """Whether the driver waits for the end of its lease."""
    answered: bool = False
    """Whether the driver has the reply to the launch."""
    preempted: bool = False
    """Whether the driver has heard of an exit code after which a restart does not count."""

    @property
    def computes(self) -> bool:
        return self.ranks in ("starting", "running", "failing")


class World(NamedTuple):
    """All that is not the core."""

    nnodes: int
    machines: tuple[Machine, ...] = ()
    placing: int = -1
    backoff: int = -1
    """The attempt for which the engine was asked, and the attempt that a timer begins; -1: none."""
    losses: tuple[int, ...] = ()
    """How often each host may still be lost."""
    closes: int = 1
    times_up: int = 1
    asked: bool = False
    """Whether the start was asked for."""
    ending: bool = False
    """Whether the caller or the time limit has asked for the end."""
    answers: tuple[int, ...] = ()
    """The attempts whose start was answered."""
    finished: int = 0
    error: bool = False
    """Whether the end was an error of a start."""
    unplaced: bool = False
    """Whether that error was a cluster without room."""
    now: int = 0
    """Units of time since the begin."""
    due: int = 0
    """When the backoff is over."""
    time: Time = TIMELESS
    """The policy; without a number of failures in it, time does not pass."""


Move = tuple[str, decide.Event | None, World]
"""What happens: its name, the event that the core gets, and the world behind it."""

MAY_NEVER_HAPPEN = ("succeeds", "fails", "cannot start", "lost", "close")
"""A rank may run forever, a host may live forever, and the caller may ask for nothing more."""


def moves(world: World, epoch: int) -> Iterator[Move]:
    """Yield all that can happen next."""
    if not world.asked:
        yield "start", decide.StartAsked(), world._replace(asked=True)
    if world.closes:
        yield "close", decide.CloseAsked(), world._replace(closes=world.closes - 1, ending=True)
    if world.asked and world.times_up and not world.finished:
        yield "time up", decide.TimeUp(), world._replace(times_up=0, ending=True)
    if world.placing >= 0:
        after = world._replace(placing=-1)
        yield "placed", decide.Placed(world.placing), after
        yield "no room", decide.NotPlaced(world.placing, NO_ROOM), after
    yield from _in_time(world)
    for number, machine in enumerate(world.machines):
        for name, event, changed, *lost in _of_host(machine, number, epoch, can_be_lost=world.losses[number] > 0):
            if not _may_happen(name, world.time):
                continue
            after = world._replace(machines=_with(world.machines, number, changed))
            if name in FAILURES and world.time.failures:
                after = after._replace(time=world.time._replace(failures=world.time.failures - 1))
            if lost:
                after = after._replace(losses=_with(world.losses, number, world.losses[number] - 1))
            yield f"{name} {number}", event, after


def _in_time(world: World) -> Iterator[Move]:
    if world.time.failures is not None and world.asked and not (world.ending or world.finished):
        yield "time passes", None, world._replace(now=world.now + 1)
    if world.backoff >= 0 and world.due <= world.now:
        yield "backoff over", decide.BackoffOver(world.backoff), world._replace(backoff=-1)


FAILURES = ("fails", "cannot start")


def _may_happen(name: str, time: Time) -> bool:
    return not (name in FAILURES and time.failures == 0) and (name != "is preempted" or time.uncounted)


def _of_host(machine: Machine, number: int, epoch: int, *, can_be_lost: bool) -> Iterator[tuple[Any, ...]]:
    """Yield what a host can do, what the driver can hear of it, and its loss."""
    yield from _by_itself(machine)
    if machine.lost:
        if machine.leased:
            yield "lease over", decide.LeaseOver(epoch, number), machine._replace(ranks="dead", leased=False)
        return
    if machine.reply == "pids":
        yield "started", decide.HostStarted(epoch, number, {0: 7}), machine._replace(reply="", answered=True)
    if machine.reply == "error":
        yield "not started", decide.HostNotStarted(epoch, number, NOT_STARTED), machine._replace(reply="")
    if machine.news:
        first, rest = machine.news[0], machine._replace(news=machine.news[1:])
        if first == "failed first":
            yield "heard of a failure", failed(epoch, number), rest
        elif first == "error":
            yield "heard of an error", decide.HostNotStarted(epoch, number, NOT_STARTED), rest
        else:
            heard = rest._replace(preempted=first == "preempted")
            yield f"heard {first}", decide.HostEnded(epoch, number, RESULTS[first]), heard
    if can_be_lost and (machine.ranks != "none"):
        yield "lost", decide.HostLost(epoch, number, "lost"), machine._replace(lost=True, reply="", news=()), True


def _by_itself(machine: Machine) -> Iterator[tuple[Any, ...]]:
    news = machine.news
    if machine.ranks == "starting":
        yield "starts", None, machine._replace(ranks="running", reply="pids")
        if not machine.stopped:
            yield "cannot start", None, machine._replace(ranks="dead", reply="error", news=(*news, "error"))
    if machine.ranks == "running" and not machine.stopped:
        yield "succeeds", None, machine._replace(ranks="dead", news=(*news, "succeeded"))
        yield "fails", None, machine._replace(ranks="failing", news=(*news, "failed first"), failed=True)
    if machine.ranks == "failing":
        yield "has failed", None, machine._replace(ranks="dead", news=(*news, "failed"))
        yield "is preempted", None, machine._replace(ranks="dead", news=(*news, "preempted"))
    if machine.stopped and machine.ranks == "starting":
        yield "stops early", None, machine._replace(ranks="dead", reply="error", news=(*news, "stopped"))
    if machine.stopped and machine.ranks == "running":
        yield "stops", None, machine._replace(ranks="dead", news=(*news, "stopped"))


def _with(items: tuple[Any, ...], at: int, item: Any) -> tuple[Any, ...]:
    return (*items[:at], item, *items[at + 1 :])


def obey(world: World, action: decide.Action) -> World:  # noqa: PLR0911 - one case an action
    """Carry out an action of the core; raise AssertionError if it may not ask for it."""
    match action:
        case decide.Place():
            computing = [number for number, machine in enumerate(world.machines) if machine.computes]
            assert not computing, f"the next attempt begins while ranks of the hosts {computing} compute"
            assert not world.ending, "a restart after the end was asked for"
            assert world.due <= world.now, "an attempt begins before the backoff is over"
            return world._replace(machines=(), placing=action.epoch)
        case decide.Launch():
            machines = world.machines or (Machine(),) * world.nnodes
            assert machines[action.host].ranks == "none", "a second launch"
            return world._replace(machines=_with(machines, action.host, Machine(ranks="starting")))
        case decide.StopHost():
            machine = world.machines[action.host]
            assert machine.ranks != "none", "a stop for a host that runs nothing"
            assert not machine.lost, "a stop for a lost host"
            return world._replace(machines=_with(world.machines, action.host, machine._replace(stopped=True)))
        case decide.AwaitLease():
            machine = world.machines[action.host]
            assert machine.lost, "the lease of a host that is not lost is awaited"
            return world._replace(machines=_with(world.machines, action.host, machine._replace(leased=True)))
        case decide.AnswerStart():
            assert all(machine.answered or machine.ranks == "dead" for machine in world.machines), "an early answer"
            return world._replace(answers=(*world.answers, action.epoch))
        case decide.Restart():
            assert not world.ending, "a restart after the end was asked for"
            return _restarts(world, action.delay_s)._replace(backoff=action.epoch)
        case decide.Finish():
            how = {"error": action.error is not None, "unplaced": action.error is NO_ROOM}
            return world._replace(finished=world.finished + 1, **how, placing=-1, backoff=-1)
        case _:
            return world


def _restarts(world: World, delay_s: float) -> World:
    """Return the world behind a restart that the policy must allow, with this delay. The gang has one host."""
    time, at_ns, counted = world.time, world.now * UNIT_NS, not world.machines[0].preempted
    if time.failures is None:
        return world
    assert time.allows(at_ns, counted=counted), "more restarts within the window than the policy allows"
    earlier = len(time.restarts) if time.within is None else max(time.recent(at_ns) + counted - 1, 0)
    needed_s = time.delay_after_s(earlier)
    assert counted or delay_s >= LEAST_S, "a restart that does not count comes too soon"
    needed_s = needed_s if counted else max(needed_s, LEAST_S)
    assert delay_s == needed_s, f"a delay of {delay_s:g} s where the policy has {needed_s:g} s"
    return world._replace(due=world.now + ceil(delay_s / UNIT_S), time=time.with_restart(ALL, at_ns, counted=counted))


_FIELDS, _FIELDS_OF_HOST = (attrgetter(*kind.__slots__) for kind in (HostsGang, Host))


def copied(gang: HostsGang) -> HostsGang:
    """Return a copy that `decide` may change."""
    after = HostsGang(*_FIELDS(gang))  # `replace` would take most of the time of a search
    after.hosts, after.causes = [Host(*_FIELDS_OF_HOST(host)) for host in gang.hosts], list(gang.causes)
    return after


def check(before: HostsGang, gang: HostsGang, world: World, restarts: int) -> None:
    """Raise AssertionError if two states break a promise."""
    assert world.finished <= 1, "two ends"
    assert (gang.phase == "finished") == bool(world.finished), "an end that is not told"
    assert gang.epoch <= restarts or world.time.failures is not None, "more restarts than the policy allows"
    assert len(set(world.answers)) == len(world.answers), "a start that is answered twice"
    assert gang.phase != "running" or not gang.causes, "a failure stops nobody"
    if before.phase != "backoff" and gang.epoch == before.epoch and before.causes:
        assert gang.causes[:1] == before.causes[:1], "the first cause changes"
    if not world.finished:
        return
    assert not any(machine.computes for machine in world.machines), "the end while ranks compute"
    if before.phase != "finished" and world.time.failures is not None and not (world.ending or world.error):
        counted = not any(machine.preempted for machine in world.machines)
        given_up = not world.time.allows(world.now * UNIT_NS, counted=counted)
        assert given_up or not gang.causes, "the gang gives up too early"
    if world.error and not world.unplaced and not gang.notifies:
        broken = [host for host in gang.hosts if host.lost or (host.state == "not_started" and not host.told_to_stop)]
        assert broken, "the failure of a rank is an error of the start"
    if not world.unplaced and gang.stopping is None and world.asked:
        assert world.answers[-1:] == (gang.epoch,), "success without an answer to the start"
        assert not gang.causes, "success with a cause"


def search(*, restarts: int, losses: tuple[int, ...], notifies: bool = False, time: Time = TIMELESS) -> int:
    """Visit each state that can be reached; return their number.

    Args:
        restarts: The policy's limit.
        losses: How often each host may be lost, in whatever attempt.
        notifies: Whether ranks report that they are ready.
        time: The rest of the policy, and how many failures there may be; for one host.

    Raises:
        AssertionError: A promise is broken; the text has the way there.
    """
    policy = RestartPolicy(
        restarts,
        within_s=time.within and time.within * UNIT_S,
        backoff=time.backoff_s,
        uncounted_exit_codes=frozenset({UNCOUNTED}),
    )
    gang = HostsGang(nnodes=len(losses), policy=policy, notifies=notifies)
    first = gang, World(len(losses), losses=losses, time=time._replace(most=restarts))
    graph = _Graph()
    graph.visit(first, -1, "")
    while graph.pending:
        gang, world, place = graph.pending.popleft()
        for name, event, moved in moves(world, gang.epoch):
            after, later = gang if event is None else copied(gang), moved
            try:
                now_ns = moved.now * UNIT_NS
                for action in module.decide(after, event, now_ns) if event is not None else ():
                    later = obey(later, action)
                check(gang, after, later, restarts)
            except Exception as error:
                raise AssertionError(f"{error}; after {[*graph.way(place), name]}") from error
            graph.visit((after, later), place, name)
    graph.check_each_path_ends()
    return len(graph.parents)


@dataclass
class _Graph:
    """The visited states, by number, and the moves between them."""

    numbers: dict[Any, int] = field(default_factory=dict)
    parents: list[tuple[int, str]] = field(default_factory=list)
    sources: list[list[tuple[int, bool]]] = field(default_factory=list)
    """For each state those from which a move leads there, and whether it is a move that may never happen."""
    stopping: list[int] = field(default_factory=list)
    """The states in which the gang must end, or begin again, whatever its ranks want."""
    ends: list[int] = field(default_factory=list)
    pending: deque[tuple[HostsGang, World, int]] = field(default_factory=deque)

    def visit(self, state: tuple[HostsGang, World], parent: int, name: str) -> None:
        gang, world = state
        known = world._replace(now=0, due=0, time=TIMELESS)
        number = self.numbers.setdefault((_key(gang), known, _times(gang, world)), len(self.numbers))
        if number == len(self.parents):
            self.parents.append((parent, name))
            self.sources.append([])
            self.pending.append((gang, world, number))
            if world.finished or gang.phase == "backoff":
                self.ends.append(number)
            elif gang.phase == "stopping" or world.ending:
                self.stopping.append(number)
        if parent >= 0:
            self.sources[number].append((parent, name.rstrip("0123456789 ") in MAY_NEVER_HAPPEN))

    def way(self, number: int) -> list[str]:
        names: list[str] = []
        while number >= 0:
            number, name = self.parents[number]
            names.append(name)
        return names[-2::-1]

    def check_each_path_ends(self) -> None:
        """From each state an end can be reached, and behind a failure or a wish for the end whatever the ranks do."""
        for places, freely in ((range(len(self.parents)), True), (self.stopping, False)):
            reached, todo = set(self.ends), list(self.ends)
            while todo:
                for source, may_never_happen in self.sources[todo.pop()]:
                    if source not in reached and (freely or not may_never_happen):
                        reached.add(source)
                        todo.append(source)
            stuck = next((number for number in places if number not in reached), None)
            assert stuck is None, f"no end can be reached; after {self.way(stuck or 0)}"


def _times(gang: HostsGang, world: World) -> Any:
    """Return the times on which the next restart depends, without their distance from the begin."""
    if world.time.failures is None:
        return None
    due_ns, counted_ns = max(world.due, world.now) * UNIT_NS, gang.backoff.counted_ns
    days = Calendar(world.time, world.now, (due_ns, *counted_ns), over=world.ending or world.finished > 0)
    return days.of(world.time, {}), days.day(due_ns), world.due <= world.now, tuple(map(days.day, counted_ns))


def _key(gang: HostsGang) -> Any:
    hosts = tuple(
        (
            host.state,
            bool(host.pids),
            host.result and host.result.outcome,
            host.error is not None,
            host.told_to_stop,
            host.failed_first is not None,
        )
        for host in gang.hosts
    )
    rest = (gang.stopping, gang.started, len(gang.backoff.counted_ns), gang.backoff.in_a_row)
    return (gang.phase, gang.epoch, hosts, tuple(gang.causes), *rest)
