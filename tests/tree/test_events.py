"""The structured events of a tree: what happened, in order, with its fields; listeners cannot harm."""

import logging
import signal
import subprocess
import sys

import pytest

from supervise import (
    ActorSupervisor,
    ChildSpec,
    RestartChild,
    RestartLimitExceeded,
    RestartPolicy,
    Signal,
    SpecError,
    StartChild,
    SupervisorCrashed,
    TerminateChild,
    Wait,
)
from supervise._core.tree import Tree
from supervise._tree import supervisor as event_emitter
from supervise._tree.supervisor import describe
from supervise.testing import EventRecorder
from supervise.trees import ChildDown
from tests.tree.actors import PATIENCE_S, Gate, gang, ref_of, settle

COMMON = {"event", "level", "schema_version", "timestamp", "monotonic_ns", "tree", "attempt", "host_name", "seq"}


@pytest.fixture
def boom():
    return ValueError("on purpose")


@pytest.fixture
def heard():
    return EventRecorder()


def told(heard):
    """Return the events so far: their names without the prefix, and the children they are about."""
    found = []
    for event in heard.all:
        name = event["event"].removeprefix("supervise.")
        found.append(f"{name} {event['child']}" if event.get("child") else name)
    return found


def own(event):
    """Return the fields that an event has beside the common ones."""
    return {key: value for key, value in event.items() if key not in COMMON}


def test_a_tree_tells_its_start_and_its_stop_in_order(parts, grow, heard):
    tree = grow(parts.spec("a"), gang("b"), event_sink=heard)
    assert told(heard) == ["tree.starting", "child.started a", "child.started b", "tree.started"]
    tree.stop(timeout=PATIENCE_S)
    stop = ["child.stopping b", "child.down b", "child.stopping a", "child.down a"]
    assert told(heard)[4:] == ["tree.stopping", *stop, "tree.finished"]
    assert [event["seq"] for event in heard.all] == list(range(10))
    assert {event["tree"] for event in heard.all} == {"tree"}
    assert {event["level"] for event in heard.all} == {"info"}
    for event in heard.all:
        assert event.keys() >= COMMON
    starting, a, b, started = heard.all[:4]
    assert own(starting) == {"strategy": "one_for_all", "children": ["a", "b"]}
    assert own(a).keys() == {"child", "actor", "start_duration_s"}
    assert "Part" in a["actor"]
    assert 0 < a["start_duration_s"] < started["duration_s"] < PATIENCE_S
    assert b["attempt"] == 0
    stopping, finished = heard.named("supervise.tree.stopping"), heard.named("supervise.tree.finished")
    assert own(stopping[0]) == {"reason": "stopped", "child": None}
    assert finished[0]["outcome"] == "stopped"
    assert finished[0]["exception_type"] is None


def test_a_failure_is_told_before_the_restart_and_that_before_the_next_start(parts, grow, heard, boom):
    policy = RestartPolicy(max_restarts=7, backoff=0.0)
    tree = grow(parts.spec("a"), parts.spec("b"), strategy="rest_for_one", restart_policy=policy, event_sink=heard)
    ref_of(tree, "a").tell(boom)
    heard.wait_for("supervise.child.restarting")
    settle(tree)
    after = ["child.down a", "child.restarting a", "child.stopping b", "child.down b"]
    assert told(heard)[4:10] == [*after, "child.started a", "child.started b"]
    down, restarting, _, stopped, a, b = heard.all[4:10]
    assert (down["level"], down["attempt"], down["normal"], down["reason"]) == ("error", 0, False, "exception")
    assert (down["exception_type"], down["exception_message"]) == ("ValueError", "on purpose")
    assert "in on_receive" in down["exception_stacktrace"]
    assert down["uptime_s"] > 0
    assert restarting["level"] == "warning"
    assert own(restarting) == {
        "child": "a",
        "children": ["a", "b"],
        "backoff_s": 0.0,
        "restarts": 1,
        "max_restarts": 7,
    }
    assert (stopped["level"], stopped["normal"], stopped["reason"]) == ("info", True, None)
    assert restarting["attempt"] == a["attempt"] == b["attempt"] == 1


def test_the_end_of_a_gang_names_its_ranks(grow, heard):
    tree = grow(gang(), event_sink=heard)
    ref_of(tree, "gang").ask(Signal(sig=signal.SIGKILL, ranks=frozenset({1})), timeout=PATIENCE_S)
    down = heard.wait_for("supervise.child.down")
    assert down["exception_type"] == "ChildFailedError"
    assert "SIGKILL" in down["exception_message"]
    assert down["exception_stacktrace"] is None


