"""What a tree that has ended replies, and what it shows if nobody waits for it."""

import asyncio
import fcntl
import gc
import os
import subprocess
import sys
import threading
import weakref
from functools import partial

import pykka
import pytest

from supervise import (
    ActorSupervisor,
    ChildSpec,
    RestartLimitExceeded,
    RestartPolicy,
    Start,
    StartChild,
    Status,
    Subscribe,
    SuperviseError,
    SupervisorCrashed,
    TerminateChild,
    TreeFinished,
    Wait,
)
from tests.tree.actors import PATIENCE_S, Gate, ref_of


def refuse():
    raise ConnectionError("the database is down")


UNSTARTABLE = ChildSpec(id="db", start=refuse)


def start(*children, name="app", **more):
    return ActorSupervisor.start(name=name, children=children, **more)


@pytest.fixture
def failed():
    """A tree whose child could not be started, after its end."""
    tree = start(UNSTARTABLE)
    assert tree.actor_stopped.wait(PATIENCE_S)
    return tree


def caught(ask):
    with pytest.raises(SuperviseError) as found:
        ask()
    return found.value


def is_that_of_the_start(error):
    cause = "ConnectionError('the database is down')"
    return str(error) == "app: child 'db' could not be started" and repr(error.__cause__) == cause


# The reply


@pytest.mark.parametrize("message", [Start(), Wait(), Wait(timeout=0)], ids=repr)
def test_a_tree_that_has_failed_replies_with_its_error_as_often_as_it_is_asked(failed, message):
    for _ in range(2):
        assert is_that_of_the_start(caught(lambda: failed.ask(message, timeout=PATIENCE_S)))
        assert is_that_of_the_start(caught(lambda: failed.ask(message, block=False).get(timeout=PATIENCE_S)))

    async def wait():
        return await failed.ask(message, block=False)

    assert is_that_of_the_start(caught(lambda: asyncio.run(wait())))


def test_the_error_of_a_start_does_not_depend_on_who_is_faster():
    for _ in range(30):
        assert is_that_of_the_start(caught(lambda: start(UNSTARTABLE).ask(Start(), timeout=PATIENCE_S)))


def test_every_ref_of_the_tree_has_the_error():
    found = []

    def look():
        found.extend(pykka.ActorRegistry.get_by_class(ActorSupervisor))

    tree = start(ChildSpec(id="a", start=look), UNSTARTABLE)
    assert tree.actor_stopped.wait(PATIENCE_S)
    (ref,) = [ref for ref in found if ref.actor_urn == tree.actor_urn]
    assert is_that_of_the_start(caught(lambda: ref.ask(Wait(), timeout=PATIENCE_S)))


def test_what_arrives_while_the_tree_ends_gets_the_error_as_well():
    """The tree's last event is emitted before its replies: what is asked then waits in its inbox until it has ended."""
    asked = []

    def sink(event):
        if event["event"] == "supervise.tree.finished":
            (tree,) = [ref for ref in pykka.ActorRegistry.get_by_class(ActorSupervisor) if ref.actor_urn in urns]
            asked.extend(tree.ask(message, block=False) for message in (Start(), Wait(), Status()))

    gate, urns = Gate(), set()
    tree = start(ChildSpec(id="a", start=gate), UNSTARTABLE, event_sink=sink)
    urns.add(tree.actor_urn)
    gate.open()
    assert tree.actor_stopped.wait(PATIENCE_S)
    starting, waiting, status = asked
    assert is_that_of_the_start(caught(lambda: starting.get(timeout=PATIENCE_S)))
    assert is_that_of_the_start(caught(lambda: waiting.get(timeout=PATIENCE_S)))
    with pytest.raises(pykka.ActorDeadError):
        status.get(timeout=PATIENCE_S)


def test_other_messages_to_a_tree_that_has_failed_find_nobody(failed, ear):
    spec = ChildSpec(id="a", start=refuse)
    for message in (Status(), Subscribe(ref=ear.ref), StartChild(spec=spec), TerminateChild(id="db"), "hello"):
        with pytest.raises(pykka.ActorDeadError):
            failed.ask(message, timeout=PATIENCE_S)
    with pytest.raises(pykka.ActorDeadError):
        failed.tell(Wait())
    assert not failed.stop(timeout=PATIENCE_S)


def test_a_tree_that_was_stopped_says_so_to_a_wait(parts):
    tree = start(parts.spec("a"))
    tree.ask(Start(), timeout=PATIENCE_S)
    tree.stop(timeout=PATIENCE_S)
    assert tree.ask(Wait(), timeout=PATIENCE_S) == TreeFinished()
    assert tree.ask(Wait(), block=False).get(timeout=PATIENCE_S) == TreeFinished()
    for message in (Start(), Status()):
        with pytest.raises(pykka.ActorDeadError):
            tree.ask(message, timeout=PATIENCE_S)
    with pytest.raises(pykka.ActorDeadError):
        tree.tell(Wait())


def test_a_tree_that_has_given_up_names_the_child_also_later(parts, grow):
    tree = grow(parts.spec("a"), restart_policy=RestartPolicy(max_restarts=0))
    ref_of(tree, "a").tell(boom := ValueError("on purpose"))
    assert tree.actor_stopped.wait(PATIENCE_S)
    for message in (Start(), Wait()):
        error = caught(lambda message=message: tree.ask(message, timeout=PATIENCE_S))
        assert isinstance(error, RestartLimitExceeded)
        assert error.child_id == "a"
        assert error.__cause__ is boom


