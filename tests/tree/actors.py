"""Actors for the tests of trees: plain ones that do as they are told and say what happens to them."""

import queue
import threading
from functools import partial

import pykka

from supervise import ChildSpec, StartChild, Status, Supervisor

PATIENCE_S = 20
PATIENT = {"shutdown_s": PATIENCE_S}
"""On a busy machine the usual 5 seconds may be too short."""


class Part(pykka.ThreadingActor):
    """An actor that says when it starts and stops, and raises what it is told."""

    def __init__(self, name, said, *, fails=None):
        super().__init__()
        self.name, self.said, self.fails = name, said, fails

    def on_start(self):
        if self.fails is not None:
            self.actor_inbox.get(timeout=PATIENCE_S)  # comes from the tree, once it watches
            raise self.fails
        self.said.put(f"{self.name} starts")

    def on_stop(self):
        self.said.put(f"{self.name} stops")

    def on_receive(self, message):
        if isinstance(message, BaseException):
            raise message
        return message(self) if callable(message) else message


class Slow(Part):
    """An actor whose `on_start` waits at a gate."""

    def __init__(self, name, said, gate):
        super().__init__(name, said)
        self.gate = gate

    def on_start(self):
        self.gate()
        super().on_start()


class Gate:
    """Where an actor waits until the test lets it go on."""

    def __init__(self):
        self.reached, self._open = threading.Event(), threading.Event()

    def __call__(self, *_):
        self.reached.set()
        assert self._open.wait(PATIENCE_S)

    def open(self):
        self._open.set()


class Parts:
    """What the actors of one test say, and specs for them."""

    def __init__(self):
        self.said = queue.Queue()

    def start(self, name, **more):
        return Part.start(name, self.said, **more)

    def spec(self, name, **more):
        """Return the spec of a plain actor."""
        return ChildSpec(id=name, start=partial(Part.start, name, self.said), **PATIENT | more)

    def slow(self, name, gate, **more):
        """Return the spec of an actor that starts when `gate` is opened."""
        return ChildSpec(id=name, start=partial(Slow.start, name, self.said, gate), **PATIENT | more)

    def says(self, *lines):
        """Wait until just these lines have been said, in this order."""
        heard = [self.said.get(timeout=PATIENCE_S) for _ in lines]
        assert heard == list(lines)

    def is_silent(self):
        assert self.said.empty(), self.said.queue


def gang(name="gang", *, entrypoint="sleep", args=("600",), **more):
    """Return the spec of a gang of two ranks."""
    start = partial(Supervisor.start, name=name, entrypoint=entrypoint, args={0: args, 1: args})
    return ChildSpec(id=name, start=start, **more)


class Ear:
    """An actor that is told things, for a ``with`` block, and the test that takes them in order."""

    def __enter__(self):
        self._told = told = queue.Queue()

        class _Ear(pykka.ThreadingActor):
            def on_receive(self, message):
                told.put(message)

        self.ref = _Ear.start()
        return self

    def __exit__(self, *_):
        self.ref.stop(timeout=PATIENCE_S)

    def take(self, count=None):
        """Return the next message; with a count, a list of so many."""
        if count is None:
            return self._told.get(timeout=PATIENCE_S)
        return [self.take() for _ in range(count)]

    def until(self, kind, **fields):
        """Take messages up to the first of this class with these fields, and return it."""
        while True:
            message = self.take()
            if isinstance(message, kind) and all(getattr(message, key) == value for key, value in fields.items()):
                return message

    def is_silent(self):
        assert self._told.empty(), list(self._told.queue)


def ref_of(tree, name):
    """Return the actor of a child."""
    return status_of(tree, name).ref


def settle(tree):
    """Wait until nothing stops any more: a child of a tree that keeps its order starts only then."""
    probe = ChildSpec(id="probe", start=lambda: None, restart="temporary")
    assert tree.ask(StartChild(spec=probe), timeout=PATIENCE_S) is None


def status_of(tree, name):
    return tree.ask(Status(), timeout=PATIENCE_S).children[name]