def test_a_tree_that_gives_up_tells_why_and_that_it_has_failed(parts, grow, heard, boom):
    policy = RestartPolicy(max_restarts=0, within_s=9.0)
    tree = grow(parts.spec("a"), restart_policy=policy, event_sink=heard)
    waiting = tree.ask(Wait(), block=False)
    ref_of(tree, "a").tell(boom)
    with pytest.raises(RestartLimitExceeded):
        waiting.get(timeout=PATIENCE_S)
    assert told(heard)[3:] == ["child.down a", "tree.gave_up a", "tree.stopping a", "tree.finished"]
    gave_up, stopping, finished = heard.all[4:]
    assert own(gave_up) == {"child": "a", "max_restarts": 0, "within_s": 9.0}
    assert own(stopping) == {"reason": "gave_up", "child": "a"}
    assert (finished["outcome"], finished["exception_type"]) == ("failed", "RestartLimitExceeded")
    assert {event["level"] for event in heard.all[3:]} == {"error"}


def test_a_first_start_that_fails_is_a_child_down_and_the_reason_of_the_stop(heard, boom):
    def start():
        raise boom

    tree = ActorSupervisor.start(name="tree", children=[ChildSpec(id="a", start=start)], event_sink=heard)
    assert tree.actor_stopped.wait(PATIENCE_S)
    assert told(heard) == ["tree.starting", "child.down a", "tree.stopping a", "tree.finished"]
    assert heard.all[2]["reason"] == "not_started"


def test_asks_are_told_by_their_effects(parts, grow, heard):
    tree = grow(parts.spec("a"), event_sink=heard)
    tree.ask(RestartChild(id="a"), timeout=PATIENCE_S)
    tree.ask(TerminateChild(id="a"), timeout=PATIENCE_S)
    tree.ask(StartChild(spec=ChildSpec(id="none", start=lambda: None)), timeout=PATIENCE_S)
    stop = ["child.stopping a", "child.down a"]
    assert told(heard)[3:] == [*stop, "child.started a", *stop, "child.ignored none"]
    assert [event["attempt"] for event in heard.all[3:]] == [0, 0, 1, 1, 1, 0]


def test_a_child_that_does_not_stop_in_time_is_told_as_abandoned(parts, grow, heard):
    gate = Gate()
    tree = grow(parts.spec("a", shutdown_s=0.05), event_sink=heard)
    child = ref_of(tree, "a")
    child.tell(gate)
    assert gate.reached.wait(PATIENCE_S)
    tree.tell(TerminateChild(id="a"))
    assert tree.actor_stopped.wait(PATIENCE_S)
    gate.open()
    assert child.actor_stopped.wait(PATIENCE_S)
    end = ["tree.stopping a", "tree.finished"]
    assert told(heard)[3:] == ["child.stopping a", "child.down a", "child.abandoned a", *end]


def test_a_crash_of_the_tree_is_its_last_event(parts, grow, heard, crash_by):
    tree = grow(parts.spec("a"), event_sink=heard)
    child, waiting = ref_of(tree, "a"), tree.ask(Wait(), block=False)
    crash_by(ZeroDivisionError)
    tree.tell(TerminateChild(id="a"))
    with pytest.raises(SupervisorCrashed):
        waiting.get(timeout=PATIENCE_S)
    assert heard.all[-1]["exception_type"] == "SupervisorCrashed"
    assert told(heard)[3:] == ["tree.finished"]
    assert child.actor_stopped.wait(PATIENCE_S)


def test_a_sink_that_raises_harms_nothing(parts, grow, ear, boom):
    def sink(event):
        raise RuntimeError(event)

    tree = grow(parts.spec("a"), event_sink=sink)
    ref_of(tree, "a").tell(boom)
    assert not ear.until(ChildDown).normal
    settle(tree)
    assert ref_of(tree, "a").ask("still here", timeout=PATIENCE_S) == "still here"


def test_an_exception_without_a_text_is_told(parts, grow, heard):
    class UnspeakableError(Exception):
        def __str__(self):
            raise ValueError

    tree = grow(parts.spec("a"), event_sink=heard)
    ref_of(tree, "a").tell(UnspeakableError())
    down = heard.wait_for("supervise.child.down")
    assert (down["exception_type"], down["exception_message"]) == ("UnspeakableError", "<exception str() failed>")


