"""Actors with a bounded inbox, in which pykka's `tell` waits for room: no tree and no other actor waits for it."""

import queue
from functools import partial

import pytest

from supervise import (
    ActorSupervisor,
    ChildDown,
    ChildSpec,
    ChildStarted,
    Down,
    RestartLimitExceeded,
    Start,
    Subscribe,
    TreeFinished,
    Wait,
    monitor,
)
from tests.tree.actors import PATIENCE_S, Gate, Part, ref_of


class Bounded(Part):
    """An actor whose inbox holds two messages, and that says which messages it gets."""

    @staticmethod
    def _create_actor_inbox():
        return queue.Queue(maxsize=2)

    def on_receive(self, message):
        if isinstance(message, Down | TreeFinished):
            self.said.put(message)
        return super().on_receive(message)


class Forward(Bounded):
    """A bounded actor that fills its inbox before its thread runs."""

    def __init__(self, *args):
        super().__init__(*args)
        for _ in range(2):
            self.actor_ref.tell(None)


def fill(ref, first=None):
    """Let a bounded actor wait at a gate, then handle `first`, with a full inbox; return the gate."""
    gate = Gate()
    ref.tell(gate)
    assert gate.reached.wait(PATIENCE_S)
    ref.tell(first)
    ref.tell(None)
    return gate


def child(parts, kind=Bounded, **more):
    return ChildSpec(id="a", start=partial(kind.start, "a", parts.said), **more)


def test_an_actor_ends_although_its_monitor_has_no_room(parts):
    """The `Down` comes when there is room."""
    watched, watcher = parts.start("watched"), Bounded.start("watcher", parts.said)
    gate = fill(watcher)
    monitor(watched, tell=watcher)
    watched.stop(timeout=PATIENCE_S)
    gate.open()
    parts.says("watched starts", "watcher starts", "watched stops", Down(ref=watched, reason=None, normal=True))
    watcher.stop(timeout=PATIENCE_S)


def test_a_subscriber_of_a_tree_that_has_no_room_gets_no_more(parts, caplog):
    subscriber = Bounded.start("subscriber", parts.said)
    gate = fill(subscriber)
    with ActorSupervisor.start(name="tree", children=[parts.spec("a")]) as tree:
        tree.ask(Subscribe(ref=subscriber), timeout=PATIENCE_S)
        tree.ask(Start(), timeout=PATIENCE_S)
        tree.stop(timeout=PATIENCE_S)
    gate.open()
    subscriber.stop(timeout=PATIENCE_S)
    parts.says("subscriber starts", "a starts", "a stops", "subscriber stops")
    assert [record.getMessage() for record in caplog.records if record.name == "supervise"] == [
        f"subscriber {subscriber} does not accept a message, and gets no more: Full()"
    ]


def test_a_child_that_fails_with_a_full_inbox_is_restarted(parts, grow, ear, caplog):
    """pykka refuses what is left in the inbox; the child itself must not wait for room in it."""
    tree = grow(child(parts, shutdown_s=PATIENCE_S))
    ear.until(ChildStarted)
    first = ref_of(tree, "a")
    gate, error = Gate(), ValueError("on purpose")

    def fail(_):
        gate()
        raise error

    first.tell(fail)
    assert gate.reached.wait(PATIENCE_S)
    left = [first.ask("left", block=False) for _ in range(2)]
    gate.open()
    assert ear.until(ChildDown).reason is error
    ear.until(ChildStarted)
    for reply in left:
        with pytest.raises(Exception, match="stopped before handling the message"):
            reply.get(timeout=PATIENCE_S)
    assert ref_of(tree, "a") is not first


def test_a_child_that_is_busy_with_a_full_inbox_is_abandoned_after_its_time(parts, grow):
    tree = grow(child(parts, shutdown_s=0.05))
    stuck = ref_of(tree, "a")
    gate = fill(stuck)
    waiting = tree.ask(Wait(), block=False)
    tree.stop(timeout=PATIENCE_S)
    with pytest.raises(RestartLimitExceeded, match="'a' has not stopped in time"):
        waiting.get(timeout=PATIENCE_S)
    gate.open()
    assert stuck.actor_stopped.wait(PATIENCE_S)
    parts.says("a starts", "a stops")


def test_a_child_that_gets_room_in_time_stops(parts, grow):
    tree = grow(child(parts, shutdown_s=PATIENCE_S))
    gate = fill(ref_of(tree, "a"), lambda _: parts.said.put("next"))
    tree.stop(block=False)
    gate.open()
    assert tree.ask(Wait(), timeout=PATIENCE_S) == TreeFinished(error=None)
    parts.says("a starts", "next", "a stops")


def test_a_child_that_fills_its_inbox_before_it_runs_starts(parts, grow):
    grow(child(parts, Forward, shutdown_s=PATIENCE_S)).stop(timeout=PATIENCE_S)
    parts.says("a starts", "a stops")
