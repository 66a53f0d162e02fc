"""Who is to blame: each paragraph of it, as an example that can be read."""

from signal import SIGINT, SIGKILL, SIGTERM

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervise._core.model import Gang
from supervise._core.steps import AllReaped, CloseAsked, StartAsked, WorkerUnkillable
from supervise._core.verdict import judge
from supervise.messages import WorkerExited, WorkerStarted
from tests.core.stepping import decide, expired

CLOSE = CloseAsked(death_sig=SIGTERM, timeout_s=30.0)


def _failed(end):
    return Gang(nprocs=end.local_rank + 1, grace_s=1.0).failed(end)


def exited(rank, code=0, at=0, **more):
    return WorkerExited(local_rank=rank, pid=100 + rank, exitcode=code, ended_ns=at, **more)


def verdict_on(nprocs, *events):
    gang = Gang(nprocs=nprocs, grace_s=30.0, window=nprocs)
    running = [WorkerStarted(local_rank=rank, pid=100 + rank, started_ns=0) for rank in range(nprocs)]
    for event in (StartAsked(), *running, *events):
        gang, _ = decide(gang, event)
    assert gang.phase == "finished"
    return judge(gang)


def counted(recorded=None):
    return AllReaped(recorded=recorded or {})


def test_every_rank_that_returns_makes_a_success():
    verdict = verdict_on(2, exited(1), exited(0))
    assert (verdict.outcome, verdict.blamed) == ("succeeded", ())
    assert verdict.roles == {0: "finished", 1: "finished"}


@pytest.mark.parametrize("code", [1, 3, 255, -9, -11, None])
def test_the_rank_that_fails_is_the_root_cause_and_who_we_stopped_is_a_bystander(code):
    verdict = verdict_on(3, exited(2, code), counted(), exited(0, -15), exited(1, 1))
    assert (verdict.outcome, verdict.blamed, verdict.kind) == ("failed", (2,), "cause")
    assert verdict.roles == {0: "bystander", 1: "bystander", 2: "root_cause"}


def test_code_0_with_a_complaint_is_a_failure():
    assert _failed(exited(0, 0, complaint="no return value"))
    verdict = verdict_on(1, exited(0, 0, complaint="no return value"), counted())
    assert (verdict.outcome, verdict.blamed) == ("failed", (0,))


def test_ranks_already_dead_when_stopping_begins_are_causes_ordered_by_their_death():
    dead = (exited(0, 1, at=30), exited(2, 1, at=10), exited(1, 1, at=20))
    verdict = verdict_on(4, *dead, counted(), exited(3, -15, at=40))
    assert verdict.blamed == (2, 1, 0)
    assert verdict.roles == {2: "root_cause", 1: "concurrent_failure", 0: "concurrent_failure", 3: "bystander"}


def test_three_deaths_within_a_microsecond_are_told_apart():
    now = 1_700_000_000_000_000_000
    verdict = verdict_on(3, *(exited(rank, 1, at=now + 2 - rank) for rank in range(3)), counted())
    assert verdict.blamed == (2, 1, 0)


def test_o14_a_record_that_was_written_behind_the_look_counts_if_its_exception_was_before():
    """It takes a moment to write one, and the first to die of four that raised together may end in that moment."""
    census = AllReaped(recorded={}, taken_ns=2_000)
    late = exited(1, -15, at=9_000, error_ns=1_000), exited(2, -15, at=9_500, error_ns=3_000)
    verdict = verdict_on(3, exited(0, 1, at=1_500, error_ns=900), census, *late)
    assert verdict.blamed == (0, 1)
    assert verdict.roles[2] == "bystander"


def test_who_raised_first_is_the_root_cause_although_it_dies_last():
    """Rank 1 raises and takes two seconds to exit; rank 2 dies at once of the broken connection."""
    raised_ns, broke_ns = 1_000, 2_000
    verdict = verdict_on(
        3,
        exited(2, 1, at=broke_ns),
        counted({1: raised_ns}),
        exited(0, -15, at=3_000),
        exited(1, 1, at=2_000_000_000, error_ns=raised_ns),
    )
    assert verdict.blamed == (1, 2)
    assert verdict.roles == {0: "bystander", 1: "root_cause", 2: "concurrent_failure"}


def test_the_time_of_the_exception_counts_before_the_time_of_death():
    first = exited(0, 1, at=50, error_ns=10)
    second = exited(1, 1, at=20)
    assert verdict_on(2, second, first, counted()).blamed == (0, 1)


@pytest.mark.parametrize(
    ("code", "oom", "late_ms", "root"),
    [
        *((-9, False, 900, 1), (-9, False, 1100, 0), (137, True, 900, 1)),
        *((-11, False, 200, 1), (-11, False, 300, 0), (-6, False, 1, 0), (7, False, 1, 0)),
    ],
)
def test_a_killed_rank_comes_before_what_its_peers_raised_until_its_death_was_noticed(code, oom, late_ms, root):
    """Not an abort, which libraries answer a peer's exception with; not an exit, nor what was noticed much later."""
    noticed = 1 + late_ms * 1_000_000
    told = [exited(1, code, noticed, oom_kill=oom), counted({0: 1, 2: 2}), exited(0, 1, 9), exited(2, 1, 9)]
    verdict = verdict_on(3, *told)
    assert verdict.blamed == ((1, 0, 2) if root == 1 else (0, 2, 1))


def test_of_deaths_without_a_record_a_killed_rank_keeps_its_place():
    assert verdict_on(3, exited(1, 7, 5), exited(2, -9, 6), exited(0, -9, 7), counted()).blamed == (1, 2, 0)


