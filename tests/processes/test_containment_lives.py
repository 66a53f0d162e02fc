"""Containment tells the lives of a rank apart: a sweep of some ranks means the processes of their present lives."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from supervise import SpecError
from supervise._core.steps import Swept
from supervise._gang.sweep import Sweep
from supervise._process.containment import ancestry
from supervise._process.containment.cgroup import GangFolder
from supervise._process.containment.escapees import Contained, make
from supervise._runtime.loop import Loop
from tests.patience import PATIENCE_S
from tests.processes.hosts import watched
from tests.processes.test_containment_parts import DEAF, WAITS, need_cgroup, pids_and_ranks, running

by_kind = pytest.mark.parametrize("kind", ["sweep", "cgroup"])


def contained_by(kind: str) -> Contained:
    if kind == "cgroup":
        need_cgroup()
    return make(kind, "lives", forked=False)


@contextmanager
def life_of(contained: Contained, rank: int, script: str = WAITS) -> Iterator[int]:
    """Yield the pid of a process of a rank's present life that has left the rank's group."""
    enter = contained.enter(rank)
    begins = f"echo 0 > '{enter}'; " if enter is not None else ""
    with running(begins + script, contained.env(rank)) as pid:
        yield pid


@pytest.fixture
def begin() -> Iterator[Callable[..., tuple[Sweep, "SimpleQueue[Swept]"]]]:
    """Begin a sweep; return it and the queue for its result."""
    loop = Loop("test-sweep", lost=print)
    loop.start()

    def begin(contained: Contained, ranks: set[int] | None, **how: Any) -> tuple[Sweep, "SimpleQueue[Swept]"]:
        done: SimpleQueue[Swept] = SimpleQueue()
        how = {"end": contained.ends, "timeout_s": PATIENCE_S} | how
        sweep = Sweep(loop, contained, skip=(), ranks=None if ranks is None else frozenset(ranks), done=done.put, **how)
        loop.post(sweep.begin)
        return sweep, done

    yield begin
    loop.post(loop.end)
    loop.join(PATIENCE_S)


@by_kind
def test_a_scan_of_ranks_finds_only_their_present_lives(kind):
    contained = contained_by(kind)
    try:
        with ExitStack() as stack:
            other = stack.enter_context(life_of(contained, 1))
            past = stack.enter_context(life_of(contained, 0))
            assert pids_and_ranks(contained) == {(past, 0), (other, 1)}
            contained.begin_life(0, 1)
            assert found_by_ranks(contained, {0}) == set()
            present = stack.enter_context(life_of(contained, 0))
            assert found_by_ranks(contained, {0}) == {(present, 0)}
            assert found_by_ranks(contained, {0, 1}) == {(present, 0), (other, 1)}
            assert found_by_ranks(contained, set()) == set()
            assert pids_and_ranks(contained) == {(past, 0), (present, 0), (other, 1)}  # what is left is ended
    finally:
        contained.close()


def found_by_ranks(contained: Contained, ranks: set[int]) -> set[tuple[int, int | None]]:
    found = contained.find(ranks=frozenset(ranks)).live
    try:
        return {(escaped.pid, escaped.local_rank) for escaped in found}
    finally:
        for escaped in found:
            escaped.close()


def test_s7_a_pid_that_another_rank_got_during_the_scan_is_not_found(monkeypatch):
    """The pid was read from the control group of rank 0 and then became that of a process of rank 1."""
    contained = contained_by("cgroup")
    try:
        with life_of(contained, 1) as pid:
            monkeypatch.setattr(GangFolder, "members", lambda _: iter([(pid, 0, 0)]))
            assert found_by_ranks(contained, {0}) == set()
            assert {one for one, _ in found_by_ranks(contained, {0, 1})} == {pid}
    finally:
        contained.close()


def test_an_escaped_process_that_is_only_reported_is_reported_with_its_life_alone():
    contained = make("group", "lives", forked=False)
    with life_of(contained, 0) as past:
        assert found_by_ranks(contained, {0}) == {(past, 0)}
        contained.begin_life(0, 1)
        assert found_by_ranks(contained, {0}) == set()
        with life_of(contained, 0) as present:
            assert pids_and_ranks(contained) == {(present, 0)}


@pytest.mark.parametrize("nprocs", [1, 2, 7, 1000])
def test_the_marker_of_a_rank_and_life_is_no_other_s(nprocs):
    contained = make("sweep", "lives", forked=False)
    seen = set()
    for life in (0, 1, 2, 1000, 123_456):
        for rank in (0, nprocs - 1):
            if life:
                contained.begin_life(rank, life)
            seen.add((rank, life, *contained.env(rank).values()))
    assert len({value for *_, value in seen}) == len({(rank, life) for rank, life, _ in seen})


def test_a_life_with_a_large_number_is_known_again():
    contained = make("sweep", "lives", forked=False)
    contained.begin_life(999, 999_999)
    with life_of(contained, 999) as pid:
        assert found_by_ranks(contained, {999}) == {(pid, 999)}
        assert ancestry.number_of(pid, contained.token, forked=False) is not None


@by_kind
@pytest.mark.parametrize("timeout_s", [PATIENCE_S, 0.0], ids=["polite", "at_once"])
@pytest.mark.parametrize("script", [WAITS, DEAF], ids=["obedient", "deaf"])
def test_a_sweep_of_ranks_ends_their_present_lives_and_nobody_else(begin, kind, script, timeout_s):
    contained = contained_by(kind)
    try:
        with ExitStack() as stack:
            other = stack.enter_context(life_of(contained, 1))
            contained.begin_life(0, 4)
            pids = [stack.enter_context(life_of(contained, 0, script)) for _ in range(2)]
            sweep, done = begin(contained, {0}, timeout_s=timeout_s)
            if script == DEAF and timeout_s:
                sweep._loop.post(sweep.hurry, 0.1)
            swept = done.get(timeout=PATIENCE_S)
            assert swept.ended
            assert set(swept.leaked) <= {0}
            with watched(pids) as watch:
                assert watch.survivors() == set()
            assert pids_and_ranks(contained) == {(other, 1)}
    finally:
        contained.close()


@by_kind
def test_sweeps_of_different_ranks_run_at_the_same_time(begin, kind):
    contained = contained_by(kind)
    try:
        with ExitStack() as stack:
            pids = {rank: stack.enter_context(life_of(contained, rank)) for rank in range(4)}
            sweeps = [begin(contained, ranks) for ranks in ({0}, {1, 2})]
            leaked = [done.get(timeout=PATIENCE_S) for _, done in sweeps]
            assert leaked == [
                Swept(leaked={0: (pids[0],)}, ended=True),
                Swept(leaked={1: (pids[1],), 2: (pids[2],)}, ended=True),
            ]
            assert pids_and_ranks(contained) == {(pids[3], 3)}
            assert begin(contained, None)[1].get(timeout=PATIENCE_S).leaked == {3: (pids[3],)}
    finally:
        contained.close()


def test_a_sweep_of_ranks_in_slices_on_the_loop(begin, monkeypatch):
    """No thread can be started."""
    contained = contained_by("sweep")

    def no_thread(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    with life_of(contained, 0) as pid, life_of(contained, 1) as other:
        monkeypatch.setattr("supervise._gang.sweep.threading.Thread", no_thread)
        swept = begin(contained, {0})[1].get(timeout=PATIENCE_S)
        monkeypatch.undo()
        assert swept == Swept(leaked={0: (pid,)}, ended=True)
        assert pids_and_ranks(contained) == {(other, 1)}


def test_the_control_group_of_a_past_life_is_removed():
    contained = contained_by("cgroup")
    try:
        folders = []
        for life in (0, 1, 5):
            if life:
                contained.begin_life(0, life)
            enter = contained.enter(0)
            assert enter is not None
            folders.append(Path(enter).parent)
            assert [folder.is_dir() for folder in folders] == [*[False] * (len(folders) - 1), True]
    finally:
        assert contained.close()


def test_a_control_group_that_cannot_be_made_leaves_the_present_life(monkeypatch):
    contained = contained_by("cgroup")
    try:
        before = contained.enter(0), contained.env(0)

        def full(path: str, **_: object) -> None:
            raise OSError(28, "No space left on device", path)

        monkeypatch.setattr(os, "makedirs", full)
        with pytest.raises(SpecError, match="No space left"):
            contained.begin_life(0, 1)
        monkeypatch.undo()
        assert (contained.enter(0), contained.env(0)) == before
        contained.begin_life(0, 2)
        assert contained.enter(0) != before[0]
    finally:
        assert contained.close()


def test_control_groups_are_killed_each_even_if_one_is_gone():
    contained = contained_by("cgroup")
    try:
        contained.begin_life(0, 1)
        enter = contained.enter(0)
        assert enter is not None
        Path(enter).parent.rmdir()
        # One process: a child of the script would still be in the control group when the script itself is reaped
        deaf = "trap '' TERM; echo ready; exec sleep 1000"
        with life_of(contained, 1, deaf) as pid, watched([pid]) as watch:
            assert not contained.kill(frozenset({0, 1}))
            assert watch.survivors() == set()
    finally:
        assert contained.close()
