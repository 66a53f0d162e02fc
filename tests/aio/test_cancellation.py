"""Cancellation closes a gang politely, once; a further one kills it; and nothing of asyncio or of the gang is left."""

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import anyio
import pykka
import pytest

from supervise import Pids, Status, Supervisor, aio
from tests.aio.ranks import POLITE, SLEEP, STUBBORN, patient, run, square, until, until_exists
from tests.patience import PATIENCE_S

ROOT = Path(aio.__file__).parent.parent.parent


class Signals:
    """An event sink that counts the signals of supervise."""

    def __init__(self):
        self.sent = []

    def __call__(self, event):
        if event["event"] == "supervise.process.signaled":
            self.sent.append((event["signal"], event["reason"]))


async def stay(gang, entered=None):
    """Run a gang until it ends."""
    async with gang:
        if entered is not None:
            entered.set()
        return await gang.wait()


async def started(gang):
    """Return a task in the block of a gang, once it is there."""
    entered = asyncio.Event()
    task = asyncio.ensure_future(stay(gang, entered))
    await entered.wait()
    return task


async def ended(task):
    """Wait for a task that was canceled."""
    with pytest.raises(asyncio.CancelledError):
        await task


async def until_waits():
    """Wait until the only gang has a `Wait` to answer."""
    (ref,) = pykka.ActorRegistry.get_by_class(Supervisor)

    async def waits():
        return (await ref.ask(Status(), block=False)).waiters

    await until(waits)


async def until_closing(ref):
    """Wait until the ranks of this Supervisor were told to end."""

    async def closing():
        return (await ref.ask(Status(), block=False)).phase == "stopping"

    await until(closing)


def test_a_canceled_task_closes_its_gang_politely_and_once():
    async def main():
        signals = Signals()
        gang = aio.Gang(**POLITE, event_sink=signals)
        task = await started(gang)
        task.cancel()
        await ended(task)
        result = await gang.wait()
        assert (result.outcome, result.ends[0].exitcode) == ("stopped", 7)
        assert signals.sent == [("SIGTERM", "close")]

    run(main())


def test_a_second_cancellation_kills_at_once():
    """The grace would outlast the test."""

    async def main():
        gang = aio.Gang(**STUBBORN, grace=1000.0)
        task = await started(gang)
        task.cancel()
        await until_closing(gang._ref)
        assert not task.done()
        task.cancel()
        await ended(task)
        assert (await gang.wait()).ends[0].exitcode == -signal.SIGKILL

    run(main())


@pytest.mark.parametrize("times", [1, 2])
def test_a_scope_of_anyio_cancels_once_although_it_cancels_at_each_turn(tmp_path, times):
    """So do FastAPI and Starlette when a client leaves. A cancellation of the task itself is the second one."""

    async def main():
        signals, scope, entered = Signals(), anyio.CancelScope(), asyncio.Event()
        settings = {"name": "patient", "entrypoint": patient, "args": {0: (str(tmp_path),)}}

        async def inside():
            with scope:
                await stay(gang, entered)
            return scope.cancelled_caught

        gang = aio.Gang(**settings, ready="notify", grace=1000.0, event_sink=signals)
        task = asyncio.ensure_future(inside())
        await entered.wait()
        scope.cancel()
        await until_exists(tmp_path / "told")
        turns = 0
        for _ in range(100):
            await asyncio.sleep(0)
            turns += task.cancelling()
        assert not task.done()
        assert turns == 100 * task.cancelling()  # no further cancellations, which would keep the loop busy
        if times == 1:
            (tmp_path / "go").touch()
            assert await task
        else:
            task.cancel()
            await ended(task)
        assert (await gang.wait()).ends[0].exitcode == (7 if times == 1 else -signal.SIGKILL)
        assert [sent for sent, _ in signals.sent] == ["SIGTERM", "SIGKILL"][:times]

    run(main())


