"""What wakes a thread that waits: rings, descriptors, and for the main thread a signal at whatever moment it comes."""

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from supervise import DefaultLogsSpecs, SignalException, start_processes
from supervise._runtime import wakeup as main_thread
from supervise._runtime.future import Reply
from supervise._runtime.wakeup import Bell, MainBell, WakeFd, bell_for_this_thread
from tests.patience import PATIENCE_S


@contextmanager
def handling(handler) -> Iterator[None]:
    """Have SIGUSR1 handled."""
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def wakeup_fd() -> Iterator[socket.socket]:
    """Have the interpreter write signals into a socket; yield its other end, which knows it as `other`."""

    class End(socket.socket):
        other: socket.socket

    first, second = socket.socketpair()
    with End(fileno=first.detach()) as ours, second:
        ours.other = second
        second.setblocking(False)
        before = signal.set_wakeup_fd(second.fileno())
        yield ours
        signal.set_wakeup_fd(before)


@contextmanager
def meanwhile(act) -> Iterator[None]:
    """Do something in another thread, while this one does what it does."""
    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


def signal_this_thread(sig=signal.SIGUSR1):
    """Have the kernel interrupt this thread, and no wait of the main thread: the handler is due there all the same."""
    signal.pthread_kill(threading.get_ident(), sig)


@pytest.mark.parametrize("timeout_s", [None, PATIENCE_S, 1e300])
def test_a_ring_from_another_thread_ends_the_wait(timeout_s):
    """Whatever the timeout."""
    with bell_for_this_thread() as bell, meanwhile(bell.ring):
        assert isinstance(bell, MainBell)
        assert bell.wait(timeout_s)


@pytest.mark.parametrize("timeout_s", [0, -1, 1e-6])
def test_a_timeout_ends_the_wait(timeout_s):
    """Rings of earlier waits are used up first."""
    with bell_for_this_thread() as bell:
        bell.ring()
        while bell.wait(0):
            pass
        assert not bell.wait(timeout_s)


def test_other_threads_have_bells_of_their_own():
    """Nothing but a ring ends their wait."""
    made = []
    with meanwhile(lambda: made.append(bell_for_this_thread())):
        pass
    assert isinstance(made[0], Bell)


def test_a_signal_that_the_kernel_gave_to_another_thread_ends_the_wait():
    """As one does that comes in the last moment before the wait: neither interrupts it."""
    came = []
    with handling(lambda *_: came.append(1)), meanwhile(signal_this_thread), bell_for_this_thread() as bell:
        while not came:
            assert bell.wait(PATIENCE_S)


def test_a_handler_s_exception_leaves_a_wait_for_a_reply_at_once():
    """And the reply can be waited for again."""

    def refuse(*_):
        raise LookupError

    reply = Reply()
    with handling(refuse), pytest.raises(LookupError), meanwhile(signal_this_thread):
        reply.get(timeout=PATIENCE_S)
    with meanwhile(lambda: reply.set(7)):
        assert reply.get(timeout=PATIENCE_S) == 7


def test_g1_a_signal_to_any_thread_ends_the_wait_for_a_gang():
    """It is raised as `SignalException`."""
    specs = DefaultLogsSpecs(os.devnull)
    with start_processes("job", "sleep", {0: ("1000",)}, {0: {}}, logs_specs=specs) as context:  # noqa: SIM117
        with pytest.raises(SignalException), meanwhile(lambda: signal_this_thread(signal.SIGTERM)):
            context.wait(PATIENCE_S)


def test_a_wait_in_a_handler_takes_no_ring_from_the_wait_that_it_interrupts():
    """The outer reply arrives while the inner one is waited for."""
    outer, inner = Reply(), Reply()
    handled = threading.Event()

    def handler(*_):
        handled.set()
        inner.get(timeout=PATIENCE_S)

    def act():
        os.kill(os.getpid(), signal.SIGUSR1)  # to the main thread
        assert handled.wait(PATIENCE_S)
        outer.set(1)
        inner.set(2)

    with handling(handler), meanwhile(act):
        assert outer.get(timeout=PATIENCE_S) == 1
        assert inner.get(timeout=0) == 2


