"""The pure core: one decision at a time, whom it blames, and everything that can happen, in any order."""

from signal import SIGINT, SIGKILL, SIGTERM

import pytest
from hypothesis import Phase, given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from supervise._blame import lost_peer
from supervise._core import decide as core
from supervise._core.model import Gang
from supervise._core.steps import (
    AbandonTails,
    AllReaped,
    AnnounceRestart,
    AnswerClose,
    AnswerStart,
    Assemble,
    Assembled,
    CloseAsked,
    DrainTails,
    GangStopping,
    GroupEmptied,
    LaunchRank,
    LoadValues,
    NotAssembled,
    PeersStopped,
    Publish,
    RankExited,
    ReapAll,
    ReportUnkillable,
    SendSignal,
    SetTimer,
    StartAsked,
    StopOnFailure,
    SweepUp,
    Swept,
    TailEnded,
    TailsStarted,
    ValuesLoaded,
    WorkerFailedToStart,
    WorkerUnkillable,
)
from supervise._core.verdict import judge
from supervise.messages import WorkerExited, WorkerStarted
from supervise.restarts import RestartPolicy
from tests.core.stepping import decide, expired, run, with_tails


def _failed(end):
    return Gang(nprocs=end.local_rank + 1, grace_s=1.0).failed(end)


def started(rank):
    return WorkerStarted(local_rank=rank, pid=100 + rank, started_ns=rank)


def exited(rank, code=0, at=0, **more):
    return WorkerExited(local_rank=rank, pid=100 + rank, exitcode=code, ended_ns=at, **more)


def unkillable(rank):
    return WorkerUnkillable(local_rank=rank, pid=100 + rank, state="D")


def close(sig=SIGTERM, timeout_s=30.0, reason="close"):
    return CloseAsked(death_sig=sig, timeout_s=timeout_s, reason=reason)


def census(**recorded):
    return AllReaped(recorded={int(rank[1:]): at for rank, at in recorded.items()})


def running(nprocs, tails=0, **more):
    gang = with_tails(Gang(nprocs=nprocs, grace_s=30.0, window=nprocs, **more), tails)
    return run(gang, StartAsked(), *map(started, range(nprocs)))[0]


def kinds(actions):
    return [type(action) for action in actions]


# Starting


def test_a_start_launches_no_more_than_its_window_at_once():
    gang = Gang(nprocs=3, grace_s=1.0, window=2)
    gang, actions = decide(gang, StartAsked())
    assert actions == [LaunchRank(local_rank=0), LaunchRank(local_rank=1)]
    gang, actions = decide(gang, started(1))
    assert actions == [LaunchRank(local_rank=2)]
    gang, actions = run(gang, started(0))
    assert (actions, gang.phase) == ([], "starting")
    gang, actions = decide(gang, started(2))
    assert (actions, gang.phase) == ([AnswerStart()], "running")


def test_a_second_start_does_nothing():
    gang = running(2)
    assert decide(gang, StartAsked()) == (gang, [])


def test_a_failed_start_stops_those_that_run_and_the_first_error_stays():
    gang = Gang(nprocs=3, grace_s=7.0, window=3)
    first, second = (WorkerFailedToStart(local_rank=rank, error=OSError(rank, "no")) for rank in (1, 2))
    gang, actions = run(gang, StartAsked(), started(0), first, second)
    assert actions[3:] == [ReapAll()]
    gang, actions = decide(gang, census())
    assert actions == [
        SendSignal(ranks=frozenset({0}), sig=SIGTERM),
        SetTimer(name="grace", delay_s=7.0, only_sooner=True),
    ]
    gang, actions = decide(gang, exited(0, -15))
    assert actions == [DrainTails(), Publish(), AnswerClose()]
    assert (gang.stop.reason, gang.start_failure) == ("start_failed", first)


def test_a_rank_that_starts_while_the_gang_is_stopped_is_signaled_too():
    gang = Gang(nprocs=2, grace_s=1.0, window=2)
    gang, _ = run(gang, StartAsked(), started(0), close(SIGINT), census())
    gang, actions = decide(gang, started(1))
    assert actions == [SendSignal(ranks=frozenset({1}), sig=SIGINT)]
    gang, _ = run(Gang(nprocs=1, grace_s=1.0), StartAsked(), close(), census(), expired("grace"))
    gang, actions = decide(gang, started(0))
    assert actions == [
        SendSignal(ranks=frozenset({0}), sig=SIGKILL),
        SetTimer(name="kill", delay_s=5.0),
    ]


