"""Children that end at each point from their start function to their first message, and actors that never ran."""

import queue
import subprocess
import sys
import threading

import pykka
import pytest

from supervise import (
    ActorSupervisor,
    ChildDown,
    ChildSpec,
    ChildStarted,
    RestartLimitExceeded,
    RestartPolicy,
    SpecError,
    Start,
    StartChild,
    SuperviseError,
    TreeFinished,
    Wait,
)
from tests.tree.actors import PATIENCE_S, Gate, settle, status_of

POLICY = RestartPolicy(max_restarts=2, backoff=0.0)


class Brief(pykka.ThreadingActor):
    """An actor that does one thing in `__init__` or in `on_start`, and raises what it is told."""

    def __init__(self, at, act):
        super().__init__()
        self.at, self.act = at, act
        if at == "__init__":
            act(self.actor_ref)

    def on_start(self):
        if self.at == "on_start":
            self.act(self.actor_ref)

    def on_receive(self, message):
        raise message


class Lasting(pykka.ThreadingActor):
    """An actor whose `on_stop` waits at a gate."""

    def __init__(self, gate):
        super().__init__()
        self.on_stop = gate


def brief(at, act, starts):
    """Return the spec of a `Brief`, or of one on which the start function acts until the actor is dead."""

    def start():
        starts.append(at)
        ref = Brief.start(at, act)
        if at == "start":
            act(ref)
            assert ref.actor_stopped.wait(PATIENCE_S)
        return ref

    return ChildSpec(id="brief", start=start)


def failure(spec):
    """Return the error of a tree with this child, which cannot go on."""
    tree = ActorSupervisor.start(name="tree", children=[spec], restart_policy=POLICY)
    with pytest.raises(SuperviseError) as caught:
        tree.ask(Wait(), timeout=PATIENCE_S)
    return caught.value


def stop(ref):
    ref.stop(block=False)


@pytest.fixture
def boom():
    return ValueError("on purpose")


@pytest.mark.parametrize("at", ["__init__", "on_start", "start"])
def test_t11_a_child_that_stops_itself_before_its_first_message_has_finished(parts, grow, at):
    """It ends normally; the next child starts."""
    told = queue.SimpleQueue()

    def sink(event):
        if event["event"] == "supervise.child.down":
            told.put(event)

    tree = grow(brief(at, stop, []), parts.spec("next"), event_sink=sink)
    down = told.get(timeout=PATIENCE_S)
    assert (down["child"], down["reason"], down["normal"]) == ("brief", None, True)
    settle(tree)
    assert status_of(tree, "brief").state == "finished"
    parts.says("next starts")


@pytest.mark.parametrize("at", ["__init__", "on_start", "start"])
def test_t11_a_child_whose_first_message_raises_has_failed_and_counts(boom, at):
    starts = []
    error = failure(brief(at, lambda ref: ref.tell(boom), starts))
    assert isinstance(error, RestartLimitExceeded)
    assert error.__cause__ is boom
    assert len(starts) == 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kind", [ValueError, SystemExit])
@pytest.mark.parametrize("at", ["__init__", "on_start"])
def test_t11_a_child_that_raises_before_it_has_started_could_not_be_started(at, kind):
    """The cause is its own exception, also if its thread ends because of it, and it is not in the registry."""
    refs, error = [], kind("on purpose")

    def act(ref):
        refs.append(ref)
        raise error

    found = failure(brief(at, act, []))
    assert "'brief' could not be started" in str(found)
    assert found.__cause__ is error
    assert refs[0] not in pykka.ActorRegistry.get_all()


def test_t11_an_exception_of_a_later_on_start_counts(boom):
    starts = []

    def act(ref):
        if len(starts) > 1:
            raise boom
        ref.tell(boom)

    error = failure(brief("on_start", act, starts))
    assert isinstance(error, RestartLimitExceeded)
    assert error.__cause__ is boom
    assert len(starts) == 3


def test_a_permanent_child_that_stops_itself_in_on_start_counts():
    starts = []
    spec = brief("on_start", stop, starts)
    error = failure(ChildSpec(id=spec.id, start=spec.start, restart="permanent"))
    assert isinstance(error, RestartLimitExceeded)
    assert len(starts) == 3


def test_an_actor_that_the_start_function_did_not_start_itself_is_watched_from_its_return(grow, ear, boom):
    started = Brief.start("", None)
    grow(ChildSpec(id="brief", start=lambda: started, restart="temporary"))
    ear.until(ChildStarted, id="brief")
    started.tell(boom)
    assert ear.until(ChildDown, id="brief").reason is boom


# Actors that never ran


def _run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


