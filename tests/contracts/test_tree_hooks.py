"""The private parts of pykka and threading that trees and monitors stand on."""

import gc
import queue
import subprocess
import sys
import threading
from collections import deque

import pykka
from pykka import messages as pykka_messages
from pykka._envelope import Envelope

PATIENCE_S = 40
CHANGED = "pykka or threading has changed: "


class _StandIn:
    """What takes the place of a waiting thread's lock."""

    def __init__(self, event):
        self.event, self.seen = event, []

    def release(self):
        self.seen.append((sys.exc_info()[1], self.event.is_set(), self.event._cond._lock.locked()))


class _Actor(pykka.ThreadingActor):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def on_start(self):
        self.steps.put("on_start")

    def on_stop(self):
        self.steps.put("on_stop")

    def on_failure(self, *_):
        self.steps.put("on_failure")

    def on_receive(self, message):
        if isinstance(message, BaseException):
            raise message
        return message()


def _watched(ref):
    stand_in = _StandIn(ref.actor_stopped)
    with ref.actor_stopped._cond:
        ref.actor_stopped._cond._waiters.append(stand_in)
    return stand_in


def test_an_event_releases_whatever_is_among_its_waiters_once_and_under_its_lock():
    event = threading.Event()
    assert isinstance(event._cond._waiters, deque), CHANGED + "the waiters of a condition"
    stand_in = _StandIn(event)
    event._cond._waiters.append(stand_in)
    event.set()
    event.set()
    assert stand_in.seen == [(None, True, True)], CHANGED + "how an event wakes its waiters"
    assert not event._cond._waiters


def test_a_waiter_beside_a_thread_that_waits_disturbs_nobody():
    event = threading.Event()
    waiting = threading.Thread(target=event.wait)
    waiting.start()
    event._cond._waiters.append(_StandIn(event))
    event.set()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()


def test_a_stop_sets_the_event_outside_of_any_exception_and_before_on_stop():
    steps = queue.Queue()
    ref = _Actor.start(steps)
    stand_in = _watched(ref)
    stand_in.release = lambda: steps.put(("set", sys.exc_info()[1]))
    ref.stop(timeout=PATIENCE_S)
    assert list(steps.queue) == ["on_start", ("set", None), "on_stop"], CHANGED + "the order of a stop"


def test_a_failure_sets_the_event_inside_of_the_exception_and_before_on_failure():
    steps = queue.Queue()
    ref, error = _Actor.start(steps), ValueError("on purpose")
    _watched(ref).release = lambda: steps.put(("set", sys.exc_info()[1]))
    ref.tell(error)
    found = [steps.get(timeout=PATIENCE_S) for _ in range(3)]
    assert found == ["on_start", ("set", error), "on_failure"], CHANGED + "the order of a failure"


def test_a_stop_that_is_put_when_the_event_is_set_is_answered_behind_on_stop_and_on_failure():
    for last, error in (("on_stop", None), ("on_failure", ValueError("on purpose"))):
        steps, reply = queue.Queue(), pykka.ThreadingFuture()
        ref = _Actor.start(steps)
        envelope = Envelope(pykka_messages._ActorStop(), reply_to=reply)
        _watched(ref).release = lambda ref=ref, envelope=envelope: ref.actor_inbox.put(envelope)
        ref.tell(error) if error else ref.stop(block=False)
        reply.get(timeout=PATIENCE_S)
        assert list(steps.queue)[-1] == last, CHANGED + "who answers a stop behind a stop"


def test_an_attribute_is_answered_behind_on_start():
    steps, reply = queue.Queue(), pykka.ThreadingFuture()
    ref = _Actor.start(steps)
    ref.actor_inbox.put(Envelope(pykka_messages.ProxyGetAttr(attr_path=("actor_urn",)), reply_to=reply))
    assert reply.get(timeout=PATIENCE_S) == ref.actor_urn
    assert list(steps.queue) == ["on_start"]
    ref.stop(timeout=PATIENCE_S)


def test_a_base_exception_in_a_handler_stops_all_actors_on_its_own_thread():
    steps = queue.Queue()
    other = _Actor.start(steps)
    ref, error = _Actor.start(steps), SystemExit("on purpose")
    seen = _watched(ref).seen
    ref.tell(error)
    assert other.actor_stopped.wait(PATIENCE_S), CHANGED + "a BaseException stops nobody else"
    assert seen == [(error, True, True)]


def test_a_base_exception_in_on_start_sets_nothing_and_frees_the_actor(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    class Lost(_Actor):
        def on_start(self):
            raise SystemExit

    ended = set(threading.enumerate())
    ref = Lost.start(queue.Queue())
    for thread in set(threading.enumerate()) - ended:
        thread.join(PATIENCE_S)
    gc.collect()
    assert ref.is_alive(), CHANGED + "a BaseException in on_start is noticed now"
    assert ref._actor_weakref() is None
    pykka.ActorRegistry.unregister(ref)


def test_threading_calls_what_is_registered_before_it_joins_threads():
    """A plain actor is no daemon, so what `atexit` calls would come too late."""
    code = """
import atexit, threading
go = threading.Event()
threading.Thread(target=lambda: (go.wait(), print("joined"))).start()
atexit.register(print, "atexit")
threading._register_atexit(print, "second")
threading._register_atexit(lambda: (print("first"), go.set()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.split()[:1] == ["first"], CHANGED + "_register_atexit"
    assert done.stdout.split()[-1] == "atexit"


def test_an_actor_is_registered_before_its_loop_starts_and_that_calls_the_methods_of_the_instance(monkeypatch):
    """A tree replaces them at the registration; an exception that leaves one of them is pykka's to raise."""
    steps = queue.Queue()
    register = pykka.ActorRegistry.register

    def replaced(actor, name):
        method = getattr(actor, name)
        setattr(actor, name, lambda: (steps.put(name), method()))

    def registered(ref):
        register(ref)
        for name in ("_start_actor_loop", "_actor_loop_setup", "_actor_loop_teardown"):
            replaced(ref._actor_weakref(), name)

    monkeypatch.setattr(pykka.ActorRegistry, "register", staticmethod(registered))
    ref = _Actor.start(steps)
    ref.stop(timeout=PATIENCE_S)
    found = [steps.get(timeout=PATIENCE_S) for _ in range(5)]
    expected = ["_start_actor_loop", "_actor_loop_setup", "on_start", "on_stop", "_actor_loop_teardown"]
    assert found == expected, CHANGED + "the start of an actor"
