"""A gang in an ``async with`` block: its verbs, its end, and who may use it."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pykka
import pytest

from supervise import GangFinished, Role, SpecError, Supervisor, SupervisorCrashed, UnkillableError, aio
from tests.aio.ranks import POLITE, SLEEP, fail, run, square, until, until_exists
from tests.patience import PATIENCE_S
from tests.processes.work import UnspeakableValue

# The block


def test_the_result_is_there_within_the_block_and_after_it():
    async def main():
        async with aio.Gang(name="square", entrypoint=square, args={0: (2,), 1: (3,)}) as gang:
            assert gang.name == "square"
            result = await gang.wait()
        assert result.return_values == {0: 4, 1: 9}
        assert await gang.wait() is result
        assert await gang.close() is result

    run(main())


def test_leaving_the_block_closes_the_gang():
    """Politely: the rank's handler of SIGTERM runs."""

    async def main():
        async with aio.Gang(**POLITE) as gang:
            pass
        result = await gang.wait()
        assert (result.outcome, result.ends[0].exitcode) == ("stopped", 7)
        assert not pykka.ActorRegistry.get_all()

    run(main())


def test_a_notebook_shows_the_state_and_then_the_result():
    async def main():
        gang = aio.Gang(**SLEEP)
        assert gang._repr_html_() is None
        async with gang:
            assert "running" in str(gang._repr_html_())
        assert gang._repr_html_() == (await gang.wait())._repr_html_()

    run(main())


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_exception_that_leaves_the_block_is_not_replaced(kind):
    async def main():
        gang = aio.Gang(**SLEEP)
        with pytest.raises(kind, match="mine"):
            async with gang:
                raise kind("mine")
        assert (await gang.wait()).outcome == "stopped"

    run(main())


def test_a_rank_that_does_not_start_fails_the_entry():
    async def main():
        gang = aio.Gang(name="missing", entrypoint="no-such-program", args={0: ()})
        with pytest.raises(FileNotFoundError, match="rank 0"):
            await gang.__aenter__()
        with pytest.raises(FileNotFoundError):
            await gang.wait()

    run(main())


def test_bad_settings_are_refused_by_name():
    with pytest.raises(TypeError, match="entrypiont"):
        aio.Gang(name="typo", entrypiont="sleep", args={0: ()})

    async def main():
        gang = aio.Gang(name="bad", entrypoint="sleep", args={0: ()}, strategy="some")
        with pytest.raises(SpecError, match="strategy is 'some'"):
            await gang.__aenter__()
        for again in (gang.wait, gang.close):
            with pytest.raises(SpecError, match="strategy is 'some'"):
                await again()

    run(main())


def test_the_keywords_are_those_of_a_supervisor():
    assert inspect.signature(aio.Gang) == inspect.signature(Supervisor)


def test_a_crash_of_the_supervisor_is_raised_by_the_wait_and_by_the_block(breaking):
    async def main():
        gang = await aio.Gang(**SLEEP).__aenter__()
        breaking.raises("signal", RuntimeError("on purpose"))
        for verb in (gang.close(), gang.wait(), gang.__aexit__(None, None, None), gang.wait()):
            with pytest.raises(SupervisorCrashed, match="on purpose"):
                await verb

    run(main())


def unkillable(breaking):
    """Report an unkillable process with every close that is answered from now on."""

    def answer_close(_, runner):
        runner.replies.closed(UnkillableError({0: 1}, {0: "D"}))
        if runner.replies.stopping:
            runner.leave()

    breaking.instead("reply to a close", answer_close)


def test_a_process_that_survives_sigkill_is_raised_by_the_block(breaking):
    async def main():
        with pytest.raises(UnkillableError):
            async with aio.Gang(**SLEEP):
                unkillable(breaking)

    run(main())


def test_a_process_that_survives_sigkill_is_noted_if_another_exception_leaves_the_block(breaking):
    async def main():
        mine, gang = ValueError("mine"), await aio.Gang(**SLEEP).__aenter__()
        unkillable(breaking)
        await gang.__aexit__(ValueError, mine, None)
        assert "rank 0 (pid 1, state D)" in mine.__notes__[0]

    run(main())


def test_a_gang_whose_actor_other_code_stops_has_its_result():
    async def main():
        async with aio.Gang(**SLEEP) as gang:
            waiting = asyncio.ensure_future(gang.wait())
            await asyncio.to_thread(pykka.ActorRegistry.stop_all)
            assert (await waiting).outcome == "stopped"
            assert (await gang.wait()).outcome == "stopped"

    run(main())


