"""A run that is restarted, one whose rank is stopped by somebody, and one that leaves something behind."""

import json
import os
import re
import signal
import sys
from types import SimpleNamespace

import psutil
import pytest

from supervise import messages as say
from supervise.cli.options.options import parse
from supervise.cli.run.console import Console
from supervise.cli.run.progress import Progress
from supervise.cli.run.rank_stdin import RankStdin
from supervise.cli.run.run import _Run
from supervise.cli.run.signal_inbox import SignalInbox
from tests.cli.command import HANG, Command
from tests.patience import PATIENCE_S

FLAKY = "echo attempt $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; [ $TORCHELASTIC_RESTART_COUNT -ge 2 ]"


def test_a_run_is_restarted_until_it_succeeds(supervise: Command):
    run = supervise.run("--max-restarts", "2", "--backoff", "0.01", "--", "sh", "-c", FLAKY)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [f"[default0]:attempt {n} of 2" for n in range(3)]
    [first, second] = [line for line in run.stderr.splitlines() if "; restart" in line]
    assert first.startswith("supervise: rank 0 failed (exit code 1); restart 1 of 2 in ")
    assert second.startswith("supervise: rank 0 failed (exit code 1); restart 2 of 2 in ")
    assert "supervise: succeeded after 2 restarts\n" in run.stderr
    folder = supervise.directory()
    assert sorted(path.name for path in folder.glob("attempt_*")) == ["attempt_0", "attempt_1", "attempt_2"]
    assert json.loads((folder / "result.json").read_text())["outcome"] == "succeeded"
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert [event["attempt"] for event in events if event["event"] == "supervise.process.exited"] == [0, 1, 2]


@pytest.mark.parametrize("strategy", ["one_for_one", "rest_for_one"])
def test_a_success_after_restarts_of_single_ranks_counts_them(supervise: Command, strategy: str):
    """On the screen, in result.json, and in what `show`, `ls` and `report` say."""
    words = ("--strategy", strategy, "--max-restarts", "3", "--backoff", "0", "--", "sh", "-c")
    run = supervise.run("-n", "2", *words, "[ $RANK = 1 ] || [ $TORCHELASTIC_RESTART_COUNT -ge 2 ]")
    assert run.returncode == 0
    assert run.stderr.count("succeeded after 2 restarts") == 1
    folder = supervise.directory()
    assert json.loads((folder / "result.json").read_text())["restarts"] == 2
    assert supervise.supervise("show", folder.name).stdout.startswith(f"{folder.name}: succeeded after 2 restarts\n")
    assert "  succeeded after 2 restarts  " in supervise.supervise("ls").stdout
    assert json.loads(supervise.supervise("ls", "--json").stdout)["state"] == "succeeded"
    supervise.supervise("report", folder.name)
    assert f"<title>{folder.name}: succeeded after 2 restarts</title>" in (folder / "report.html").read_text()


STOPS_SLOWLY = 'trap "sleep 2; exit" TERM; sh -c "touch up; exec sleep 1000" & wait $!'
"""A signal that comes before the exec of the child would be lost there."""


@pytest.mark.parametrize("words", [("--keep-going",), ("--strategy", "one_for_one"), ("--file", "temporary.toml")])
def test_a_failure_after_which_the_others_continue_is_said_at_once(supervise: Command, words: tuple[str, ...]):
    """Rank 0 succeeds."""
    script = f"[ $RANK = 2 ] || exit $((RANK * 5)); {STOPS_SLOWLY}"
    keys = 'strategy = "one_for_one"\nmax-restarts = 1\n[roles.w]\ncount = 3\nrestart = "temporary"\n'
    (supervise.tmp_path / "temporary.toml").write_text(f"{keys}command = ['sh', '-c', {json.dumps(script)}]\n")
    role, command = (" (w 1)", ()) if "--file" in words else ("", ("-n", "3", "sh", "-c", script))
    with supervise.started(*words, *command) as run:
        run.hear_error(f"supervise: rank 1{role} ended (exit code 5); the gang continues\n")
        run.signal(signal.SIGTERM)
        assert "the gang continues" not in run.end()[2]


