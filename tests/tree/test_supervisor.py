"""Trees of actors, gangs and trees: what users see of them."""

import pickle
import queue
import signal
from contextlib import suppress
from functools import partial

import pykka
import pytest
from pykka.messages import _ActorStop

from supervise import (
    ActorSupervisor,
    ChildDown,
    ChildFailedError,
    ChildRestarting,
    ChildSpec,
    ChildStarted,
    Close,
    GangStatus,
    Pids,
    RestartChild,
    RestartLimitExceeded,
    RestartPolicy,
    Signal,
    SpecError,
    Start,
    StartChild,
    Status,
    Subscribe,
    SuperviseError,
    Supervisor,
    TerminateChild,
    TreeFinished,
    Unsubscribe,
    Wait,
    WorkerStarted,
)
from supervise.testing import Recorder
from tests.processes.work import UnspeakableValue
from tests.tree import work
from tests.tree.actors import PATIENCE_S, Ear, Gate, Part, gang, ref_of, status_of


@pytest.fixture
def boom():
    return ValueError("on purpose")


# Gangs


def test_a_gang_has_started_when_its_ranks_run_and_is_closed_with_the_tree(parts, grow, ear):
    tree = grow(parts.spec("a"), gang(), parts.spec("b"))
    ref = ref_of(tree, "gang")
    assert ref.ask(Status(), timeout=PATIENCE_S).running == {0, 1}
    tree.stop(timeout=PATIENCE_S)
    assert not ref.is_alive()
    assert [message.id for message in ear.take(6) if isinstance(message, ChildDown)] == ["b", "gang", "a"]


def test_a_gang_of_functions_that_succeeds_has_ended_normally(grow, ear):
    tree = grow(gang(entrypoint=work.double, args=(4,)))
    assert ear.until(ChildDown) == ChildDown(id="gang", reason=None, normal=True)
    assert status_of(tree, "gang").state in ("stopping", "finished")


def test_a_gang_that_fails_is_started_anew_with_fresh_processes(grow, ear):
    tree = grow(gang())
    first = ref_of(tree, "gang")
    pids = first.ask(Pids(), timeout=PATIENCE_S)
    first.ask(Signal(sig=signal.SIGKILL, ranks=frozenset({1})), timeout=PATIENCE_S)
    down = ear.until(ChildDown)
    assert isinstance(down.reason, ChildFailedError)
    assert down.reason.get_first_failure()[1].local_rank == 1
    assert "\ngang FAILED\n" in str(down.reason)
    ear.until(ChildStarted)
    second = ref_of(tree, "gang")
    assert not first.is_alive()
    assert not set(pids.values()) & set(second.ask(Pids(), timeout=PATIENCE_S).values())


def test_a_gang_that_was_closed_has_ended_normally(grow, ear):
    tree = grow(gang())
    ref_of(tree, "gang").stop(timeout=PATIENCE_S)
    assert ear.until(ChildDown).normal


def test_a_gang_that_is_closed_during_its_start_has_ended_normally(grow, ear):
    """As one that is closed later, and as an actor that stops itself in its `on_start`."""
    refs = queue.Queue()

    def start():
        refs.put(Supervisor.start(name="gang", entrypoint="sleep", args={0: ("600",)}, ready="notify"))
        return refs.queue[0]

    grow(ChildSpec(id="gang", start=start), wait=False)
    ref = refs.get(timeout=PATIENCE_S)
    with Recorder() as recorder:
        ref.ask(Subscribe(ref=recorder.ref), timeout=PATIENCE_S)
        recorder.wait_for(WorkerStarted)
        ref.ask(Close(), timeout=PATIENCE_S)
    assert ear.until(ChildDown) == ChildDown(id="gang", reason=None, normal=True)


def test_a_gang_whose_first_start_fails_ends_the_tree(parts, grow):
    gate = Gate()
    tree = grow(parts.slow("a", gate), gang(entrypoint="no-such-program"), wait=False)
    starting = tree.ask(Start(), block=False)
    gate.open()
    with pytest.raises(SuperviseError, match="'gang' could not be started") as caught:
        starting.get(timeout=PATIENCE_S)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    parts.says("a starts", "a stops")


def test_a_gang_that_refuses_its_start_has_failed(grow):
    """Its actor would live on, and never say more: the start function must not ask `Start` itself."""
    tree = grow()
    spec = gang()

    def start():
        ref = spec.start()
        ref.tell(Start())
        return ref

    with pytest.raises(SpecError, match="was started or closed before"):
        tree.ask(StartChild(spec=ChildSpec(id="gang", start=start)), timeout=PATIENCE_S)
    assert tree.ask(Status(), timeout=PATIENCE_S).children == {}


