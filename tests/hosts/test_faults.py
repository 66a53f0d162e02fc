"""Gangs over hosts that are real processes, with a short lease: deaths, stops, cut links, and restarts."""

import os
import re
import subprocess
import sys
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

import pytest

from supervise import (
    Close,
    GangFailed,
    GangRestarting,
    GangStarted,
    RestartPolicy,
    Signal,
    Start,
    Status,
    SuperviseError,
)
from supervise.messages import WorkerExited
from tests.hosts import ranks
from tests.hosts.engine import ROOT, ProcessEngine, lost_node
from tests.hosts.gangs import FOREVER, READY, RUNS, Gang, keeper_of, watched
from tests.hosts.world import do_not_wait_for_the_lease
from tests.patience import PATIENCE_S

ALL = range(4)
LEASE_S = 6.0
"""Longer than a machine stands still: a host whose lease ends meanwhile is lost, too."""
SOON_S = 20.0
"""Within it the other hosts know of a death that the kernel reports. On an idle machine it is some milliseconds."""
DRIVER = """
import sys, threading
from tests.hosts.gangs import RUNS, Gang

gang = Gang(RUNS, lease_s=float(sys.argv[1]))
gang.start()
gang.await_ready(range(4))
print(*gang.pids.values(), *(host.process.pid for host in gang.engine.hosts), flush=True)
threading.Event().wait()
"""
HOLDS = """
cd "$0"; e=e$SUPERVISE_EPOCH; exec 4>>$e.0 5>>$e.1 6>>$e.2 7>>$e.3
flock -s 4; flock -s 5; flock -s 6; flock -s 7
if [ $SUPERVISE_EPOCH -gt 0 ]; then flock -n -x e$((SUPERVISE_EPOCH - 1)).$RANK true || echo $RANK >> overlap; fi
"""
"""Each process of a rank holds four locks of its attempt; each rank of the next attempt must get one for itself."""