BEFORE = {
    "all ranks restart": (
        "one_for_all",
        "until [ -e job ] && ! kill -0 $(cat job) 2>/dev/null; do sleep 0.01; done",  # it was reaped
        "echo $$ > new; mv new job",
    ),
    "a rank left a process": ("one_for_one", "sleep 1000 &", "until [ -e up ]; do sleep 0.01; done"),
}


@pytest.mark.parametrize("before", BEFORE)
def test_a_failure_beside_a_restart_is_said(supervise: Command, before: str):
    """Of a rank that stays down. The run has not given up on its restarts when it ends."""
    strategy, web, job = BEFORE[before]
    again = "if [ -e web ]; then touch up; until [ -e end ]; do sleep 0.01; done; exit 0; fi\ntouch web"
    (supervise.tmp_path / "web.sh").write_text(f"{again}\n{web}\nexit 3\n")
    (supervise.tmp_path / "job.sh").write_text(f"{job}\nexit 4\n")
    (supervise.tmp_path / "gang.toml").write_text(
        f'strategy = "{strategy}"\nmax-restarts = 2\nbackoff = 0.0\n'
        '[roles.web]\ncommand = "sh web.sh"\n[roles.job]\nrestart = "temporary"\ncommand = "sh job.sh"\n'
    )
    with supervise.started("--file", "gang.toml") as run:
        run.hear_error("supervise: rank 1 (job 0) ended (exit code 4); the gang continues\n")
        (supervise.tmp_path / "end").touch()
        code, _, err = run.end()
    assert (code, "gave up" in err) == (4, False)


@pytest.mark.parametrize("strategy", ["one_for_all", "rest_for_one"])
def test_a_failure_that_stops_the_others_is_not_said_to_leave_them(supervise: Command, strategy: str):
    """Also while they end slowly."""
    script = f"[ $RANK = 1 ] || {{ until [ -e up ]; do sleep 0.01; done; exit 5; }}; {STOPS_SLOWLY}"
    done = supervise.run("-n", "2", "--strategy", strategy, "sh", "-c", script)
    assert (done.returncode, "the gang continues" in done.stderr) == (5, False)


@pytest.mark.parametrize(
    ("strategy", "first", "last"),
    [
        ("one_for_all", "failed (exit code 75); restart 1 (0 of 1 count) in ", "restart 2 (1 of 1 count) in "),
        (
            "one_for_one",
            "ended (exit code 75); restart 1 of this rank (0 of 1 count) in ",
            "restart 2 of this rank (1 of 1 count) in ",
        ),
    ],
)
def test_the_line_of_a_restart_has_the_number_that_count(supervise: Command, strategy: str, first: str, last: str):
    """If others do not count, so that no number is above the limit without an explanation; the events have it, too."""
    words = ("--max-restarts", "1", "--backoff", "0.01", "--uncounted-exit-codes", "75", "--strategy", strategy)
    run = supervise.run(*words, "sh", "-c", "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 75; exit 4")
    assert run.returncode == 4
    lines = [line for line in run.stderr.splitlines() if "; restart" in line]
    assert [first in lines[0], last in lines[1]] == [True, True], lines
    events = [json.loads(line) for line in (supervise.directory() / "events.jsonl").read_text().splitlines()]
    assert [event["restarts"] for event in events if event["event"].endswith(".restarting")] == [0, 1]


def test_when_the_restarts_are_used_up_the_last_failure_is_the_exit_code(supervise: Command):
    run = supervise.run(
        "--max-restarts", "1", "--backoff", "0", "--", "sh", "-c", "exit $((5 + TORCHELASTIC_RESTART_COUNT))"
    )
    assert run.returncode == 6
    assert "rank 0 failed (exit code 5); restart 1 of 1 now\n" in run.stderr
    [headline] = [line for line in run.stderr.splitlines() if "rank 0 failed: exit code 6" in line]
    assert headline.endswith("; gave up after 1 restart")
    assert json.loads((supervise.directory() / "result.json").read_text())["attempts"] == 2


