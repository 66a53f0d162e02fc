"""One thread, one selector: posts, timers, descriptors, and a guard that lets nothing out."""

import ast
import logging
import os
import queue
import threading
import time
from pathlib import Path

import pytest

import supervise
from supervise._runtime import fork_hooks, loop as loop_module
from supervise._runtime.actor import _Stopped
from supervise._runtime.loop import Loop
from tests.patience import PATIENCE_S


@pytest.fixture
def lost():
    return queue.SimpleQueue()


@pytest.fixture
def loop(lost):
    made = Loop("tested", lost=lost.put)
    made.start()
    yield made
    made.post(made.end)
    assert made.join(PATIENCE_S)


@pytest.fixture
def pipe():
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def open_fds():
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def on_loop(loop, call, *args):
    """Call something on the loop's thread, and return what it returns or raise what it raises."""
    answer = queue.SimpleQueue()

    def work():
        try:
            answer.put((call(*args), None))
        except BaseException as error:
            answer.put((None, error))

    loop.post(work)
    value, error = answer.get(timeout=PATIENCE_S)
    if error is not None:
        raise error
    return value


# Posts


def test_posts_run_on_the_loops_thread_in_their_order(loop):
    seen = []
    for n in range(100):
        loop.post(seen.append, n)
    assert on_loop(loop, threading.current_thread).name == "tested"
    assert on_loop(loop, lambda: loop.in_loop) is True
    assert (loop.in_loop, loop.running) == (False, True)
    assert seen == list(range(100))


