"""Gangs over hosts that are real processes, from the start to the result."""

import re
import time
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGTERM, SIGUSR1
from typing import Any

import pytest

from supervise import (
    Close,
    DefaultLogsSpecs,
    GangFinished,
    GangStarted,
    Poll,
    Signal,
    SpecError,
    Start,
    Status,
    Std,
    SuperviseError,
    Watchdog,
)
from supervise.messages import WorkerExited, WorkerHung, WorkerStarted
from tests.hosts import ranks
from tests.hosts.engine import ProcessEngine
from tests.hosts.gangs import FOREVER, READY, RUNS, watched
from tests.patience import PATIENCE_S

ALL = range(4)


def test_functions_return_their_values_by_global_rank(gangs: Any):
    gang = gangs(entrypoint=ranks.product, args={rank: (rank + 1,) for rank in ALL})
    gang.start()
    result = gang.wait()
    assert result.outcome == "succeeded"
    assert result.return_values == {rank: {"product": rank * (rank + 1)} for rank in ALL}
    assert {rank: (end.host, end.local_rank, end.role) for rank, end in result.ends.items()} == {
        rank: (f"h{rank // 2}", rank % 2, "finished") for rank in ALL
    }
    assert gang.ask(Poll()) is result


def test_three_hosts_show_whole_lines_and_keep_logs(gangs: Any, tmp_path: Path):
    script = 'i=0; while [ $i -lt 200 ]; do printf "half "; echo "line $i of $RANK"; i=$((i+1)); done; printf "last"'
    specs = DefaultLogsSpecs(log_dir=str(tmp_path), tee=Std.ALL)
    gang = gangs(script, nnodes=3, logs_specs=specs)
    gang.start()
    result = gang.wait()
    lines = [line for _, line in gang.lines.all]
    for rank in range(6):
        own = [line for line in lines if line.startswith(f"[g{rank}]:")]
        wanted = [f"half line {i} of {rank}\n" for i in range(200)]
        assert own == [f"[g{rank}]:{line}" for line in (*wanted, "last\n")]
        assert Path(result.stdouts[rank]).read_text() == "".join((*wanted, "last"))


def test_both_streams_are_shown(gangs: Any):
    gang = gangs("echo out $RANK; echo err $RANK >&2")
    gang.start()
    gang.wait()
    assert sorted(gang.lines.all) == sorted(
        (f"std{what}", f"[g{rank}]:{what} {rank}\n") for what in ("out", "err") for rank in ALL
    )


def test_ranks_know_the_whole_gang(gangs: Any):
    words = "$RANK $LOCAL_RANK $WORLD_SIZE $GROUP_RANK $LOCAL_WORLD_SIZE $SUPERVISE_EPOCH $MINE"
    gang = gangs(f"echo {words}; echo $MASTER_ADDR:$MASTER_PORT >&2", envs={3: {"MINE": "x"}})
    gang.start()
    gang.wait()
    own = {rank: f"[g{rank}]:{rank} {rank % 2} 4 {rank // 2} 2 0{' x' if rank == 3 else ''}\n" for rank in ALL}
    assert sorted(line for stream, line in gang.lines.all if stream == "stdout") == sorted(own.values())
    assert len({line.partition(":")[2] for stream, line in gang.lines.all if stream == "stderr"}) == 1


def test_a_failure_on_host_1_is_the_root_cause_and_the_others_are_stopped(gangs: Any):
    gang = gangs(f"trap 'exit 9' USR1; {RUNS}")
    pids = gang.start()
    gang.await_ready(ALL)
    with watched(pids.values()) as processes:
        gang.ask(Signal(sig=SIGUSR1, ranks=frozenset({2})))
        result = gang.wait()
        assert processes.alive() == set()
    assert (result.outcome, result.root_cause, list(result.failures)) == ("failed", 2, [2])
    assert {rank: end.exitcode for rank, end in result.ends.items()} == {0: -15, 1: -15, 2: 9, 3: -15}
    assert [end.role for end in result.ends.values()] == ["bystander", "bystander", "root_cause", "bystander"]


def test_an_exception_is_the_message_of_the_root_cause(gangs: Any):
    gang = gangs(entrypoint=ranks.failing)
    gang.start()
    result = gang.wait()
    assert result.root_cause == 3
    assert "the 7th shard is empty" in str(result.failures[3].message)


def test_of_simultaneous_failures_one_is_the_root_cause(gangs: Any):
    gang = gangs(f"trap 'exit $((RANK + 1))' USR1; {RUNS}")
    gang.start()
    gang.await_ready(ALL)
    gang.ask(Signal(sig=SIGUSR1, ranks=frozenset({0, 3})))
    result = gang.wait()
    assert result.root_cause in (0, 3)
    assert set(result.failures) <= {0, 3}
    roles = [end.role for end in result.ends.values()]
    assert roles.count("root_cause") == 1
    assert {rank for rank, end in result.ends.items() if end.role == "concurrent_failure"} == set(result.failures) - {
        result.root_cause
    }


