"""A real Supervisor over fake processes: many askers, subscribers, and strangers who stop its actors."""

import asyncio
import errno
import os
import queue
import signal
import threading
import time
from signal import SIGTERM

import pykka
import pytest

from supervise import (
    Close,
    GangFinished,
    GangStarted,
    Pids,
    Poll,
    Start,
    Status,
    Subscribe,
    Unsubscribe,
    Wait,
    WorkerExited,
    WorkerStarted,
)
from supervise.testing import FakeGang, FakeLauncher, Recorder
from tests.breaking import end_of_the_interpreter
from tests.patience import PATIENCE_S


def ask(gang, message):
    return gang.supervisor.ask(message, timeout=PATIENCE_S)


def later(gang, message):
    return gang.supervisor.ask(message, block=False)


def arrive_at(gang, stage):
    """Bring the gang to a stage of its life; to `starting` only if the launch of rank 1 is held."""
    if stage == "new":
        return
    starting = later(gang, Start())
    if stage == "starting":
        assert gang.launchers[1].asked.wait(PATIENCE_S)
        return
    starting.get(timeout=PATIENCE_S)
    if stage == "failing":
        gang.processes[0].exit(1)
    elif stage == "finished":
        for process in gang.processes.values():
            process.exit(0)
        ask(gang, Wait())


# Many askers


def test_hundreds_of_open_waits_hold_nobody_up():
    with FakeGang(2) as gang:
        ask(gang, Start())
        waits = [later(gang, Wait(timeout=0.01 if n % 2 else 3600)) for n in range(200)]
        waits += [later(gang, Wait()) for _ in range(200)]
        for message in (Poll(), Pids(), Status(), Poll()):
            ask(gang, message)
        assert ask(gang, Status()).waiters >= 200
        result = ask(gang, Close())
        assert {id(wait.get(timeout=PATIENCE_S)) for wait in waits[200:]} == {id(result)}
        for wait in waits[:200]:
            assert wait.get(timeout=PATIENCE_S) in (result, None)
        assert ask(gang, Status()).waiters == 0


@pytest.mark.parametrize("stage", ["new", "starting", "running", "failing", "finished"])
def test_eight_threads_that_close_at_any_stage_get_one_teardown(stage):
    launchers = {1: FakeLauncher(held=True)} if stage == "starting" else {}
    with FakeGang(2, launchers=launchers) as gang:
        arrive_at(gang, stage)
        answers, go = [], threading.Barrier(9)

        def close():
            go.wait(PATIENCE_S)
            answers.append(ask(gang, Close()))

        threads = [threading.Thread(target=close) for _ in range(8)]
        for thread in threads:
            thread.start()
        go.wait(PATIENCE_S)
        for launcher in gang.launchers.values():
            launcher.release()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(answers) == 8
        assert len({id(answer) for answer in answers}) == 1
        expected = {"failing": "failed", "finished": "succeeded"}.get(stage, "stopped")
        assert answers[0].outcome == expected
        assert len(gang.events.named("supervise.gang.finished")) == 1
        for process in gang.processes.values():
            assert process.signals.count(SIGTERM) <= 1


def test_await_lets_the_event_loop_run():
    async def run(gang):
        waiting = asyncio.ensure_future(_answer(gang.supervisor.ask(Wait(), block=False)))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        await gang.supervisor.ask(Start(), block=False)
        gang.processes[0].exit(0)  # by the very thread that awaits
        async with asyncio.timeout(PATIENCE_S):
            return await waiting

    with FakeGang(1) as gang:
        assert asyncio.run(run(gang)).outcome == "succeeded"


async def _answer(future):
    return await future


def test_await_of_a_stop():
    with FakeGang(1) as gang:
        ask(gang, Start())
        assert asyncio.run(_answer(gang.supervisor.stop(block=False))) is True


def test_a_proxy_has_the_same_verbs():
    with FakeGang(2) as gang:
        proxy = gang.supervisor.proxy()
        pids = proxy.launch().get(timeout=PATIENCE_S)
        assert proxy.pids().get(timeout=PATIENCE_S) == pids
        assert proxy.poll().get(timeout=PATIENCE_S) is None
        assert proxy.status().get(timeout=PATIENCE_S).phase == "running"
        assert proxy.wait(timeout=0).get(timeout=PATIENCE_S) is None
        assert proxy.send_signal(signal.SIGCONT, frozenset({1})).get(timeout=PATIENCE_S) == frozenset({1})
        waiting = proxy.wait()
        result = proxy.close(timeout=1).get(timeout=PATIENCE_S)
        assert waiting.get(timeout=PATIENCE_S) is result


