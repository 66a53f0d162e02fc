"""Return values die with their last user: no cycle of ours holds them, with the cyclic collector off."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pykka
import pytest

import supervise.multiprocessing as mp
from supervise import Close, DefaultLogsSpecs, RestartPolicy, Start, Std, Subscribe, Supervisor, Wait, start_processes
from tests.patience import PATIENCE_S
from tests.processes import work
from tests.processes.hosts import Host

ARGS = {0: (1000,), 1: (1000,)}
GANGS = 3


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def death(thing: object) -> threading.Event:
    """Return what is set when `thing` is no more."""
    event = threading.Event()
    weakref.finalize(thing, event.set)
    return event


def deaths(result: Any, *others: object) -> list[threading.Event]:
    return [death(thing) for thing in (result, *result.return_values.values(), *others)]


def by_wait_and_close(**more: Any) -> list[threading.Event]:
    context = start_processes("freed", work.weakly, ARGS, **more)
    found = deaths(context.wait(), context)
    context.close()
    return found


def by_wait_alone(**more: Any) -> list[threading.Event]:
    return deaths(start_processes("freed", work.weakly, ARGS, **more).wait())


def by_a_close_that_finds_no_actor(**more: Any) -> list[threading.Event]:
    context: Any = start_processes("freed", work.weakly, ARGS, **more)
    found = deaths(context.wait(), context)
    assert context._supervisor.actor_stopped.wait(PATIENCE_S)
    context.close()
    return found


def by_with(**more: Any) -> list[threading.Event]:
    with start_processes("freed", work.weakly, ARGS, **more) as context:
        return deaths(context.wait(), context)


class Told(pykka.ThreadingActor):
    """Keeps nothing."""

    def on_receive(self, message: object) -> None:
        """Nothing."""


def by_actor(**more: Any) -> list[threading.Event]:
    told = Told.start()
    gang: Any = Supervisor.start(name="freed", entrypoint=work.weakly, args=ARGS, **more)
    gang.ask(Subscribe(ref=told), timeout=PATIENCE_S)
    gang.ask(Start(), timeout=PATIENCE_S)
    found = deaths(gang.ask(Wait(timeout=PATIENCE_S)), gang._actor_weakref())
    gang.ask(Close(), timeout=PATIENCE_S)
    gang.stop(timeout=PATIENCE_S)
    told.stop(timeout=PATIENCE_S)
    return found


def by_proxy(**more: Any) -> list[threading.Event]:
    gang: Any = Supervisor.start(name="freed", entrypoint=work.weakly, args=ARGS, **more).proxy()
    gang.launch().get(timeout=PATIENCE_S)
    found = deaths(gang.wait().get(timeout=PATIENCE_S), gang.actor_ref._actor_weakref())
    gang.actor_ref.stop(timeout=PATIENCE_S)
    return found


WAYS = [by_wait_and_close, by_wait_alone, by_a_close_that_finds_no_actor, by_with, by_actor, by_proxy]
SETTINGS = {
    "spawn": {},
    "forkserver": {"start_method": "forkserver"},
    "fork": {"start_method": "fork"},
    "shown": {"start_method": "fork", "logs_specs": DefaultLogsSpecs(tee=Std.ALL)},
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("way", WAYS)
def test_e5_values_and_gang_die_with_their_last_user(way: Callable[..., list[threading.Event]], setting: str):
    """Each of some gangs, whoever was told of the end."""
    for _ in range(GANGS if setting == "fork" else 1):
        assert all(event.wait(PATIENCE_S) for event in way(**SETTINGS[setting]))


def test_e5_a_gang_that_was_restarted_dies_too(tmp_path):
    """Its first attempt fails, its second returns."""
    args = {0: (1000, str(tmp_path / "failed"))}
    policy = RestartPolicy(max_restarts=1, backoff=0.0)
    more: dict[str, Any] = {"start_method": "fork", "restart_policy": policy}
    gang: Any = Supervisor.start(name="freed", entrypoint=work.weakly_at_second, args=args, **more)
    gang.ask(Start(), timeout=PATIENCE_S)
    found = deaths(gang.ask(Wait(timeout=PATIENCE_S)), gang._actor_weakref())
    gang.stop(timeout=PATIENCE_S)
    assert len(found) == 3
    assert all(event.wait(PATIENCE_S) for event in found)


def test_e5_a_gang_of_spawn_dies_too():
    """The functions of `supervise.multiprocessing` give nothing back, but they have arguments."""
    context: Any = mp.start_processes(work.double, (), nprocs=2, join=False, start_method="fork")
    actor = context.processes[0]._gang._actor_weakref()
    gang = death(actor) if actor is not None else None  # None: both ranks have ended, and the gang has died already
    del actor
    while not context.join(PATIENCE_S):
        pass
    del context
    assert gang is None or gang.wait(PATIENCE_S)


SIXTY = """
import gc, threading
from supervise import start_processes
from tests.processes import work

def rss_kib():
    return int(open("/proc/self/status").read().partition("VmRSS:")[2].split()[0])

gc.disable()
for number in range(60):
    with start_processes("freed", work.bytes_of, {0: (50 << 20,), 1: (50 << 20,)}, start_method=kind) as context:
        assert [len(value) for value in context.wait().return_values.values()] == [50 << 20] * 2
    del context
    for thread in threading.enumerate():  # the loop, and the thread that has loaded the values, may end a little later
        if thread.name.endswith("freed"):
            thread.join()
    print(rss_kib(), flush=True)
"""


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["spawn", "forkserver"])
def test_e5_60_gangs_that_return_50_mb_a_rank_hold_flat_memory(kind):
    """The figure after each gang, when its context is gone; one gang's values are 100 MB."""
    with Host(SIXTY, kind) as host:
        figures = [int(host.hear()) for _ in range(60)]
        assert host.exit_code() == 0
    print("KiB after each gang:", *figures)
    assert max(figures) - figures[0] < 50 << 10, figures