@pytest.mark.parametrize("strategy", ["one_for_one", "rest_for_one"])
def test_the_headline_counts_the_restarts_of_single_ranks(supervise: Command, strategy: str):
    """Those of all ranks together, as the limit does."""
    restarts = ("--strategy", strategy, "--max-restarts", "2", "--backoff", "0")
    first = "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 4; touch again"
    then = "until [ -e again ]; do sleep 0.01; done; exit 3"  # once the next life of rank 0 runs
    run = supervise.run(
        "-n", "2", *restarts, "--", "sh", "-c", f"if [ $RANK = 0 ]; then {first}; else {then}; fi; {HANG}"
    )
    [headline] = [line for line in run.stderr.splitlines() if " of 2 failed: exit code 3" in line]
    assert headline.endswith("; gave up after 2 restarts")
    assert "rank 0 ended (exit code 4); restart 1 of this rank now\n" in run.stderr


def test_the_headline_counts_failures_beside_a_restart(supervise: Command):
    """Two ranks fail at the same time, so that one restart that is left is not enough."""
    words = ("--strategy", "one_for_one", "--max-restarts", "2", "--backoff", "1000", "--run-id", "job", "-n", "3")
    script = "[ $RANK = 0 ] && exit 4; touch up$RANK; [ $RANK = 2 ] && until [ -e up1 ]; do sleep 0.01; done; "
    with supervise.started(*words, "sh", "-c", f"{script} echo up; {HANG}") as run:
        run.hear_error("restart 1 of this rank")
        run.hear()
        run.hear()
        supervise.supervise("restart", "job", "0")  # does not wait for its backoff
        supervise.supervise("signal", "job", "KILL", "1,2")
        _, _, err = run.end()
    [headline] = [line for line in err.splitlines() if " of 3 failed: " in line]
    assert headline.endswith("; no restart is left after 3 failures")


@pytest.mark.parametrize("strategy", ["one_for_all", "one_for_one"])
def test_a_restart_by_request_is_no_restart_after_a_failure(supervise: Command, strategy: str):
    """It raises the number of the next life."""
    words = ("--strategy", strategy, "--max-restarts", "1", "--backoff", "0", "--run-id", "job")
    with supervise.started(*words, "sh", "-c", f"echo up; {HANG}") as run:
        for command in (("restart", "job", "0"), ("restart", "job", "0"), ("signal", "job", "KILL")):
            run.hear()
            assert supervise.supervise(*command).returncode == 0
        run.hear()
        supervise.supervise("signal", "job", "KILL")
        _, _, err = run.end()
    assert ("; restart 1 of 1 now\n" if strategy == "one_for_all" else "restart 3 of this rank (1 of 1 count)") in err
    assert "gave up after 1 restart\n" in err
    result = json.loads((supervise.directory() / "result.json").read_text())
    assert (result["restarts"], result["attempts"]) == (1, 2)


@pytest.mark.parametrize("strategy", ["one_for_one", "rest_for_one"])
@pytest.mark.parametrize("words", [("--max-restarts", "0"), ()])
def test_no_restarts_are_no_policy(supervise: Command, strategy: str, words: tuple[str, ...]):
    """Under these strategies, a failure then stops no other rank, as without the option."""
    seen = f"grep -q '\"exit_code\":.*3' {supervise.tmp_path}/runs/*/events.jsonl"
    script = f"[ $RANK = 1 ] && exit 3; until {seen}; do sleep 0.01; done; echo finished"
    run = supervise.run("-n", "2", "--strategy", strategy, *words, "--", "sh", "-c", script)
    assert (run.returncode, run.stdout) == (3, "[default0]:finished\n")


def test_a_rank_that_is_never_restarted_was_not_given_up(supervise: Command):
    words = ("--strategy", "one_for_one", "--restart", "temporary", "--max-restarts", "2")
    run = supervise.run("-n", "2", *words, "--", "sh", "-c", "exit 3")
    [headline] = [line for line in run.stderr.splitlines() if " of 2 failed: exit code 3" in line]
    assert "gave up" not in headline


def test_a_success_of_a_permanent_rank_is_not_called_a_failure(supervise: Command):
    run = supervise.run("--restart", "permanent", "--max-restarts", "1", "--backoff", "0", "--", "true")
    assert run.returncode == 1, "no restart is left"
    assert "rank 0 ended (exit code 0); restart 1 of 1 now\n" in run.stderr
    shown = supervise.supervise("show", str(supervise.directory())).stdout
    assert "rank 0 ended (exit code 0); restart 1" in shown