def test_a_dead_actor_is_told_with_the_word_for_it():
    (event,) = describe(ChildDown(id="a", reason="noproc", normal=False), Tree("one_for_all", RestartPolicy()), 2, 0.5)
    assert event.fields == {
        "child": "a",
        "attempt": 2,
        "normal": False,
        "uptime_s": 0.5,
        "reason": "noproc",
        "exception_type": None,
        "exception_message": None,
        "exception_stacktrace": None,
    }


def test_without_a_listener_nothing_is_described(parts, grow, ear, boom, monkeypatch):
    monkeypatch.setattr(event_emitter, "describe", None)  # a call would be a crash of the tree
    monkeypatch.setattr(logging.getLogger("supervise"), "propagate", False)
    tree = grow(parts.spec("a"))
    ref_of(tree, "a").tell(boom)
    ear.until(ChildDown)
    settle(tree)


def test_logging_gets_the_events_and_carries_them_whole(parts, grow, ear, boom, caplog):
    tree = grow(parts.spec("a"))
    with caplog.at_level(logging.WARNING, logger="supervise"):
        ref_of(tree, "a").tell(boom)
        ear.until(ChildDown)
        settle(tree)
    down, restarting = [record.supervise for record in caplog.records if record.name == "supervise"]
    assert (down["event"], restarting["event"]) == ("supervise.child.down", "supervise.child.restarting")


UNHEARD = """
import logging, pykka
from supervise import *

logging.getLogger("pykka").addHandler(logging.NullHandler())
class Part(pykka.ThreadingActor):
    def on_receive(self, message):
        raise ValueError("on purpose\\nand more")

spec = ChildSpec(id="a", start=Part.start)
tree = ActorSupervisor.start(name="tree", restart_policy=RestartPolicy(max_restarts=0), children=[spec])
tree.ask(Start(), timeout=20)["a"].tell("hello")
tree.actor_stopped.wait()
"""


def test_a_tree_that_gives_up_unheard_says_so_in_one_line():
    done = subprocess.run([sys.executable, "-c", UNHEARD], capture_output=True, text=True, timeout=50, check=False)
    line = "supervise: tree failed: tree: child 'a' has failed, after 0 restarts: ValueError: on purpose\n"
    assert done.stderr == line


OF_A_GANG = """
import functools, pathlib, sys, time
from supervise import *

go = pathlib.Path(sys.argv[1])
script = 'until rm "$0" 2>/dev/null; do sleep 0.02; done; exit 4'
start = functools.partial(Supervisor.start, name="job", entrypoint="sh", args={0: ("-c", script, str(go))})
policy = RestartPolicy(max_restarts=1, backoff=0)
tree = ActorSupervisor.start(name="tree", restart_policy=policy, children=[ChildSpec(id="gang", start=start)])
for life in range(2):  # each fails after its start
    while (child := tree.ask(Status(), timeout=30).children["gang"]).state != "ready" or child.restarts < life:
        time.sleep(0.02)
    go.touch()
tree.actor_stopped.wait()
"""


def test_a_tree_that_gives_up_on_a_gang_names_the_rank_and_how_it_ended(tmp_path):
    command = [sys.executable, "-c", OF_A_GANG, str(tmp_path / "go")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    *_, last = done.stderr.splitlines()
    assert last == "supervise: tree failed: tree: child 'gang' has failed, after 1 restart: rank 0: exit code 4"


@pytest.mark.parametrize("given", ["a word", 3])
def test_a_sink_that_cannot_be_called_is_refused(given):
    with pytest.raises(SpecError, match="event_sink is"):
        ActorSupervisor.start(name="tree", children=[], event_sink=given)


def test_a_tree_in_a_tree_has_events_of_its_own(parts, grow, heard):
    inner = EventRecorder()

    def sub():
        return ActorSupervisor.start(name="sub", children=[parts.spec("x")], event_sink=inner)

    tree = grow(ChildSpec(id="sub", start=sub), event_sink=heard)
    assert [event["tree"] for event in inner.all] == ["sub"] * 3
    tree.stop(timeout=PATIENCE_S)
    assert inner.all[-1]["event"] == "supervise.tree.finished"
    assert told(heard)[-2:] == ["child.down sub", "tree.finished"]
