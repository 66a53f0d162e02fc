"""The events of a gang: their order, several consumers, slow ones, and those that leave."""

import asyncio
import gc

import pytest

from supervise import (
    GangFinished,
    GangStarted,
    RestartPolicy,
    SpecError,
    Wait,
    WorkerExited,
    WorkerReady,
    WorkerRestarting,
    WorkerStarted,
    aio,
)
from tests.aio.ranks import POLITE, SLEEP, fail, run, square, until
from tests.patience import PATIENCE_S

RESTARTS = RestartPolicy(max_restarts=20, backoff=0.0)
MANY = {"name": "many", "entrypoint": "false", "args": {0: ()}, "strategy": "one_for_one", "restart_policy": RESTARTS}
"""A rank that fails, with 20 restarts."""
EVENTS = 21 + 21 + 20 + 2
"""Starts, exits, restarts, and the start and the end of the gang."""


def kinds(events):
    return [type(event) for event in events]


async def collect(events):
    return [event async for event in events]


def subscribers(gang):
    """Return how many consumers the Supervisor knows, beside the one that keeps the result."""
    return len(gang._ref._actor_weakref()._runner.subscribers._refs) - 1


async def until_subscribers(gang, number):
    async def are_there():
        await gang.status()  # behind the messages that were told before
        gc.collect()
        return subscribers(gang) == number

    await until(are_there)


def test_events_come_in_order_and_end():
    async def main():
        async with aio.Gang(name="square", entrypoint=square, args={0: (2,), 1: (3,)}) as gang:
            events = await collect(gang.events())
        started = [event for event in events if isinstance(event, WorkerStarted)]
        assert kinds(events)[:2] == [WorkerStarted, WorkerStarted]
        assert {*kinds(events)[2:5]} == {GangStarted, WorkerExited}
        assert GangStarted(pids={event.local_rank: event.pid for event in started}) in events
        assert len(events) == 6
        assert events[-1].result.return_values == {0: 4, 1: 9}

    run(main())


def test_a_consumer_of_before_the_block_sees_the_start():
    async def main():
        gang = aio.Gang(**POLITE)
        early = asyncio.ensure_future(collect(gang.events()))
        await asyncio.sleep(0)
        async with gang:
            pass
        assert kinds(await early) == [WorkerStarted, WorkerReady, GangStarted, WorkerExited, GangFinished]
        assert kinds(await collect(gang.events())) == [GangFinished]

    run(main())


def test_each_consumer_gets_every_event():
    async def main():
        gang = aio.Gang(**MANY)
        consumers = [gang.events() for _ in range(5)]
        async with gang:
            first, *others = await asyncio.gather(*map(collect, consumers))
        assert others == [first] * 4
        assert len(first) == EVENTS
        assert [kinds(first).count(kind) for kind in (WorkerStarted, WorkerExited, WorkerRestarting)] == [21, 21, 20]

    run(main())


@pytest.mark.parametrize(("settings", "error"), [({"entrypoint": "no-such-program"}, OSError), ({"cwd": 3}, SpecError)])
def test_a_gang_that_does_not_start_ends_the_events(settings, error):
    async def main():
        gang = aio.Gang(**{**SLEEP, **settings})
        early = asyncio.ensure_future(collect(gang.events()))
        await asyncio.sleep(0)
        with pytest.raises(error):
            await gang.__aenter__()
        last = (await early)[-1]
        assert type(last) is GangFinished
        assert isinstance(last.error, error)

    run(main())


# Slow consumers


def test_a_slow_consumer_loses_the_oldest_events_knows_it_and_gets_the_last():
    async def main():
        gang = aio.Gang(**MANY)
        fast, slow = gang.events(), gang.events(buffer_size=3)
        async with gang:
            everything = await collect(fast)
        assert await collect(slow) == [aio.EventsDropped(count=EVENTS - 3), *everything[-3:]]

    run(main())


