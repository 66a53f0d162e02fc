"""Row S10: the one grace holds on every path that stops ranks, from the first signal to SIGKILL."""

import os
import signal

import pytest

from supervise import DefaultLogsSpecs, RestartPolicy, SpecError, Start, start_processes
from tests.patience import PATIENCE_S
from tests.processes.gangs import Stopwatch, each_kind, faulty, launched
from tests.processes.work import BLOCK, LOOK

DEAF = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); say('deaf')\nwhile True: {BLOCK}"
FAR_LESS_THAN_30_S = 20.0


@each_kind
def test_s10_the_grace_holds_in_the_next_attempt(tmp_path, kind):
    fails = "wait_for_word()\nos._exit(3)"
    policy = RestartPolicy(max_restarts=1, backoff=0.0)
    with faulty(tmp_path, kind, [DEAF, fails], grace=0.5, restart_policy=policy) as gang, Stopwatch() as taken:
        for _ in range(2):
            assert gang.hear() == ["deaf"]
            gang.tell(1)
        assert gang.wait().failures[1].exitcode == 3
    assert 0.9 < taken.seconds < FAR_LESS_THAN_30_S


def test_s10_the_grace_holds_when_the_time_of_a_gang_is_up(tmp_path):
    with faulty(tmp_path, "fork", [DEAF], grace=0.5, timeout=8.0) as gang:
        assert gang.hear() == ["deaf"]
        with Stopwatch() as taken:
            result = gang.wait()
    assert (result.outcome, result.ends[0].exitcode) == ("timed_out", -signal.SIGKILL)
    assert taken.seconds < FAR_LESS_THAN_30_S


@pytest.mark.parametrize("late", ["one cannot be started", "one fails before all run"])
def test_s10_the_grace_holds_when_a_start_fails(tmp_path, breaking, late):
    """The start goes on when its first rank ignores SIGTERM, and where a rank is to fail, when that is dead."""
    pids, gangs = {}, []

    def wait_for_ranks(event):
        if event["event"] != "supervise.process.started":
            return
        pids[event["local_rank"]] = event["pid"]
        if event["local_rank"] == 0:
            gangs[0].hear()
        elif event["local_rank"] == 2:
            os.waitid(os.P_PID, pids[1], os.WEXITED | os.WNOWAIT)

    deaf = "trap '' TERM; echo deaf > $EAR; while :; do sleep 1000; done"
    sources = [deaf, "exit 3", *["exec sleep 1000"] * 22]  # so many that the death is noticed before all run
    args = {rank: ("-c", source) for rank, source in enumerate(sources)}
    if late == "one cannot be started":
        args[1] = ("x" * (1 << 20),)
        breaking.instead("check of arguments", lambda *_: None)
    with launched(tmp_path, "sh", args, grace=0.5, event_sink=wait_for_ranks) as gang:
        gangs.append(gang)
        with Stopwatch() as taken:
            if late == "one cannot be started":
                with pytest.raises(OSError, match="rank 1 could not be started"):
                    gang.supervisor.ask(Start(), timeout=PATIENCE_S * 2)
            else:
                gang.ask(Start())
                assert gang.wait().failures[1].exitcode == 3
    assert 0.4 < taken.seconds < FAR_LESS_THAN_30_S


def test_s10_no_exit_of_a_rank_gives_the_others_more_time(tmp_path):
    """One deadline, set at the first signal: ranks that end while the gang is being stopped do not move it."""

    def slow(seconds):
        wait = f"__import__('select').select([], [], [], {seconds})"
        return f"signal.signal(signal.SIGTERM, lambda *_: ({wait}, os._exit(0)))\nsay('slow')\nwhile True: {LOOK}"

    with faulty(tmp_path, "fork", [DEAF, slow(4.0), slow(6.0), slow(7.6)], grace=8.0) as gang:
        gang.hear(4)
        with Stopwatch() as taken:
            result = gang.close()
    assert result.ends[0].exitcode == -signal.SIGKILL
    assert 7.9 < taken.seconds < 15.4


def test_the_close_of_a_context_takes_inf_and_refuses_nan():
    """`inf` is a time for PyTorch's callers; `nan` must not be taken for 0, which kills."""
    with start_processes("w", "sleep", {0: ("1000",)}, logs_specs=DefaultLogsSpecs(os.devnull)) as context:
        with pytest.raises(SpecError, match="timeout is nan"):
            context.close(timeout=float("nan"))
        assert context.wait(0) is None
        context.close(timeout=float("inf"))
        assert context.wait(0).outcome == "stopped"
