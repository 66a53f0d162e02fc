"""The host forks without exec in another thread, without pause, while gangs start: no start waits for that."""

import faulthandler
import os
import random
import signal

import psutil
import pytest

from tests.patience import PATIENCE_S
from tests.processes.gangs import Fifo
from tests.processes.hosts import Host, pids_of, watched
from tests.processes.stubborn import DEAF

STARTS = {
    "a program": ("binary", ""),
    "a program elsewhere": ("binary", "cwd='/'"),
    "a program behind a gate": ("binary", "gate=True"),
    "a program elsewhere behind a gate": ("binary", "cwd='/', gate=True"),
    "a spawned function": ("spawn", ""),
    "a function of the fork server": ("forkserver", ""),
}
FORKS = {
    "os.fork": """
def fork():
    pids.append(os.fork())
    if pids[-1] == 0:
        os.read(life, 1)
        os._exit(0)

def end():
    while pids:
        os.kill(pids[-1], signal.SIGKILL)
        os.waitpid(pids.pop(), 0)

pids = []
""",
    "a Pool": """
import multiprocessing

def begin():
    threading.Thread(target=lambda: (os.read(life, 1), os._exit(0)), daemon=True).start()

def fork():
    pools.append(multiprocessing.get_context("fork").Pool(6, initializer=begin))

def end():
    while pools:
        pools.pop().terminate()

pools = []
""",
    "a gang": """
def fork():
    gangs.append(start_gang("fork", ["signal.pause()"] * 4))

def end():
    while gangs:
        gangs.pop().stop(timeout=40)

gangs = []
""",
}
HOST = """
import time
from contextlib import suppress
import pykka

life = os.dup(0)  # what is forked lives until the test closes this, also when the host is dead
starting, answered, ended = threading.Event(), threading.Event(), threading.Event()
{fork}
def fork_while_one_starts():
    while True:
        starting.wait()
        deadline = time.monotonic() + 1.0
        while starting.is_set() and time.monotonic() < deadline:
            fork()
        answered.wait()
        end()
        answered.clear()
        ended.set()

def start(worker, **more):
    gang = make_gang(kind, [worker] * 2, **more)
    starting.set()
    try:
        gang.ask(Start(), timeout={patience})
    finally:
        starting.clear()
    return gang

def settle():
    answered.set()
    ended.wait()
    ended.clear()

if __name__ == "__main__":
    threading.Thread(target=fork_while_one_starts, daemon=True).start()
"""
MANY = """
    for _ in range({rounds}):
        gang = start("", {more})
        settle()
        print(gang.ask(Wait(), timeout=40).outcome, flush=True)
        gang.stop(timeout=40)
    gang = start({worker!r}, {more})
    print("started", flush=True)  # before that, the one program that is being started may outlive a kill: see K1
    signal.pause()
"""
ROUNDS = 4


def starts_beside(tmp_path, forks, start, rounds):
    """Every start is answered; and a kill of the host leaves nobody, although what it has forked lives on."""
    kind, more = STARTS[start]
    program = (HOST + MANY).format(fork=FORKS[forks], patience=PATIENCE_S, rounds=rounds, more=more, worker=DEAF)
    ear = Fifo(tmp_path / "ear")
    try:
        with Host(program, kind, ear.path) as host:
            assert [host.hear() for _ in range(rounds + 1)] == [*["succeeded"] * rounds, "started"]
            with watched(pids_of([ear.hear() for _ in range(2)])) as watch:
                host.kill()
                assert watch.survivors() == set()
    finally:
        ear.close()


@pytest.mark.parametrize("start", STARTS)
def test_k8_no_start_waits_for_what_another_thread_forks(tmp_path, start):
    """Neither a program nor a function, however it is started."""
    starts_beside(tmp_path, "os.fork", start, ROUNDS)


@pytest.mark.parametrize("forks", sorted(FORKS.keys() - {"os.fork"}))
def test_k8_no_start_waits_for_a_pool_or_for_another_gang(tmp_path, forks):
    """What forks may be multiprocessing, or we ourselves."""
    starts_beside(tmp_path, forks, "a program elsewhere", ROUNDS)


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("forks", FORKS)
@pytest.mark.parametrize("start", STARTS)
def test_k8_sixty_starts_beside_a_host_that_forks(tmp_path, start, forks):
    """All of them are answered."""
    faulthandler.cancel_dump_traceback_later()  # this takes minutes
    starts_beside(tmp_path, forks, start, 60)


KILLED = """
    def kill():
        threading.Event().wait(float(os.environ["MOMENT_S"]))
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill).start()
    with suppress(pykka.Timeout):
        start({worker!r}, {more})
    signal.pause()
"""


def outlive(tmp_path, monkeypatch, start, moments, at_most=0):
    """Return how many ranks outlive each kill of a host that is starting them and forking."""
    kind, more = STARTS[start]
    program = (HOST + KILLED).format(fork=FORKS["os.fork"], patience=PATIENCE_S, more=more, worker=DEAF)
    ear, found = Fifo(tmp_path / "ear"), []
    try:
        for moment_s in moments:
            monkeypatch.setenv("MOMENT_S", str(moment_s))
            with Host(program, kind, ear.path) as host:
                assert host.exit_code() == -signal.SIGKILL
                # The kernel has made the orphans ours. Only a rank leads a session: not what is forked, nor a server.
                orphans = [child.pid for child in psutil.Process().children()]
                with watched([pid for pid in orphans if os.getsid(pid) == pid]) as watch:
                    found.append(len(watch.survivors(at_most=at_most)))
    finally:
        ear.close()
    return found


@pytest.mark.parametrize("start", ["a program behind a gate", "a spawned function"])
def test_k8_a_host_that_forks_and_is_killed_while_it_starts_leaves_nobody(tmp_path, monkeypatch, start):
    """At a few moments of the start."""
    assert outlive(tmp_path, monkeypatch, start, [0.01, 0.03, 0.06, 0.1]) == [0] * 4


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("start", STARTS)
def test_k8_a_host_that_forks_and_is_killed_at_any_moment_leaves_nobody(tmp_path, monkeypatch, start):
    """But for the one program that is being started at that moment, where there is no gate."""
    faulthandler.cancel_dump_traceback_later()  # this takes minutes
    moments = random.Random(4711)
    at_most = 0 if "gate" in start or "function" in start else 1
    found = outlive(tmp_path, monkeypatch, start, [moments.uniform(0, 0.2) for _ in range(50)], at_most)
    assert max(found) <= at_most