# Subscribers


def test_subscribers_early_and_late_get_the_same_whole_life_and_the_end_once_and_last():
    with FakeGang(2) as gang, Recorder() as early, Recorder() as late:
        ask(gang, Subscribe(ref=early.ref))
        ask(gang, Subscribe(ref=early.ref))
        pids = ask(gang, Start())
        gang.processes[1].exit(0)
        gang.processes[0].exit(0)
        result = ask(gang, Wait())
        ask(gang, Subscribe(ref=late.ref))
        for recorder in (early, late):
            recorder.wait_for(GangFinished)
        ask(gang, Close())
        assert early.messages == late.messages
        kinds = [type(message) for message in early.messages]
        assert kinds == [WorkerStarted, WorkerStarted, GangStarted, WorkerExited, WorkerExited, GangFinished]
        assert early.messages[2].pids == pids
        assert early.messages[-1].result is result


def test_a_subscriber_that_is_dead_or_gone_harms_nobody():
    with FakeGang(2) as gang, Recorder() as gone, Recorder() as alive:
        with Recorder() as dead:
            ask(gang, Subscribe(ref=dead.ref))
        ask(gang, Subscribe(ref=dead.ref))
        ask(gang, Subscribe(ref=gone.ref))
        ask(gang, Subscribe(ref=alive.ref))
        ask(gang, Start())
        ask(gang, Unsubscribe(ref=gone.ref))
        ask(gang, Unsubscribe(ref=dead.ref))
        gang.processes[0].exit(1)
        alive.wait_for(GangFinished)
        gone.wait_for(GangStarted)
        assert not any(isinstance(message, GangFinished) for message in gone.messages)


class _Bounded(pykka.ThreadingActor):
    """An actor whose inbox holds one message, and that handles none before the test is over."""

    def __init__(self, may_go_on):
        super().__init__()
        self.may_go_on = may_go_on
        self.actor_ref.tell("the only one")

    @staticmethod
    def _create_actor_inbox():
        return queue.Queue(maxsize=1)

    def on_start(self):
        assert self.may_go_on.wait(PATIENCE_S)

    def on_receive(self, message):
        assert message == "the only one"


@pytest.mark.parametrize("first", [True, False])
def test_a_subscriber_whose_inbox_is_full_is_dropped_and_harms_nobody(first, caplog):
    with FakeGang(1) as gang, Recorder() as recorder:
        may_go_on = threading.Event()
        bounded = _Bounded.start(may_go_on)
        for ref in (bounded, recorder.ref) if first else (recorder.ref, bounded):
            ask(gang, Subscribe(ref=ref))
        ask(gang, Start())
        gang.processes[0].exit(0)
        assert ask(gang, Wait()).outcome == "succeeded"
        assert recorder.wait_for(GangFinished).error is None
        may_go_on.set()
        bounded.stop(timeout=PATIENCE_S)
    assert [record.getMessage() for record in caplog.records] == [
        f"subscriber {bounded} does not accept a message, and gets no more: Full()"
    ]


def test_a_failed_start_is_told_as_an_end_without_a_result():
    launcher = FakeLauncher(error=OSError(errno.EMFILE, "too many"))
    with FakeGang(1, launchers={0: launcher}) as gang, Recorder() as recorder:
        ask(gang, Subscribe(ref=recorder.ref))
        with pytest.raises(OSError, match="rank 0"):
            ask(gang, Start())
        finished = recorder.wait_for(GangFinished)
        assert finished.result is None
        assert isinstance(finished.error, OSError)


# Stopping the actors


def test_a_stop_closes_the_gang_answers_everybody_and_clears_the_registry():
    with FakeGang(2) as gang:
        ask(gang, Start())
        waiting = later(gang, Wait())
        assert len(pykka.ActorRegistry.get_by_class_name("Worker")) == 2
        assert gang.supervisor.stop(timeout=PATIENCE_S) is True
        assert waiting.get(timeout=0).outcome == "stopped"
        assert all(process.ended for process in gang.processes.values())
        assert pykka.ActorRegistry.get_all() == []
        with pytest.raises(pykka.ActorDeadError):
            ask(gang, Wait())


