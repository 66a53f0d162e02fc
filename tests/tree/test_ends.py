"""How trees end that nobody stops: a handler that fails, the exit of the interpreter, a fork."""

import os
import subprocess
import sys
from functools import partial

import pytest

from supervise import (
    ActorSupervisor,
    ChildSpec,
    RestartLimitExceeded,
    RestartPolicy,
    Supervisor,
    SupervisorCrashed,
    TerminateChild,
    TreeFinished,
    Wait,
)
from tests.processes.work import Unspeakable
from tests.tree.actors import PATIENCE_S, gang, ref_of


def test_a_tree_whose_handler_fails_stops_its_children_and_answers_everybody(parts, grow, ear, crash_by):
    tree = grow(parts.spec("a"), gang())
    child, ranks = ref_of(tree, "a"), ref_of(tree, "gang")
    waiting = tree.ask(Wait(), block=False)

    crash_by(ZeroDivisionError)
    tree.tell(TerminateChild(id="a"))
    with pytest.raises(SupervisorCrashed):
        waiting.get(timeout=PATIENCE_S)
    assert isinstance(ear.until(TreeFinished).error.__cause__, ZeroDivisionError)
    assert child.actor_stopped.wait(PATIENCE_S)
    assert ranks.actor_stopped.wait(PATIENCE_S)


def test_a_crash_without_a_text_is_an_error_all_the_same(parts, grow, crash_by):
    tree = grow(parts.spec("a"))
    waiting = tree.ask(Wait(), block=False)

    crash_by(Unspeakable)
    tree.tell(TerminateChild(id="a"))
    with pytest.raises(SupervisorCrashed, match=r"raised <Unspeakable: repr\(\) failed>") as caught:
        waiting.get(timeout=PATIENCE_S)
    assert isinstance(caught.value.__cause__, Unspeakable)


def _gave_up(entrypoint, args, kind, **settings):
    """Return the error of a tree that gives up on its gang."""
    start = partial(Supervisor.start, name="job", entrypoint=entrypoint, args={0: args}, **settings)
    spec = ChildSpec(id="job", start=start, restart=kind)
    with (
        ActorSupervisor.start(name="tree", children=[spec], restart_policy=RestartPolicy(max_restarts=0)) as tree,
        pytest.raises(RestartLimitExceeded) as caught,
    ):
        tree.ask(Wait(), timeout=PATIENCE_S)
    return caught.value


def test_a_gang_that_has_timed_out_is_not_blamed_on_a_rank_that_was_stopped():
    error = _gave_up("sleep", ("600",), "transient", timeout=0.2)
    assert "child 'job' has failed, after 0 restarts" in str(error)
    assert str(error.__cause__) == "job: the gang has timed out"


def test_a_permanent_gang_that_succeeds_has_ended():
    error = _gave_up("true", (), "permanent")
    assert "child 'job' has ended, after 0 restarts" in str(error)
    assert str(error.__cause__) == "child 'job' has ended without a failure, and its restart kind is permanent"


def _run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


AT_EXIT = """
import pykka
from functools import partial
from supervise import *

class Part(pykka.ThreadingActor):
    def __init__(self, name):
        super().__init__()
        self.name = name
    def on_stop(self):
        print(self.name, "stops", flush=True)

gang = partial(Supervisor.start, name="gang", entrypoint="sh", args={0: ("-c", "exec sleep 600")})
sub = partial(ActorSupervisor.start, name="sub", children=[ChildSpec(id="x", start=partial(Part.start, "x"))])
specs = [ChildSpec(id="a", start=partial(Part.start, "a"), restart="permanent"), ChildSpec(id="gang", start=gang)]
tree = ActorSupervisor.start(name="tree", children=[*specs, ChildSpec(id="sub", start=sub)])
refs = tree.ask(Start(), timeout=20)
print("pid", refs["gang"].ask(Pids(), timeout=20)[0], flush=True)
"""


def _is_gone(pid):
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_tree_is_stopped_when_the_interpreter_exits():
    """Plain actors are no daemons: without that, the program would never end."""
    lines = _run(AT_EXIT)
    assert lines[-2:] == ["x stops", "a stops"]
    (pid,) = [int(line.split()[1]) for line in lines if line.startswith("pid ")]
    _is_gone(pid)


def test_a_tree_below_is_stopped_in_its_turn_when_the_interpreter_exits():
    """Not as the newest of all trees."""
    turned = AT_EXIT.replace('[*specs, ChildSpec(id="sub", start=sub)]', '[ChildSpec(id="sub", start=sub), *specs]')
    assert turned != AT_EXIT
    assert _run(turned)[-2:] == ["a stops", "x stops"]


@pytest.mark.parametrize("own", ["start=gang)", "start=gang, shutdown_s=600.0)"])
def test_a_gang_of_a_tree_has_five_seconds_when_the_interpreter_exits(own):
    """Its grace and the time of the child would be 600 s, and the trees have all the time they need."""
    deaf = AT_EXIT.replace("exec sleep 600", "trap '' TERM; while :; do sleep 600; done")
    patient = "from supervise._tree import lives\nlives._PATIENCE_S = 600.0\n"
    slow = deaf.replace('name="gang",', 'name="gang", grace=600.0,', 1).replace("start=gang)", own, 1)
    lines = _run(patient + slow)
    (pid,) = [int(line.split()[1]) for line in lines if line.startswith("pid ")]
    _is_gone(pid)


def test_a_gang_outlives_no_tree_that_has_vanished():
    """A tree that crashes without a last word: the gang is closed at the interpreter's exit by its own Supervisor."""
    vanish = """
from supervise._tree import supervisor
ActorSupervisor.on_crash = ActorSupervisor._fail
def fail(*_):
    raise ZeroDivisionError
supervisor.decide = fail
tree.tell(TerminateChild(id="a"))
tree.actor_stopped.wait(20)
print(refs["gang"].ask(Status(), timeout=20).running, flush=True)
for ref in pykka.ActorRegistry.get_by_class(Part):
    ref.stop(timeout=20)
"""
    lines = _run(AT_EXIT + vanish)
    assert "frozenset({0})" in lines, "the gang runs on beside the crash"
    (pid,) = [int(line.split()[1]) for line in lines if line.startswith("pid ")]
    _is_gone(pid)


def test_a_forked_child_has_no_tree():
    fork = """
import os
child = os.fork()
if child == 0:
    alive = tree.is_alive()
    print("in the child:", alive, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("in the parent:", tree.is_alive(), flush=True)
"""
    lines = _run(AT_EXIT + fork)
    assert "in the child: False" in lines
    assert "in the parent: True" in lines
