"""The events of any run: each start has its exit, the sequence has no holes, one terminal event, last."""

import itertools
from signal import SIGTERM

import pytest
from hypothesis import given, settings, strategies as st

from supervise import Close, Start, Wait
from supervise.testing import FakeGang, FakeLauncher
from tests.patience import PATIENCE_S

COMMON = {"gang", "run_id", "role", "attempt", "host_name", "schema_version", "timestamp", "monotonic_ns", "seq"}


def ask(gang, message):
    return gang.supervisor.ask(message, timeout=PATIENCE_S)


@settings(max_examples=60, deadline=None)
@given(
    codes=st.lists(st.sampled_from([0, 1, -9]), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
    bad_start=st.sampled_from([None, None, 0, 1, 2]),
    close_after=st.sampled_from([None, 0, 1]),
    ignores=st.booleans(),
)
def test_e3_any_run_has_an_exit_for_each_start_and_one_end(codes, order, bad_start, close_after, ignores):
    nprocs = len(codes)
    launchers = {rank: FakeLauncher(ignored=[SIGTERM] if ignores else []) for rank in range(nprocs)}
    if bad_start is not None and bad_start < nprocs:
        launchers[bad_start] = FakeLauncher(error=OSError(2, "no"))
    with FakeGang(nprocs, launchers=launchers, grace=0.01) as gang:
        try:
            ask(gang, Start())
        except OSError:
            assert bad_start is not None
        ranks = list(gang.processes)
        order.shuffle(ranks)
        for n, rank in enumerate(ranks):
            if n == close_after:
                gang.supervisor.ask(Close(), block=False)
            gang.processes[rank].exit(codes[rank])
        ask(gang, Close())
        events = gang.events.all
    assert [event["seq"] for event in events] == list(range(len(events)))
    times = [event["monotonic_ns"] for event in events]
    assert times == sorted(times)
    assert all(event.keys() >= COMMON for event in events)
    names = [event["event"] for event in events]
    assert names.count("supervise.gang.finished") == 1
    assert names[0] == "supervise.gang.starting"
    assert names[-1] == "supervise.gang.finished"
    started = {e["local_rank"]: e["pid"] for e in events if e["event"] == "supervise.process.started"}
    exited = [(e["local_rank"], e["pid"]) for e in events if e["event"] == "supervise.process.exited"]
    assert sorted(exited) == sorted(started.items())
    for rank in started:
        own = [e["event"].rpartition(".")[2] for e in events if e.get("local_rank") == rank]
        own = [name for name, _ in itertools.groupby(own) if name in {"started", "signaled", "exited"}]
        assert own[0] == "started"
        assert own[-1] == "exited"


def test_the_end_of_a_rank_says_whether_it_was_its_own():
    with FakeGang(2) as gang:
        ask(gang, Start())
        gang.processes[1].exit(3)
        ask(gang, Wait())
        exits = {event["local_rank"]: event for event in gang.events.named("supervise.process.exited")}
    assert (exits[1]["spontaneous"], exits[1]["level"], exits[1]["exit_code"]) == (True, "error", 3)
    assert (exits[0]["spontaneous"], exits[0]["level"], exits[0]["exit_signal"]) == (False, "info", "SIGTERM")
    (failed,) = gang.events.named("supervise.gang.failed")
    assert (failed["root_cause_rank"], failed["failed_ranks"]) == (1, [1])
    (signaled,) = gang.events.named("supervise.process.signaled")
    assert (signaled["signal"], signaled["reason"], signaled["escalation"]) == ("SIGTERM", "peer_failed", 0)


@pytest.mark.parametrize("how", ["close", "stop"])
def test_a_close_says_why(how):
    with FakeGang(1) as gang:
        ask(gang, Start())
        if how == "close":
            ask(gang, Close())
        else:
            gang.supervisor.stop(timeout=PATIENCE_S)
        assert gang.events.wait_for("supervise.gang.stopping")["reason"] == "close"
        assert gang.events.wait_for("supervise.gang.finished")["outcome"] == "stopped"


def test_a_failed_start_is_an_event_that_says_what_is_missing():
    with FakeGang(2, launchers={1: FakeLauncher(error=FileNotFoundError(2, "none", "prog"))}) as gang:
        with pytest.raises(FileNotFoundError):
            ask(gang, Start())
        (failed,) = gang.events.named("supervise.process.start_failed")
        assert (failed["local_rank"], failed["errno"], failed["exception_type"]) == (1, 2, "FileNotFoundError")