def test_a_stop_is_answered_when_the_descriptors_are_given_back(breaking):
    given_back, answered = [], threading.Event()

    def give_back_late(give_back, loop):
        answered.wait(0.1)
        give_back(loop)
        given_back.append(loop)

    breaking.instead("return of the descriptors of a loop", give_back_late)
    with FakeGang(1) as gang:
        ask(gang, Start())
        gang.supervisor.stop(timeout=PATIENCE_S)
        assert given_back
        answered.set()


@pytest.mark.parametrize("place", ["note for the end of the interpreter", "begin of an actor"])
def test_a_supervisor_whose_start_is_interrupted_behind_its_thread_is_gone(breaking, place):
    """By a handler of signals that raises, in the last steps of the start; nobody has a ref of it to stop it."""
    main, raised = threading.get_ident(), []

    def interrupted(call, *args):
        if threading.get_ident() == main and not raised:
            raised.append(args)
            raise LookupError("a handler's")
        return call(*args)

    breaking.instead(place, interrupted)
    before = set(threading.enumerate())
    with pytest.raises(LookupError, match="handler's"), FakeGang(1):
        pass
    assert pykka.ActorRegistry.get_all() == []
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    end_of_the_interpreter()  # it has nobody to close


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_in_a_forked_child_all_actors_of_ours_have_stopped_and_a_strangers_have_not():
    stranger = pykka.ThreadingActor.start()
    with FakeGang(2) as gang:
        ask(gang, Start())
        ours = [ref for ref in pykka.ActorRegistry.get_all() if ref != stranger]
        pid = os.fork()
        if pid == 0:
            stopped = [not ref.is_alive() and ref.actor_stopped.wait() for ref in ours]
            refused = [isinstance(_failure(ref.ask(Pids(), block=False)), pykka.ActorDeadError) for ref in ours]
            left = pykka.ActorRegistry.get_all() == [stranger] and stranger.is_alive()
            os._exit(not (stopped == refused == [True] * 3 and left))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert all(ref.is_alive() and not ref.actor_stopped.wait(0) for ref in ours)
    stranger.stop()


def _failure(future):
    try:
        return future.get(timeout=PATIENCE_S)
    except BaseException as error:
        return error


@pytest.mark.parametrize("stage", ["new", "starting", "running", "finished"])
def test_stop_all_closes_a_gang_at_any_stage(stage):
    launchers = {1: FakeLauncher(held=True)} if stage == "starting" else {}
    with FakeGang(2, launchers=launchers) as gang:
        arrive_at(gang, stage)
        waiting = later(gang, Wait())
        stopping = [ref.stop(block=False) for ref in reversed(pykka.ActorRegistry.get_all())]  # as stop_all does
        for launcher in gang.launchers.values():
            launcher.release()
        for reply in stopping:
            assert reply.get(timeout=PATIENCE_S) in {True, False}  # False: it had ended before it was asked
        outcome = waiting.get(timeout=PATIENCE_S).outcome
        assert outcome == ("succeeded" if stage == "finished" else "stopped")
        assert not [ref for ref in pykka.ActorRegistry.get_all() if ref.is_alive() and ref != gang.supervisor]


def test_stop_all_itself():
    with FakeGang(3) as gang:
        ask(gang, Start())
        waiting = later(gang, Wait())
        pykka.ActorRegistry.stop_all(timeout=PATIENCE_S)
        assert pykka.ActorRegistry.get_all() == []
        assert waiting.get(timeout=PATIENCE_S).outcome == "stopped"


def test_a_worker_that_a_stranger_stops_closes_the_gang_instead():
    with FakeGang(2) as gang:
        ask(gang, Start())
        worker = pykka.ActorRegistry.get_by_class_name("Worker")[0]
        stopping = worker.stop(block=False)
        assert ask(gang, Wait()).outcome == "stopped"
        assert all(process.ended for process in gang.processes.values())
        assert stopping.get(timeout=PATIENCE_S) is True
        assert gang.supervisor.is_alive()
        assert ask(gang, Poll()).outcome == "stopped"


def test_a_start_has_the_time_at_which_its_launch_began():
    """A short program may have ended before its host gets the processor again."""
    with FakeGang(1, launchers={0: FakeLauncher(held=True)}) as gang, Recorder() as recorder:
        ask(gang, Subscribe(ref=recorder.ref))
        starting = gang.supervisor.ask(Start(), block=False)
        assert gang.launchers[0].asked.wait(PATIENCE_S)
        launched_ns = time.monotonic_ns()
        gang.launchers[0].release()
        starting.get(timeout=PATIENCE_S)
        assert recorder.wait_for(WorkerStarted).started_ns <= launched_ns