def test_a_record_written_after_our_signal_blames_nobody():
    verdict = verdict_on(2, exited(0, 1, at=5), counted(), exited(1, 1, at=9, error_ns=8))
    assert verdict.blamed == (0,)
    assert verdict.roles[1] == "bystander"


def test_who_had_recorded_an_exception_and_still_returns_is_no_cause():
    verdict = verdict_on(2, exited(0, 1, at=5), counted({1: 2}), exited(1, 0, at=9))
    assert verdict.blamed == (0,)
    assert verdict.roles[1] == "bystander"


@pytest.mark.parametrize("code", [-15, 1, 143])
def test_a_gang_that_was_closed_has_no_cause_and_never_looks_like_success(code):
    verdict = verdict_on(2, CLOSE, counted(), exited(0, code), exited(1, -15))
    assert (verdict.outcome, verdict.blamed, verdict.kind) == ("stopped", (0, 1), "stopped")
    assert set(verdict.roles.values()) == {"bystander"}


def test_o15_a_clean_exit_on_our_polite_signal_is_no_failure():
    verdict = verdict_on(3, exited(0), CLOSE, counted(), exited(1, 0, complaint="no return value"), exited(2, 0))
    assert (verdict.outcome, verdict.blamed, verdict.kind) == ("stopped", (), "stopped")
    assert verdict.roles == {0: "finished", 1: "bystander", 2: "bystander"}


def test_o15_a_clean_exit_after_a_timeout_or_with_a_lost_value_is_a_failure():
    timeout = CLOSE._replace(reason="timeout")
    assert verdict_on(2, timeout, counted(), exited(0, 0), exited(1, 0)).blamed == (0, 1)
    lost = exited(1, 0, has_value=True, complaint="its return value could not be unpickled here")
    assert verdict_on(2, CLOSE, counted(), exited(0, 0), lost).blamed == (1,)


def test_of_a_closed_gang_only_the_unfinished_ranks_are_listed():
    verdict = verdict_on(2, exited(0), CLOSE, counted(), exited(1, -15))
    assert (verdict.outcome, verdict.blamed) == ("stopped", (1,))
    assert verdict.roles == {0: "finished", 1: "bystander"}


def test_a_failure_that_a_close_overtakes_is_still_the_cause():
    verdict = verdict_on(2, CLOSE, exited(0, 3), counted(), exited(1, -15))
    assert (verdict.outcome, verdict.blamed) == ("failed", (0,))


def test_a_gang_that_had_ended_well_when_it_was_closed_has_succeeded():
    assert verdict_on(2, CLOSE, exited(0), exited(1), counted()).outcome == "succeeded"
    assert verdict_on(2, exited(0), exited(1), CLOSE).outcome == "succeeded"


def test_a_gang_whose_time_was_up_says_so():
    timeout = CLOSE._replace(reason="timeout")
    verdict = verdict_on(2, timeout, counted(), exited(0, -15), exited(1, -15))
    assert (verdict.outcome, verdict.kind) == ("timed_out", "stopped")


def test_a_rank_that_nothing_can_end_is_lost():
    stuck = WorkerUnkillable(local_rank=1, pid=101, state="D")
    verdict = verdict_on(2, CLOSE._replace(death_sig=SIGINT), counted(), expired("grace"), exited(0, -9), stuck)
    assert (verdict.outcome, verdict.blamed) == ("stopped", (0, 1))
    assert verdict.roles == {0: "bystander", 1: "lost"}


def test_a_kill_without_grace_has_no_cause_either():
    verdict = verdict_on(1, CLOSE._replace(death_sig=SIGKILL), counted(), exited(0, -9))
    assert verdict.outcome == "stopped"


@given(
    ends=st.permutations(range(6)),
    bad=st.sets(st.integers(0, 5)),
    recorded=st.dictionaries(st.integers(0, 5), st.integers(0, 100)),
    dead=st.integers(1, 6),
)
def test_blame_is_exact_whatever_the_order(ends, bad, recorded, dead):
    """Blamed are the failed that were dead, or had a record, before the signal; in the order of record or death."""
    told = [exited(r, 1 if r in bad else 0, 100 + at, error_ns=recorded.get(r)) for at, r in enumerate(ends)]
    before, after = told[:dead], told[dead:]
    if not any(map(_failed, before)):
        before, after, stop = [*before, *after], [], []
        stop = [counted()] if any(map(_failed, before)) else []
    else:
        alive = {end.local_rank for end in after}
        stop = [counted({rank: at for rank, at in recorded.items() if rank in alive})]
    verdict = verdict_on(6, *before, *stop, *after)
    causes = [end for end in before if _failed(end)] + [
        end for end in after if _failed(end) and end.local_rank in recorded
    ]
    causes.sort(key=lambda end: (end.error_ns if end.error_ns is not None else end.ended_ns, end.ended_ns))
    assert verdict.blamed == tuple(end.local_rank for end in causes)
    assert (verdict.outcome == "succeeded") == (not causes)
    assert set(verdict.roles) == set(range(6))
    assert [rank for rank, role in verdict.roles.items() if role == "root_cause"] == list(verdict.blamed[:1])


def test_a_rank_found_dead_before_the_census_whose_code_is_told_after_it_is_a_cause():
    """A fork server tells the code some time after the pidfd has told the death."""
    census = AllReaped(recorded={}, taken_ns=50)
    verdict = verdict_on(3, exited(2, 3, at=20), census, exited(1, 2, at=40), exited(0, -15, at=60))
    assert verdict.roles == {2: "root_cause", 1: "concurrent_failure", 0: "bystander"}