def test_a_task_that_is_canceled_at_each_turn_ends():
    async def main():
        task = await started(aio.Gang(**STUBBORN, grace=1000.0))
        async with asyncio.timeout(PATIENCE_S):
            while not task.done():
                task.cancel()
                await asyncio.sleep(0)
        await ended(task)

    run(main())


def test_cancellations_that_leave_the_block_do_not_come_again_behind_it():
    async def main():
        gang, entered = aio.Gang(**STUBBORN, grace=1000.0), asyncio.Event()

        async def outer():
            with suppress(asyncio.CancelledError):
                await stay(gang, entered)
            for _ in range(5):
                await asyncio.sleep(0)
            return "went on"

        task = asyncio.ensure_future(outer())
        await entered.wait()
        task.cancel()
        await until_closing(gang._ref)
        task.cancel()
        assert await task == "went on"

    run(main())


def test_a_block_that_is_being_left_takes_two_cancellations_as_well():
    """The first one finds a polite close, which goes on; the task is canceled although its block had ended."""

    async def main():
        gang, leaving = aio.Gang(**STUBBORN, grace=1000.0), asyncio.Event()

        async def leave():
            async with gang:
                leaving.set()

        task = asyncio.ensure_future(leave())
        await leaving.wait()
        await until_closing(gang._ref)
        task.cancel("first")
        await asyncio.wait((task,), timeout=0.1)
        assert not task.done()
        assert (await gang._ref.ask(Status(), block=False)).running == {0}
        task.cancel("second")
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert caught.value.args == ("first",)
        assert (await gang.wait()).ends[0].exitcode == -signal.SIGKILL

    run(main())


def test_a_timeout_closes_the_gang_and_is_a_timeout():
    async def main():
        gang = aio.Gang(**POLITE)
        async with gang:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await gang.wait()
            assert (await gang.status()).phase == "running"
        other = aio.Gang(**SLEEP)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await stay(other)
        assert asyncio.current_task().cancelling() == 0
        assert not pykka.ActorRegistry.get_all()

    run(main())


def test_a_timeout_of_the_exit_is_a_timeout():
    """The block itself ends in time; the close of its gang does not."""

    async def main():
        gang = aio.Gang(**STUBBORN, grace=0.3)
        await gang.__aenter__()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await gang.__aexit__(None, None, None)
        assert (await gang.wait()).ends[0].exitcode == -signal.SIGKILL

    run(main())


def test_a_canceled_close_goes_on_with_its_own_timeout(tmp_path):
    async def main():
        signals = Signals()
        args = {0: (str(tmp_path),)}
        gang = aio.Gang(name="patient", entrypoint=patient, args=args, ready="notify", event_sink=signals, grace=0.1)

        async def close():
            async with gang:
                await gang.signal(signal.SIGSTOP)
                await gang.close(1000.0)

        task = asyncio.ensure_future(close())
        await until_exists(tmp_path / "told")
        task.cancel()
        await asyncio.wait((task,), timeout=0.5)  # longer than the grace of the gang
        assert not task.done()
        (tmp_path / "go").touch()
        await ended(task)
        assert (await gang.wait()).ends[0].exitcode == 7
        assert signals.sent.count(("SIGTERM", "close")) == 1

    run(main())


# A cancellation beside another exception


async def leave_by_an_exception(gang, leaving):
    async with gang:
        leaving.set()
        raise ValueError("mine")


def test_a_cancellation_does_not_replace_an_exception_and_is_not_lost(tmp_path):
    """It comes at the next await of the task."""

    async def main():
        settings = {"name": "patient", "entrypoint": patient, "args": {0: (str(tmp_path),)}, "ready": "notify"}
        gang, leaving, reached = aio.Gang(**settings, grace=1000.0), asyncio.Event(), []

        async def outer():
            try:
                await leave_by_an_exception(gang, leaving)
            except ValueError:
                reached.append(True)
            await asyncio.sleep(PATIENCE_S)

        task = asyncio.ensure_future(outer())
        await leaving.wait()
        await until_exists(tmp_path / "told")
        task.cancel()
        (tmp_path / "go").touch()
        await ended(task)
        assert reached
        assert task.cancelling() == 1

    run(main())