NEVER_RAN = """
import pykka, threading
from supervise import *

class Part(pykka.ThreadingActor):
    def on_start(self):
        if leaves:
            raise SystemExit

def start():
    threading.stack_size(0 if leaves else 1 << 46)  # no memory for its stack: "can't start new thread"
    try:
        return Part.start()
    except RuntimeError:
        if not hides:
            raise
    finally:
        threading.stack_size(0)

for leaves, hides in ((False, False), (False, True), (True, False)):
    tree = ActorSupervisor.start(name="tree", children=[ChildSpec(id="a", start=start)])
    try:
        tree.ask(Start(), timeout=20)
        tree.stop()
    except SuperviseError as error:
        print(repr(error.__cause__), flush=True)
    print(pykka.ActorRegistry.get_all(), len(pykka.ActorRegistry.stop_all(timeout=20)), flush=True)
"""


def test_t12_an_actor_that_never_ran_is_not_in_the_registry():
    """Its thread could not start, with and without a start function that hides that; or SystemExit left `on_start`."""
    nobody = "[] 0"
    assert _run(NEVER_RAN) == ['RuntimeError("can\'t start new thread")', nobody, nobody, "SystemExit()", nobody]


@pytest.mark.parametrize("fails", [False, True])
def test_wait_is_answered_when_no_actor_of_the_tree_is_in_the_registry(parts, grow, boom, fails):
    lower = ChildSpec(id="lower", start=lambda: ActorSupervisor.start(name="lower", children=[parts.spec("x")]))
    tree = grow(parts.spec("a"), lower, restart_policy=RestartPolicy(max_restarts=0))
    mine, left = {ref.actor_urn for ref in pykka.ActorRegistry.get_all()}, []
    waiting = tree.ask(Wait(), block=False)
    waiting.add_done_callback(lambda: left.extend(pykka.ActorRegistry.get_all()))
    if fails:
        status_of(tree, "a").ref.tell(boom)
        with pytest.raises(RestartLimitExceeded):
            waiting.get(timeout=PATIENCE_S)
    else:
        tree.stop(timeout=PATIENCE_S)
    kept = {ref.actor_class.__name__ for ref in left}
    assert len(mine) == len(kept) + 4
    assert kept == {"_Ear"}


def test_an_abandoned_actor_is_not_in_the_registry(parts, grow):
    """`ActorRegistry.stop_all` would wait for its thread."""
    gate = Gate()
    tree = grow(parts.spec("a", shutdown_s=0.05))
    stuck = status_of(tree, "a").ref
    stuck.tell(gate)
    assert gate.reached.wait(PATIENCE_S)
    with pytest.raises(RestartLimitExceeded, match="abandoned"):
        tree.stop(block=False) and tree.ask(Wait(), timeout=PATIENCE_S)
    assert stuck not in pykka.ActorRegistry.get_all()
    gate.open()
    assert stuck.actor_stopped.wait(PATIENCE_S)


def test_an_actor_that_is_abandoned_in_its_on_stop_has_not_ended_without_a_failure(grow):
    """So no such end is the cause."""
    may_end = threading.Event()

    class Slow(pykka.ThreadingActor):
        def on_stop(self):
            may_end.wait(PATIENCE_S)

    tree = grow(ChildSpec(id="a", start=Slow.start, shutdown_s=0.05))
    stuck = status_of(tree, "a").ref
    with pytest.raises(RestartLimitExceeded, match="'a' has not stopped in time") as caught:
        tree.stop(block=False) and tree.ask(Wait(), timeout=PATIENCE_S)
    assert caught.value.__cause__ is None
    may_end.set()
    assert stuck.actor_stopped.wait(PATIENCE_S)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_child_whose_on_failure_exits_is_gone_with_its_thread(grow, ear, boom):
    """`sys.exit` in this hook or in `on_stop` ends the thread, and pykka answers nothing more."""

    class Exits(pykka.ThreadingActor):
        def on_receive(self, message):
            raise message

        def on_failure(self, *_):
            sys.exit("on_failure")

        def on_stop(self):
            sys.exit("on_stop")

    tree = grow(ChildSpec(id="a", start=Exits.start, shutdown_s=PATIENCE_S))
    ear.until(ChildStarted)
    status_of(tree, "a").ref.tell(boom)
    assert ear.until(ChildDown).reason is boom
    ear.until(ChildStarted)
    tree.stop(block=False)
    assert tree.ask(Wait(), timeout=PATIENCE_S / 2) == TreeFinished(error=None)