def test_posts_from_many_threads_all_arrive_each_threads_in_its_order(loop):
    seen = []
    threads = [
        threading.Thread(target=lambda t=t: [loop.post(seen.append, (t, n)) for n in range(500)]) for t in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    on_loop(loop, lambda: None)
    assert len(seen) == 8 * 500
    for t in range(8):
        assert [n for who, n in seen if who == t] == list(range(500))


def test_no_post_is_lost_between_the_look_and_the_sleep(loop):
    """Each post races against a loop that is just falling asleep."""
    done = threading.Semaphore(0)
    for _ in range(3000):
        loop.post(done.release)
        assert done.acquire(timeout=PATIENCE_S)


def test_what_is_posted_before_the_start_runs_after_it(lost):
    loop, seen = Loop("later", lost=lost.put), []
    loop.post(seen.append, 1)
    assert (seen, loop.running) == ([], False)
    loop.post(loop.end)
    loop.start()
    assert loop.join(PATIENCE_S)
    assert seen == [1]


def test_what_is_posted_after_the_end_runs_in_the_posters_thread(lost):
    loop, seen = Loop("ended", lost=lost.put), []
    loop.start()
    loop.post(loop.end)
    assert loop.join(PATIENCE_S)
    loop.post(lambda: seen.append(threading.current_thread()))
    assert seen == [threading.current_thread()]


def test_posts_that_race_with_the_end_all_run(lost):
    for _ in range(30):
        loop, done, go = Loop("racing", lost=lost.put), threading.Semaphore(0), threading.Barrier(3)
        loop.start()

        def many(loop=loop, done=done, go=go):
            go.wait(PATIENCE_S)
            for _ in range(50):
                loop.post(done.release)

        threads = [threading.Thread(target=many) for _ in range(2)]
        for thread in threads:
            thread.start()
        go.wait(PATIENCE_S)
        loop.post(loop.end)
        for thread in threads:
            thread.join(PATIENCE_S)
        for _ in range(100):
            assert done.acquire(timeout=PATIENCE_S)
        assert loop.join(PATIENCE_S)


def test_an_ended_loop_has_given_everything_back(lost):
    before = open_fds()
    Loop("never started", lost=lost.put)
    assert open_fds() == before
    loop = Loop("short", lost=lost.put)
    loop.start()
    assert open_fds() != before
    loop.post(loop.end)
    assert loop.join(PATIENCE_S)
    assert open_fds() == before


def test_a_loop_that_gets_no_thread_gives_everything_back(lost, no_threads):
    before = open_fds()
    with no_threads(), pytest.raises(BlockingIOError, match="new thread"):
        Loop("unlucky", lost=lost.put).start()
    assert open_fds() == before


@pytest.mark.parametrize("runs", [True, False])
def test_a_start_that_a_handler_of_signals_interrupts_gives_everything_back_once(lost, monkeypatch, caplog, runs):
    """It comes where the main thread waits for the thread's first step, which may be before or behind it."""
    start, started = threading.Thread.start, []

    def interrupted(thread):
        started.append(thread)
        if runs:
            start(thread)
        raise LookupError("a handler's")

    before = open_fds()
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(LookupError, match="handler's"):
        Loop("interrupted", lost=lost.put).start()
    if not runs:
        assert open_fds() == before
        start(started[0])
    started[0].join(PATIENCE_S)
    assert not started[0].is_alive()
    assert open_fds() == before
    assert lost.empty()
    assert not caplog.records


# Timers


def test_timers_fire_in_the_order_of_their_moments_and_among_equals_in_the_order_of_setting(loop):
    fired, last = [], queue.SimpleQueue()

    def set_them():
        now = time.monotonic()
        for when, name in ((0.03, "d"), (0.01, "b"), (0.02, "c1"), (0.02, "c2"), (-1, "a")):
            loop.call_at(now + when, lambda name=name: fired.append(name))
        loop.call_at(now + 0.03, lambda: last.put(True))

    loop.post(set_them)
    assert last.get(timeout=PATIENCE_S)
    assert fired == ["a", "b", "c1", "c2", "d"]


def test_a_timer_never_fires_early(loop):
    fired = queue.SimpleQueue()
    begun = time.monotonic()
    loop.post(lambda: loop.call_later(0.05, lambda: fired.put(time.monotonic())))
    assert fired.get(timeout=PATIENCE_S) - begun >= 0.05


def test_a_cancelled_timer_does_not_fire_and_a_cancel_after_firing_is_harmless(loop):
    fired, last = [], queue.SimpleQueue()

    def set_them():
        first = loop.call_later(0.01, lambda: (fired.append("first"), second.cancel(), first.cancel()))
        second = loop.call_later(0.02, lambda: fired.append("second"))
        third = loop.call_later(0, lambda: fired.append("third"))
        third.cancel()
        assert (first.pending, third.pending) == (True, False)
        loop.call_later(0.03, lambda: last.put(first.pending))

    on_loop(loop, set_them)
    assert last.get(timeout=PATIENCE_S) is False
    assert fired == ["first"]


def test_a_timer_without_end_is_fine_and_one_at_nan_is_refused(loop):
    on_loop(loop, loop.call_later, float("inf"), lambda: None)
    with pytest.raises(ValueError, match="nan"):
        on_loop(loop, loop.call_later, float("nan"), lambda: None)
    fired = queue.SimpleQueue()
    on_loop(loop, loop.call_later, 0.001, lambda: fired.put(1))
    assert fired.get(timeout=PATIENCE_S)


# Descriptors


def test_a_watched_descriptor_calls_until_it_is_unwatched(loop, pipe):
    read, write = pipe
    got = queue.SimpleQueue()
    on_loop(loop, loop.watch, read, lambda: got.put(os.read(read, 1)))
    os.write(write, b"a")
    assert got.get(timeout=PATIENCE_S) == b"a"
    os.write(write, b"b")
    assert got.get(timeout=PATIENCE_S) == b"b"
    on_loop(loop, loop.unwatch, read)
    os.write(write, b"c")
    on_loop(loop, loop.poll)
    assert got.empty()
    on_loop(loop, loop.unwatch, read)  # harmless


def test_poll_serves_what_is_ready_at_this_moment(loop, pipe):
    read, write = pipe
    seen = []

    def look():
        loop.watch(read, lambda: seen.append(os.read(read, 1)))
        loop.poll()
        assert seen == []
        os.write(write, b"x")
        loop.poll()
        loop.unwatch(read)
        return list(seen)

    assert on_loop(loop, look) == [b"x"]


def test_a_descriptor_that_was_unwatched_a_moment_ago_is_not_served(loop):
    """Both are ready at once; who comes first unwatches the other."""
    pipes = [os.pipe() for _ in range(2)]
    seen = queue.SimpleQueue()

    def serve(mine, other):
        seen.put(mine)
        for read in (mine, other):
            loop.unwatch(read)

    def begin():
        (one, one_w), (two, two_w) = pipes
        os.write(one_w, b"x")
        os.write(two_w, b"x")
        loop.watch(one, lambda: serve(one, two))
        loop.watch(two, lambda: serve(two, one))

    on_loop(loop, begin)
    seen.get(timeout=PATIENCE_S)
    on_loop(loop, loop.poll)
    assert seen.empty()
    for fd in (fd for pair in pipes for fd in pair):
        os.close(fd)


def test_a_poll_inside_a_callback_does_not_serve_a_descriptor_twice(loop):
    pipes = [os.pipe() for _ in range(2)]
    seen = []

    def serve(read):
        seen.append(read)
        loop.unwatch(read)
        loop.poll()

    def begin():
        for read, write in pipes:
            os.write(write, b"x")
            loop.watch(read, lambda read=read: serve(read))
        loop.poll()
        return sorted(seen)

    assert on_loop(loop, begin) == sorted(read for read, _ in pipes)
    for fd in (fd for pair in pipes for fd in pair):
        os.close(fd)


# The guard


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("place", ["post", "timer", "descriptor"])
def test_no_exception_ends_the_loop_or_reaches_another_callback(loop, pipe, caplog, kind, place):
    read, write = pipe
    failed = threading.Event()

    def fail():
        if place == "descriptor":
            loop.unwatch(read)
        failed.set()
        raise kind("on purpose")

    if place == "post":
        loop.post(fail)
    elif place == "timer":
        loop.post(loop.call_later, 0, fail)
    else:
        os.write(write, b"x")
        loop.post(loop.watch, read, fail)
    assert failed.wait(PATIENCE_S)
    assert on_loop(loop, lambda: "alive") == "alive"
    assert "unhandled exception in a callback of tested" in caplog.text


def test_a_logging_handler_that_raises_does_not_end_the_loop_either(loop, lost):
    class Broken(logging.Handler):
        def handle(self, record):
            raise SystemExit(3)

    handler = Broken()
    loop_module.log.addHandler(handler)
    try:
        loop.post(lambda: 1 / 0)
        assert on_loop(loop, lambda: "alive") == "alive"
    finally:
        loop_module.log.removeHandler(handler)
    assert lost.empty()


def test_a_loop_whose_selector_was_closed_says_so_and_runs_what_was_posted(lost, caplog):
    loop, seen, fired = Loop("robbed", lost=lost.put), [], threading.Event()
    loop.start()

    def rob():
        loop._selector.close()
        loop._ready.append((seen.append, ("posted",)))

    loop.post(rob)
    assert isinstance(lost.get(timeout=PATIENCE_S), Exception)
    assert on_loop(loop, lambda: seen) == ["posted"]
    on_loop(loop, lambda: loop.call_later(0.001, fired.set))
    assert fired.wait(PATIENCE_S)
    on_loop(loop, lambda: loop.call_later(3600, lambda: seen.append("timer")))
    loop.post(rob)
    assert isinstance(lost.get(timeout=PATIENCE_S), Exception)
    assert loop.join(PATIENCE_S)
    assert seen == ["posted", "posted"]


# Idleness


def test_an_idle_loop_does_not_wake(lost, monkeypatch):
    """Nothing to do, and timers that are cancelled or far away: it blocks once and stays."""
    timeouts, asleep, posted = [], threading.Semaphore(0), threading.Event()
    loop = Loop("idle", lost=lost.put)
    loop.start()
    poll = loop._poll

    def counting(timeout):
        timeouts.append(timeout)
        if timeout:
            asleep.release()
        return poll(timeout)

    def begin():
        assert posted.wait(PATIENCE_S)
        loop.poll()  # the wake-up of its own post, which may come late
        loop._poll = counting
        loop.call_later(3600, lambda: None)
        loop.call_later(0.001, lambda: None).cancel()

    loop.post(begin)
    posted.set()
    assert asleep.acquire(timeout=PATIENCE_S)
    assert not asleep.acquire(timeout=0.3)
    assert timeouts[-1] == pytest.approx(3600, abs=10)
    assert len([t for t in timeouts if t]) == 1
    loop.post(loop.end)
    assert loop.join(PATIENCE_S)


def test_callbacks_that_follow_one_another_do_not_hold_up_a_descriptor(loop, pipe):
    """A long start posts itself on; an exit meanwhile is noticed before its end."""
    read, write = pipe
    seen = queue.SimpleQueue()
    left = [1000]

    def go_on():
        left[0] -= 1
        if left[0]:
            loop.post(go_on)

    def noticed():
        os.read(read, 1)
        seen.put(left[0])

    def begin():
        loop.watch(read, noticed)
        os.write(write, b"x")
        go_on()

    loop.post(begin)
    assert seen.get(timeout=PATIENCE_S) > 900
    on_loop(loop, loop.unwatch, read)


def test_who_begins_to_wait_in_the_middle_of_the_end_is_woken():
    """The end has found no waiter by then, so the flag must be set before."""
    waits = []

    class Late(_Stopped):
        def __getattribute__(self, name):
            found = super().__getattribute__(name)
            if name == "_waiters" and not waits:  # the look for waiters, of which there are none
                waits.append(threading.Thread(target=self.wait, args=(PATIENCE_S,), daemon=True))
                waits[0].start()
                waits[0].join(0.5)
            return found

    Late().set()
    assert len(waits) == 1
    waits[0].join(PATIENCE_S / 5)
    assert not waits[0].is_alive()


def test_who_waits_before_the_end_is_woken():
    stopped, woken = _Stopped(), []
    wait = threading.Thread(target=lambda: woken.append(stopped.wait(PATIENCE_S)))
    wait.start()
    while "_waiters" not in vars(stopped) or not stopped._cond._waiters:
        assert wait.is_alive()
    stopped.set()
    wait.join(PATIENCE_S / 5)
    assert woken == [True]


@pytest.mark.parametrize("waited", [False, True])
def test_a_wait_ends_with_its_timeout_or_at_once(waited):
    stopped = _Stopped()
    if waited:
        assert not stopped.wait(0.01)
    assert not stopped.is_set()
    stopped.set()
    assert stopped.is_set()
    assert stopped.wait(0)


PACKAGE = Path(supervise.__file__).parent


def calls(name):
    """Yield the file and the call of each function of this name in the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
                yield str(path.relative_to(PACKAGE)), node


@pytest.mark.timeout(4 * PATIENCE_S)  # it parses all files, and machines are busy
def test_each_hook_is_in_the_list_once():
    made = [(ast.unparse(call.func), call) for name in ("register", "instances") for _, call in calls(name)]
    names = [ast.literal_eval(call.args[0]) for function, call in made if function.startswith("fork_hooks.")]
    assert sorted(names) == sorted(fork_hooks.ORDER)


@pytest.mark.timeout(4 * PATIENCE_S)  # it parses all files, and machines are busy
def test_no_module_has_a_hook_of_its_own():
    """The lifeline's lock keeps a fork away while a pipe is half made: no other module needs one before a fork."""
    found = {(path, keyword.arg) for path, call in calls("register_at_fork") for keyword in call.keywords}
    lifeline = "_process/lifeline.py"
    assert found == {
        ("_runtime/fork_hooks.py", "after_in_child"),
        (lifeline, "before"),
        (lifeline, "after_in_parent"),
    }


def test_the_hooks_run_in_the_written_order_whatever_was_imported_first(monkeypatch):
    monkeypatch.setattr(fork_hooks, "_in_child", {})
    ran = []
    for name in reversed(fork_hooks.ORDER):
        fork_hooks.register(name, lambda name=name: ran.append(name))
    fork_hooks._run_in_child()
    assert ran == list(fork_hooks.ORDER)


def test_a_hook_that_raises_keeps_no_other_from_running(monkeypatch, capsys):
    monkeypatch.setattr(fork_hooks, "_in_child", {})
    ran = []
    fork_hooks.register("watch", lambda: 1 / 0)
    fork_hooks.register("signals", lambda: ran.append(os.getpid()))
    fork_hooks._run_in_child()
    assert ran == [os.getpid()]
    assert "ZeroDivisionError" in capsys.readouterr().err