# Verbs


def test_the_verbs_are_those_of_the_actor():
    async def main():
        async with aio.Gang(**SLEEP, strategy="one_for_one") as gang:
            pids = await gang.pids()
            status = await gang.status()
            assert (status.phase, status.pids) == ("running", pids)
            assert set(pids) == {0, 1}
            again = await gang.restart_ranks([1])
            assert set(again) == {1}
            assert again[1] != pids[1]
            assert set(await gang.stacks({0})) == {0}
            assert await gang.signal(signal.SIGCONT) == {0, 1}
            assert set(await gang.terminate_ranks({0})) == {0}
            assert await gang.signal(signal.SIGCONT) == {1}
            assert await gang.signal(signal.SIGKILL, {1}) == {1}
            result = await gang.wait()
        assert result.failures[1].exitcode == -signal.SIGKILL
        assert result.ends[0].role == "terminated"

    run(main())


def test_reload_sends_the_signal_of_each_role():
    """A rank without such a signal has not reloaded; `sleep` ignores this one."""
    ranks = {"entrypoint": "sleep", "args": {0: ("1000",)}}
    roles = [Role(name="web", **ranks, reload_signal=signal.SIGWINCH), Role(name="db", **ranks)]

    async def main():
        async with aio.Gang(name="site", roles=roles) as gang:
            assert await gang.reload() == {0: True, 1: False}
            assert await gang.reload([0]) == {0: True}

    run(main())


def test_close_has_the_timeout_of_the_caller():
    """The grace of the gang would outlast the test."""

    async def main():
        async with aio.Gang(**{**POLITE, "grace": 1000.0}) as gang:
            await gang.signal(signal.SIGSTOP)
            result = await gang.close(0.1, death_sig=signal.SIGUSR1)
            assert result.ends[0].exitcode in (-signal.SIGUSR1, -signal.SIGKILL)
            assert await gang.close() is result

    run(main())


def test_an_argument_whose_pickle_raises_without_a_text_is_refused_by_rank():
    async def main():
        with pytest.raises(SpecError, match=r"rank 1: square .*UnspeakableValue.* cannot be pickled"):
            async with aio.Gang(name="square", entrypoint=square, args={0: (2,), 1: (UnspeakableValue(),)}):
                pass

    run(main())


def test_what_the_actor_refuses_is_refused_here():
    async def main():
        async with aio.Gang(**SLEEP) as gang:
            for refused in (
                gang.signal(signal.SIGTERM, {7}),
                gang.signal("TERM"),
                gang.restart_ranks(()),
                gang.restart_ranks(3),
                gang.reload({2}),
                gang.restart_ranks(None),
                gang.terminate_ranks({2}),
                gang.stacks({5}),
                gang.close(-1.0),
                gang.close(death_sig=4000),
            ):
                with pytest.raises(SpecError):
                    await refused
            assert (await gang.status()).phase == "running"
        assert (await gang.wait()).outcome == "stopped"

    run(main())


async def give_up(gang):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(gang.wait(), 0.001)


def test_a_canceled_wait_is_forgotten():
    """Also while its task is held, with the exception that ended it."""

    async def main():
        async with aio.Gang(**SLEEP) as gang:
            for _ in range(50):
                await give_up(gang)
            assert (await gang.status()).waiters == 0
            task = asyncio.ensure_future(gang.wait())
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait((task,))
            assert (await gang.status()).waiters == 0
            assert task.cancelled()
            waiting = [asyncio.ensure_future(gang.wait()) for _ in range(5)]

            async def all_wait():
                return (await gang.status()).waiters == 5

            await until(all_wait)
            await gang.close()
            assert len({id(await each) for each in waiting}) == 1

    run(main())


# Who may use it


def test_a_gang_runs_once():
    async def main():
        async with aio.Gang(**SLEEP) as gang:
            with pytest.raises(SpecError, match="'sleep' was entered before"):
                await gang.__aenter__()
        with pytest.raises(SpecError, match="'sleep' was entered before"):
            await gang.__aenter__()

    run(main())


def test_outside_the_block_there_is_only_the_result():
    async def main():
        gang = aio.Gang(**SLEEP)
        for early in (gang.wait(), gang.close(), gang.pids(), gang.status(), gang.signal(signal.SIGTERM)):
            with pytest.raises(SpecError, match="'sleep' does not run yet"):
                await early
        async with gang:
            pass
        for late in (gang.pids(), gang.status(), gang.restart_ranks({0}), gang.reload(), gang.stacks()):
            with pytest.raises(SpecError, match="block of gang 'sleep' was left"):
                await late

    run(main())


