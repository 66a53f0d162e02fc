"""The core of a gang over several hosts: its rules one by one, and all orders of events."""

import copy
from signal import SIGINT

import pytest

from supervise._hosts import decide as module
from supervise._hosts import steps
from supervise._hosts.decide import decide
from supervise._hosts.model import OVER, Host, HostsGang
from supervise.errors import SuperviseError
from supervise.restarts import RestartPolicy
from supervise.result import ProcessFailure, RankEnd, RunProcsResult


def ended(outcome="failed", code=3):
    result = RunProcsResult(outcome=outcome)
    if outcome == "failed":
        result.failures[0] = ProcessFailure.of(0, 1, code, "", message="")
        result.ends[0] = RankEnd(local_rank=0, pid=1, exitcode=code, role="root_cause", started_ns=1, ended_ns=2)
    return result


def running(nnodes=2, policy=None):
    gang = HostsGang(nnodes=nnodes, policy=policy)
    decide(gang, steps.StartAsked(), 0)
    place(gang)
    return gang


def place(gang):
    decide(gang, steps.Placed(gang.epoch), 0)
    for number in range(gang.nnodes):
        last = decide(gang, steps.HostStarted(gang.epoch, number, {0: 7}), 0)
    return last


def stops(actions):
    return [action.host for action in actions if isinstance(action, steps.StopHost)]


def names(actions):
    return [type(action).__name__ for action in actions]


def test_a_start_places_then_launches_then_answers():
    gang = HostsGang(nnodes=2)
    assert decide(gang, steps.StartAsked(), 0) == [steps.Place(0)]
    assert decide(gang, steps.Placed(0), 0) == [steps.Launch(0, 0), steps.Launch(0, 1)]
    assert decide(gang, steps.HostStarted(0, 1, {0: 7}), 0) == []
    assert decide(gang, steps.HostStarted(0, 0, {0: 7}), 0) == [steps.AnswerStart(0)]


def test_success_is_the_success_of_all():
    gang = running()
    assert decide(gang, steps.HostEnded(0, 0, ended("succeeded")), 0) == []
    assert names(decide(gang, steps.HostEnded(0, 1, ended("succeeded")), 0)) == ["Release", "Finish"]
    assert gang.causes == []


def test_the_first_failure_stops_all_and_is_the_cause():
    gang = running(3)
    assert stops(decide(gang, steps.RankFailed(0, 1, 0), 0)) == [0, 1, 2]
    assert decide(gang, steps.RankFailed(0, 0, 0), 0) == [], "it was asked to stop before"
    for number in range(2):
        assert decide(gang, steps.HostEnded(0, number, ended()), 0) == []
    assert names(decide(gang, steps.HostEnded(0, 2, ended("stopped")), 0)) == ["Release", "Finish"]
    assert gang.causes[0] == 1


def test_a_failure_before_the_stop_is_a_cause_as_well():
    """Both hosts have reported a result of their own; the driver learned of the second later."""
    gang = running()
    decide(gang, steps.HostEnded(0, 1, ended()), 0)
    decide(gang, steps.HostEnded(0, 0, ended()), 0)
    assert gang.causes == [1, 0]


def test_a_lost_host_ends_the_attempt_when_its_lease_is_over():
    gang = running(policy=RestartPolicy(max_restarts=1))
    actions = decide(gang, steps.HostLost(0, 0, "no contact"), 0)
    assert stops(actions) == [1]
    assert steps.AwaitLease(0, 0) in actions
    assert decide(gang, steps.HostEnded(0, 1, ended("stopped")), 0) == [], "the lost host may compute"
    assert names(decide(gang, steps.LeaseOver(0, 0), 0)) == ["Release", "Restart"]


def test_the_count_of_restarts_is_that_of_the_gang():
    gang = running(policy=RestartPolicy(max_restarts=2))
    for epoch in range(2):
        decide(gang, steps.RankFailed(epoch, epoch, 0), 0)
        decide(gang, steps.HostEnded(epoch, 1 - epoch, ended("stopped")), 0)
        assert names(decide(gang, steps.HostEnded(epoch, epoch, ended()), 0)) == ["Release", "Restart"]
        assert decide(gang, steps.BackoffOver(epoch + 1), 0) == [steps.Place(epoch + 1)]
        assert place(gang) == [steps.AnswerStart(epoch + 1)]
    decide(gang, steps.HostEnded(2, 0, ended()), 0)
    assert names(decide(gang, steps.HostEnded(2, 1, ended("stopped")), 0)) == ["Release", "Finish"]