def test_an_event_loop_hears_of_the_signals_that_came_during_a_wait():
    """It is told by the descriptor that it has given to the interpreter."""

    async def main():
        loop, heard, reply = asyncio.get_running_loop(), asyncio.Event(), Reply()
        loop.add_signal_handler(signal.SIGUSR1, heard.set)

        def act():
            signal_this_thread()
            reply.set(None)

        with meanwhile(act):
            reply.get(timeout=PATIENCE_S)
        await asyncio.wait_for(heard.wait(), PATIENCE_S)
        loop.remove_signal_handler(signal.SIGUSR1)

    asyncio.run(main())


def test_who_was_displaced_hears_of_a_signal_during_the_wait(wakeup_fd):
    """Since what is waited for may be its answer."""
    reply = Reply()

    def act():
        signal_this_thread()
        assert wakeup_fd.recv(1) == bytes([signal.SIGUSR1])
        reply.set(7)

    with handling(lambda *_: None), meanwhile(act):
        assert reply.get(timeout=PATIENCE_S) == 7
    wakeup_fd.setblocking(False)
    with pytest.raises(BlockingIOError):
        wakeup_fd.recv(1)


def test_a_displaced_descriptor_that_was_closed_harms_no_wait(wakeup_fd):
    """Its owner is gone; later waits are as any other."""
    wakeup_fd.other.close()
    for _ in range(2):
        reply = Reply()
        with meanwhile(lambda reply=reply: reply.set(7)):
            assert reply.get(timeout=PATIENCE_S) == 7


def test_a_handler_that_runs_an_event_loop_leaves_the_wait_as_it_was():
    """The loop takes the descriptor for signals away at its end."""
    came = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR2, came.append)
        loop.remove_signal_handler(signal.SIGUSR2)

    def act():
        os.kill(os.getpid(), signal.SIGUSR1)
        assert ran.wait(PATIENCE_S)
        signal_this_thread(signal.SIGUSR1)

    def handler(*_):
        came.append(1)
        if len(came) > 1:
            raise LookupError
        asyncio.run(main())
        ran.set()

    ran = threading.Event()
    with handling(handler), pytest.raises(LookupError), meanwhile(act):
        Reply().get(timeout=PATIENCE_S)


@pytest.mark.parametrize("cut_short", [False, True])
def test_what_the_interpreter_wrote_to_before_is_put_back(cut_short):
    """Nothing, here; by the next block, where a handler's exception has cut one short."""
    before = signal.set_wakeup_fd(-1)
    try:
        if cut_short:
            main_thread.MainBell().__enter__()
        with bell_for_this_thread() as bell:
            assert not bell.wait(0)
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.set_wakeup_fd(before)


LEAVES = """
import os, signal, sys
from supervise._runtime.future import Reply
def in_child(*_):
    if os.fork() == 0:
        sys.exit(3)
    raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
signal.signal(signal.SIGALRM, in_child)
signal.setitimer(signal.ITIMER_REAL, 0.01)
Reply().get(timeout=10)
"""


def test_k7_a_child_that_is_forked_in_a_wait_can_leave_it():
    """By an exception, as anywhere."""
    done = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (3, "")


FORKS = """
import os, signal
from supervise._runtime.wakeup import bell_for_this_thread
signal.signal(signal.SIGUSR1, lambda *_: None)
def in_child(*_):
    if os.fork() == 0:
        signal.raise_signal(signal.SIGUSR1)
        bell.ring()
        with bell_for_this_thread() as own:
            print(own.wait(0), end=" ")
        print(signal.set_wakeup_fd(-1), flush=True)
        os._exit(0)
    os.wait()
signal.signal(signal.SIGALRM, in_child)
with bell_for_this_thread() as bell:
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    print(bell.wait(10), flush=True)
    print(bell.wait(0), flush=True)
"""


def test_k7_a_child_that_is_forked_in_a_wait_has_a_bell_of_its_own():
    """Its signals and rings are not ours."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout.split(), done.stderr) == (["False", "-1", "True", "False"], "")


CLOSED = """
import os
os.close(0)
from supervise._runtime import wakeup as main_bell
main_bell.bell_for_this_thread()
print(min(main_bell._ends) > 2, os.path.exists("/proc/self/fd/0"), *map(os.get_inheritable, main_bell._ends))
"""


def test_it_does_not_stand_in_for_a_closed_stdin():
    """Nor does a program inherit it."""
    done = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["True", "False", "False", "False"]


CLOSES_ALL = """
import os, signal, sys, threading
from supervise._runtime.future import Reply
signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
def wait():
    reply = Reply()
    def act():
        os.kill(os.getpid(), signal.SIGUSR1)
        reply.set(7)
    timer = threading.Timer(0.01, act)
    timer.start()
    print(reply.get(timeout=30))
    timer.join()  # it may still write a byte that ends the wait