def of_host(pids: dict[int, int], number: int) -> list[int]:
    return [pid for rank, pid in pids.items() if rank // 2 == number]


def started(gang: Gang) -> dict[int, int]:
    pids = gang.start()
    gang.await_ready(ALL)
    return pids


def check_lost(result: Any, number: int, *, why: str) -> None:
    """The lost host is the cause, and is named; the other's ranks were stopped."""
    assert result.outcome == "failed"
    assert result.root_cause == 2 * number
    assert {rank: end.role for rank, end in result.ends.items()} == {
        rank: "bystander" if rank // 2 != number else "root_cause" if rank == 2 * number else "lost" for rank in ALL
    }
    message = result.failures[2 * number].message
    assert message.startswith(f"host {number} (h{number}, 127.0.0.1, node node{number}): lost since 20")
    assert why in message
    logs = re.search(r"^its logs on that host: (\S+stdout\.log), (\S+stderr\.log)$", message, re.MULTILINE)
    assert logs is not None, message
    assert [Path(path).read_text().split()[:1] for path in logs.groups()] == [["ready"], []]
    assert (result.stdouts[2 * number], result.stderrs[2 * number]) == logs.groups()
    check_report(result, number)


def check_report(result: Any, number: int) -> None:
    """The report says of the ranks of the lost host what is known, and nothing that an exit status would tell."""
    end = result.ends[2 * number]
    assert 0 < end.started_ns < end.ended_ns
    head, *rows = str(GangFailed(result)).split("\n")
    lost = f"lost with host {number}, h{number}"
    assert head.startswith(f"rank {2 * number} of 4 failed: {lost} (host h{number}, pid {end.pid}, after "), head
    message = result.failures[2 * number].message.split("\n")
    assert [row.strip() for row in rows[1 : 1 + len(message)]] == message
    assert f"  rank {2 * number + 1}: {lost}" in rows
    told = "\n".join([head, *rows])
    assert not re.search(r"exit code|exit status|SIGKILL|not recorded|after 0 ms", told), told


def test_a_killed_host_takes_its_ranks_with_it_and_stops_the_others(gangs: Any):
    gang = gangs(RUNS)
    pids = started(gang)
    with watched(of_host(pids, 1)) as its, watched(of_host(pids, 0)) as others:
        gang.engine.hosts[1].kill()
        assert its.gone_within(SOON_S)
        assert others.gone_within(SOON_S)
    check_lost(gang.wait(), 1, why="its process has ended")
    lost = gang.event("supervise.host.lost")
    assert (lost["host"], lost["node_id"], lost["host_name"]) == (1, "node1", "h1")


def test_the_result_of_a_killed_host_need_not_wait_for_its_lease(gangs: Any):
    """The keeper reports the deaths. The lease is a minute, longer than this test may take."""
    gang = gangs(RUNS)
    started(gang)
    gang.engine.hosts[0].kill()
    check_lost(gang.wait(), 0, why="its process has ended")


def test_without_a_report_of_the_keeper_the_result_waits_for_the_lease(gangs: Any):
    gang = gangs(RUNS, lease_s=LEASE_S, engine=ProcessEngine(has_notice=False))
    started(gang)
    gang.engine.hosts[0].kill()
    check_lost(gang.wait(), 0, why="its process has ended")


def test_a_stopped_host_is_dead_when_its_lease_is_over(gangs: Any):
    gang = gangs(RUNS, lease_s=LEASE_S)
    pids = started(gang)
    host = gang.engine.hosts[1].process.pid
    with watched([*of_host(pids, 1), host]) as its, watched(of_host(pids, 0)) as others:
        gang.engine.hosts[1].kill(SIGSTOP)
        assert its.gone_within(LEASE_S + SOON_S)
        assert others.gone_within(SOON_S)
    check_lost(gang.wait(), 1, why="")


def test_a_host_that_is_stopped_for_less_than_its_lease_runs_on(gangs: Any):
    gang = gangs(f"trap 'exit 0' USR1; {RUNS}")
    started(gang)
    gang.engine.hosts[1].kill(SIGSTOP)
    signaled = gang.ask(Signal(sig=10))
    gang.engine.hosts[1].kill(SIGCONT)
    assert signaled == set(ALL)
    assert gang.wait().outcome == "succeeded"


def test_a_link_that_is_down_for_less_than_the_lease_changes_nothing(gangs: Any):
    """What is said meanwhile comes later, once and in order."""
    gang = gangs(
        f"trap 'echo heard' USR1; trap 'exit 0' USR2; {READY} while :; do sleep 1000 & wait; done",
        engine=ProcessEngine(has_notice=False),
    )
    pids = started(gang)
    cut = gang.engine.hosts[1]
    cut.cut()
    for rank in (2, 3):
        os.kill(pids[rank], 10)
    gang.ask(Signal(sig=12, ranks=frozenset({0, 1})))
    gang.messages.until(lambda all_: sum(isinstance(each, WorkerExited) for each in all_) == 2)
    assert gang.ask(Status()).phase == "running"
    assert gang.ask(Status()).running == {2, 3}
    cut.join()
    gang.lines.until(lambda all_: {"[g2]:heard\n", "[g3]:heard\n"} <= {line for _, line in all_})
    gang.ask(Signal(sig=12, ranks=frozenset({2, 3})))
    assert gang.wait().outcome == "succeeded"
    assert gang.shown() == sorted([f"[g{rank}]:ready {rank}\n" for rank in ALL] + ["[g2]:heard\n", "[g3]:heard\n"])
    assert not [event for event in gang.events.all if event["event"] == "supervise.host.lost"]


def test_a_link_that_is_down_for_longer_ends_the_gang(gangs: Any):
    gang = gangs(RUNS, lease_s=LEASE_S, engine=ProcessEngine(has_notice=False))
    pids = started(gang)
    with watched(of_host(pids, 1)) as its, watched(of_host(pids, 0)) as others:
        gang.engine.hosts[1].cut()
        assert its.gone_within(LEASE_S + SOON_S)
        assert others.gone_within(SOON_S)
        gang.event("supervise.host.lost")
    check_lost(gang.wait(), 1, why="no contact for ")


def test_a_stop_that_meets_a_link_that_is_down_comes_later(gangs: Any):
    gang = gangs(RUNS, engine=ProcessEngine(has_notice=False))
    pids = started(gang)
    gang.engine.hosts[1].cut()
    closed = gang.ref.ask(Close(), block=False)
    with watched(of_host(pids, 0)) as others, watched(of_host(pids, 1)) as its:
        assert others.gone_within(PATIENCE_S)
        assert its.alive()
        gang.engine.hosts[1].join()
        assert closed.get(timeout=PATIENCE_S).outcome == "stopped"
        assert not its.alive()


def test_a_stop_that_overtakes_the_launch_prevents_it(gangs: Any):
    """The launch did not reach host 1 at first, and is repeated; meanwhile the gang is closed."""
    engine = ProcessEngine(loses_launch={1}, has_notice=False)
    gang = gangs(f"[ $RANK = 0 ] && exit 3; {FOREVER}", engine=engine)
    started = gang.ref.ask(Start(), block=False)
    gang.messages.until(lambda all_: any(isinstance(each, WorkerExited) for each in all_))
    gang.ask(Close())
    with pytest.raises(SuperviseError, match="was closed before its start had ended"):
        started.get(timeout=PATIENCE_S)
    names = [event["event"] for event in gang.events.all if event.get("host") == 1]
    assert "supervise.process.started" not in names


def test_a_killed_driver_leaves_no_rank_and_no_host(tmp_path: Path):
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(LEASE_S)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )
    assert driver.stdout is not None
    try:
        pids = [int(word) for word in driver.stdout.readline().split()]
        with watched(pids) as processes:
            assert len(processes.alive()) == 4 * 2 + 2
            driver.send_signal(SIGKILL)
            assert processes.gone_within(LEASE_S + SOON_S)
    finally:
        driver.kill()
        driver.wait()
        driver.stdout.close()


