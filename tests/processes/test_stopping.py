"""Stopping: nothing of a gang survives it, nobody else is hurt, and it takes no longer than it must."""

import os
import signal
import subprocess
import threading
from collections import Counter
from typing import Any

import pykka
import pytest

from supervise import Close, Start, Status, Wait
from tests.patience import PATIENCE_S
from tests.processes.gangs import Stopwatch, each_function, each_kind, faulty
from tests.processes.hosts import make_gang, pids_of, watched
from tests.processes.stubborn import DEAF, GATE, LEAVES_CHILD, LEAVES_CHILD_AND_FAILS, OBEDIENT, SLOW_VALUE

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@each_kind
def test_s1_one_deadline_for_all_who_ignore_sigterm(tmp_path, kind):
    """Eight deaf ranks take one grace of two seconds, not eight."""
    with faulty(tmp_path, kind, [DEAF] * 8, grace=2.0) as gang:
        gang.hear(8)
        with Stopwatch() as watch:
            result = gang.close()
    assert 1.9 < watch.seconds < 15
    assert {end.exitcode for end in result.ends.values()} == {-signal.SIGKILL}
    assert (result.outcome, sorted(result.failures)) == ("stopped", list(range(8)))


@each_kind
def test_s2_close_does_not_wait_for_the_grace(tmp_path, kind):
    """All exit at SIGTERM, so the minute is not used."""
    with faulty(tmp_path, kind, [OBEDIENT] * 4, grace=60.0) as gang:
        gang.hear(4)
        with Stopwatch() as watch:
            result = gang.close()
    assert watch.seconds < 40
    assert {end.exitcode for end in result.ends.values()} == {-signal.SIGTERM}


@each_kind
def test_s3_what_a_successful_rank_left_in_its_group_is_gone_after_close(tmp_path, kind):
    """Success signals nobody; close ends the leftover, which ignores SIGTERM."""
    with faulty(tmp_path, kind, [LEAVES_CHILD] * 2, grace=0.5) as gang:
        pids = pids_of(gang.hear(2))
        with watched(pids) as watch:
            gang.tell(0)
            gang.tell(1)
            assert gang.wait().outcome == "succeeded"
            assert len(watch.survivors(0)) == 2
            assert gang.ask(Status()).leftovers == {0, 1}
            assert gang.close().outcome == "succeeded"
            assert watch.survivors(0) == set()


@each_kind
def test_s3_what_a_failed_rank_left_in_its_group_is_gone_after_close(tmp_path, kind):
    """A failure stops the others and what the failed rank itself had left."""
    with faulty(tmp_path, kind, [OBEDIENT, LEAVES_CHILD_AND_FAILS], grace=0.5) as gang:
        pids = pids_of(gang.hear(2))
        with watched(pids) as watch:
            gang.tell(1)
            result = gang.wait()
            assert {r: f.exitcode for r, f in result.failures.items()} == {1: 3}
            gang.close()
            assert watch.survivors(0) == set()


@each_kind
@pytest.mark.parametrize("grace", [0.0, 0.5])
def test_s5_other_children_of_the_host_are_left_alone(tmp_path, kind, grace):
    """One in a group of its own and one in ours live on, while deaf ranks are killed."""
    strangers = [subprocess.Popen(["sleep", "1000"], process_group=group) for group in (0, None)]
    try:
        with faulty(tmp_path, kind, [DEAF, OBEDIENT], grace=grace) as gang:
            gang.hear(2)
            assert gang.close().outcome == "stopped"
        with watched([stranger.pid for stranger in strangers]) as watch:
            assert len(watch.survivors(0)) == 2
    finally:
        for stranger in strangers:
            stranger.kill()
            stranger.wait()


@each_kind
def test_s6_a_stopped_rank_ends_by_the_polite_signal(tmp_path, kind):
    """SIGTERM waits in a stopped process until SIGCONT comes; the long grace is not used."""
    with faulty(tmp_path, kind, [OBEDIENT] * 2, grace=60.0) as gang:
        gang.hear(2)
        pid = gang.pids[1]
        os.kill(pid, signal.SIGSTOP)
        if kind != "forkserver":  # then it is not our child, and nobody tells that it has stopped
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        with Stopwatch() as watch:
            result = gang.close()
    assert watch.seconds < 40
    assert result.ends[1].exitcode == -signal.SIGTERM