wait()
os.closerange(3, 256)
own = [os.memfd_create("file") for _ in range(int(sys.argv[1]))]
for each in own:
    os.set_blocking(each, False)
wait()
print(*filter(None, (os.pread(each, 100, 0) for each in own)))
"""


@pytest.mark.parametrize("reused", [0, 100])
def test_a_wait_works_and_writes_nowhere_else_after_the_application_has_closed_all_descriptors(reused):
    """As one does that becomes a daemon. By then, the numbers may be those of files of the application."""
    command = [sys.executable, "-c", CLOSES_ALL, str(reused)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert sorted(done.stdout.split()) == ["7", "7", "handled", "handled"], done


CLOSES_ALL_MEANWHILE = """
import os, threading
from supervise._runtime.future import Reply
reply = Reply()
def act():
    os.closerange(3, 256)
    reply.set(7)
timer = threading.Timer(0.1, act)
timer.start()
print(reply.get(timeout=30))
timer.join()
"""


def test_a_wait_goes_on_if_the_application_closes_all_descriptors_meanwhile():
    command = [sys.executable, "-c", CLOSES_ALL_MEANWHILE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.stdout, done.stderr) == ("7\n", "")


def test_without_a_descriptor_a_wait_is_ended_by_rings_alone(monkeypatch):
    """It works on, and does not raise."""

    def none_left():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(main_thread, "_ends", None)
    monkeypatch.setattr(main_thread, "stdio_taken", none_left)
    assert isinstance(bell_for_this_thread(), Bell)
    reply = Reply()
    with meanwhile(lambda: reply.set(7)):
        assert reply.get(timeout=PATIENCE_S) == 7


@pytest.mark.parametrize("rings", [1, 3])
def test_a_ring_before_the_wait_ends_it_once(rings):
    """However often it was rung."""
    bell = Bell()
    for _ in range(rings):
        bell.ring()
    assert bell.wait(PATIENCE_S)
    assert not bell.wait(0)


@pytest.mark.parametrize("timeout_s", [None, PATIENCE_S, 1e300])
def test_a_ring_from_another_thread_ends_the_wait_of_any_thread(timeout_s):
    """Whatever the timeout."""
    bell = Bell()
    ringing = threading.Timer(0.01, bell.ring)
    ringing.start()
    assert bell.wait(timeout_s)
    ringing.join()


@pytest.mark.parametrize("timeout_s", [0, -1, -1e-9])
def test_a_timeout_that_is_over_does_not_wait(timeout_s):
    """Nor is a negative one none."""
    assert not Bell().wait(timeout_s)


def test_the_shortest_waits_end():
    """Before Python 3.13 `queue.SimpleQueue.get` hangs in one of some thousands."""
    assert not any(Bell().wait(1e-6) for _ in range(10_000))


def readable(fd):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


@pytest.fixture
def wake_fd():
    made = WakeFd()
    yield made
    made.close()


def test_it_is_readable_from_set_to_clear(wake_fd):
    """Also when it is set twice, and when it is cleared twice."""
    assert not readable(wake_fd)
    wake_fd.set()
    wake_fd.set()
    assert readable(wake_fd)
    wake_fd.clear()
    wake_fd.clear()
    assert not readable(wake_fd)


def test_a_second_descriptor_of_the_same_event_outlives_the_first(wake_fd):
    """Each is closed by itself."""
    second = WakeFd(wake_fd)
    second.set()
    second.close()
    assert readable(wake_fd)


def test_a_set_after_the_close_is_harmless(wake_fd):
    """The Supervisor abandons its Tails, and a Tail that has ended has closed its descriptor."""
    wake_fd.close()
    wake_fd.set()
    wake_fd.close()
    assert wake_fd.fileno() == -1
