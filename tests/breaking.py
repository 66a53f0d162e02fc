"""Bugs of ours that a test plants: where a gang's own code may raise, by what happens there.

A test says what fails, and this file where that is. A place is looked up when a test names it, so that a place that has
moved fails the tests of that place. The promise is the same for every place: a bug costs one gang at most, whose ranks
are killed and reaped and whose askers are answered.
"""

import functools
import importlib
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["PLACES", "Breaking", "breaking", "crash", "end_of_the_interpreter", "expire", "found", "see_no_groups"]

PLACES = {
    "launch of a rank": "supervise._gang.worker:Worker._launch",
    "watch of a rank": "supervise._gang.worker:Worker._watch",
    "step of a worker": "supervise._gang.worker:Worker._run",
    "exit of a rank": "supervise._gang.worker:Worker._exited",
    "report of an exit": "supervise._gang.worker:Worker._report_exit",
    "delivery of a signal": "supervise._gang.worker:Worker._deliver",
    "reap": "supervise._process.exits.leader:Process.reap",
    "reap of a fake": "supervise.testing:FakeProcess.reap",
    "signal to a group": "supervise._process.exits.leader:Process.signal_group",
    "report to the gang": "supervise._gang.runner:GangRunner.report",
    "decision": "supervise._gang.runner:decide",
    "action": "supervise._gang.runner:GangRunner._do",
    "timer": "supervise._gang.runner:GangRunner._set_timer",
    "signal": "supervise._gang.runner:GangRunner.signal",
    "message to subscribers": "supervise._gang.runner:GangRunner._tell",
    "result": "supervise._gang.runner:GangRunner._publish",
    "values": "supervise._gang.runner:_load",
    "reply to a close": "supervise._gang.runner:GangRunner._answer_close",
    "start": "supervise:Supervisor.launch",
    "close": "supervise:Supervisor.close",
    "status": "supervise:Supervisor.status",
    "assembly of the actors": "supervise._gang.ranks:RankActors.assemble",
    "making of a worker": "supervise._gang.ranks:RankActors._new_worker",
    "launch of all ranks": "supervise._gang.ranks:RankActors.launch",
    "drain of the logs": "supervise._gang.ranks:RankActors.drain",
    "look for records": "supervise._gang.ranks:RankActors.recorded",
    "first event": "supervise._gang.describe:EventEmitter.begin",
    "event": "supervise._gang.describe:EventEmitter.emit",
    "last event": "supervise._gang.describe:EventEmitter.finish",
    "event of an exit": "supervise._gang.describe:_exit_fields",
    "replies": "supervise._runtime.shell:PendingReplies.publish",
    "subscribers": "supervise._runtime.shell:Subscribers.tell",
    "notify socket": "supervise._gang.notify_sockets:NotifySockets.open",
    "open of a log": "supervise._logs.reader:LogReader.open",
    "collection of stacks": "supervise._process.stacks.gather:Gather.run",
    "look for escaped processes": "supervise._process.containment.escapees:Contained.find",
    "look at a process": "supervise._process.containment.escapees:number_of",
    "wait for dying processes": "supervise._process.containment.escapees:_await_the_dying",
    "pause of the control server": "supervise._control.server:ControlServer._pause",
    "message of a control request": "supervise._control.clients:message_of",
    "run of a loop": "supervise._runtime.loop:Loop.run",
    "poll of a loop": "supervise._runtime.loop:Loop._poll",
    "return of the descriptors of a loop": "supervise._runtime.loop:Loop._give_back",
    "begin of an actor": "supervise._runtime.actor:LoopActor._start_actor_loop",
    "note for the end of the interpreter": "supervise._gang.shutdown:remember",
    "run of a gang on a thread of its own": "supervise._api.context:run_gang",
    "start of a gang's actor": "supervise:Supervisor.start_attempt",
    "check of open files": "supervise._process.launch.limits:check_open_files",
    "check of arguments": "supervise._process.launch.limits:check_arguments",
    "spawn of a program": "supervise._process.launch.posix_spawn:spawn",
    "request to the fork server": "supervise._process.launch.function:request",
    "word of the fork server": "supervise._process.launch.fork_server:ServerStatus.read",
    "first step of a fork": "supervise._process.launch.bootstrap:_settle_in",
}


def found(place: str) -> tuple[Any, str]:
    """Return the object that has the function of a place, and the function's name."""
    module, _, qualified = PLACES[place].partition(":")
    *owners, name = qualified.split(".")
    return functools.reduce(getattr, owners, importlib.import_module(module)), name


class Breaking:
    """Replaces what a gang's code does at a place, until the end of the test."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def instead(self, place: str, act: Callable[..., Any]) -> None:
        """Call `act` at this place, with the real function before its arguments."""
        owner, name = found(place)
        real = getattr(owner, name)
        of_class = inspect.ismethod(real)
        if of_class:
            real = real.__func__

        @functools.wraps(real)
        def called(*args: Any, **kwargs: Any) -> Any:
            return act(real, *args, **kwargs)

        self._patch.setattr(owner, name, classmethod(called) if of_class else called)

    def raises(self, place: str, error: BaseException, *, once: bool = False) -> threading.Event:
        """Raise an error at this place, or only at the first call; return an event that is set then."""
        raised = threading.Event()

        def fail(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if once and raised.is_set():
                return real(*args, **kwargs)
            raised.set()
            raise error

        self.instead(place, fail)
        return raised

    def never(self, place: str) -> None:
        """Let a call at this place be an error of ours, which crashes the gang."""
        self.raises(place, AssertionError(f"called: {place}"))


def see_no_groups(patch: pytest.MonkeyPatch) -> None:
    """Let the last scan of process groups, such as that of another gang, be one of this moment that has found none."""
    from supervise._process.containment import groups

    patch.setattr(groups, "_newest", groups._newest._replace(begun_s=time.monotonic(), groups={}))


def crash(supervisor: Any, error: BaseException) -> None:
    """Let a gang crash by an error of one of its actors."""
    from supervise._gang.asks import ActorDown

    supervisor.tell(ActorDown(who="a test", error=error))


def expire(runner: Any, timer: str) -> None:
    """Let a timer of a gang expire now; to be called on the loop of the gang."""
    from supervise._core.steps import TimerExpired

    runner.step(TimerExpired(name=timer))


def end_of_the_interpreter() -> None:
    """Close all gangs as at the exit of the interpreter."""
    from supervise._gang import shutdown

    shutdown._close_all()


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Breaking:
    """Plant a bug in what a gang does."""
    return Breaking(monkeypatch)