@pytest.mark.parametrize("strategy", ["one_for_all", "one_for_one"])
@pytest.mark.parametrize(
    ("what", "code", "why"), [("rm", 127, "No such file or directory"), ("chmod 600", 126, "Permission denied")]
)
def test_r6_a_program_that_is_gone_in_a_restart_has_the_exit_code_of_shells(
    supervise: Command, strategy: str, what: str, code: int, why: str
):
    """The report says why it could not be started, each announcement of a restart too, and `show` as well."""
    program = supervise.tmp_path / "once"
    program.write_text(f"#!/bin/sh\n{what} $0\nexit 3\n")
    program.chmod(0o700)
    run = supervise.run("--strategy", strategy, "--max-restarts", "2", "--backoff", "0", "./once")
    assert run.returncode == code, run.stderr
    lines = run.stderr.splitlines()
    assert f"supervise: rank 0 failed: attempt 2 could not be started: {why}: './once' (host " in lines[-2]
    assert lines[-2].partition("(host ")[2].partition(", ")[2].startswith("no process)")
    assert lines[-1].startswith("  logs: ")
    second = [line for line in lines if "; restart 2 of " in line]
    assert len(second) == 1
    assert f"could not be started: {why}: './once'" in second[0]
    result = json.loads((supervise.directory() / "result.json").read_text())
    assert result["outcome"] == "failed"
    shown = supervise.supervise("show", str(supervise.directory())).stdout
    assert f"attempt 2 could not be started: {why}: './once'" in shown