def test_a_rank_that_fails_before_all_run_stops_the_gang_once_all_run():
    gang = Gang(nprocs=2, grace_s=1.0, window=2)
    gang, actions = run(gang, StartAsked(), started(0), exited(0, 1), started(1))
    assert kinds(actions) == [LaunchRank, LaunchRank, AnswerStart, ReapAll]


def test_a_gang_closed_before_its_start_publishes_at_once():
    gang, actions = decide(Gang(nprocs=2, grace_s=1.0), close())
    assert actions == [DrainTails(), Publish(), AnswerClose()]
    assert judge(gang).outcome == "stopped"


# Ending


def test_a_gang_that_does_not_stop_on_failure_ends_with_its_last_rank():
    gang, actions = run(running(3, stop_on_failure=False), exited(1, 7), exited(0))
    assert actions == []
    gang, actions = decide(gang, exited(2, -9))
    assert actions == [DrainTails(), Publish(), AnswerClose()]
    assert judge(gang).blamed == (1, 2)


def test_a_failure_that_stopped_nobody_stops_the_others_when_it_is_to():
    gang, actions = run(running(3, stop_on_failure=False), exited(1, 7))
    assert decide(gang, StopOnFailure(on=False)) == (gang, [])
    gang, actions = decide(gang, StopOnFailure(on=True))
    assert (gang.phase, gang.stop.reason, actions) == ("stopping", "peer_failed", [ReapAll()])
    assert decide(gang, StopOnFailure(on=True)) == (gang, [])
    assert decide(running(1), StopOnFailure(on=True))[1] == []


def test_success_alone_signals_nobody():
    gang, actions = run(running(3), exited(2), exited(0), exited(1))
    assert actions == [DrainTails(), Publish(), AnswerClose()]
    assert judge(gang).outcome == "succeeded"


def test_nobody_is_signaled_before_the_dead_are_counted():
    gang, actions = decide(running(3), exited(1, 1))
    assert actions == [ReapAll()]
    gang, actions = decide(gang, exited(0, 1))
    assert actions == []
    gang, actions = decide(gang, census())
    assert actions == [
        SendSignal(ranks=frozenset({2}), sig=SIGTERM),
        SetTimer(name="grace", delay_s=30.0, only_sooner=True),
    ]


def test_the_grace_is_one_deadline_and_then_all_that_is_left_is_killed_at_once():
    gang, _ = run(running(4), exited(0, 1), census(), exited(1, -15))
    gang, actions = decide(gang, expired("grace"))
    assert actions == [
        SendSignal(ranks=frozenset({2, 3}), sig=SIGKILL),
        SetTimer(name="kill", delay_s=5.0),
    ]


def test_what_cannot_be_killed_is_named_and_given_up():
    gang, _ = run(running(2), exited(0, 1), census(), expired("grace"))
    gang, actions = decide(gang, expired("kill"))
    assert actions == [ReportUnkillable(ranks=frozenset({1}))]
    gang, actions = decide(gang, unkillable(1))
    assert actions == [DrainTails(), Publish(), AnswerClose()]
    assert judge(gang).roles == {0: "root_cause", 1: "unkillable"}
    late, actions = decide(gang, exited(1, -9))
    assert (late, Publish() in actions) == (gang, False)


@pytest.mark.parametrize("ask", [close(SIGKILL), close(timeout_s=0.0)], ids=["SIGKILL", "no-grace"])
def test_a_kill_that_is_asked_for_is_not_polite_first(ask):
    _, actions = run(running(2), ask, census())
    assert [a for a in actions if isinstance(a, SendSignal)] == [SendSignal(ranks=frozenset({0, 1}), sig=SIGKILL)]


def test_a_second_close_shortens_the_grace_and_never_lengthens_it():
    gang, _ = run(running(1), close(timeout_s=10.0), census())
    assert decide(gang, close(timeout_s=20.0)) == (gang, [])
    gang, actions = decide(gang, close(timeout_s=3.0))
    assert actions == [SetTimer(name="grace", delay_s=3.0, only_sooner=True)]
    gang, actions = decide(gang, close(SIGKILL))
    assert SendSignal(ranks=frozenset({0}), sig=SIGKILL) in actions