def test_another_event_loop_is_refused():
    async def other(gang, events):
        with pytest.raises(SpecError, match="'sleep' belongs to another event loop"):
            await gang.wait()
        with pytest.raises(SpecError, match="'sleep' belongs to another event loop"):
            gang.events()
        with pytest.raises(SpecError, match="'sleep' belongs to another event loop"):
            await anext(events)

    async def main():
        async with aio.Gang(**SLEEP) as gang:
            await asyncio.to_thread(asyncio.run, other(gang, gang.events()))
            assert (await gang.status()).phase == "running"

    run(main())


def test_a_forked_child_is_refused_and_does_not_close_the_gang(tmp_path):
    """The child leaves the block by an exception, which it keeps."""

    async def main():
        child = None
        try:
            async with aio.Gang(**SLEEP) as gang:
                child = os.fork()
                if child == 0:
                    with pytest.raises(SpecError, match="'sleep' belongs to process"):
                        await gang.wait()
                    raise ZeroDivisionError  # noqa: TRY301 - in the child
                status = await asyncio.to_thread(os.waitpid, child, 0)
                assert os.waitstatus_to_exitcode(status[1]) == 3
                assert (await gang.status()).phase == "running"
        except ZeroDivisionError:
            os._exit(3)
        finally:
            if child == 0:
                os._exit(4)

    run(main())


# Nothing blocks the event loop


class Waits:
    """An argument whose pickling ends only when the event loop goes on."""

    gate = threading.Event()

    def __reduce__(self):
        assert self.gate.wait(PATIENCE_S)
        return (int, ())


def test_the_event_loop_goes_on_while_arguments_are_pickled():
    async def main():
        Waits.gate.clear()
        asyncio.get_running_loop().call_later(0.05, Waits.gate.set)
        async with aio.Gang(name="slow", entrypoint=square, args={0: (Waits(),)}) as gang:
            assert (await gang.wait()).return_values == {0: 0}

    run(main())


def test_the_event_loop_goes_on_while_the_gang_closes(tmp_path):
    """The rank ends only when the event loop has made a file."""
    done = tmp_path / "done"
    script = (
        f"trap 'while ! [ -e {done} ]; do sleep 0.01; done; exit 5' TERM; sleep 1000 & touch {tmp_path}/ready; wait"
    )

    async def main():
        async with aio.Gang(name="late", entrypoint="sh", args={0: ("-c", script)}) as gang:
            await until_exists(tmp_path / "ready")
            asyncio.get_running_loop().call_later(0.1, done.touch)
        assert (await gang.wait()).ends[0].exitcode == 5

    run(main())


# Several gangs


def test_a_failed_gang_of_a_task_group_closes_the_others():
    async def fails():
        async with aio.Gang(name="fails", entrypoint=fail, args={0: ()}) as gang:
            result = await gang.wait()
            raise RuntimeError(f"rank {result.root_cause} failed")

    async def runs(gang, entered):
        async with gang:
            entered.set()
            await gang.wait()

    async def all_run(others):
        async with asyncio.TaskGroup() as group:
            entered = [asyncio.Event() for _ in others]
            for other, event in zip(others, entered, strict=True):
                group.create_task(runs(other, event))
            for event in entered:
                await event.wait()
            group.create_task(fails())

    async def main():
        others = [aio.Gang(**POLITE) for _ in range(2)]
        with pytest.raises(ExceptionGroup) as raised:
            await all_run(others)
        assert [str(error) for error in raised.value.exceptions] == ["rank 0 failed"]
        assert [(await other.wait()).ends[0].exitcode for other in others] == [7, 7]

    run(main())


# Imports


def test_only_the_package_itself_imports_asyncio():
    code = """
import sys
import supervise
for name in supervise.__all__:
    getattr(supervise, name)
print("asyncio" in sys.modules)
import supervise.aio
print("asyncio" in sys.modules, {"torch", "rich", "ray", "multiprocessing"} & set(sys.modules))
"""
    root = str(Path(aio.__file__).parent.parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout == "False\nTrue set()\n", done.stderr


def test_the_last_event_is_that_of_the_result():
    async def main():
        async with aio.Gang(name="square", entrypoint=square, args={0: (2,)}) as gang:
            *_, last = [event async for event in gang.events()]
            assert last == GangFinished(result=await gang.wait())

    run(main())
