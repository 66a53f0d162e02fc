"""The lock-free reply: pykka's contract, deferred answers, await, and signals at any moment."""

import asyncio
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

import pykka
import pytest

from supervise import DefaultLogsSpecs, Start, Status, Supervisor, Wait
from supervise._runtime.future import Reply, remaining
from supervise._runtime.loop import Loop
from tests.patience import PATIENCE_S


def reply_with(value):
    reply = Reply()
    reply.set(value)
    return reply


# pykka's contract


def test_a_value_is_got_again_and_again():
    reply = reply_with(5)
    assert (reply.get(), reply.get(timeout=0), reply.done()) == (5, 5, True)


def test_no_value_is_none():
    reply = Reply()
    reply.set()
    assert reply.get(timeout=0) is None


def test_an_exception_is_raised_with_its_traceback():
    reply = Reply()
    try:
        int("broken")
    except ValueError:
        reply.set_exception()
    for _ in range(2):
        with pytest.raises(ValueError, match="broken") as caught:
            reply.get(timeout=0)
    assert any(entry.name == "test_an_exception_is_raised_with_its_traceback" for entry in caught.traceback)


def test_an_exception_may_be_given_as_pykka_gives_it():
    reply = Reply()
    reply.set_exception((pykka.ActorDeadError, pykka.ActorDeadError("gone"), None))
    with pytest.raises(pykka.ActorDeadError, match="gone"):
        reply.get(timeout=0)


@pytest.mark.parametrize("first", ["value", "exception", "chain", "hook"])
@pytest.mark.parametrize("second", ["value", "exception", "chain"])
def test_a_second_result_is_refused(first, second):
    put = {
        "value": lambda r: r.set(1),
        "exception": lambda r: r.set_exception((ValueError, ValueError("x"), None)),
        "chain": lambda r: r.set(Reply()),
        "hook": lambda r: r.set_get_hook(lambda _: 1),
    }
    reply = Reply()
    put[first](reply)
    with pytest.raises(queue.Full):
        put[second](reply)


def test_a_hook_on_a_reply_that_has_a_result_is_refused():
    with pytest.raises(queue.Full):
        reply_with(1).set_get_hook(lambda _: 2)


def test_the_first_failure_stays_and_later_ones_are_harmless():
    reply = reply_with(1)
    reply.fail(ValueError())
    assert reply.get(timeout=0) == 1


def test_get_gives_up_in_time_and_can_be_asked_again():
    reply = Reply()
    with pytest.raises(pykka.Timeout, match=r"0\.01 seconds"):
        reply.get(timeout=0.01)
    with pytest.raises(pykka.Timeout):
        reply.get(timeout=-1)
    assert not reply._waiters
    reply.set(3)
    assert reply.get(timeout=0) == 3


def test_every_waiting_thread_gets_the_result():
    reply, got = Reply(), queue.SimpleQueue()
    threads = [threading.Thread(target=lambda: got.put(reply.get(timeout=PATIENCE_S))) for _ in range(8)]
    for thread in threads:
        thread.start()
    reply.set("all")
    assert [got.get(timeout=PATIENCE_S) for _ in threads] == ["all"] * 8
    for thread in threads:
        thread.join(PATIENCE_S)