def test_a_close_stops_every_rank_of_every_host(gangs: Any):
    gang = gangs(RUNS)
    pids = gang.start()
    gang.await_ready(ALL)
    with watched(pids.values()) as processes:
        assert len(processes.alive()) == 8
        result = gang.ask(Close())
        assert processes.alive() == set()
    assert result.outcome == "stopped"
    assert {end.exitcode for end in result.ends.values()} == {-SIGTERM}


def test_a_close_kills_ranks_that_ignore_sigterm_after_the_grace(gangs: Any):
    gang = gangs(f"trap '' TERM; {RUNS}", settings={"grace": 0.3})
    pids = gang.start()
    gang.await_ready(ALL)
    with watched(pids.values()) as processes:
        result = gang.ask(Close())
        assert processes.alive() == set()
    assert {end.exitcode for end in result.ends.values()} == {-SIGKILL}


def test_a_second_close_need_not_wait_for_the_grace(gangs: Any):
    gang = gangs(f"trap '' TERM; {RUNS}", settings={"grace": 1000})
    gang.start()
    gang.await_ready(ALL)
    first = gang.ref.ask(Close(), block=False)
    gang.events.until(lambda all_: any(event["event"] == "supervise.gang.stopping" for event in all_))
    assert gang.ask(Close(death_sig=SIGKILL, timeout=0)).outcome == "stopped"
    assert first.get(timeout=PATIENCE_S).outcome == "stopped"


@pytest.mark.parametrize("message", [Close(), None], ids=["close", "stop"])
def test_a_gang_that_was_not_started_can_be_closed(gangs: Any, message: Any, caplog: pytest.LogCaptureFixture):
    gang = gangs("true")
    if message is None:
        gang.ref.stop(timeout=PATIENCE_S)
    else:
        assert gang.ask(message).outcome == "stopped"
        assert gang.ask(message).outcome == "stopped"
    assert caplog.records == []


def test_a_close_during_the_start_leaves_nothing(gangs: Any):
    gang = gangs(RUNS)
    start = gang.ref.ask(Start(), block=False)
    assert gang.ask(Close()).outcome == "stopped"
    with pytest.raises(SuperviseError, match="was closed before its start had ended"):
        start.get(timeout=PATIENCE_S)


def test_the_time_limit_stops_all(gangs: Any):
    gang = gangs(RUNS, timeout=15.0)
    pids = gang.start()
    with watched(pids.values()) as processes:
        assert gang.wait().outcome == "timed_out"
        assert processes.alive() == set()


def test_a_program_that_is_missing_is_an_error_with_the_host(gangs: Any):
    gang = gangs(entrypoint="/nowhere/at/all")
    with pytest.raises(FileNotFoundError, match=r"host [01] \(h[01]\)") as found:
        gang.start()
    assert found.value.filename == "/nowhere/at/all"
    with pytest.raises(FileNotFoundError):
        gang.wait()


def test_a_start_that_fails_on_one_host_leaves_no_rank_on_the_other(gangs: Any):
    engine = ProcessEngine(
        change=lambda order: (
            replace(order, settings=order.settings | {"entrypoint": "/nowhere"}) if order.number else order
        )
    )
    gang = gangs(FOREVER, engine=engine)
    with pytest.raises(FileNotFoundError, match=r"host 1 \(h1\): rank 2 could not be started: .*'/nowhere'"):
        gang.start()
    pids = [event["pid"] for event in gang.events.all if event["event"] == "supervise.process.started"]
    with watched(pids) as processes:
        assert processes.alive() == set()


def test_a_working_directory_that_a_host_does_not_have_fails_the_start_and_names_the_host(gangs: Any):
    """The driver need not have it, so it does not check."""
    gang = gangs(FOREVER, settings={"cwd": "/only/elsewhere"})
    with pytest.raises(SpecError, match=r"host [01] \(h[01]\): cwd is '/only/elsewhere', where there is no folder"):
        gang.start()


def test_a_rank_that_fails_before_the_last_host_has_started_is_the_root_cause(gangs: Any):
    """The last host launches its ranks, so the start is answered, and all ranks have an end."""
    gang = gangs(f"[ $RANK = 0 ] && exit 3; {FOREVER}", engine=ProcessEngine(slow={1}))
    started = gang.ref.ask(Start(), block=False)
    gang.messages.until(lambda all_: any(isinstance(each, WorkerExited) for each in all_))
    gang.engine.hosts[1].let_launch()
    assert started.get(timeout=PATIENCE_S).keys() == {0, 1, 2, 3}
    result = gang.wait()
    assert (result.outcome, result.root_cause, result.failures[0].exitcode) == ("failed", 0, 3)
    assert [end.role for end in result.ends.values()] == ["root_cause", "bystander", "bystander", "bystander"]


def test_signals_reach_the_ranks_that_are_named(gangs: Any):
    gang = gangs(f"trap 'echo heard $RANK' USR1; {READY} while :; do wait; sleep 1000 & done")
    gang.start()
    gang.await_ready(ALL)
    assert gang.ask(Signal(sig=SIGUSR1, ranks=frozenset({1, 2}))) == {1, 2}
    wanted = {"[g1]:heard 1\n", "[g2]:heard 2\n"}
    gang.lines.until(lambda all_: wanted <= {line for _, line in all_})
    gang.ask(Close())
    assert not [line for line in gang.shown() if "heard 0" in line or "heard 3" in line]