def test_a_gang_that_ignores_sigterm_is_killed_within_its_shutdown_s(grow):
    stubborn = ("-c", "trap '' TERM; echo; while :; do sleep 600 & wait; done")
    tree = grow(gang(entrypoint="sh", args=stubborn, shutdown_s=0.1))
    ref = ref_of(tree, "gang")
    assert isinstance(ref.ask(Status(), timeout=PATIENCE_S), GangStatus)
    assert tree.ask(TerminateChild(id="gang"), timeout=PATIENCE_S) is None
    assert not ref.is_alive()


def test_two_gangs_in_a_tree_are_told_apart(grow, ear):
    tree = grow(gang("one"), gang("two"), strategy="one_for_one")
    one = ref_of(tree, "one")
    ref_of(tree, "two").ask(Signal(sig=signal.SIGKILL), timeout=PATIENCE_S)
    assert ear.until(ChildDown).id == "two"
    ear.until(ChildStarted, id="two")
    assert ref_of(tree, "one") == one


# Actors


def test_a_restart_waits_for_on_stop(parts, grow, ear, boom):
    gate = Gate()

    class Slow(Part):
        def on_failure(self, *_):
            gate()
            self.said.put("a cleans up")

    tree = grow(ChildSpec(id="a", start=partial(Slow.start, "a", parts.said), shutdown_s=PATIENCE_S))
    ref_of(tree, "a").tell(boom)
    ear.until(ChildRestarting)
    assert gate.reached.wait(PATIENCE_S)
    assert status_of(tree, "a").state == "stopping"
    gate.open()
    parts.says("a starts", "a cleans up", "a starts")


def test_an_on_start_that_takes_too_long_is_a_start_that_failed(parts, grow, ear, short_start_limit):
    gate = Gate()
    tree = grow(parts.spec("a"))
    short_start_limit()
    adding = tree.ask(StartChild(spec=parts.slow("b", gate)), block=False)
    assert isinstance(ear.until(ChildDown, id="b").reason, TimeoutError)
    gate.open()
    with pytest.raises(TimeoutError, match=r"'b' .* has not started in time"):
        adding.get(timeout=PATIENCE_S)


def test_an_on_start_that_does_not_end_either_is_abandoned_and_stays_the_cause(parts, grow, short_start_limit):
    gate = Gate()
    tree = grow(parts.spec("a"))
    waiting = tree.ask(Wait(), block=False)
    short_start_limit()
    tree.tell(StartChild(spec=parts.slow("b", gate, shutdown_s=0.05)))
    with pytest.raises(SuperviseError) as caught:
        waiting.get(timeout=PATIENCE_S)
    assert "has not started in time" in str(caught.value.__cause__)
    gate.open()


def test_an_actor_that_dies_at_once_in_on_start_is_a_start_that_failed(grow):
    class Stillborn(pykka.ThreadingActor):
        def on_start(self):
            raise ValueError("stillborn")

    tree = grow()
    adding = tree.ask(StartChild(spec=ChildSpec(id="a", start=Stillborn.start)), block=False)
    with pytest.raises((ValueError, SuperviseError), match=r"stillborn|was dead when its start function returned"):
        adding.get(timeout=PATIENCE_S)


@pytest.mark.parametrize("returned", [3, Part])
def test_a_start_function_that_returns_no_ref_is_a_start_that_failed(grow, returned):
    tree = grow()
    with pytest.raises(SpecError, match="a start function returned"):
        tree.ask(StartChild(spec=ChildSpec(id="a", start=lambda: returned)), timeout=PATIENCE_S)


@pytest.mark.parametrize(("returns", "error"), [(False, ZeroDivisionError), (True, SpecError)])
def test_what_a_start_function_has_started_ends_if_it_fails(grow, returns, error):
    """A gang that it has asked to start, and a plain actor; also if it returns no ref."""
    started = []

    def start():
        started.extend((pykka.ThreadingActor.start(), gang().start()))
        started[1].ask(Start(), block=False)
        return 1 / returns

    tree = grow()
    with pytest.raises(error):
        tree.ask(StartChild(spec=ChildSpec(id="a", start=start)), timeout=PATIENCE_S)
    assert [ref.actor_stopped.wait(PATIENCE_S) for ref in started] == [True, True]


def test_an_actor_that_stops_all_actors_is_not_waited_for(parts, grow, ear):
    """pykka stops them on the thread of the one that has raised, this tree among them."""
    tree, error = grow(*map(parts.spec, "ab"), restart_policy=RestartPolicy(backoff=30.0)), SystemExit("on purpose")
    with Ear() as other:
        waiting = tree.ask(Wait(), block=False)
        ref_of(tree, "a").tell(error)
        assert tree.actor_stopped.wait(PATIENCE_S)
        assert other.ref.actor_stopped.wait(PATIENCE_S)
    with pytest.raises(RestartLimitExceeded, match="'a' has raised SystemExit, at which pykka stops all") as caught:
        waiting.get(timeout=PATIENCE_S)
    assert caught.value.__cause__ is error


