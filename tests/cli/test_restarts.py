"""A run that is restarted, one whose rank is stopped by somebody, and one that leaves something behind."""

import json
import os
import signal

import psutil
import pytest

from tests.cli.command import HANG, Command

FLAKY = "echo attempt $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; [ $TORCHELASTIC_RESTART_COUNT -ge 2 ]"


def test_a_run_is_restarted_until_it_succeeds(supervise: Command):
    run = supervise.run("--max-restarts", "2", "--backoff", "0.01", "--", "sh", "-c", FLAKY)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [f"[default0]:attempt {n} of 2" for n in range(3)]
    [first, second] = [line for line in run.stderr.splitlines() if "restart" in line]
    assert first.startswith("supervise: rank 0 failed (exit code 1); restart 1 of 2 in ")
    assert second.startswith("supervise: rank 0 failed (exit code 1); restart 2 of 2 in ")
    folder = supervise.directory()
    assert sorted(path.name for path in folder.glob("attempt_*")) == ["attempt_0", "attempt_1", "attempt_2"]
    assert json.loads((folder / "result.json").read_text())["outcome"] == "succeeded"
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert [event["attempt"] for event in events if event["event"] == "supervise.process.exited"] == [0, 1, 2]


def test_when_the_restarts_are_used_up_the_last_failure_is_the_exit_code(supervise: Command):
    run = supervise.run(
        "--max-restarts", "1", "--backoff", "0", "--", "sh", "-c", "exit $((5 + TORCHELASTIC_RESTART_COUNT))"
    )
    assert run.returncode == 6
    assert "rank 0 failed: exit code 6" in run.stderr


def test_a_signal_during_the_wait_ends_the_run_at_once(supervise: Command):
    with supervise.started("--max-restarts", "3", "--backoff", "60", "--", "sh", "-c", "exit 3") as run:
        run.hear_error("restart 1 of 3")
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(30) == 3
        assert "rank 0 failed: exit code 3" in run.process.stderr.read()


@pytest.mark.parametrize("words", [("--backoff", "1"), ("--restart-window", "9"), ("--max-restarts", "-1")])
def test_restarts_that_make_no_sense_are_wrong_usage(supervise: Command, words: tuple[str, ...]):
    run = supervise.run(*words, "true")
    assert run.returncode == 2
    assert "restarts" in run.stderr


def test_s11_a_stopped_rank_is_named_at_once(supervise: Command):
    with supervise.started("-n", "2", "--", "sh", "-c", f"echo $$; {HANG}") as run:
        pids = [int(line.partition(":")[2]) for line in run.hear(2)]
        os.kill(pids[1], signal.SIGSTOP)
        said = run.hear_error("was stopped by SIGSTOP")
        assert f"(pid {pids[1]})" in said
        assert f"kill -CONT {pids[1]}" in said
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(30) == 128 + signal.SIGTERM


@pytest.mark.parametrize("containment", ["group", "sweep"])
def test_s4_what_leaves_its_group_is_named_and_ended_where_that_is_asked_for(supervise: Command, containment: str):
    run = supervise.run("--containment", containment, "--", "sh", "-c", "setsid sleep 1000 & echo $!; sleep 0.2")
    child = int(run.stdout.partition(":")[2])
    assert f"rank 0 left processes outside of its group (pid {child})" in run.stderr
    assert run.returncode == 0
    lives = psutil.Process(child).status() != psutil.STATUS_ZOMBIE  # it is ours by now
    assert lives == (containment == "group")
    if containment == "group":
        assert "--containment sweep" in run.stderr
        os.kill(child, signal.SIGKILL)