def test_status_has_a_row_for_each_rank(gangs: Any):
    gang = gangs(f"trap 'exit 0' USR1; {RUNS}")
    pids = gang.start()
    gang.await_ready(ALL)
    gang.ask(Signal(sig=SIGUSR1, ranks=frozenset({1})))
    gang.messages.until(lambda all_: any(isinstance(each, WorkerExited) for each in all_))
    status = gang.ask(Status())
    assert (status.phase, status.attempt, status.pids, status.running) == ("running", 0, pids, {0, 2, 3})
    assert {rank: row.state for rank, row in status.ranks.items()} == {
        0: "ready",
        1: "finished",
        2: "ready",
        3: "ready",
    }


def test_subscribers_hear_of_the_start_each_exit_and_the_end(gangs: Any):
    gang = gangs("exit 0")
    pids = gang.start()
    result = gang.wait()
    gang.messages.until(lambda all_: any(isinstance(each, GangFinished) for each in all_))
    said = gang.messages.all
    assert [each.pids for each in said if isinstance(each, GangStarted)] == [pids]
    exits = {each.local_rank: (each.pid, each.exitcode) for each in said if isinstance(each, WorkerExited)}
    assert exits == {rank: (pid, 0) for rank, pid in pids.items()}
    assert [each.result for each in said if isinstance(each, GangFinished)] == [result]


def test_events_name_their_host_and_come_in_order(gangs: Any):
    gang = gangs(f"trap 'exit 0' USR1; {RUNS}")
    gang.start()
    gang.await_ready(ALL)
    gang.ask(Signal(sig=SIGUSR1))
    gang.wait()
    events = gang.events.all
    names = [event["event"] for event in events]
    assert [name for name in names if ".gang." in name] == [
        "supervise.gang.starting",
        "supervise.gang.started",
        "supervise.gang.finished",
    ]
    for rank in ALL:
        own = [event["event"] for event in events if event.get("rank") == rank]
        assert own.index("supervise.process.started") < own.index("supervise.process.exited")
    for event in events:
        if event["event"].startswith("supervise.process."):
            number = event["host"]
            assert event["node_id"] == f"node{number}"
            assert event["rank"] // 2 == number
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)


def test_the_stacks_of_a_hang_name_the_host_and_the_global_ranks(gangs: Any, tmp_path: Path):
    script = "[ $RANK != 3 ] || echo begun; exec sleep 1000"  # a rank has no deadline before its first output
    logs = DefaultLogsSpecs(tmp_path, redirects=Std.ALL)
    gang = gangs(script, settings={"watchdog": Watchdog(output_timeout_s=1.0)}, logs_specs=logs)
    gang.start()
    assert gang.event("supervise.process.hung")["rank"] == 3
    stacks = gang.event("supervise.gang.stacks")
    assert stacks["host"] == 1
    assert all(place.startswith(("rank 2: ", "rank 3: ", "ranks 2-3: ")) for place in stacks["places"])
    text = Path(stacks["path"]).read_text()
    assert text.startswith("rank 3 hung: no output for ")
    told = gang.messages.until(lambda all_: any(isinstance(each, WorkerHung) for each in all_) and list(all_))
    assert [(each.local_rank, each.tier) for each in told if isinstance(each, WorkerHung)] == [(3, "output")]
    assert {each.local_rank for each in told if isinstance(each, WorkerStarted)} == {0, 1, 2, 3}
    assert re.findall(r"^rank (\d+), pid ", text, re.MULTILINE) == ["2", "3"]
    gang.ask(Close())


def test_status_has_the_steps_and_heartbeats_that_ranks_have_reported_to_their_hosts(gangs: Any):
    """A rank reports before it is ready, so the start has waited for that."""
    gang = gangs(entrypoint=ranks.reporting, settings={"ready": "notify"})
    gang.start()
    deadline_s = time.monotonic() + PATIENCE_S
    rows = gang.ask(Status()).ranks
    while any(row.step is None for row in rows.values()):  # a host may take longer than a second to answer
        assert time.monotonic() < deadline_s
        rows = gang.ask(Status()).ranks
    assert {rank: (row.step, row.status) for rank, row in rows.items()} == {
        rank: (10 * rank, f"epoch of {rank}") for rank in ALL
    }
    before = {rank: row.beat_age_s for rank, row in rows.items()}
    assert all(age_s is not None and 0 <= age_s < PATIENCE_S for age_s in before.values())
    gang.engine.hosts[1].cut()
    rows = gang.ask(Status()).ranks
    assert [row.step for row in rows.values()] == [0, 10, 20, 30], "the last that a silent host has told"
    assert all(row.beat_age_s > before[rank] for rank, row in rows.items())
    gang.engine.hosts[1].join()
    result = gang.ask(Close())
    assert result.outcome == "stopped"
    assert [row.step for row in gang.ask(Status()).ranks.values()] == [0, 10, 20, 30]