def test_a_timeout_beside_an_exception_cancels_nothing_after_its_block():
    async def main():
        gang, mine = await aio.Gang(**STUBBORN, grace=0.5).__aenter__(), ValueError("mine")
        async with asyncio.timeout(0.1) as limit:
            await gang.__aexit__(ValueError, mine, None)
        assert limit.expired()
        for _ in range(5):
            await asyncio.sleep(0)

    run(main())


# At any moment


async def check_moment(turns, **settings):
    gang = aio.Gang(**settings)
    task = asyncio.ensure_future(stay(gang))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait((task,), timeout=PATIENCE_S)
    assert done
    if gang._left:  # a task that is canceled before its first turn does not enter the block
        assert [type(event).__name__ async for event in gang.events()] == ["GangFinished"]
    assert not pykka.ActorRegistry.get_all()
    assert len(asyncio.all_tasks()) == 1
    if not task.cancelled():
        assert task.result().outcome == "succeeded"


@pytest.mark.parametrize("settings", [SLEEP, POLITE], ids=lambda settings: settings["name"])
def test_a_cancellation_at_any_turn_of_the_event_loop_leaves_nothing(settings):
    async def main():
        for turns in (*range(8), 20, 100):
            await check_moment(turns, **settings)

    run(main())


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_cancellations_at_random_moments_leave_nothing(seed):
    """Up to three cancellations of one task, during the start, the work, the end and the close."""
    chance = random.Random(seed)

    async def once():
        settings = chance.choice([SLEEP, POLITE, STUBBORN, {"name": "s", "entrypoint": square, "args": {0: (2,)}}])
        gang = aio.Gang(**settings, grace=chance.choice([0.05, 5.0]))
        task = asyncio.ensure_future(stay(gang))
        watching = asyncio.ensure_future(collect(gang))
        for _ in range(chance.randint(1, 3)):
            await asyncio.sleep(chance.choice([0.0, 0.0005, 0.005, 0.05, 0.3]) * chance.random())
            task.cancel()
        await asyncio.wait((task,))
        kinds = await watching
        assert kinds.count("GangFinished") == 1
        assert kinds[-1] == "GangFinished"
        assert not pykka.ActorRegistry.get_all()
        if not task.cancelled():
            assert task.result().outcome == "succeeded"

    async def collect(gang):
        return [type(event).__name__ async for event in gang.events()]

    async def main():
        for _ in range(60):
            async with asyncio.timeout(PATIENCE_S):
                await once()

    run(main(), timeout_s=60 * PATIENCE_S)


# The end of the event loop