def test_what_a_slow_consumer_gets_and_what_it_lost_is_everything():
    """It takes one event while the other takes seven; each gap is where it belongs."""

    async def main():
        gang = aio.Gang(**MANY)
        fast, slow, everything, got = gang.events(), gang.events(buffer_size=2), [], []
        async with gang:
            async for event in fast:
                everything.append(event)
                if len(everything) % 7 == 0:
                    got.append(await anext(slow))
            got += await collect(slow)
        assert sum(isinstance(event, aio.EventsDropped) for event in got) >= 1
        place = 0
        for event in got:
            if isinstance(event, aio.EventsDropped):
                place += event.count
            else:
                assert event is everything[place]
                place += 1
        assert place == EVENTS

    run(main())


def test_an_event_loop_that_is_blocked_does_not_block_the_gang():
    """An ask blocks the event loop until the gang has ended, after twenty restarts."""

    async def main():
        gang = aio.Gang(**MANY)
        events = gang.events(buffer_size=2)
        async with gang:
            gang._ref.ask(Wait(), timeout=PATIENCE_S)
            assert len(events._mailbox._messages) <= 2
        # the block is left, so that every message was told
        dropped, _, last = await collect(events)
        assert dropped == aio.EventsDropped(count=EVENTS - 2)
        assert type(last) is GangFinished

    run(main())


@pytest.mark.parametrize("size", [0, -1, 1.5, True, None, "3"])
def test_a_buffer_without_room_is_refused(size):
    async def main():
        with pytest.raises(SpecError, match=f"buffer_size is {size!r}"):
            aio.Gang(**SLEEP).events(buffer_size=size)

    run(main())


# Consumers that leave


def test_consumers_that_leave_are_forgotten():
    """By a break, a cancellation, a close or the end of their block."""

    async def main():
        async with aio.Gang(**SLEEP) as gang:
            for _ in range(10):
                async for _event in gang.events():
                    break
                task = asyncio.ensure_future(collect(gang.events()))
                await asyncio.sleep(0.001)
                task.cancel()
                await asyncio.wait((task,))
                del task
                async with gang.events() as events:
                    await anext(events)
                assert [event async for event in events] == []
            await until_subscribers(gang, 0)
            kept = gang.events()
            await until_subscribers(gang, 1)
            await kept.aclose()
            await kept.aclose()
            await until_subscribers(gang, 0)

    run(main())


def test_a_close_ends_the_waits_of_other_tasks():
    async def main():
        async with aio.Gang(**SLEEP) as gang:
            events, got = gang.events(), []

            async def take():
                async for event in events:
                    got.append(type(event))  # noqa: PERF401 - three tasks fill it

            async def all_taken():
                return len(got) == 3

            waiting = [asyncio.ensure_future(take()) for _ in range(3)]
            await until(all_taken)
            await events.aclose()
            await asyncio.gather(*waiting)
        assert got == [WorkerStarted, WorkerStarted, GangStarted]

    run(main())


def test_tasks_that_share_an_iterator_share_its_events():
    async def main():
        async with aio.Gang(**{**SLEEP, "entrypoint": fail, "args": {0: ()}}) as gang:
            events = gang.events()
            shares = await asyncio.gather(*(collect(events) for _ in range(3)))
        kinds_of_all = {type(event) for share in shares for event in share}
        assert kinds_of_all == {WorkerStarted, GangStarted, WorkerExited, GangFinished}
        assert sum(map(len, shares)) == 4

    run(main())


def test_the_end_of_an_event_loop_is_survived_by_the_gang():
    """A consumer of another gang's past is no reason to fail: its mailbox refuses, and is dropped."""

    async def main():
        return aio.Gang(**SLEEP).events()

    events = asyncio.run(main())
    with pytest.raises(Exception, match="event loop of this subscriber is closed"):
        events._mailbox.tell(GangFinished(result=None))
