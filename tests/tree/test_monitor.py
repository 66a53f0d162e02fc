"""`monitor`: one `Down` for each call, whatever ends the actor and whenever it does."""

import gc
import threading

import pykka
import pytest

from supervise import ActorSupervisor, Down, SpecError, monitor
from supervise.testing import FakeGang
from tests.tree.actors import PATIENCE_S, Gate, Part

RACES = 500


def test_a_stop_is_a_normal_end(parts, ear):
    ref = parts.start("a")
    monitor(ref, tell=ear.ref)
    ear.is_silent()
    ref.stop(timeout=PATIENCE_S)
    assert ear.take() == Down(ref=ref, reason=None, normal=True)


def test_an_exception_in_a_handler_is_the_reason(parts, ear):
    ref, error = parts.start("a"), ValueError("on purpose")
    monitor(ref, tell=ear.ref)
    ref.tell(error)
    assert ear.take() == Down(ref=ref, reason=error, normal=False)


def test_an_exception_that_is_answered_ends_nobody(parts, ear):
    ref = parts.start("a")
    monitor(ref, tell=ear.ref)
    with pytest.raises(ValueError, match="on purpose"):
        ref.ask(ValueError("on purpose"), timeout=PATIENCE_S)
    ref.stop(timeout=PATIENCE_S)
    assert ear.take().normal


def test_an_exception_in_on_start_is_the_reason(parts, ear):
    gate, error = Gate(), ValueError("stillborn")

    class Slow(Part):
        def on_start(self):
            gate()
            raise error

    ref = Slow.start("a", parts.said)
    monitor(ref, tell=ear.ref)
    gate.open()
    assert ear.take() == Down(ref=ref, reason=error, normal=False)


def test_what_stops_all_actors_is_the_reason(parts, ear):
    """pykka stops all actors where a BaseException leaves a handler, the one that is told among them."""
    ref, error = parts.start("a"), SystemExit("on purpose")
    monitor(ref, tell=ear.ref)
    ref.tell(error)
    assert ear.take() == Down(ref=ref, reason=error, normal=False)
    assert ear.ref.actor_stopped.wait(PATIENCE_S)


def test_an_actor_whose_thread_ends_in_on_start_is_lost(parts, ear, monkeypatch):
    """Nobody sets its event: pykka guards only against an Exception there."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    gate = Gate()

    class Slow(Part):
        def on_start(self):
            gate()
            raise SystemExit

    ref = Slow.start("a", parts.said)
    monitor(ref, tell=ear.ref)
    gate.open()
    assert ear.take() == Down(ref=ref, reason="lost", normal=False)
    assert ref.is_alive()
    monitor(ref, tell=ear.ref)
    assert ear.take().reason == "lost"
    pykka.ActorRegistry.unregister(ref)


def test_a_dead_actor_is_told_at_once(parts, ear):
    ref = parts.start("a")
    ref.stop(timeout=PATIENCE_S)
    monitor(ref, tell=ear.ref)
    assert ear.take() == Down(ref=ref, reason="noproc", normal=False)


def test_every_monitor_gets_a_down_of_its_own(parts, ear):
    ref = parts.start("a")
    for _ in range(3):
        monitor(ref, tell=ear.ref)
    ref.stop(timeout=PATIENCE_S)
    assert len(ear.take(3)) == 3


def test_it_comes_before_on_stop_has_run(parts, ear):
    gate = Gate()

    class Slow(Part):
        def on_stop(self):
            gate()

    ref = Slow.start("a", parts.said)
    monitor(ref, tell=ear.ref)
    ref.stop(block=False)
    ear.take()
    gate.open()
    assert ref.stop(timeout=PATIENCE_S) in (True, False)


def test_nobody_is_told_where_the_one_who_asked_has_ended(parts):
    ref, other = parts.start("a"), parts.start("b")
    monitor(ref, tell=other)
    monitor(ref, tell=ref)
    other.stop(timeout=PATIENCE_S)
    assert ref.stop(timeout=PATIENCE_S)


def test_gangs_and_trees_are_actors_too(ear):
    tree = ActorSupervisor.start(name="tree", children=[])
    with FakeGang(1) as gang:
        monitor(gang.supervisor, tell=ear.ref)
        monitor(tree, tell=ear.ref)
        gang.supervisor.stop(timeout=PATIENCE_S)
    tree.stop(timeout=PATIENCE_S)
    assert {(down.ref, down.normal) for down in ear.take(2)} == {(gang.supervisor, True), (tree, True)}


def test_it_needs_no_thread_and_holds_no_actor(parts, ear):
    ref = parts.start("a")
    before = set(threading.enumerate())
    monitor(ref, tell=ear.ref)
    assert set(threading.enumerate()) <= before
    ref.stop(timeout=PATIENCE_S)
    ear.take()
    for thread in threading.enumerate():
        if thread.name.startswith("Part"):
            thread.join(PATIENCE_S)
    gc.collect()
    assert ref._actor_weakref() is None
    ear.is_silent()  # its collection is no second end


@pytest.mark.parametrize("given", [None, "a", Part])
def test_what_is_not_the_ref_of_an_actor_is_refused(parts, ear, given):
    with pytest.raises(SpecError, match="ref is"):
        monitor(given, tell=ear.ref)
    with pytest.raises(SpecError, match="tell is"):
        monitor(ear.ref, tell=given)


@pytest.mark.parametrize("count", [RACES, pytest.param(11 * RACES, marks=pytest.mark.stress)])
def test_a_monitor_that_races_with_the_end_gets_one_down(parts, ear, count):
    """The stop, an exception or the end of it all comes just before, within or behind the call."""
    refs = []
    for number in range(count):
        ref = parts.start(str(number))
        refs.append(ref)
        if number % 3 == 0:
            ref.stop(block=False)
        elif number % 3 == 1:
            ref.tell(ValueError("on purpose"))
        monitor(ref, tell=ear.ref)
        if number % 3 == 2:
            ref.stop(block=False)
    downs = ear.take(count)
    ear.is_silent()
    assert {down.ref for down in downs} == set(refs)
    found = {down.ref: (repr(down.reason), down.normal) for down in downs}
    stopped, failed, dead = ("None", True), (repr(ValueError("on purpose")), False), ("'noproc'", False)
    allowed = ({stopped, dead}, {failed, dead}, {stopped})
    assert [ref for number, ref in enumerate(refs) if found[ref] not in allowed[number % 3]] == []