def test_a_killed_keeper_ends_the_gang(gangs: Any):
    """The next renewal finds it: without a keeper, a host that is cut off could compute forever."""
    gang = gangs(RUNS, lease_s=LEASE_S)
    pids = started(gang)
    with watched(pids.values()) as processes:
        os.kill(keeper_of(gang.engine.hosts[0].process.pid), SIGKILL)
        assert processes.gone_within(LEASE_S + SOON_S)
    check_lost(gang.wait(), 0, why="the keeper of the lease has ended")


def test_hosts_that_are_made_at_different_times_start(gangs: Any):
    """The first one waits for the last for longer than the lease: it has no ranks, so there is nothing to kill."""
    gang = gangs("exit 0", lease_s=5.0, engine=ProcessEngine(last_after_s=7.0))
    gang.start()
    assert gang.wait().outcome == "succeeded"


def test_a_restart_begins_when_nothing_of_the_attempt_is_left(gangs: Any, tmp_path: Path):
    """Four attempts: a rank fails, a host is killed, and the engine takes a host for dead whose ranks run on."""
    engine = ProcessEngine(keeps_cut=True)
    gang = gangs(**holding(tmp_path, attempts=4), lease_s=LEASE_S, engine=engine)
    first = gang.start()
    gang.await_ready(ALL)
    with watched(first.values()) as before:
        gang.ask(Signal(sig=10, ranks=frozenset({3})))
        second = attempt(gang, 1, ready=True)
        assert before.alive() == set()
    with watched(second.values()) as before:
        gang.engine.hosts[0].kill()
        third = attempt(gang, 2, ready=True)
        assert before.alive() == set()
    with watched(third.values()) as before:
        engine.hosts[1].cut(lost_node())
        attempt(gang, 3)
        assert before.alive() == set()
    result = gang.wait()
    assert result.outcome == "succeeded"
    assert [(each.local_rank, each.attempt, each.counted) for each in result.restarts] == [
        (rank, number, rank == root) for number, root in ((0, 3), (1, 0), (2, 2)) for rank in ALL
    ]
    assert not (tmp_path / "overlap").exists()
    assert len(list(tmp_path.iterdir())) == 16