INTERRUPTED = """
import asyncio, sys
from supervise import aio

async def main():
    async with aio.Gang(name="sh", entrypoint="sh", args={0: ("-c", sys.argv[1])}, grace=1000.0) as gang:
        await gang.wait()

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_closes_the_gang_and_a_second_one_kills_it(tmp_path, times):
    """asyncio.run cancels its task at the first SIGINT, and again when it ends by the second."""
    told, files = tmp_path / "told", {1: "exit 5", 2: f"touch {tmp_path}/told"}
    rank = f"trap '{files[times]}' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done"
    (tmp_path / "program.py").write_text(INTERRUPTED)
    with subprocess.Popen(
        [sys.executable, "-W", "error", tmp_path / "program.py", rank],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            run(until_exists(tmp_path / "ready"))
            program.send_signal(signal.SIGINT)
            if times == 2:
                run(until_exists(told))
                program.send_signal(signal.SIGINT)
            _, stderr = program.communicate(timeout=PATIENCE_S)
        finally:
            program.kill()
    assert program.returncode == -signal.SIGINT
    assert stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert "destroyed" not in stderr


def test_an_asynchronous_generator_that_is_closed_closes_its_gang():
    async def phases():
        async with aio.Gang(**POLITE) as gang:
            while True:
                yield gang, (await gang.status()).phase

    async def main():
        generator = phases()
        gang, phase = await anext(generator)
        assert phase == "running"
        await generator.aclose()
        assert (await gang.wait()).ends[0].exitcode == 7
        assert not pykka.ActorRegistry.get_all()

    run(main())


def test_a_coroutine_that_is_destroyed_closes_its_gang():
    """Its event loop is closed, so it cannot wait."""
    loop = asyncio.new_event_loop()
    try:
        task = loop.run_until_complete(started(aio.Gang(**SLEEP)))
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
    (ref,) = pykka.ActorRegistry.get_by_class(Supervisor)
    task._log_destroy_pending = False
    task.get_coro().close()
    assert ref.actor_stopped.wait(PATIENCE_S)


def test_a_generator_that_is_destroyed_while_its_gang_closes_does_not_keep_it():
    """It was closed in a task, so it waited; then its event loop was closed. The actor leaves with its last rank."""
    loop = asyncio.new_event_loop()

    async def block(gang):
        async with gang:
            yield

    async def closing():
        gang = aio.Gang(**STUBBORN, grace=1000.0)
        entered = block(gang)
        await anext(entered)

        async def leave():
            await entered.aclose()

        task = asyncio.ensure_future(leave())
        await until_closing(gang._ref)
        return task

    try:
        task = loop.run_until_complete(closing())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
    (ref,) = pykka.ActorRegistry.get_by_class(Supervisor)
    task._log_destroy_pending = False
    task.get_coro().close()
    os.kill(ref.ask(Pids(), timeout=PATIENCE_S)[0], signal.SIGKILL)
    assert ref.actor_stopped.wait(PATIENCE_S)


@pytest.mark.parametrize("where", ["wait", "leave"])
def test_a_task_that_nobody_holds_goes_on(tmp_path, where):
    """Event loops hold tasks only weakly, as a kernel of Jupyter does with that of an interrupted cell."""
    left = []

    async def block(entered):
        settings = {"name": "held", "entrypoint": patient, "args": {0: (str(tmp_path),)}, "ready": "notify"}
        async with aio.Gang(**settings, grace=1000.0) as gang:
            entered.set()
            if where == "wait":
                await gang.wait()
        left.append(where)

    async def has_left():
        return left

    async def main():
        entered = asyncio.Event()
        asyncio.ensure_future(block(entered))  # noqa: RUF006 - the subject of the test
        await entered.wait()
        await (until_waits() if where == "wait" else until_exists(tmp_path / "told"))
        for _ in range(3):
            await asyncio.sleep(0)
            gc.collect()
        (tmp_path / "go").touch()
        await until(has_left)

    run(main())


def test_a_task_of_a_loop_that_is_gone_is_collected_and_closes_its_gang():
    loop = asyncio.new_event_loop()

    async def begin():
        entered = asyncio.Event()
        task = asyncio.ensure_future(stay(aio.Gang(**SLEEP), entered))
        task._log_destroy_pending = False
        await entered.wait()
        await until_waits()

    loop.run_until_complete(begin())
    loop.close()
    (ref,) = pykka.ActorRegistry.get_by_class(Supervisor)
    del loop
    until_s = time.monotonic() + PATIENCE_S
    while not ref.actor_stopped.wait(0.05) and time.monotonic() < until_s:
        gc.collect()  # again: the thread of the gang may hold the last question for a moment
    assert ref.actor_stopped.is_set()


def test_a_busy_executor_does_not_delay_the_entry():
    async def main():
        free = threading.Event()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, free.wait)
        try:
            async with aio.Gang(**SLEEP) as gang:
                assert len(await gang.pids()) == 2
        finally:
            free.set()
        await busy

    run(main())
