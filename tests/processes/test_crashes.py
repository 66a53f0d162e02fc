"""Whatever of ours fails, and whoever ends threads and actors: no worker is lost, and nobody waits for ever."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import psutil
import pykka
import pytest

from supervise import Close, GangFinished, Pids, Start, Status, Subscribe, SupervisorCrashed, Wait
from tests.patience import PATIENCE_S
from tests.processes.gangs import Fifo, each_kind
from tests.processes.hosts import make_gang, pids_of, start_gang, watched
from tests.processes.stubborn import DEAF, OBEDIENT

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def ear(tmp_path, monkeypatch):
    """Where workers say that they are ready."""
    fifo = Fifo(tmp_path / "ear")
    monkeypatch.setenv("EAR", fifo.path)
    yield fifo
    fifo.close()


class Innocent(pykka.ThreadingActor):
    """Somebody else's actor in the same process; it also hears of a gang's life."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[object] = []

    def on_receive(self, message: Any) -> Any:
        if message == "heard":
            return self.heard
        self.heard.append(message)
        return None


class Starter(pykka.ThreadingActor):
    """Starts a gang for whoever asks, and ends."""

    def on_receive(self, message: Callable[[], Any]) -> Any:
        return message()


@each_kind
@pytest.mark.parametrize("who", ["thread", "actor"])
def test_k2_workers_outlive_the_thread_that_started_them(ear, kind, who):
    """They belong to the host, not to one of its threads, be it an actor's."""
    if who == "actor":
        starter = Starter.start()
        gang = starter.ask(lambda: start_gang(kind, [OBEDIENT] * 3), timeout=PATIENCE_S)
        assert starter.stop(timeout=PATIENCE_S)
    else:
        made: list[Any] = []
        thread = threading.Thread(target=lambda: made.append(start_gang(kind, [OBEDIENT] * 3)))
        thread.start()
        thread.join(PATIENCE_S)
        gang = made[0]
    with watched(pids_of([ear.hear() for _ in range(3)])) as watch:
        assert watch.survivors(0.2) == set(gang.ask(Pids()).values())
        assert gang.ask(Close()).outcome == "stopped"
    gang.stop(timeout=PATIENCE_S)


ERRORS = (ValueError("a bug"), OSError(5, "a bug"), pykka.ActorDeadError("a bug"), SystemExit(3), KeyboardInterrupt())
PLACES = [
    *("launch of a rank", "watch of a rank", "exit of a rank", "report of an exit", "delivery of a signal"),
    *("report to the gang", "action", "timer", "signal", "result", "reply to a close", "close", "start", "decision"),
    *("assembly of the actors", "launch of all ranks", "drain of the logs", "look for records"),
    *("first event", "event", "last event", "replies", "reap", "signal to a group"),
]
ONCE = {"reap", "replies"}
"""What nobody could do without raises the first time only."""


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", PLACES)
def test_k3_a_handler_that_raises_costs_its_own_gang_at_most(breaking, ear, place, error):
    """Workers are reaped, every asker is answered, and an actor of the user's does not notice."""
    innocent = Innocent.start()
    gang = make_gang("binary", [OBEDIENT, DEAF, OBEDIENT], grace=0.1)
    raised = breaking.raises(place, error, once=place in ONCE)
    asked = [
        gang.ask(message, block=False)
        for message in (Subscribe(ref=innocent), Wait(), Start(), Pids(), Wait(), Close(), Wait(), Close())
    ]
    stopped = gang.stop(block=False)
    answers = [_answer(future) for future in asked]
    _answer(stopped)
    assert raised.is_set()
    pids = answers[3]
    if isinstance(pids, dict):
        assert not any(map(psutil.pid_exists, pids.values()))
    assert gang.actor_stopped.wait(PATIENCE_S)
    assert innocent.is_alive()
    assert len([said for said in innocent.ask("heard", timeout=PATIENCE_S) if isinstance(said, GangFinished)]) <= 1
    innocent.stop(timeout=PATIENCE_S)


def _answer(future: Any) -> Any:
    try:
        return future.get(timeout=PATIENCE_S)
    except pykka.Timeout:
        raise
    except BaseException as error:
        return error