def test_a_second_close_while_the_dead_are_counted_is_heard():
    _, actions = run(running(1), close(timeout_s=10.0), close(SIGKILL), census())
    assert actions[1] == SendSignal(ranks=frozenset({0}), sig=SIGKILL)


def test_the_first_reason_stays():
    gang, _ = run(running(2), exited(0, 1), close(), close(reason="timeout"))
    assert gang.stop.reason == "peer_failed"


def test_what_finished_ranks_left_behind_ends_at_close_politely_first():
    gang, actions = run(running(1), exited(0, group_left=True))
    assert actions == [DrainTails(), Publish()]
    gang, actions = decide(gang, close(timeout_s=2.0))
    assert actions == [
        SendSignal(ranks=frozenset({0}), sig=SIGTERM),
        SetTimer(name="grace", delay_s=2.0, only_sooner=True),
    ]
    gang, actions = decide(gang, GroupEmptied(local_rank=0))
    assert actions == [SweepUp(timeout_s=2.0)]
    assert decide(gang, close())[1] == [], "one sweep is enough"
    gang, actions = decide(gang, Swept())
    assert actions == [AnswerClose()]
    assert judge(gang).outcome == "succeeded"


def test_the_result_waits_for_the_logs_and_a_close_bounds_that():
    gang, actions = run(running(1, tails=2), exited(0))
    assert actions == [DrainTails()]
    gang, actions = decide(gang, close(timeout_s=4.0))
    assert SetTimer(name="drain", delay_s=4.0, only_sooner=True) in actions
    gang, actions = run(gang, census(), expired("drain"))
    assert actions == [AbandonTails()]
    gang, actions = run(gang, TailEnded(name="stdout"), TailEnded(name="stderr"))
    assert actions == [Publish(), SweepUp(timeout_s=4.0)]


def test_an_exit_while_stopping_sets_no_timer_anew():
    """The deadline is that of the first signal."""
    gang, _ = run(running(4), exited(0, 3), census())
    for rank in (1, 2):
        gang, actions = decide(gang, exited(rank, -15, group_left=rank == 2))
        assert SetTimer not in kinds(actions)


def test_a_timer_that_is_late_does_nothing():
    gang, _ = run(running(1), exited(0))
    for event in (expired("grace"), expired("kill"), expired("drain"), census()):
        after, actions = decide(gang, event)
        assert not {SendSignal, Publish, ReapAll} & set(kinds(actions)), event
        assert after.phase == "finished"


def test_what_the_core_does_not_know_is_refused():
    with pytest.raises(TypeError, match="unknown event"):
        decide(running(1), "hello")


# Return values, timers, facts


def test_the_result_waits_for_the_return_values_and_a_complaint_makes_a_failure():
    gang, _ = decide(Gang(nprocs=2, grace_s=1.0, window=2), TailsStarted(tails=1, values=True))
    gang, actions = run(gang, StartAsked(), started(0), started(1), exited(0), exited(1, has_value=True))
    assert actions[-2:] == [DrainTails(), LoadValues()]
    gang, actions = decide(gang, ValuesLoaded(complaints={1: "it could not be unpickled"}))
    assert actions == []
    gang, actions = decide(gang, TailEnded(name="stdout"))
    assert actions == [Publish(), AnswerClose()]
    assert judge(gang).blamed == (1,)


def test_no_return_values_are_loaded_for_programs():
    _, actions = run(running(1, tails=1), exited(0))
    assert actions == [DrainTails()]


def test_the_deadline_of_a_gang_stops_it_with_its_grace():
    gang, actions = decide(running(1), expired("deadline"))
    assert (gang.stop.reason, actions) == ("timeout", [ReapAll()])
    _, actions = decide(gang, census())
    assert actions[-1] == SetTimer(name="grace", delay_s=30.0, only_sooner=True)