@pytest.mark.parametrize(("code", "restarts", "counted"), [(75, True, 0), (9, False, 0), (3, True, 1)])
def test_exit_codes_of_the_policy(code: int, restarts: bool, counted: int):
    policy = RestartPolicy(
        max_restarts=1, uncounted_exit_codes=frozenset({75}), never_restart_exit_codes=frozenset({9})
    )
    gang = running(1, policy)
    assert ("Restart" in names(decide(gang, steps.HostEnded(0, 0, ended(code=code)), 5))) is restarts
    assert len(gang.restarts_ns) == counted


def test_a_first_start_that_fails_is_an_error_and_is_not_retried():
    gang = HostsGang(nnodes=2, policy=RestartPolicy())
    decide(gang, steps.StartAsked(), 0)
    decide(gang, steps.Placed(0), 0)
    decide(gang, steps.HostStarted(0, 0, {0: 7}), 0)
    error = SuperviseError("no")
    assert stops(decide(gang, steps.HostNotStarted(0, 1, error), 0)) == [0]
    assert decide(gang, steps.HostEnded(0, 0, ended("stopped")), 0) == [steps.Release(0), steps.Finish(error)]


def test_no_room_is_the_error_of_the_start():
    gang, error = HostsGang(nnodes=2), SuperviseError("no room")
    decide(gang, steps.StartAsked(), 0)
    assert decide(gang, steps.NotPlaced(0, error), 0) == [steps.Release(0), steps.Finish(error)]


@pytest.mark.parametrize("event", [steps.CloseAsked(SIGINT, 2.0), steps.TimeUp()])
@pytest.mark.parametrize("phase", ["new", "placing", "launching", "running", "backoff"])
def test_a_close_and_the_time_limit_win_at_every_moment(phase: str, event: steps.Event):
    gang = HostsGang(nnodes=1, policy=RestartPolicy())
    if phase != "new":
        decide(gang, steps.StartAsked(), 0)
    if phase in ("launching", "running", "backoff"):
        decide(gang, steps.Placed(0), 0)
    if phase in ("running", "backoff"):
        decide(gang, steps.HostStarted(0, 0, {0: 7}), 0)
    if phase == "backoff":
        decide(gang, steps.HostEnded(0, 0, ended()), 0)
    assert gang.phase == phase
    actions = decide(gang, event, 0)
    if phase in ("launching", "running"):
        assert stops(actions) == [0]
        actions = decide(gang, steps.HostEnded(0, 0, ended("stopped")), 0)
    assert isinstance(actions[-1], steps.Finish)
    assert decide(gang, steps.StartAsked(), 0) == []


def test_a_second_close_brings_its_signal_to_the_hosts():
    gang = running()
    decide(gang, steps.CloseAsked(), 0)
    assert decide(gang, steps.CloseAsked(SIGINT, 0.0), 0)[0] == steps.StopHost(0, 0, SIGINT, 0.0)


def test_events_of_an_earlier_epoch_have_no_effect():
    gang = running(1, RestartPolicy())
    decide(gang, steps.HostEnded(0, 0, ended()), 0)
    decide(gang, steps.BackoffOver(1), 0)
    place(gang)
    before = copy.deepcopy(gang)
    for event in (
        steps.RankFailed(0, 0, 0),
        steps.HostEnded(0, 0, ended()),
        steps.HostLost(0, 0, ""),
        steps.Placed(0),
        steps.HostNotStarted(0, 0, SuperviseError()),
    ):
        assert decide(gang, event, 0) == []
    assert gang == before


# All orders of events


NODES, RESTARTS = 2, 1