@each_kind
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_k3_a_crash_while_the_gang_runs_kills_and_reaps_it(breaking, ear, kind, error):
    """The callback that notices one rank's end fails: all are killed, though they ignore SIGTERM."""
    innocent = Innocent.start()
    gang = start_gang(kind, [DEAF] * 3)
    gang.ask(Subscribe(ref=innocent))
    waits = [gang.ask(Wait(), block=False) for _ in range(3)]
    pids = pids_of([ear.hear() for _ in range(3)])
    with watched(pids) as watch:
        breaking.raises("report of an exit", error)
        os.kill(pids[1], signal.SIGKILL)
        for wait in waits:
            with pytest.raises(SupervisorCrashed) as caught:
                wait.get(timeout=PATIENCE_S)
            assert caught.value.__cause__ is error
        assert watch.survivors(0) == set()
        if kind != "forkserver":  # which reaps its children itself
            assert not any(map(psutil.pid_exists, pids))
    assert gang.actor_stopped.wait(PATIENCE_S)
    assert isinstance(innocent.ask("heard", timeout=PATIENCE_S)[-1], GangFinished)
    innocent.stop(timeout=PATIENCE_S)


@each_kind
def test_k3_a_timer_that_raises(breaking, ear, kind):
    """The grace of a deaf gang runs out, and the kill fails: it is killed all the same."""
    gang = start_gang(kind, [DEAF] * 3, grace=0.2)

    def fail_at_kill(deliver: Callable[..., Any], gang: Any, ranks: Any, sig: signal.Signals, *more: Any) -> None:
        if sig == signal.SIGKILL:
            raise LookupError("a bug")
        deliver(gang, ranks, sig, *more)

    breaking.instead("signal", fail_at_kill)
    with watched(pids_of([ear.hear() for _ in range(3)])) as watch:
        with pytest.raises(SupervisorCrashed, match="a bug"):
            gang.ask(Close(), timeout=PATIENCE_S)
        assert watch.survivors(0) == set()
    assert gang.actor_stopped.wait(PATIENCE_S)


@each_kind
@pytest.mark.parametrize("block", [True, False])
def test_k3_stop_all_is_a_close(ear, kind, block):
    """Whoever calls it: workers are reaped, waits get a result, and our actors have left when it returns."""
    gang = start_gang(kind, [OBEDIENT] * 3)
    waits = [gang.ask(Wait(), block=False) for _ in range(3)]
    with watched(pids_of([ear.hear() for _ in range(3)])) as watch:
        stops = pykka.ActorRegistry.stop_all(block=block, timeout=PATIENCE_S)
        if not block:
            stops = [stop.get(timeout=PATIENCE_S) for stop in stops]
        assert len(stops) == 4
        assert watch.survivors(0) == set()
    assert {wait.get(timeout=0).outcome for wait in waits} == {"stopped"}
    assert pykka.ActorRegistry.get_all() == []


@pytest.mark.parametrize("member", [1, 2])
def test_k3_stopping_a_worker_closes_its_gang(ear, member):
    """It cannot be stopped from under its Supervisor, which lives on to tell the result."""
    gang = start_gang("binary", [OBEDIENT] * 2)
    with watched(pids_of([ear.hear() for _ in range(2)])) as watch:
        assert pykka.ActorRegistry.get_all()[member].stop(timeout=PATIENCE_S)
        assert watch.survivors(0) == set()
    assert gang.ask(Wait(), timeout=PATIENCE_S).outcome == "stopped"
    assert gang.ask(Status(), timeout=PATIENCE_S).phase == "finished"
    gang.stop(timeout=PATIENCE_S)


@pytest.mark.parametrize("asks", [1, 50])
def test_k3_asks_during_a_crash_are_answered(breaking, ear, asks):
    """Between the failure and the end of the Supervisor nothing is forgotten."""
    gang = start_gang("binary", [DEAF] * 3)
    for _ in range(3):
        ear.hear()
    breaking.raises("delivery of a signal", ValueError("a bug"))
    line, answers = threading.Barrier(4), []

    def keep_asking() -> None:
        line.wait(PATIENCE_S)
        answers.extend(_answer(gang.ask(message, block=False)) for message in (Close(), Wait(), Start()) * asks)

    threads = [threading.Thread(target=keep_asking) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(answers) == 12 * asks
    assert gang.actor_stopped.wait(PATIENCE_S)


def test_k3_asks_between_the_burial_and_the_end_are_answered(breaking, ear):
    """They are put while the last event is told, hence behind the answers to all that came before."""
    late: list[Any] = []

    def ask_late(event: dict[str, Any]) -> None:
        if event["event"] == "supervise.gang.finished":
            late.extend(gang.ask(message, block=False) for message in (Close(), Wait(), Start(), Status()))

    gang = start_gang("binary", [DEAF] * 3, event_sink=ask_late)
    for _ in range(3):
        ear.hear()
    breaking.raises("delivery of a signal", ValueError("a bug"))
    with pytest.raises(SupervisorCrashed):
        gang.ask(Close(), timeout=PATIENCE_S)
    assert gang.actor_stopped.wait(PATIENCE_S)
    answers = [_answer(future) for future in late]
    assert [type(answer) for answer in answers[:3]] == [SupervisorCrashed] * 3
    assert len(answers) == 4
