"""The ways in which the rank at fault hangs, each a function that does not return."""

import asyncio
import ctypes
import fcntl
import itertools
import multiprocessing
import os
import queue
import re
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from supervise.notifying import notify

LIBC = ctypes.CDLL(None)
"""A call of its functions is without the interpreter's lock."""


def lock_twice() -> None:
    """Take a lock that this thread has."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def two_locks() -> None:
    """Have two threads wait for each other's lock."""
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def other() -> None:
        with second:
            both.wait()
            first.acquire()

    threading.Thread(target=other, daemon=True).start()
    with first:
        both.wait()
        second.acquire()


def lock_of_a_dead_process() -> None:
    """Wait for a lock that a process had when it was killed."""
    lock = multiprocessing.get_context("fork").Lock()
    pid = os.fork()
    if pid == 0:
        lock.acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    lock.acquire()


def file_lock() -> None:
    """Wait for a file lock that another process has."""
    with tempfile.TemporaryFile() as file:
        mine = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDWR)
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.flock(mine, fcntl.LOCK_EX)


def mutex_in_c() -> None:
    """Take a mutex of the C library twice."""
    mutex = ctypes.create_string_buffer(64)
    LIBC.pthread_mutex_lock(mutex)
    LIBC.pthread_mutex_lock(mutex)


def loop_in_python() -> None:
    """Never end a loop."""
    while True:
        pass


def loop_in_c() -> None:
    """Never end a loop in C that keeps the interpreter's lock."""
    all(itertools.repeat(True))


def regular_expression() -> None:
    """Match an expression in exponential time."""
    re.match(r"(a+)+b", "a" * 100)


def sleep_in_c() -> None:
    """Sleep in the C library."""
    while True:
        LIBC.pause()


def uninterruptible() -> None:
    """Sleep in the state D, as the caller of vfork does until its child has ended."""
    if LIBC.vfork() == 0:
        sleep_in_c()


def suspended_child() -> None:
    """Wait for a line of a child that is suspended."""
    child = subprocess.Popen(["sh", "-c", "kill -STOP $$; echo done"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()


def child_without_end() -> None:
    """Wait for a child that does not end."""
    subprocess.run(["sleep", "1000"], check=False)


def silent_server() -> None:
    """Wait for the answer of a server that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as end:
        _peer = server.accept()
        end.recv(1)


def full_pipe() -> None:
    """Write more than a pipe takes that nobody reads."""
    _end, write = os.pipe()
    os.write(write, bytes(1 << 20))


def empty_pipe() -> None:
    """Read from a pipe into which nothing is written."""
    read, _end = os.pipe()
    os.read(read, 1)


def poll_without_end() -> None:
    """Wait for events of a descriptor that has none."""
    _read, write = os.pipe()
    select.select([_read], [], [])
    os.close(write)


def empty_queue() -> None:
    """Take from a queue that stays empty."""
    queue.Queue[None]().get()


def condition() -> None:
    """Wait for a condition of which nobody tells."""
    changed = threading.Condition()
    with changed:
        changed.wait()


def join_without_end() -> None:
    """Join a thread that does not end."""
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()
    thread.join()


def pool_in_itself() -> None:
    """Wait in the only thread of a pool for another task of the pool."""
    pool = ThreadPoolExecutor(1)
    pool.submit(lambda: pool.submit(int).result()).result()


def coroutine() -> None:
    """Await a future that is never set."""

    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    asyncio.run(wait())


def heartbeat_thread() -> None:
    """Hang while a thread of its own beats and writes."""

    def beat() -> None:
        while True:
            time.sleep(0.1)  # noqa: TID251 - the rank's work
            notify(heartbeat=True)
            print("alive", flush=True)

    threading.Thread(target=beat, daemon=True).start()
    lock_twice()


def livelock() -> None:
    """Try again for ever, and write a line about each attempt."""
    while True:
        time.sleep(0.1)  # noqa: TID251 - the rank's work
        print("trying again", flush=True)
        notify(heartbeat=True)


def suspended() -> None:
    """Suspend itself."""
    os.kill(os.getpid(), signal.SIGSTOP)


def says_that_it_stops() -> None:
    """Report that it is about to exit, and hang then."""
    notify(stopping=True)
    lock_twice()


SEEN: dict[str, Callable[[], None]] = {
    hang.__name__: hang
    for hang in (
        lock_twice,
        two_locks,
        lock_of_a_dead_process,
        file_lock,
        mutex_in_c,
        loop_in_python,
        loop_in_c,
        regular_expression,
        sleep_in_c,
        uninterruptible,
        suspended_child,
        child_without_end,
        silent_server,
        full_pipe,
        empty_pipe,
        poll_without_end,
        empty_queue,
        condition,
        join_without_end,
        pool_in_itself,
        coroutine,
    )
}
"""Hangs that each tier can see."""
UNSEEN: dict[str, Callable[[], None]] = {
    hang.__name__: hang for hang in (heartbeat_thread, livelock, suspended, says_that_it_stops)
}
"""Hangs that no tier can see: the rank beats and writes, is suspended on purpose, or has said that it ends."""
HANGS = SEEN | UNSEEN