def test_a_tree_that_has_crashed_says_so_also_later(parts, grow, crash_by):
    tree = grow(parts.spec("a"))
    crash_by(ZeroDivisionError)
    tree.tell(TerminateChild(id="a"))
    assert tree.actor_stopped.wait(PATIENCE_S)
    error = caught(lambda: tree.ask(Wait(), timeout=PATIENCE_S))
    assert isinstance(error, SupervisorCrashed)
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_the_tree_above_gets_the_error_of_one_that_was_dead_when_it_was_returned(failed):
    tree = start(ChildSpec(id="sub", start=lambda: failed), name="top")
    error = caught(lambda: tree.ask(Start(), timeout=PATIENCE_S))
    assert str(error) == "top: child 'sub' could not be started"
    assert is_that_of_the_start(error.__cause__)


def test_the_tree_above_gets_the_error_whoever_is_faster():
    for _ in range(30):
        tree = start(ChildSpec(id="sub", start=partial(start, UNSTARTABLE)), name="top")
        assert is_that_of_the_start(caught(lambda tree=tree: tree.ask(Wait(), timeout=PATIENCE_S)).__cause__)


# Memory


@pytest.mark.parametrize("returned", [refuse, lambda: 5], ids=["raises", "is no ref"])
def test_the_ref_of_a_tree_that_has_failed_does_not_hold_the_actor(returned):
    tree = start(ChildSpec(id="sub", start=partial(start, ChildSpec(id="db", start=returned))), name="top")
    caught(lambda: tree.ask(Wait(), timeout=PATIENCE_S))
    for thread in threading.enumerate():
        if thread.name in ("supervise-top", "supervise-app"):
            thread.join(PATIENCE_S)
    gc.collect()
    assert tree._actor_weakref() is None
    error = caught(lambda: tree.ask(Wait(), timeout=PATIENCE_S))
    assert error.__cause__.__cause__.__traceback__ is not None, "the place in the start function is still shown"


def test_an_error_that_was_raised_is_held_by_nobody(failed):
    """A traceback holds the frames that it has left: a kept error would hold all who ever asked for it."""

    def raised():
        try:
            failed.ask(Wait(), timeout=PATIENCE_S)
        except SuperviseError as error:
            return weakref.ref(error)

    gc.disable()
    try:
        assert raised()() is None
    finally:
        gc.enable()


# The line of a failure


PROGRAM = """
import pykka, threading
from functools import partial
from supervise import *

def refuse():
    raise ConnectionError("the database is down\\nand more")

class Ear(pykka.ThreadingActor):
    use_daemon_thread = True

gate = threading.Event()
def wait():
    gate.wait()
db = ChildSpec(id="db", start=refuse)
sub = ChildSpec(id="sub", start=partial(ActorSupervisor.start, name="sub", children=[db]))
def tree(child):
    return ActorSupervisor.start(name="app", children=[ChildSpec(id="gate", start=wait), child])
def end(tree):
    gate.set()
    tree.actor_stopped.wait()
"""
WHY = "child 'db' could not be started: ConnectionError: the database is down"


def shown(rest):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + rest], capture_output=True, text=True, timeout=50, check=True
    )
    return done.stderr.splitlines()


def test_a_start_that_fails_unheard_is_one_line():
    assert shown("end(tree(db))") == [f"supervise: tree failed: app: {WHY}"]


def test_the_line_of_a_tree_above_trees_leads_to_the_first_failure():
    *_, last = shown("end(tree(sub))")
    assert last == f"supervise: tree failed: app: child 'sub' could not be started: SuperviseError: sub: {WHY}"


def test_an_error_that_is_its_own_cause_is_told_once():
    """The tree follows the causes of its own errors only, and a child may raise such an error."""
    lines = shown("""
def lost():
    error = SuperviseError("lost the gang")
    raise error from error
end(tree(ChildSpec(id="db", start=lost)))
""")
    assert lines == ["supervise: tree failed: app: child 'db' could not be started: SuperviseError: lost the gang"]


def test_the_line_of_a_long_error_does_not_wait_for_the_reader_of_stderr():
    """The pipe is almost full, and is read only after the end."""
    read, write = os.pipe()
    size = fcntl.fcntl(write, fcntl.F_GETPIPE_SZ)
    os.write(write, b"-" * (size - 4096))
    rest = """
def refuse():
    raise ValueError("y" * 100_000)
end(tree(ChildSpec(id="db", start=refuse)))
print("ended")
"""
    words = [sys.executable, "-c", PROGRAM + rest]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=write, timeout=50, check=True)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        line = pipe.read()[size - 4096 :]
    assert done.stdout == b"ended\n"
    assert line.startswith(b"supervise: tree failed: app: child 'db' could not be started: ValueError: yyy")
    assert line.endswith(b"yyy ...\n")


@pytest.mark.parametrize("wait", ["Start()", "Wait()", "Subscribe(ref=Ear.start())"])
def test_a_failure_that_somebody_waits_for_is_no_line(wait):
    assert shown(f"app = tree(db); reply = app.ask({wait}, block=False); end(app)") == []


def test_a_program_that_has_configured_logging_gets_no_line():
    assert shown("import logging; logging.getLogger('supervise').setLevel(50); end(tree(db))") == []