# Trees in trees


def test_the_causes_of_a_tree_that_has_given_up_lead_to_the_first_failure(parts, grow, boom):
    policy = RestartPolicy(max_restarts=0)

    def start(name, *children):
        return ActorSupervisor.start(name=name, children=children, restart_policy=policy)

    lower = ChildSpec(id="lower", start=lambda: start("lower", parts.spec("x")))
    tree = grow(ChildSpec(id="upper", start=lambda: start("upper", lower)), restart_policy=policy)
    waiting = tree.ask(Wait(), block=False)
    ref_of(ref_of(ref_of(tree, "upper"), "lower"), "x").tell(boom)
    with pytest.raises(RestartLimitExceeded) as caught:
        waiting.get(timeout=PATIENCE_S)
    chain, error = [], caught.value
    while error is not None:
        chain.append(getattr(error, "child_id", error))
        error = error.__cause__
    assert chain == ["upper", "lower", "x", boom]


def test_a_tree_has_started_when_its_children_have(parts, grow):
    gate = Gate()
    sub = ChildSpec(id="sub", start=partial(ActorSupervisor.start, name="sub", children=[parts.slow("x", gate)]))
    tree = grow(sub, parts.spec("b"), wait=False)
    assert gate.reached.wait(PATIENCE_S)
    assert [status_of(tree, name).state for name in ("sub", "b")] == ["starting", "waiting"]
    gate.open()
    parts.says("x starts", "b starts")


# Asks


def test_start_is_answered_with_the_refs_also_later(parts, grow):
    tree = grow(parts.spec("a"), ChildSpec(id="b", start=lambda: None))
    assert tree.ask(Start(), timeout=PATIENCE_S) == {"a": ref_of(tree, "a"), "b": None}


def test_wait_is_answered_when_the_tree_was_stopped(parts, grow):
    tree = grow(parts.spec("a"))
    waiting = tree.ask(Wait(timeout=PATIENCE_S), block=False)
    assert tree.ask(Status(), timeout=PATIENCE_S).waiters == 1
    tree.stop(timeout=PATIENCE_S)
    assert waiting.get(timeout=PATIENCE_S) == TreeFinished(error=None)


def test_an_ask_that_waits_for_a_start_is_answered_when_the_tree_stops(parts, grow):
    gate = Gate()
    tree = grow(parts.spec("a"))
    adding = tree.ask(StartChild(spec=parts.slow("b", gate)), block=False)
    assert gate.reached.wait(PATIENCE_S)
    stopping = tree.stop(block=False)
    with pytest.raises(SuperviseError, match="the tree was stopped before child 'b' had started"):
        adding.get(timeout=PATIENCE_S)
    with pytest.raises(SpecError, match="the tree is stopping"):
        tree.ask(RestartChild(id="a"), timeout=PATIENCE_S)
    gate.open()
    assert stopping.get(timeout=PATIENCE_S)


def test_a_restart_that_is_asked_for_in_the_backoff_comes_at_once(parts, grow, ear, boom):
    tree = grow(parts.spec("a"), restart_policy=RestartPolicy(backoff=60.0))
    ref_of(tree, "a").tell(boom)
    ear.until(ChildRestarting)
    assert tree.ask(RestartChild(id="a"), timeout=PATIENCE_S).is_alive()


def test_a_stop_in_the_backoff_comes_at_once(parts, grow, ear, boom):
    tree = grow(*map(parts.spec, "ab"), restart_policy=RestartPolicy(backoff=60.0))
    ref_of(tree, "a").tell(boom)
    assert ear.until(ChildRestarting).delay_s == 60.0
    assert tree.stop(timeout=PATIENCE_S)
    parts.says("a starts", "b starts", "b stops")


def test_a_subscriber_that_comes_late_is_told_who_has_started(parts, grow, ear):
    tree = grow(*map(parts.spec, "ab"))
    with Ear() as late:
        tree.ask(Subscribe(ref=late.ref), timeout=PATIENCE_S)
        tree.ask(Subscribe(ref=late.ref), timeout=PATIENCE_S)
        assert late.take(2) == [ChildStarted(id=name, ref=ref_of(tree, name)) for name in "ab"]
        tree.ask(Unsubscribe(ref=late.ref), timeout=PATIENCE_S)
        tree.stop(timeout=PATIENCE_S)
        late.is_silent()
    assert [type(message) for message in ear.take(5)][-1] is TreeFinished


