"""A host program that is interrupted at random moments; run by test_signals.py. Prints what it counted.

Usage: moments.py start|close|wait|foreign|foreign-start|spawn COUNT
"""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil
import pykka

from supervise import DefaultLogsSpecs, PContext, SignalException, multiprocessing, start_processes
from tests.multiprocessing import work

NO_FILES = DefaultLogsSpecs(os.devnull)


class ForeignError(Exception):
    """What a handler of the user's raises."""


def arm(longest_s: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, longest_s))


def await_signal(count: Callable[[], int]) -> None:
    """Let time pass until a signal has been raised here, or counted."""
    before, deadline = count(), time.monotonic() + 20
    while count() == before and time.monotonic() < deadline:
        pass


def disarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)


def children() -> int:
    return len(psutil.Process().children())


def gang() -> PContext:
    return start_processes("m", "/bin/sleep", {0: "3600", 1: "3600"}, logs_specs=NO_FILES)


def at_start(count: int) -> dict[str, int]:
    """One signal at a random moment of each start, seen once: out of the start, or afterwards."""
    seen = 0

    def old(_signum: int, _frame: object) -> None:
        nonlocal seen
        seen += 1

    signal.signal(signal.SIGALRM, old)  # what comes before the start has begun
    for _ in range(count):
        caught, before = 0, seen
        context = None
        try:
            arm(0.008)
            context = gang()
            if seen == before:
                await_signal(lambda: seen)  # noqa: B023 - the variable itself is meant
        except SignalException:
            caught += 1
        if context is not None:
            context.close(signal.SIGKILL, 0)
        context = None
        seen += caught
        left = children()
        assert left == 0, f"{left} processes left behind"
    return {"seen": seen, "count": count}


def at_close(count: int) -> dict[str, int]:
    """A signal while a close is under way: the close finishes, and the old handler gets the signal."""
    handed = 0

    def old(_signum: int, _frame: object) -> None:
        nonlocal handed
        handed += 1

    for _ in range(count):
        signal.signal(signal.SIGALRM, old)
        context, before = gang(), handed
        try:
            arm(0.003)
            context.close()
            if handed == before:
                await_signal(lambda: handed)  # noqa: B023 - the variable itself is meant
        except SignalException:  # before the close had begun
            handed += 1
            context.close()
        disarm()
        assert signal.getsignal(signal.SIGALRM) is old, "handler not put back"
        assert children() == 0, "processes left behind"
    return {"seen": handed, "count": count}


def at_wait(count: int) -> dict[str, int]:
    """Each signal is raised once, in or between waits, and every wait goes on working."""
    context, seen, results = gang(), 0, set()
    for _ in range(count):
        try:
            arm(0.0004)
            while True:
                results.add(context.wait(0))  # no condition at its end: Python 3.14 would leave that out of the `try`
        except SignalException:
            seen += 1
    disarm()
    assert results <= {None}
    assert context.wait(0) is None
    context.close()
    return {"seen": seen, "count": count}


def foreign(count: int) -> dict[str, int]:
    """A handler of the user's raises anywhere inside wait: nothing is wedged."""

    def handler(_signum: int, _frame: object) -> None:
        raise ForeignError

    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGTERM"
    signal.signal(signal.SIGALRM, handler)
    context, seen, results = gang(), 0, set()
    for _ in range(count):
        try:
            arm(0.0004)
            while True:
                results.add(context.wait(0.0001))  # no condition, as in `at_wait`
        except ForeignError:
            seen += 1
    disarm()
    assert results <= {None}
    assert context.wait(0) is None
    context.close()
    assert context.wait().outcome == "stopped"  # type: ignore[union-attr]
    return {"seen": seen, "count": count}


def at_foreign_start(count: int) -> dict[str, int]:
    """A handler of the user's raises anywhere inside a start: neither a process stays, nor an actor and its thread."""
    seen = 0

    def handler(_signum: int, _frame: object) -> None:
        nonlocal seen
        seen += 1
        raise ForeignError

    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGTERM"
    signal.signal(signal.SIGALRM, handler)
    gang().close()  # imports what is imported late
    for _ in range(count):
        context, before = None, seen
        with suppress(ForeignError):
            arm(0.006)
            context = gang()
            if seen == before:
                await_signal(lambda: seen)
        if context is not None:
            context.close(signal.SIGKILL, 0)
        context = None
        deadline = time.monotonic() + 40
        while any(left := (children(), pykka.ActorRegistry.get_all(), gang_threads())):
            assert time.monotonic() < deadline, left
    return {"seen": seen, "count": count}


def at_spawn(count: int) -> dict[str, int]:
    """A handler of the user's raises anywhere inside `spawn`: neither a process stays, nor an actor and its thread."""
    seen = 0

    def handler(_signum: int, _frame: object) -> None:
        nonlocal seen
        seen += 1
        raise ForeignError

    signal.signal(signal.SIGALRM, handler)
    ends_by_itself = (
        "select.select([], [], [], 5)"  # the interpreter may swallow the exception, in a weakref's callback
    )
    sources = dict.fromkeys(range(2), f"import select; {ends_by_itself}")
    multiprocessing.spawn(work.run, ({0: ""},))  # imports what is imported late
    kept = children()  # multiprocessing's resource tracker
    for _ in range(count):
        before = seen
        with suppress(ForeignError, RuntimeError):  # what pickles, or makes a class, raises its own from it
            arm(0.006)
            multiprocessing.spawn(work.run, (sources,), 2)
        assert seen == before + 1
        deadline = time.monotonic() + 40
        while any(left := (children() - kept, pykka.ActorRegistry.get_all(), gang_threads())):
            assert time.monotonic() < deadline, left
    return {"seen": seen, "count": count}


def gang_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name in ("supervise-m", "supervise-spawn")]


if __name__ == "__main__":
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGALRM,SIGTERM"
    signal.signal(signal.SIGALRM, lambda *_: None)
    moments = {"start": at_start, "close": at_close, "wait": at_wait}
    moments |= {"foreign": foreign, "foreign-start": at_foreign_start, "spawn": at_spawn}
    print(moments[sys.argv[1]](int(sys.argv[2])))