def test_a_rank_that_is_stopped_because_of_a_peer_did_not_end_by_itself():
    gang, _ = decide(running(3, stop_on_failure=False), PeersStopped(ranks=frozenset({1, 2}), at_ns=50))
    gang, _ = decide(gang, PeersStopped(ranks=frozenset({1, 2}), at_ns=90))
    gang, _ = run(gang, exited(0, 1, at=60), exited(1, 1, at=40), exited(2, -15, at=70))
    assert judge(gang).blamed == (1, 0)
    assert judge(gang).roles[2] == "bystander"


def test_facts_say_what_has_happened():
    gang = running(2)
    end, late = exited(0, 1, at=7), exited(1, -15, at=9)
    assert core.decide(gang, end).facts == [
        RankExited(end=end, by_itself=True, failed=True, started_ns=0),
        GangStopping(reason="peer_failed"),
    ]
    core.decide(gang, census())
    assert core.decide(gang, late).facts == [RankExited(end=late, by_itself=False, failed=True, started_ns=1)]
    assert core.decide(gang, close()).facts == []


# Any order


@given(
    order=st.permutations(range(5)),
    codes=st.lists(st.sampled_from([0, 1, -9, None]), min_size=5, max_size=5),
    counted=st.integers(0, 5),
    late=st.lists(st.sampled_from([expired("grace"), expired("kill"), expired("drain"), census()]), max_size=4),
)
def test_any_order_finishes_once_and_blames_the_first(order, codes, counted, late):
    events = [exited(rank, codes[rank], at) for at, rank in enumerate(order)]
    events.insert(counted, census())  # the counting of the dead ends somewhere among the exits
    if not any(_failed(e) for e in events[:counted]):
        events.remove(census())  # ... if it was asked for
        counted = 5
    gang, done = run(running(5), *events, *late)
    if gang.phase == "stopping":
        gang, more = run(gang, census())
        done += more
    assert kinds(done).count(Publish) == 1
    bad = [e.local_rank for e in events[:counted] if _failed(e)]
    verdict = judge(gang)
    assert verdict.blamed == tuple(bad)
    assert verdict.outcome == ("failed" if bad else "succeeded")
    if not bad:
        assert SendSignal not in kinds(done)


@pytest.mark.parametrize("first", [[], [exited(1, 7), AllReaped(recorded={})]])
def test_a_time_limit_bounds_the_wait_for_the_logs_too(first):
    """Whether the gang is just ending well, or after a failure."""
    gang, _ = run(running(2, tails=1), *first, exited(0), *([] if first else [exited(1)]))
    assert gang.drain.begun
    gang, actions = decide(gang, close(timeout_s=4.0, reason="timeout"))
    assert SetTimer(name="drain", delay_s=4.0, only_sooner=True) in actions
    gang, actions = decide(gang, expired("drain"))
    assert AbandonTails() in actions


CLOSE = CloseAsked(death_sig=SIGTERM, timeout_s=30.0)


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
    assert (verdict.outcome, verdict.blamed) == ("failed", (2,))
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
    """Not an abort, which libraries answer a peer's exception with; not an exit, nor a death noticed much later."""
    noticed = 1 + late_ms * 1_000_000
    told = [exited(1, code, noticed, oom_kill=oom), counted({0: 1, 2: 2}), exited(0, 1, 9), exited(2, 1, 9)]
    verdict = verdict_on(3, *told)
    assert verdict.blamed == ((1, 0, 2) if root == 1 else (0, 2, 1))


def test_a_death_comes_before_all_exceptions_after_the_first_about_a_connection():
    peers = [exited(rank, 1, 9, lost_peer=rank == 0) for rank in (0, 2)]
    assert verdict_on(3, exited(1, 7, 100), counted({0: 50, 2: 60}), *peers).blamed == (1, 0, 2)


@pytest.mark.parametrize(("code", "limit_ms"), [(7, 2000), (-6, 250), (-15, 250)])
@pytest.mark.parametrize(
    ("late_ms", "lost", "blamed"), [(-50, (0, 2), (1, 0, 2)), (-50, (2,), (0, 1, 2)), (50, (0, 2), (0, 2, 1))]
)
def test_any_death_comes_before_what_its_peers_raised_about_their_connections(code, limit_ms, late_ms, lost, blamed):
    """But not only because of another exception: a rank may exit because its peer has failed.

    An exit takes long: `sys.exit` unloads libraries.
    """
    late_ms += limit_ms
    dead = exited(1, code, 1 + late_ms * 1_000_000)
    peers = [exited(rank, 1, 9, lost_peer=rank in lost) for rank in (0, 2)]
    assert verdict_on(3, dead, counted({0: 1, 2: 2}), *peers).blamed == blamed