def test_a_start_that_is_asked_while_a_tree_stops_after_a_failure_raises_the_failure(parts, grow):
    """As it would before and after; not only that the tree is stopping."""
    gate = Gate()
    lasting = ChildSpec(id="a", start=lambda: Lasting.start(gate), shutdown_s=PATIENCE_S)
    broken = ChildSpec(id="b", start=lambda: parts.start("b", fails=KeyError("in start")))
    tree = grow(lasting, broken, wait=False)
    assert gate.reached.wait(PATIENCE_S), "the tree stops its first child"
    starting = tree.ask(Start(), block=False)
    gate.open()
    with pytest.raises(SuperviseError, match="child 'b' could not be started") as caught:
        starting.get(timeout=PATIENCE_S)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_tree_that_was_refused_as_its_own_child_accepts_others(parts, grow):
    """The refusal leaves no trace in the tree."""
    tree = grow(parts.spec("a"))
    with pytest.raises(SpecError, match="the tree of this child or one above it"):
        tree.ask(StartChild(spec=ChildSpec(id="self", start=lambda: tree)), timeout=PATIENCE_S)
    lower = ChildSpec(id="lower", start=lambda: ActorSupervisor.start(name="lower", children=[parts.spec("x")]))
    assert tree.ask(StartChild(spec=lower), timeout=PATIENCE_S).is_alive()


@pytest.mark.parametrize("depth", [0, 1])
def test_a_start_function_that_returns_its_own_tree_or_one_above_it_is_refused(depth):
    """That tree would wait for its own start."""
    made, last_is_made = [], threading.Lock()

    def start():
        with last_is_made:
            if len(made) > depth:
                return made[0]
            made.append(ActorSupervisor.start(name=f"below {len(made)}", children=[ChildSpec(id="a", start=start)]))
            return made[-1]

    with last_is_made:
        made.append(ActorSupervisor.start(name="top", children=[ChildSpec(id="a", start=start)]))
    with pytest.raises(SuperviseError) as caught:
        made[0].ask(Start(), timeout=PATIENCE_S)
    error = caught.value
    while error.__cause__ is not None:
        error = error.__cause__
    assert isinstance(error, SpecError)
    assert "the tree of this child or one above it" in str(error)


def test_a_tree_whose_own_child_has_adopted_it_before_fails_by_this_error(monkeypatch):
    """The lower tree is told to stop and stops its child, the top; by then, the top has failed."""
    given, made, may_return = queue.SimpleQueue(), queue.SimpleQueue(), threading.Event()

    def start():
        upper = ChildSpec(id="a", start=lambda: given.get(timeout=PATIENCE_S))
        made.put(ActorSupervisor.start(name="lower", children=[upper]))
        assert may_return.wait(PATIENCE_S)
        return lower

    top = ActorSupervisor.start(name="top", children=[ChildSpec(id="a", start=start)])
    stopped, inbox = threading.Event(), type(top.actor_inbox)
    put = inbox.put

    def put_both(self, envelope):
        put(self, envelope)
        if isinstance(envelope.message, pykka.messages._ActorStop):
            stopped.set() if self is top.actor_inbox else stopped.wait(PATIENCE_S)

    monkeypatch.setattr(inbox, "put", put_both)
    given.put(top)
    lower = made.get(timeout=PATIENCE_S)
    assert status_of(lower, "a").ref is top
    may_return.set()
    with pytest.raises(SuperviseError, match="top: child 'a' could not be started") as caught:
        top.ask(Start(), timeout=PATIENCE_S)
    assert isinstance(caught.value.__cause__, SpecError)


def test_start_has_the_error_of_a_tree_that_ends_while_it_is_asked(monkeypatch):
    """The tree ends between the looks at its inbox and at its actor."""
    asked = threading.Event()

    def fail():
        assert asked.wait(PATIENCE_S)
        raise ValueError

    def is_alive(tree):
        asked.set()
        assert tree.actor_stopped.wait(PATIENCE_S)
        return False

    tree = ActorSupervisor.start(name="tree", children=[ChildSpec(id="a", start=fail)])
    monkeypatch.setattr(type(tree), "is_alive", is_alive)
    with pytest.raises(SuperviseError, match="child 'a' could not be started"):
        tree.ask(Start(), timeout=PATIENCE_S)


CLOSED = """
import os, pykka
from functools import partial
from supervise import *

class Part(pykka.ThreadingActor):
    def on_stop(self):
        print("stops", flush=True)

sub = partial(ActorSupervisor.start, name="sub", children=[ChildSpec(id="x", start=Part.start)])
gang = partial(Supervisor.start, name="gang", entrypoint="sleep", args={0: ("600",)})
specs = [ChildSpec(id="a", start=Part.start), ChildSpec(id="sub", start=sub), ChildSpec(id="gang", start=gang)]
tree = ActorSupervisor.start(name="tree", children=specs)
tree.ask(Start(), timeout=20)
os.closerange(3, 4096)
"""


def test_the_interpreter_exits_although_all_descriptors_were_closed():
    """Neither tree can be woken; their actors are stopped in their place."""
    assert _run(CLOSED) == ["stops", "stops"]