def test_setters_in_many_threads_leave_exactly_one_result():
    for _ in range(50):
        reply, refused, go = Reply(), queue.SimpleQueue(), threading.Barrier(4)

        def put(n, reply=reply, refused=refused, go=go):
            go.wait(PATIENCE_S)
            try:
                reply.set(n)
            except queue.Full:
                refused.put(n)

        threads = [threading.Thread(target=put, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        lost = {refused.get(timeout=1) for _ in range(3)}
        assert {reply.get(timeout=0)} == set(range(4)) - lost
        assert refused.empty()


def test_map_filter_join_and_reduce():
    numbers = reply_with([1, 2, 3, 4])
    assert numbers.map(len).get(timeout=1) == 4
    assert numbers.filter(lambda n: n % 2).get(timeout=1) == [1, 3]
    assert numbers.reduce(lambda a, b: a + b).get(timeout=1) == 10
    assert numbers.reduce(lambda a, b: a + b, 10).get(timeout=1) == 20
    assert reply_with(1).join(reply_with(2), reply_with(3)).get(timeout=1) == [1, 2, 3]
    assert numbers.map(len).map(str).get(timeout=1) == "4"


def test_get_all_of_pykka():
    assert pykka.get_all([reply_with(1), reply_with(2)], timeout=1) == [1, 2]


# Deferred


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_reply_set_to_another_resolves_with_it(when):
    outer, inner = Reply(), Reply()
    if when == "before":
        inner.set("late")
    outer.set(inner)
    if when == "after":
        assert not outer.done()
        inner.set("late")
    assert outer.get(timeout=0) == "late"


def test_a_chain_hands_exceptions_on():
    outer, middle, inner = Reply(), Reply(), Reply()
    outer.set(middle)
    middle.set(inner)
    inner.fail(KeyError("deep"))
    with pytest.raises(KeyError, match="deep"):
        outer.get(timeout=0)


def test_a_reply_set_to_one_that_has_a_hook_is_computed_by_the_getter():
    source, outer = Reply(), Reply()
    outer.set(source.map(lambda n: n + 1))
    source.set(1)
    assert outer.get(timeout=1) == 2


def test_who_waits_already_gets_the_result_of_a_hook_that_comes_later():
    source, outer, outermost, got = Reply(), Reply(), Reply(), queue.SimpleQueue()
    outermost.set(outer)
    threads = [threading.Thread(target=lambda r=r: got.put(r.get(timeout=PATIENCE_S))) for r in (outer, outermost)]
    for thread in threads:
        thread.start()
    for reply in (outer, outermost):
        while not reply._waiters:  # it comes to wait in a moment
            threading.Event().wait(0.001)
    outer.set(source.map(lambda n: n + 1))
    source.set(1)
    assert [got.get(timeout=PATIENCE_S) for _ in threads] == [2, 2]
    for thread in threads:
        thread.join(PATIENCE_S)


def test_done_callbacks_are_called_once_in_the_setters_thread_or_at_once():
    reply, calls = Reply(), []
    reply.add_done_callback(lambda: calls.append("early"))
    dropped = lambda: calls.append("dropped")  # noqa: E731
    reply.add_done_callback(dropped)
    reply.forget(dropped)
    reply.forget(dropped)
    reply.set(1)
    reply.add_done_callback(lambda: calls.append("late"))
    assert calls == ["early", "late"]


def test_remaining_is_never_negative():
    assert remaining(None) is None
    assert remaining(0.0) == 0.0


# A loop's own thread


def test_get_on_the_loops_own_thread_raises_at_once_unless_the_answer_is_there():
    told = queue.SimpleQueue()

    def on_loop():
        told.put(reply_with(7).get())
        try:
            Reply().get()
        except RuntimeError as error:
            told.put(str(error))
        loop.end()

    loop = Loop("own", lost=told.put)
    loop.start()
    loop.post(on_loop)
    assert told.get(timeout=PATIENCE_S) == 7
    assert "own thread would deadlock" in told.get(timeout=PATIENCE_S)
    assert loop.join(PATIENCE_S)


# asyncio


def resolve_from_thread(reply, value, after):
    def work():
        after.wait(PATIENCE_S)
        reply.set(value)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


async def ticking_while(awaitable, go):
    """Await it; the other task must have run many times before the answer is even sent."""
    ticks = 0

    async def tick():
        nonlocal ticks
        for _ in range(20):
            await asyncio.sleep(0)
            ticks += 1
        go.set()

    async def answer():
        return await awaitable

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        waiting = group.create_task(answer())
        group.create_task(tick())
    return waiting.result(), ticks


SHAPES = {
    "plain": (lambda reply: reply, 5),
    "map": (lambda reply: reply.map(lambda n: n + 1), 6),
    "map of map": (lambda reply: reply.map(lambda n: n + 1).map(str), "6"),
    "join": (lambda reply: reply.join(reply_with(1)), [5, 1]),
    "join, late": (lambda reply: reply_with(1).join(reply), [1, 5]),
    "reduce": (lambda reply: reply.map(lambda n: [n, n]).reduce(lambda a, b: a + b), 10),
    "filter": (lambda reply: reply.map(lambda n: [n, 1]).filter(lambda n: n > 1), [5]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_await_does_not_block_the_event_loop(shape):
    """Were the event loop blocked, nobody would ever let the answer go."""
    make, expected = SHAPES[shape]
    reply, go = Reply(), threading.Event()
    thread = resolve_from_thread(reply, 5, go)
    assert asyncio.run(ticking_while(make(reply), go)) == (expected, 20)
    thread.join(PATIENCE_S)


def test_await_of_a_chain_and_of_a_foreign_hook_does_not_block_either():
    for kind in ("chain", "hook", "chained hook"):
        reply, outer, go = Reply(), Reply(), threading.Event()
        if kind == "chain":
            outer.set(reply)
        elif kind == "hook":  # what pykka's ActorRef.stop makes
            outer.set_get_hook(lambda timeout, reply=reply: reply.get(timeout=timeout))
        else:
            hooked = Reply()
            hooked.set_get_hook(lambda timeout, reply=reply: reply.get(timeout=timeout))
            outer.set(hooked)
        thread = resolve_from_thread(reply, kind, go)
        assert asyncio.run(ticking_while(outer, go)) == (kind, 20)
        thread.join(PATIENCE_S)


def test_await_of_what_is_made_from_a_foreign_future_does_not_block_either():
    for make in (lambda own, foreign: own.join(foreign), lambda own, foreign: own.join(foreign).map(list)):
        own, foreign, go = reply_with(1), pykka.ThreadingFuture(), threading.Event()
        thread = resolve_from_thread(foreign, 2, go)
        assert asyncio.run(ticking_while(make(own, foreign), go)) == ([1, 2], 20)
        thread.join(PATIENCE_S)


def test_await_raises_what_get_raises():
    async def answer():
        reply = Reply()
        reply.fail(LookupError("no"))
        return await reply

    with pytest.raises(LookupError, match="no"):
        asyncio.run(answer())


def test_an_awaiting_task_can_be_cancelled_and_a_late_answer_is_harmless():
    reply = Reply()

    async def give_up():
        async with asyncio.timeout(0.01):
            await reply

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    reply.set(1)
    assert reply.get(timeout=0) == 1


# Signals


def test_a_handler_that_raises_at_any_moment_inside_get_leaves_nothing_wedged():
    """pykka's own future then has a lock that nobody gives back, and the answering thread blocks for ever."""
    script = Path(__file__).with_name("interrupted_gets.py")
    done = subprocess.run(
        [sys.executable, str(script), "3000"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["odd"] == []
    assert told["interrupts"] > 1000
    assert not told["wedged"]


def test_k4_a_callback_that_raises_keeps_nobody_else_from_the_answer(caplog):
    """Nor does it reach who sets it, which is a loop with other things to do."""
    reply, told = Reply(), []
    reply.add_done_callback(lambda: 1 / 0)
    reply.add_done_callback(lambda: told.append("told"))
    reply.set(5)
    assert told == ["told"]
    assert "a done-callback raised" in caplog.text


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
