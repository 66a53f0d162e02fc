"""Every life of a rank is under the lifeline of its gang, whose read end for a past life is closed."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervise import messages as say
from supervise._gang.worker import Deliver
from tests.gang.test_attempt import COUNT, Ranks
from tests.patience import PATIENCE_S
from tests.processes.gangs import Fifo, each_kind
from tests.processes.hosts import NO_FILES, Host, pids_of, watched
from tests.processes.stubborn import OBEDIENT, PARENT, STUBBORN

RESTARTS = """
from supervise import RestartRanks
gang = start_gang(kind, [{source!r}] * 2)
sys.stdin.readline()
gang.ask(RestartRanks(frozenset({{0}})))
print("runs", flush=True)
signal.pause()
"""


@contextmanager
def restarted(tmp_path: Path, kind: str, later: str) -> Iterator[tuple[Host, list[int], list[int]]]:
    """Run a host of two ranks; yield it, the pids of rank 0's second life, which runs `later`, and rank 1's pid."""
    ear = Fifo(tmp_path / "ear")
    source = f"if {COUNT!r} in os.environ:\n{indented(later)}\nelse:\n{indented(OBEDIENT)}"
    try:
        with Host(RESTARTS.format(source=source), kind, ear.path) as host:
            first = pids_of([ear.hear(), ear.hear()])
            with watched(first):
                assert host.process.stdin is not None
                host.process.stdin.write(b"\n")
                host.process.stdin.flush()
                second = pids_of([ear.hear()])
                assert host.hear() == "runs"
                other = [pid for pid in first if Path(f"/proc/{pid}").exists()]
                assert len(other) == 1
                yield host, second, other
    finally:
        ear.close()


def indented(source: str) -> str:
    return "".join(f"    {line}\n" for line in source.splitlines())


@each_kind
@pytest.mark.parametrize("name", ["deaf", "parent", "program"])
def test_k1_a_second_life_dies_with_a_killed_host(tmp_path, kind, name):
    with restarted(tmp_path, kind, STUBBORN[name]) as (host, second, other), watched(second + other) as watch:
        assert len(watch.survivors(0)) == len(second) + 1
        host.kill()
        assert watch.survivors() == set()


@each_kind
def test_k1_the_children_of_a_second_life_that_is_killed_with_its_host_die_as_well(tmp_path, kind):
    """The host is stopped, so that it cannot have noticed the end of the rank when it is killed itself."""
    with (
        restarted(tmp_path, kind, PARENT) as (host, (leader, child), _),
        watched([leader]) as leaders,
        watched([child]) as children,
    ):
        host.suspend()
        os.kill(leader, signal.SIGKILL)
        assert leaders.survivors() == set()
        assert children.survivors(0) == {child}
        host.kill()
        assert children.survivors() == set()


def waits() -> None:
    threading.Event().wait()


@each_kind
def test_the_host_holds_one_read_end_for_each_running_life(kind):
    settings = {"entrypoint": waits, "args": {0: ()}, "start_method": kind}
    if kind == "binary":
        settings = {"entrypoint": "sleep", "args": {0: ("1000",)}}
    ranks = Ranks(logs_specs=NO_FILES, **settings)
    try:
        line = ranks.attempt.line
        pipe = Path(f"/proc/self/fd/{line._write}").readlink()
        assert line.keeps
        assert ends_of(pipe) == 2
        for life in range(201 if kind == "binary" else 40):
            if life:
                ranks.call(ranks.actors.renew, 0, life)
            ranks.call(ranks.actors.launch, 0)
            assert ranks.hear(say.WorkerStarted).attempt == life
            assert ends_of(pipe) == 3
            ranks.call(ranks.actors.tell, {0}, Deliver(sig=signal.SIGKILL, group=True))
            assert not ranks.hear(say.WorkerExited).group_left
            assert ends_of(pipe) == 2
    finally:
        ranks.close()


def ends_of(pipe: Path) -> int:
    """Return the number of descriptors of this process that belong to a pipe, once a request's copies are closed."""
    for thread in threading.enumerate():
        if thread.name == "supervise-forkserver":
            thread.join(PATIENCE_S)
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            found += link.readlink() == pipe
        except OSError:  # closed in between
            continue
    return found