ABOUT_A_PEER = (
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "EOFError: ",
    "EOFError",
    "asyncio.exceptions.IncompleteReadError: 0 bytes read on a total of 4 expected bytes",
    "http.client.RemoteDisconnected: Remote end closed connection without response",
    "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
    "RuntimeError: it said:\nConnection reset by peer",
    "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1",
    "OSError: [Errno 32] Broken pipe",
)
ABOUT_ITSELF = (
    *("ValueError: no connection to the problem", "KeyError: 'peer'", "TimeoutError: timed out", ""),
    *("EOFError: EOF when reading a line", "EOFError: Ran out of input", "SyntaxError: unexpected EOF while parsing"),
    *("ConnectionRefusedError: [Errno 111] Connection refused", "torch.distributed.DistStoreError: wait timeout"),
)


def test_exceptions_that_say_that_a_connection_broke():
    assert [text for text in ABOUT_A_PEER if not lost_peer(text)] == []
    assert [text for text in ABOUT_ITSELF if lost_peer(text)] == []


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
    assert (verdict.outcome, verdict.blamed) == ("stopped", (0, 1))
    assert set(verdict.roles.values()) == {"bystander"}


def test_o15_a_clean_exit_on_our_polite_signal_is_no_failure():
    verdict = verdict_on(3, exited(0), CLOSE, counted(), exited(1, 0, complaint="no return value"), exited(2, 0))
    assert (verdict.outcome, verdict.blamed) == ("stopped", ())
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
    assert verdict.outcome == "timed_out"


def test_a_rank_that_nothing_can_end_is_lost():
    stuck = WorkerUnkillable(local_rank=1, pid=101, state="D")
    verdict = verdict_on(2, CLOSE._replace(death_sig=SIGINT), counted(), expired("grace"), exited(0, -9), stuck)
    assert (verdict.outcome, verdict.blamed) == ("stopped", (0, 1))
    assert verdict.roles == {0: "bystander", 1: "unkillable"}


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


def by_themselves(gang):
    return [number for number, rank in enumerate(gang.ranks) if rank.by_itself]


