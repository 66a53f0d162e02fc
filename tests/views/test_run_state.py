"""The state of a run, folded from its events: live and from the file, whole and from the middle, and of any content."""

import json
from typing import Any

import pytest

from supervise._views.recorded_run import identity, still_runs
from supervise._views.run_state import RunState, checked
from tests.cli.command import Command
from tests.cli.test_hostile_runs import ABSURD, places, replaced
from tests.views.fake_run import BEGIN_S, event, exited

RESTART = {"attempt": 1, "max_restarts": 3, "root_cause_rank": 1, "error_type": "exit code 3"}


def folded(*events: dict[str, Any]) -> RunState:
    state = RunState(most_lives=None)
    for each in events:
        state.apply(each)
    return state


def test_every_event_of_a_real_run_is_valid(supervise: Command) -> None:
    """Otherwise the screen would not tell it."""
    script = 'test "$TORCHELASTIC_RESTART_COUNT" = 1 || exit 4; [ "$RANK" = 1 ] && exit 3; exec sleep 1000'
    supervise.run("-n", "2", "--max-restarts", "1", "--backoff", "0", "sh", "-c", script)
    events = [json.loads(line) for line in (supervise.directory() / "events.jsonl").read_text().splitlines()]
    assert {each["event"] for each in events if checked(each) is None} == set()
    state = folded(*events)
    assert [[life.attempt for life in known.lives] for known in state.ranks.values()] == [[0, 1], [0, 1]]
    assert (state.restarts, state.restart, list(state.failed), state.ended) == (1, None, [1], {0, 1})
    assert state.stop is not None
    stopped = state.ranks[0].life
    assert stopped is not None
    assert [it.fields["signal"] for it in stopped.all_of("signaled")] == ["SIGTERM"]
    assert stopped.ending == "stopped"


def test_a_life_whose_start_is_not_known_begins_with_its_first_event() -> None:
    """`supervise top` reads only the end of a large file, and the screen of a run gets no starts."""
    life = folded(exited(9, 1, exit_code=3, level="error", uptime_s=4.0, pid=7, attempt=5)).ranks[1].life
    assert life is not None
    assert (life.attempt, life.pid, life.started_s, life.ending) == (5, 7, BEGIN_S + 5, "failed")


def test_a_rank_that_restarts_alone_has_not_ended_and_fails_no_more_once_it_runs() -> None:
    fails = [event("process.started", 0, 1, pid=7), exited(1, 1, exit_code=3, level="error")]
    again = event("process.restarting", 2, 1, attempt=1, exit_code=3)
    state = folded(*fails, again)
    assert (state.ended, list(state.failed), state.ranks[1].waits) == (set(), [1], True)
    state.apply(event("process.started", 3, 1, attempt=1, pid=8))
    assert (state.failed, list(state.last_failures), state.ranks[1].waits) == ({}, [1], False)


def test_ranks_that_a_restart_leaves_out_stay_ended() -> None:
    ends = [exited(1, rank, attempt=0, level="info") for rank in (0, 1)]
    state = folded(
        *ends, event("gang.stopping", 1, reason="failure"), event("gang.restarting", 2, **RESTART, left_out=[0])
    )
    assert state.stop is None
    assert state.restart is not None
    assert [known.waits for known in state.ranks.values()] == [False, True]
    state.apply(event("gang.starting", 3))
    assert (state.ended, state.restart, state.restarts) == ({0}, None, 1)


def test_a_rank_that_could_not_be_started_has_a_life_without_a_process() -> None:
    state = folded(event("process.start_failed", 1, 0, exception_message="no memory", errno=12))
    life = state.ranks[0].life
    assert life is not None
    assert (life.ran, state.ranks[0].count, state.ended, state.failed[0].why) == (False, 0, {0}, "no memory")


def test_a_fault_remains_the_reason_when_its_process_has_ended() -> None:
    state = folded(event("process.faulted", 1, 0, message="hung: no output for 30 s"), exited(2, 0, spontaneous=False))
    life = state.ranks[0].life
    assert life is not None
    assert (life.ending, state.failed[0].why) == ("failed", "hung: no output for 30 s")


def test_a_rank_that_answers_its_probe_again_hangs_no_more() -> None:
    state = folded(event("process.started", 0, 0, pid=7), event("process.hung", 1, 0, tier="probe", age_s=2.0))
    life = state.ranks[0].life
    assert life is not None
    assert life.hang is not None
    state.apply(event("process.ready", 2, 0, pid=7))
    assert life.hang is None
    assert [it.at_s for it in life.all_of("hung")] == [BEGIN_S + 1]


def test_what_is_kept_of_an_event_is_limited() -> None:
    """A rank may have written a line of a megabyte, and many of them."""
    hangs = [event("process.hung", 1, 0, tier="x" * 1_000_000, age_s=1.0)] * 3_000
    life = folded(*hangs).ranks[0].life
    assert life is not None
    assert sum(len(it.fields["tier"]) for it in life.occurrences) < 10_000_000
    assert len(folded(*(event("process.ready", 1, rank) for rank in range(100_010))).ranks) == 100_000


@pytest.mark.parametrize("new", ABSURD, ids=repr)
def test_no_value_of_an_event_raises(new: Any) -> None:
    """An event with a value of the wrong type, or of an absurd size, changes nothing."""
    events = [
        event("process.started", 0, 0, pid=7),
        event("process.signaled", 1, 0, pid=7, signal="SIGTERM", reason="close", monotonic_ns=5),
        event("process.hung", 1, 0, tier="output", age_s=2.0, step=1, status="x"),
        event("process.restarting", 1, 0, exit_code=1, backoff_s=0.5, end_role="root_cause"),
        event("process.faulted", 1, 0, message="hung"),
        event("process.leaked", 1, 0, pid=7, descendants=[8], ended=True),
        event("gang.restarting", 2, **RESTART, backoff_s=0.5, left_out=[1]),
        event("gang.stacks", 2, path="/stacks", places=["rank 0: f"]),
        event("events.lost", 2, count=3),
        event("host.lost", 2, host=1, reason="lost"),
        exited(3, 0, level="error", max_rss_bytes=5, cpu_time_s=1.0, uptime_s=3.0),
    ]
    state = RunState()
    for each in events:
        for at in places(each):
            it = state.apply(replaced(each, at, new))
            assert it is None or all(
                isinstance(value, (int, float, str, list)) or value is None for value in it.fields.values()
            )
        state.apply(each)
    assert len(state.ranks) <= 2


def test_a_process_id_of_another_namespace_says_nothing_without_a_lock():
    """As on a file system that has no locks."""
    info = identity(locked=False)
    assert still_runs(info, None) is True
    assert still_runs(info | {"pid_namespace": "pid:[1]"}, None) is None