STAGES = ("new", "starting", "running", "stopping", "finished", "leaving", "gone")


def close_eight_times(gang: Any, *, and_stop: bool) -> list[str]:
    """Ask in eight threads at the same moment; return the answers."""
    line, answers = threading.Barrier(8), []

    def close() -> None:
        line.wait(PATIENCE_S)
        try:
            answers.append(gang.ask(Close(), timeout=PATIENCE_S).outcome)
        except pykka.ActorDeadError:
            answers.append("gone")

    threads = [threading.Thread(target=close) for _ in range(8)]
    for thread in threads:
        thread.start()
    if and_stop:
        gang.stop(timeout=PATIENCE_S)
    for thread in threads:
        thread.join(PATIENCE_S)
    return answers


@each_kind
@pytest.mark.parametrize("stage", STAGES)
def test_s8_eight_closes_at_once_are_one_teardown(kind, stage, tmp_path):
    """At every stage all are answered, and each rank is politely signalled at most once."""
    ear = tmp_path / "ear"
    os.mkfifo(ear)
    fd = os.open(ear, os.O_RDWR)
    events: list[dict[str, object]] = []
    envs = {rank: {"EAR": str(ear)} for rank in range(3)}
    gang = make_gang(kind, [DEAF] * 3, grace=0.2, event_sink=events.append, envs=envs)
    started = None
    if stage != "new":
        started = gang.ask(Start(), block=False)
    if stage not in ("new", "starting"):
        started.get(timeout=PATIENCE_S)
    if stage == "stopping":
        gang.ask(Close(timeout=20.0), block=False)
    if stage in ("finished", "leaving", "gone"):
        gang.ask(Close(), timeout=PATIENCE_S)
    if stage == "gone":
        gang.stop(timeout=PATIENCE_S)

    answers = close_eight_times(gang, and_stop=stage == "leaving")
    gang.stop(timeout=PATIENCE_S)
    os.close(fd)
    expected = {"leaving": {"gone", "stopped"}, "gone": {"gone"}}.get(stage, {"stopped"})
    assert (len(answers), set(answers) - expected) == (8, set())
    assert started is None or started.done()
    names = Counter(event["event"] for event in events)
    polite = Counter(
        event["local_rank"]
        for event in events
        if event["event"] == "supervise.process.signaled" and event["signal"] == "SIGTERM"
    )
    assert names["supervise.gang.finished"] == 1
    assert names["supervise.gang.stopping"] <= 1
    assert set(polite.values()) <= {1}


def test_s8_a_wait_and_a_start_are_answered_by_a_close_in_between(tmp_path):
    """A start that a close cuts short says so; the wait gets the result."""
    gang = make_gang("binary", [OBEDIENT] * 40, envs={r: {"EAR": os.devnull} for r in range(40)})
    started, waited = gang.ask(Start(), block=False), gang.ask(Wait(), block=False)
    result = gang.ask(Close(), timeout=PATIENCE_S)
    assert waited.get(timeout=PATIENCE_S) is result
    if len(result.ends) < 40:
        with pytest.raises(Exception, match="closed before every rank ran"):
            started.get(timeout=PATIENCE_S)
    gang.stop(timeout=PATIENCE_S)


@each_function
def test_s10_a_close_bounds_the_reading_of_values(tmp_path, kind):
    """Code of the user's that unpickles for ever holds nobody up: the result says so."""
    try:
        with faulty(tmp_path, kind, [SLOW_VALUE] * 2) as gang:
            for _ in range(2):
                gang.await_event("supervise.process.exited")
            assert gang.ask(Wait(timeout=0.1)) is None
            with Stopwatch() as watch:
                result = gang.close(timeout=0.1)
        assert watch.seconds < 40
        assert result.is_failed()
        assert {"not unpickled in time" in failure.message for failure in result.failures.values()} == {True}
    finally:
        GATE.set()
        for thread in threading.enumerate():
            if thread.name.startswith("supervise-values"):
                thread.join(PATIENCE_S)
        GATE.clear()