class _Machine(RuleBasedStateMachine):
    """Drives a gang with everything that can plausibly happen; checks the promises at every step."""

    @initialize(
        nprocs=st.integers(1, 5),
        more=st.fixed_dictionaries(
            {"window": st.integers(1, 5), "tails": st.integers(0, 2), "grace_s": st.sampled_from([0.0, 5.0])}
        ),
        immortal=st.sets(st.integers(0, 4), max_size=2),
        never_start=st.sets(st.integers(0, 4), max_size=1),
        policy=st.none() | st.builds(RestartPolicy, st.integers(0, 3), st.none() | st.just(1e-9)),
    )
    def begin(self, nprocs, more, immortal, never_start, policy):
        self.immortal, self.never_start = immortal, never_start
        self.all_tails = more.pop("tails")
        self.gang = with_tails(Gang(nprocs=nprocs, policy=policy, **more), self.all_tails)
        self.clock = 0
        self.published = self.started = self.start_answers = 0
        self.user_ended = self.close_owed = False
        self.new_life()

    def new_life(self):
        """Nothing is known of this attempt yet."""
        self.launching, self.alive, self.groups = set(), set(), set()
        self.stuck, self.reaped, self.counting, self.counted = set(), set(), False, False
        self.timers, self.tails = set(), self.all_tails
        self.kill_asked = self.polite = self.asked_end = False
        self.sweeping = self.swept = self.waiting = self.assembling = self.answered = False

    def tell(self, event):
        before = self.gang
        self.gang, actions = decide(self.gang, event)
        for action in actions:
            self.check(action)
            self.act(action)
        if self.gang.attempt > before.attempt:
            assert event == expired("backoff")
            return
        if before.stop.reason is not None:
            assert self.gang.stop.reason == before.stop.reason
        if before.start_failure is not None:
            assert self.gang.start_failure is before.start_failure
        assert self.gang.ends[: len(before.ends)] == before.ends
        if before.stop.signaled:
            assert by_themselves(self.gang) == by_themselves(before), "a cause came after our signal"
        assert not self.gang.running & self.gang.starting

    def check(self, action):
        assert self.published == 0 or not isinstance(action, (Publish, LaunchRank, AnswerStart, ReapAll))
        if isinstance(action, SendSignal):
            assert self.counted or self.published, "signaled before the dead were counted"
            assert self.asked_end, "success alone signals nobody"
            assert action.ranks, "a signal to nobody"
            for rank in action.ranks:
                assert rank not in self.reaped or rank in self.groups, "signaled what is reaped and left nothing"
            if action.sig == SIGKILL:
                assert self.polite or self.kill_asked
            else:
                assert not self.gang.stop.killed, "polite after the kill"
                self.polite = True

    def act(self, action):  # noqa: C901 - one line an action
        match action:
            case LaunchRank():
                self.launching.add(action.local_rank)
            case AnswerStart():
                self.start_answers += 1
                assert not self.answered, "an attempt's start is told once"
                self.answered = True
            case ReapAll():
                assert not self.counting
                assert not self.counted
                self.counting = True
            case SetTimer():
                self.timers.add(action.name)
                self.polite |= action.name == "grace"  # also if all ranks still start, so that none was signaled
            case ReportUnkillable():
                self.stuck |= action.ranks
            case SweepUp():
                assert not self.sweeping
                assert not self.swept
                self.sweeping = True
            case AnnounceRestart():
                assert not self.user_ended, "a restart after somebody asked for the end"
                assert not self.alive | self.groups | self.launching, "a restart beside what is left"
                assert self.swept
                assert not self.waiting
                self.waiting = True
            case Assemble():
                assert self.waiting
                self.new_life()
                self.assembling = True
                self.gang = with_tails(self.gang, self.all_tails)
            case AbandonTails():
                self.timers.discard("drain")
            case Publish():
                self.published += 1
                assert not self.alive - self.given_up()
                assert not self.launching or self.gang.stop.killed
            case AnswerClose():
                assert self.swept or not self.close_owed or self.started == 0
                self.close_owed = False
                assert not self.groups - self.given_up()

    def given_up(self):
        return set(self.gang.unkillable)

    # What can happen

    @precondition(lambda self: self.started == 0)
    @rule()
    def start(self):
        self.started += 1
        self.tell(StartAsked())

    @precondition(lambda self: self.launching - self.never_start)
    @rule(data=st.data())
    def starts(self, data):
        rank = data.draw(st.sampled_from(sorted(self.launching - self.never_start)))
        self.launching.remove(rank)
        self.alive.add(rank)
        self.tell(started(rank))

    @precondition(lambda self: self.launching)
    @rule(data=st.data())
    def fails_to_start(self, data):
        rank = data.draw(st.sampled_from(sorted(self.launching)))
        self.launching.remove(rank)
        self.asked_end = True
        self.kill_asked |= self.gang.grace_s == 0
        self.clock += 1
        self.tell(WorkerFailedToStart(local_rank=rank, error=OSError(), at_ns=self.clock))

    @precondition(lambda self: self.alive)
    @rule(
        data=st.data(),
        code=st.sampled_from([0, 0, 1, -9, -15, None]),
        group_left=st.booleans(),
        recorded=st.booleans(),
    )
    def exits(self, data, code, group_left, recorded):
        rank = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive.remove(rank)
        self.reaped.add(rank)
        if group_left and rank not in self.given_up():
            self.groups.add(rank)
        self.clock += 1
        if code != 0:
            self.asked_end = True
            self.kill_asked |= self.gang.grace_s == 0
        self.tell(exited(rank, code, self.clock, group_left=group_left, error_ns=self.clock if recorded else None))

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def group_empties(self, data):
        rank = data.draw(st.sampled_from(sorted(self.groups)))
        self.groups.remove(rank)
        self.tell(GroupEmptied(local_rank=rank))

    @precondition(lambda self: self.counting)
    @rule(data=st.data())
    def counted_the_dead(self, data):
        self.counting, self.counted = False, True
        recorded = data.draw(st.dictionaries(st.sampled_from(sorted(self.alive)), st.just(1))) if self.alive else {}
        self.tell(AllReaped(recorded=recorded))

    @rule(
        sig=st.sampled_from([SIGTERM, SIGINT, SIGKILL]),
        timeout_s=st.sampled_from([0.0, 1.0, 9.0]),
        reason=st.sampled_from(["close", "close", "timeout"]),
    )
    def close(self, sig, timeout_s, reason):
        self.asked_end = self.user_ended = True
        self.close_owed = reason == "close" or self.close_owed
        self.kill_asked |= sig == SIGKILL or timeout_s == 0
        self.counted |= self.gang.phase == "new"  # there is nobody to count
        self.swept |= self.gang.phase == "new"
        self.tell(close(sig, timeout_s, reason))

    @rule(event=st.sampled_from([expired("grace"), expired("kill"), expired("drain")]))
    def timer(self, event):
        if event == expired("grace") and "grace" not in self.timers and self.gang.stop.signaled:
            return  # it was never set
        self.tell(event)

    @precondition(lambda self: self.sweeping)
    @rule()
    def sweeps(self):
        self.sweeping, self.swept = False, True
        self.tell(Swept())

    @precondition(lambda self: self.waiting)
    @rule()
    def has_waited(self):
        self.tell(expired("backoff"))
        self.waiting = False

    @precondition(lambda self: self.assembling)
    @rule(well=st.booleans())
    def is_assembled(self, well):
        self.assembling = False
        if well:
            self.tell(Assembled())
            return
        self.clock += 1
        self.asked_end = True
        self.swept |= self.gang.phase != "finished"  # no process was started since the last sweep
        self.tell(NotAssembled(OSError("no"), self.clock))

    @precondition(lambda self: self.stuck)
    @rule(data=st.data())
    def is_stuck(self, data):
        rank = data.draw(st.sampled_from(sorted(self.stuck)))
        self.stuck.remove(rank)
        if rank in self.alive or rank in self.groups:  # else it went in time
            self.tell(unkillable(rank))

    @precondition(lambda self: self.tails and self.gang.phase != "new" and not self.assembling)
    @rule()
    def tail_ends(self):
        self.tails -= 1
        self.tell(TailEnded(name="stdout"))

    def teardown(self):
        """Whatever has happened: when the world answers from now on, the gang ends, and its close is answered."""
        if not hasattr(self, "gang"):
            return
        if self.started == 0:
            self.start()
        self.close_owed = self.user_ended = True
        self.asked_end = True
        self.counted |= self.gang.phase == "new"
        self.tell(close())
        for _ in range(50):
            self.world_answers()
        assert self.published == 1
        assert not self.close_owed, "a close was not answered"
        verdict = judge(self.gang)
        good = {e.local_rank for e in self.gang.ends if not self.gang.failed(e)}
        if verdict.outcome == "succeeded":
            assert len(good) == self.gang.nprocs
        elif verdict.outcome == "stopped":
            assert verdict.blamed or len(good) == self.gang.nprocs
        else:
            assert verdict.blamed
        assert (verdict.outcome == "failed") == ("root_cause" in verdict.roles.values())

    def world_answers(self):  # noqa: C901 - all that can be asked for
        """Everything that was asked for happens; what is immortal or never starts does not."""
        if self.counting:
            self.counting, self.counted = False, True
            self.tell(census())
        for rank in sorted(self.launching - self.never_start):
            self.launching.remove(rank)
            self.alive.add(rank)
            self.tell(started(rank))
        for rank in sorted(self.alive - self.immortal):
            self.alive.remove(rank)
            self.reaped.add(rank)
            self.tell(exited(rank, -15))
        for rank in sorted(self.groups - self.immortal):
            self.groups.remove(rank)
            self.tell(GroupEmptied(local_rank=rank))
        for name, event in (("grace", expired("grace")), ("kill", expired("kill"))):
            if name in self.timers:
                self.timers.remove(name)
                self.tell(event)
        for rank in sorted(self.stuck):
            self.stuck.remove(rank)
            if rank in self.alive | self.groups:
                self.tell(unkillable(rank))
        if self.assembling:
            self.is_assembled(well=True)
        while self.tails:
            self.tail_ends()
        if self.sweeping:
            self.sweeps()


_Machine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
TestAnyLife = _Machine.TestCase