def holding(folder: Path, *, attempts: int) -> dict[str, Any]:
    """Return the settings of a gang whose ranks hold locks; its last attempt succeeds."""
    script = f"{HOLDS} trap 'exit 9' USR1; {READY} [ $SUPERVISE_EPOCH = {attempts - 1} ] || {{ {FOREVER}; }}"
    policy = RestartPolicy(max_restarts=attempts - 1, backoff=0.0)
    return {"entrypoint": "sh", "args": ("-c", script, str(folder)), "restart_policy": policy}


@pytest.mark.stress  # it tests the test above
def test_the_locks_find_a_restart_that_does_not_wait_for_the_lease(
    gangs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A planted bug of the core: the test above can fail."""
    do_not_wait_for_the_lease(monkeypatch)
    engine = ProcessEngine(keeps_cut=True)
    gang = gangs(**holding(tmp_path, attempts=2), engine=engine)
    started(gang)
    engine.hosts[1].cut(lost_node())
    gang.wait()
    assert (tmp_path / "overlap").exists()


def attempt(gang: Gang, number: int, *, ready: bool = False) -> dict[int, int]:
    """Wait until an attempt has started, and with `ready` until its ranks are ready; return its pids."""
    pids: dict[int, int] = gang.messages.until(
        lambda all_: [each.pids for each in all_ if isinstance(each, GangStarted)][number:][:1]
    )[0]
    if ready:
        gang.lines.until(lambda all_: sum("ready" in line for _, line in all_) == 4 * (number + 1))
    return pids


def test_the_limit_of_restarts_is_that_of_the_whole_gang(gangs: Any):
    policy = RestartPolicy(max_restarts=2, backoff=0.0)
    gang = gangs(fails_in_turn(), restart_policy=policy)
    gang.start()
    for number in range(3):
        attempt(gang, number)
        gang.lines.until(lambda all_, n=number: sum("ready" in line for _, line in all_) == 4 * (n + 1))
        gang.ask(Signal(sig=10))
    result = gang.wait()
    assert (result.outcome, result.root_cause, result.failures[result.root_cause].exitcode) == ("failed", 3, 7)
    said = [(each.attempt, each.max_restarts) for each in gang.messages.all if isinstance(each, GangRestarting)]
    assert said == [(1, 2), (2, 2)]
    assert result.restarts_total == 8


def test_a_rank_that_fails_before_it_is_ready_in_a_restart_is_the_root_cause(gangs: Any):
    """As on one host, with its exit code for the policy and its stderr. Only a first start fails because of it."""
    policy = RestartPolicy(max_restarts=3, backoff=0.0, never_restart_exit_codes=frozenset({7}))
    gang = gangs(entrypoint=ranks.unready, settings={"ready": "notify"}, restart_policy=policy)
    gang.start()
    gang.ask(Signal(sig=10, ranks=frozenset({0})))
    result = gang.wait()
    end = result.ends[3]
    assert (result.outcome, result.root_cause, list(result.failures), end.exitcode) == ("failed", 3, [3], 7)
    assert (end.stderr_tail, end.started_ns > 0) == ("no checkpoint", True)
    assert {each.attempt for each in result.restarts} == {0}
    assert [each["attempt"] for each in gang.events.all if each["event"] == "supervise.gang.started"] == [0]


def fails_in_turn() -> str:
    """Rank 1 fails in attempt 0, rank 2 in attempt 1, rank 3 in attempt 2, when it gets SIGUSR1."""
    return f"trap '[ $RANK = $((SUPERVISE_EPOCH + 1)) ] && exit 7' USR1; {READY} while :; do sleep 1000 & wait; done"


@pytest.mark.parametrize(("code", "attempts"), [(75, 3), (9, 1), (3, 2)])
def test_exit_codes_of_the_policy(gangs: Any, tmp_path: Path, code: int, attempts: int):
    """75 is not counted: two restarts, although one is allowed; then it succeeds. 9 never restarts."""
    policy = RestartPolicy(
        max_restarts=1, backoff=0.0, uncounted_exit_codes=frozenset({75}), never_restart_exit_codes=frozenset({9})
    )
    script = f"trap '[ $SUPERVISE_EPOCH = 2 ] && exit 0; exit {code}' USR1; {RUNS}"
    gang = gangs(script, restart_policy=policy)
    gang.start()
    for number in range(attempts):
        attempt(gang, number)
        gang.lines.until(lambda all_, n=number: sum("ready" in line for _, line in all_) == 4 * (n + 1))
        gang.ask(Signal(sig=10, ranks=None if number == 2 else frozenset({1})))
    result = gang.wait()
    assert result.outcome == ("succeeded" if code == 75 else "failed")
    assert len(gang.engine.attempts) == attempts
    assert sum(each.counted for each in result.restarts) == (code == 3)


def test_no_room_for_a_restart_is_the_error_of_the_gang(gangs: Any):
    engine = ProcessEngine(attempts=1)
    gang = gangs(f"trap 'exit 9' USR1; {RUNS}", engine=engine, restart_policy=RestartPolicy(backoff=0.0))
    started(gang)
    gang.ask(Signal(sig=10, ranks=frozenset({0})))
    with pytest.raises(SuperviseError) as found:
        gang.wait()
    first, last = str(found.value).splitlines()
    assert first == "attempt 1 could not begin: [Errno 28] no room for the hosts"
    assert re.fullmatch(r"before it, g failed: rank 0 \(pid \d+\): exit code 9; see .*log", last), last
    assert isinstance(found.value.__cause__, OSError)


def test_a_close_during_the_backoff_ends_the_gang_with_the_failure(gangs: Any):
    gang = gangs(f"trap 'exit 9' USR1; {RUNS}", restart_policy=RestartPolicy(backoff=1000.0))
    started(gang)
    gang.ask(Signal(sig=10, ranks=frozenset({0})))
    gang.event("supervise.gang.restarting")
    assert gang.ask(Status()).phase == "restarting"
    result = gang.ask(Close())
    assert (result.outcome, result.root_cause) == ("failed", 0)
    assert (result.restarts, result.restarts_total) == ([], 0)


def test_news_of_an_earlier_attempt_are_refused(gangs: Any):
    """The first attempt's host 1 is cut off, and its link comes up again during the second attempt."""
    engine = ProcessEngine(has_notice=False, keeps_cut=True)
    policy = RestartPolicy(max_restarts=1, backoff=0.0)
    gang = gangs(f"trap 'exit 0' USR1; {RUNS}", engine=engine, lease_s=LEASE_S, restart_policy=policy)
    started(gang)
    old = engine.hosts[1]
    old.cut()
    second = attempt(gang, 1)
    restarting = gang.event("supervise.gang.restarting")
    assert (restarting["root_cause_rank"], restarting["error_type"]) == (2, "lost with host 1, h1")
    old.join()
    gang.lines.until(lambda all_: sum("ready" in line for _, line in all_) == 8)
    with watched(second.values()) as processes:
        assert gang.ask(Status()).phase == "running"
        assert len(processes.alive()) == 8
    gang.ask(Signal(sig=10))
    assert gang.wait().outcome == "succeeded"


def test_many_processes_of_a_rank_end_with_the_lease(gangs: Any):
    """Also those whose leader has ended: the host was killed while it swept them."""
    gang = gangs(f"trap '' TERM; {READY} sleep 1000 & exit 0", settings={"grace": 1000}, nnodes=1)
    gang.start()
    pids = gang.pids
    gang.lines.until(lambda all_: sum("ready" in line for _, line in all_) == 2)
    gang.events.until(lambda all_: sum(event["event"] == "supervise.process.exited" for event in all_) == 2)
    with watched(pids.values()) as processes:
        assert len(processes.alive()) == 2
        gang.engine.hosts[0].kill()
        assert processes.gone_within(SOON_S)