@pytest.mark.parametrize(("sig", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_the_wait_ends_the_run_at_once(supervise: Command, sig: signal.Signals, code: int):
    """It was the user who ended it, and the screen says so; nobody is there to be stopped."""
    with supervise.started("--max-restarts", "3", "--backoff", "60", "--", "sh", "-c", "exit 3") as run:
        run.hear_error("restart 1 of 3")
        run.signal(sig)
        returncode, _, said = run.end()
    assert returncode == code
    assert "rank 0 failed: exit code 3" in said
    assert f"; no restart 1 of 3: stopped by {'SIGINT (Ctrl-C)' if sig == signal.SIGINT else sig.name}\n" in said
    assert "stopping" not in said
    assert json.loads((supervise.directory() / "result.json").read_text())["exit_code"] == code


@pytest.mark.parametrize(("limit", "gave_up"), [("1", True), ("2", False)])
def test_a_stop_after_the_last_failure_does_not_hide_that_restarts_are_used_up(
    supervise: Command, limit: str, gave_up: bool
):
    """The user stops the run while the last failure is being cleaned up."""
    deaf = "trap '' TERM; touch deaf; while :; do sleep 0.1; done"
    late = f"if [ $RANK = 0 ]; then {deaf}; else until [ -e deaf ]; do sleep 0.1; done; exit 3; fi"
    script = f"[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 4; {late}"
    words = ("-n", "2", "--max-restarts", limit, "--backoff", "0", "--shutdown-timeout", "1000")
    with supervise.started(*words, "--", "sh", "-c", script) as run:
        run.hear_error("rank 1 failed (exit code 3): stopping 1 rank")
        run.signal(signal.SIGTERM)
        run.hear_error("SIGTERM: stopping 1 rank")
        run.signal(signal.SIGINT)
        said = run.end()[2]
    [headline] = [line for line in said.splitlines() if "rank 1 of 2 failed: exit code 3" in line]
    assert headline.endswith("; gave up after 1 restart") == gave_up


def test_the_time_limit_during_the_wait_is_the_reason(supervise: Command):
    """Exit code 124; the last failure is told, and while the restart is waited for nothing is said to be stopped."""
    words = ("-n", "2", "--timeout", "10", "--max-restarts", "20", "--backoff", "60")
    run = supervise.run(*words, "--", "sh", "-c", f'[ "$RANK" = 1 ] && exit 3; {HANG}')
    assert run.returncode == 124
    [headline] = [line for line in run.stderr.splitlines() if "rank 1 of 2 failed: exit code 3" in line]
    assert headline.endswith("; no restart 1 of 20: --timeout of 10 s exceeded")
    assert "exceeded: " not in run.stderr


@pytest.mark.parametrize("words", [("--backoff", "1"), ("--restart-window", "9"), ("--max-restarts", "-1")])
def test_restarts_that_make_no_sense_are_wrong_usage(supervise: Command, words: tuple[str, ...]):
    run = supervise.run(*words, "true")
    assert run.returncode == 2
    assert "restarts" in run.stderr


@pytest.mark.parametrize("value", ["1e300", "1.7e308", "inf", "nan", "9" * 5000])
def test_numbers_without_measure_are_wrong_usage(capsys: pytest.CaptureFixture[str], value: str):
    """No option takes one that would fail later, as nanoseconds or in a line."""
    options = ["--shutdown-timeout", "--timeout", "--restart-window", "--backoff"]
    for option in (*options, "--max-restarts", "-n", "--local-ranks-filter"):
        with pytest.raises(SystemExit, match="2"):
            parse(["--max-restarts", "1", option, value, "true"])
        said = capsys.readouterr().err
        assert f"{option}" in said
        assert " is not a " in said


def test_the_longest_times_do_no_harm(supervise: Command):
    """`sys.maxsize` is what programs pass for no limit."""
    longest = str(sys.maxsize)
    times = [word for option in ("--shutdown-timeout", "--timeout", "--restart-window") for word in (option, longest)]
    run = supervise.run("--max-restarts", "1", "--backoff", "0", *times, "--", "sh", "-c", "exit 3")
    assert run.returncode == 3
    with supervise.started("--max-restarts", "1", "--backoff", longest, "--", "sh", "-c", "exit 3") as waiting:
        waiting.hear_error("restart 1 of 1 in ")
        waiting.signal(signal.SIGINT)
        assert waiting.end()[0] == 130


def test_s11_a_stopped_rank_is_named_at_once(supervise: Command):
    with supervise.started("-n", "2", "--", "sh", "-c", f"echo $$; {HANG}") as run:
        pids = [int(line.partition(":")[2]) for line in run.hear(2)]
        os.kill(pids[1], signal.SIGSTOP)
        said = run.hear_error("was stopped by SIGSTOP")
        assert f"(pid {pids[1]})" in said
        assert f"kill -CONT {pids[1]}" in said
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(PATIENCE_S) == 128 + signal.SIGTERM


def test_s11_a_rank_that_is_stopped_right_at_its_start_is_named(supervise: Command):
    """Whenever in the start its SIGCHLD comes; here after a restart, whose start nobody waits for."""
    script = "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 1; kill -STOP $$"
    with supervise.started("-n", "4", "--max-restarts", "1", "--backoff", "0", "--", "sh", "-c", script) as run:
        said = sorted(run.hear_error("was stopped by SIGSTOP").split("(")[0] for _ in range(4))
        assert said == [f"supervise: rank {rank} " for rank in range(4)]
        run.signal(signal.SIGTERM)
        assert run.end()[0] == 128 + signal.SIGTERM


def test_s11_all_are_looked_at_when_a_start_is_over():
    """Once in every attempt: a SIGCHLD may have come before it was known whose it was."""
    told: list[object] = []
    options = parse(["--stdin", "none", "true"])
    run = _Run(options, Console("never"), SignalInbox((), restore=True), RankStdin(options, pytest.fail))
    run._gang = SimpleNamespace(tell=told.append)  # type: ignore[assignment]
    run._sort([{"event": "supervise.gang.starting"}])
    assert told == []
    run._sort([{"event": "supervise.gang.started"}])
    assert told == [say.Status()]


@pytest.mark.parametrize("containment", ["group", "sweep"])
def test_s4_what_leaves_its_group_is_named_and_ended_where_that_is_asked_for(supervise: Command, containment: str):
    leaves = "setsid sh -c 'touch apart; exec sleep 1000' & echo $!; until [ -e apart ]; do sleep 0.01; done"
    run = supervise.run("--containment", containment, "--", "sh", "-c", leaves)
    child = int(run.stdout.partition(":")[2])
    told = f"rank 0 left processes outside of its group (pid {child}): "
    assert told in run.stderr
    assert f"  {told}" in supervise.supervise("show").stdout
    assert run.returncode == 0
    lives = psutil.Process(child).status() != psutil.STATUS_ZOMBIE  # it is ours by now
    assert lives == (containment == "group")
    if containment == "group":
        assert "--containment sweep" in run.stderr
        os.kill(child, signal.SIGKILL)


def test_k1_behind_a_gate_a_run_is_as_any_other(supervise: Command):
    """Its exit code, what it shows, and what it says of a program that is not there."""
    run = supervise.run("--gate", "-n", "2", "--", "sh", "-c", "echo $RANK $#; exit 5", "sh", "a b", "")
    assert run.returncode == 5
    assert {"[default0]:0 2", "[default1]:1 2"} >= set(run.stdout.splitlines()) != set()
    run = supervise.run("--gate", "--no-python", "--", "no-such-program")
    assert run.returncode == 127
    assert "no-such-program" in run.stderr


def test_s4_of_many_that_left_the_first_are_named():
    """A line that a person can read, and how many there are."""
    console = Console("never")
    noted: list[str] = []
    console.note = noted.append  # type: ignore[method-assign]
    progress = Progress(parse(["true"]), console)
    event = {"event": "supervise.process.leaked", "timestamp": "2026-01-01T00:00:00+00:00"}
    event |= {"local_rank": 0, "ended": True}
    progress.take(event | {"descendants": list(range(101, 161))})
    progress.take(event | {"descendants": [101, 102]})
    assert noted == [
        "rank 0 left processes outside of its group (pid 101, 102, 103, 104, 105 and 55 more): ended",
        "rank 0 left processes outside of its group (pid 101, 102): ended",
    ]


def test_an_attempt_without_its_folder_is_a_failed_restart_and_no_timeout(supervise: Command):
    """A file has its name; a full disk has the same effect."""
    script = 'mkdir -p logs; [ $RANK = 0 ] && { : >"$(echo logs/*/)attempt_1"; exit 5; }; exec sleep 1000'
    done = supervise.run("-n", "2", "--max-restarts", "1", "--backoff", "0", "--log-dir", "logs", "sh", "-c", script)
    assert done.returncode == 2, done.stderr
    assert "rank 0 of 2 failed: attempt 1 could not be started: log_dir: " in done.stderr
    assert "; gave up after 1 restart\n" in done.stderr
    [run] = (supervise.tmp_path / "logs").iterdir()
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [it["attempt"] for it in events if it["event"] == "supervise.process.start_failed"] == [1]


def test_failures_that_use_up_the_restarts_before_one_takes_place_are_told(supervise: Command):
    """They come together, or while the others wait for their restarts."""
    words = ("--strategy", "one_for_one", "--max-restarts", "2", "--backoff")
    done = supervise.run("-n", "4", *words, "100", "sh", "-c", "[ $RANK != 3 ] || exec sleep 1000; exit 4")
    assert re.search(r"failed: exit code 4 \(host .*\); no restart is left after 3 failures\n", done.stderr), (
        done.stderr
    )
    done = supervise.run(*words, "0", "sh", "-c", "exit 4")
    assert "; gave up after 2 restarts\n" in done.stderr


@pytest.mark.parametrize(
    ("words", "script", "code"),
    [
        (("--max-restarts", "1", "--restart", "temporary"), "exit 4", 4),
        (("--max-restarts", "5", "--never-restart-exit-codes", "9"), "[ $RANK = 0 ] && exit 3; sleep 1; exit 9", 9),
        (
            ("--max-restarts", "1", "--restart-window", "100", "--timeout", "1"),
            "[ $RANK = 0 ] && exit 3; exec sleep 9",
            124,
        ),
    ],
    ids=["temporary", "never", "timeout"],
)
def test_other_reasons_why_no_restart_follows_are_no_used_up_limit(
    supervise: Command, words: tuple[str, ...], script: str, code: int
):
    words = ("-n", "2", "--strategy", "one_for_one", "--backoff", "100", *words)
    done = supervise.run(*words, "sh", "-c", script)
    assert (done.returncode, "no restart is left" in done.stderr) == (code, False), done.stderr