@pytest.mark.parametrize(
    "message", ["what?", Start, StartChild(spec=3), TerminateChild(id=3), Subscribe(ref=3), UnspeakableValue()]
)
def test_what_a_tree_does_not_accept_is_refused_and_harms_nobody(parts, grow, message):
    tree = grow(parts.spec("a"))
    with pytest.raises(SpecError):
        tree.ask(message, timeout=PATIENCE_S)
    tree.tell(message)
    assert status_of(tree, "a").state == "ready"


def _spec(name="a"):
    return ChildSpec(id=name, start=print)


def _codes():
    return RestartPolicy(uncounted_exit_codes=frozenset({75}))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ChildSpec(id="", start=print), "id is ''"),
        (lambda: ChildSpec(id="a", start=3), "start of 'a' is 3"),
        (lambda: ChildSpec(id="a", start=print, restart="always"), "restart is 'always'"),
        (lambda: ChildSpec(id="a", start=print, shutdown_s=-1), "shutdown_s of 'a' is -1"),
        (lambda: RestartPolicy(restart="never"), "restart is 'never'"),
        (lambda: ActorSupervisor.start(name="", children=[]), "name is ''"),
        (lambda: ActorSupervisor.start(name="t", children=3), "children is 3"),
        (lambda: ActorSupervisor.start(name="t", children=[3]), "children holds 3"),
        (lambda: ActorSupervisor.start(name="t", children=[_spec(), _spec()]), "two children have the id 'a'"),
        (lambda: ActorSupervisor.start(name="t", children=[], strategy="all"), "strategy is 'all'"),
        (lambda: ActorSupervisor.start(name="t", children=[], restart_policy=3), "restart_policy is 3"),
        (lambda: ActorSupervisor.start(name="t", children=[], restart_policy=_codes()), "uncounted_exit_codes, which"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(make, says):
    with pytest.raises(SpecError, match=says):
        make()


@pytest.mark.parametrize(
    "message",
    [
        StartChild(spec=UnspeakableValue()),
        TerminateChild(id=UnspeakableValue()),
        Subscribe(ref=UnspeakableValue()),
        Wait(timeout=UnspeakableValue()),
    ],
    ids=["spec", "id", "ref", "timeout"],
)
def test_a_message_with_a_value_without_a_text_is_refused_and_harms_no_child(parts, grow, message):
    tree = grow(parts.spec("a"))
    with pytest.raises(SpecError, match=r"<UnspeakableValue: repr\(\) failed>"):
        tree.ask(message, timeout=PATIENCE_S)
    tree.tell(message)
    assert tree.ask(Status(), timeout=PATIENCE_S).phase == "running"


def test_the_error_of_a_tree_survives_pickling():
    error = pickle.loads(pickle.dumps(RestartLimitExceeded("why", child_id="a")))
    assert (str(error), error.child_id) == ("why", "a")


def test_a_block_of_a_tree_stops_it(parts):
    """At the end of the block no child is left."""
    with ActorSupervisor.start(name="tree", children=[parts.spec("a"), parts.spec("b")]) as tree:
        children = tree.ask(Start(), timeout=PATIENCE_S)
    assert not tree.is_alive()
    assert not any(ref.is_alive() for ref in children.values())


def test_a_child_that_has_started_in_time_is_not_overdue_later(parts, grow, ear, short_start_limit):
    """Its limit is over before that of a child that was started after it."""
    gate = Gate()
    tree = grow()
    short_start_limit()
    while True:
        with suppress(TimeoutError):  # the machine stood still
            first = tree.ask(StartChild(spec=parts.spec("a")), timeout=PATIENCE_S)
            break
    ear.until(ChildStarted, id="a")
    tree.tell(StartChild(spec=parts.slow("b", gate)))
    down = ear.until(ChildDown)
    gate.open()
    assert down.id == "b"
    assert first.is_alive()


def test_a_tree_that_crashes_stops_the_last_child_first(grow, crash_by):
    asked = queue.Queue()

    class Noted(pykka.ThreadingActor):
        @staticmethod
        def _create_actor_inbox():
            class Inbox(queue.Queue):
                def put(self, envelope, *more):
                    if isinstance(envelope.message, _ActorStop):
                        asked.put(self)
                    super().put(envelope, *more)

            return Inbox()

    tree = grow(*(ChildSpec(id=name, start=Noted.start) for name in "abc"))
    inboxes = [ref_of(tree, name).actor_inbox for name in "cba"]
    crash_by(ZeroDivisionError)
    tree.tell(TerminateChild(id="a"))
    first = [asked.get(timeout=PATIENCE_S) for _ in inboxes]
    assert first == inboxes