class World:
    """A driver and hosts that run ranks, as far as the core is concerned."""

    def __init__(self) -> None:
        self.gang = HostsGang(nnodes=NODES, policy=RestartPolicy(max_restarts=RESTARTS, backoff=0.0))
        self.computing: dict[tuple[int, int], str] = {}
        """(epoch, host) to what its ranks do: ``running``, ``stopping``, ``cut off``."""
        self.placing: int | None = None
        self.backoff: int | None = None
        self.finished = 0
        self.answered = 0
        self.closed = False
        self.lost = 0

    def key(self) -> tuple[object, ...]:
        gang = self.gang
        hosts = tuple((h.state, h.told_to_stop, h.failed_first, bool(h.pids), outcome(h)) for h in gang.hosts)
        core = (gang.phase, gang.epoch, hosts, tuple(gang.causes), gang.stopping, gang.started, len(gang.restarts_ns))
        rest = (self.placing, self.backoff, self.finished, self.answered, self.closed, self.lost)
        return (*core, tuple(sorted(self.computing.items())), *rest)

    def moves(self):  # noqa: C901 - one case for each kind of move
        """Yield what can happen next: a name, an event of the core, and the change of the world before it."""
        epoch = self.gang.epoch
        if self.gang.phase == "new":
            yield "start", steps.StartAsked(), None
        if not self.closed:
            yield "close", steps.CloseAsked(), lambda w: setattr(w, "closed", True)
        if self.placing is not None:
            yield "placed", steps.Placed(self.placing), lambda w: setattr(w, "placing", None)
            yield (
                "no room",
                steps.NotPlaced(self.placing, SuperviseError("no room")),
                lambda w: setattr(w, "placing", None),
            )
        if self.backoff is not None:
            yield "backoff", steps.BackoffOver(self.backoff), lambda w: setattr(w, "backoff", None)
        for (of, host), state in sorted(self.computing.items()):
            gone = lambda w, at=(of, host): w.computing.pop(at)  # noqa: E731
            if state == "launching":
                yield f"started {host}", steps.HostStarted(of, host, {0: 7}), at(of, host, "running")
                yield f"not started {host}", steps.HostNotStarted(of, host, SuperviseError("no")), gone
            if state == "running":
                yield f"succeeds {host}", steps.HostEnded(of, host, ended("succeeded")), gone
                yield f"fails {host}", steps.RankFailed(of, host, 0), at(of, host, "failing")
            if state == "failing":
                yield f"failed {host}", steps.HostEnded(of, host, ended()), gone
            if state == "stopping":
                yield f"stopped {host}", steps.HostEnded(of, host, ended("stopped")), gone
            if state != "cut off" and self.lost < 1:
                yield f"lost {host}", steps.HostLost(of, host, "lost"), cut_off(of, host)
            if state == "cut off":
                yield f"lease over {host}", steps.LeaseOver(of, host), gone
        assert epoch <= RESTARTS

    def act(self, action: steps.Action) -> None:
        match action:
            case steps.Place():
                assert not self.computing, f"ranks compute beside their replacement: {self.computing}"
                self.placing = action.epoch
            case steps.Launch():
                self.computing[action.epoch, action.host] = "launching"
            case steps.StopHost():
                state = self.computing.get((action.epoch, action.host))
                assert state is not None, "a stop for a host that runs nothing"
                if state in ("running", "launching"):
                    self.computing[action.epoch, action.host] = "stopping"
            case steps.Restart():
                assert not self.closed, "a restart after the close"
                self.backoff = action.epoch
            case steps.AnswerStart():
                self.answered += 1
            case steps.Finish():
                assert not self.computing, f"the end while ranks compute: {self.computing}"
                self.finished += 1
            case _:
                pass


def at(epoch, host, state):
    return lambda world: world.computing.__setitem__((epoch, host), state)


def cut_off(epoch, host):
    def change(world):
        world.computing[epoch, host] = "cut off"
        world.lost += 1

    return change


def outcome(host: Host) -> object:
    return None if host.result is None else host.result.outcome


def search() -> int:
    """Return the number of states that are reached; raise AssertionError, with the way, if an invariant is broken."""
    first = World()
    seen, todo = {first.key()}, [(first, ())]
    while todo:
        world, way = todo.pop()
        moves = list(world.moves())
        if not moves or (len(moves) == 1 and moves[0][0] == "close"):
            assert world.finished == 1 or world.gang.phase == "new", f"a dead end after {way}"
        for name, event, change in moves:
            later = copy.deepcopy(world)
            causes = list(later.gang.causes)
            if change is not None:
                change(later)
            try:
                before = later.gang.epoch
                for action in decide(later.gang, event, 0):
                    later.act(action)
                assert later.finished <= 1, "two ends"
                assert later.answered <= 1 + later.gang.epoch
                assert later.gang.epoch != before or later.gang.causes[: len(causes)] == causes or not later.gang.causes
                if later.finished:
                    assert all(host.state in OVER or host.state == "waiting" for host in later.gang.hosts)
            except AssertionError as error:
                raise AssertionError(f"{error}; after {(*way, name)}") from error
            if later.key() not in seen:
                seen.add(later.key())
                todo.append((later, (*way, name)))
    return len(seen)


def test_all_orders_of_events_keep_the_invariants():
    """Two hosts, one restart, one close, one loss of a host: to the fixpoint."""
    assert search() > 400


def test_the_search_finds_a_restart_that_does_not_wait_for_the_lease(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "OVER", OVER | {"lost"})
    with pytest.raises(AssertionError, match=r"compute beside|end while"):
        search()


def test_the_search_finds_a_failure_that_stops_nobody(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_stop", lambda gang, why, *_: setattr(gang, "stopping", gang.stopping or why) or [])
    with pytest.raises(AssertionError, match=r"dead end|after"):
        search()


def test_the_search_finds_a_restart_after_a_close(monkeypatch: pytest.MonkeyPatch):
    real = module._delay_s

    def defective(gang, now_ns):
        gang.stopping = "failure" if gang.causes else gang.stopping
        return real(gang, now_ns)

    monkeypatch.setattr(module, "_delay_s", defective)
    with pytest.raises(AssertionError, match="a restart after the close"):
        search()
