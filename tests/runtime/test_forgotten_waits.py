"""A wait that nobody can get the answer of any more is forgotten, by the Supervisor as well."""

import asyncio
import os
import threading

import pykka
import pytest

from supervise import DefaultLogsSpecs, Start, Status, Supervisor, Wait
from supervise._runtime.future import Reply
from tests.patience import PATIENCE_S


@pytest.fixture
def supervisor():
    """A gang that runs until it is stopped."""
    logs = DefaultLogsSpecs(os.devnull)
    ref = Supervisor.start(name="waits", entrypoint="sleep", args={0: ("1000",)}, logs_specs=logs)
    ref.ask(Start(), timeout=PATIENCE_S)
    yield ref
    ref.stop(timeout=PATIENCE_S)


def waiters(ref):
    return ref.ask(Status(), timeout=PATIENCE_S).waiters


@pytest.mark.parametrize("limit", [None, 3600.0])
def test_200_canceled_waits_of_asyncio_leave_no_waiter(supervisor, limit):
    async def cancel_one():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(supervisor.ask(Wait(timeout=limit), block=False), 0.001)

    async def cancel_many():
        for _ in range(200):
            await cancel_one()

    asyncio.run(cancel_many())
    assert waiters(supervisor) == 0


def test_one_answer_that_is_awaited_again_and_again_keeps_nothing_and_comes(supervisor):
    """Canceled 200 times, it is still answered."""
    answer = supervisor.ask(Wait(), block=False)

    async def await_often():
        for _ in range(200):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(answer, 0.001)
        assert len(answer._waiters) == 0
        assert waiters(supervisor) == 1
        stopping = supervisor.stop(block=False)
        assert (await asyncio.wait_for(answer, PATIENCE_S)).outcome == "stopped"
        stopping.get(timeout=PATIENCE_S)

    asyncio.run(await_often())


def test_200_blocking_waits_that_were_given_up_leave_no_waiter(supervisor):
    for _ in range(200):
        with pytest.raises(pykka.Timeout):
            supervisor.ask(Wait(), timeout=0.0)
    assert waiters(supervisor) == 0


def test_a_wait_of_which_only_what_is_made_of_it_is_held_is_not_forgotten(supervisor):
    mapped = supervisor.ask(Wait(), block=False).map(lambda result: result.outcome)
    box = Reply()
    box.set(supervisor.proxy().wait())
    assert waiters(supervisor) == 2
    threading.Thread(target=supervisor.stop).start()
    assert mapped.get(timeout=PATIENCE_S) == "stopped"
    assert box.get(timeout=PATIENCE_S).outcome == "stopped"
