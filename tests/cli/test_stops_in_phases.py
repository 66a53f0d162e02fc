"""A stop by a signal and by a command, and the end of the reader, in each phase of each strategy."""

import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.command import HANG, SUPERVISE, Command, Started, environment
from tests.patience import PATIENCE_S

STRATEGIES = ("one_for_all", "one_for_one", "rest_for_one")
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
each_way = pytest.mark.parametrize("way", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "supervise stop"])
ASKED = (
    "trap 'touch asked; until [ -e go ]; do sleep 0.05; done; exit 0' TERM; trap : INT HUP QUIT; touch deaf;"
    " while :; do sleep 0.05; done"
)
FAILS = "until [ -e deaf ]; do sleep 0.05; done; exit 3"
PHASES = {
    "start": f"echo up; {HANG}",
    "running": f"echo up; {HANG}",
    "waiting": f"[ $RANK = 0 ] && exit 3; {HANG}",
    "stopping others": f"if [ $RANK = 0 ]; then {FAILS}; else {ASKED}; fi",
    "stopping its own": f'if [ $RANK = 0 ]; then sh -c "$ASKED" & {FAILS}; else {HANG}; fi',
}
"""Phase to the script of two ranks."""
CASES = [
    (strategy, phase)
    for strategy in STRATEGIES
    for phase in PHASES
    if (strategy, phase) != ("one_for_one", "stopping others")
]


def until_exists(supervise: Command, name: str) -> None:
    """Wait until a rank has made this file."""
    end_s = time.monotonic() + PATIENCE_S
    while not (supervise.tmp_path / name).exists():
        assert time.monotonic() < end_s
        select.select([], [], [], 0.02)


@contextmanager
def stopped(supervise: Command, run: Started, way: str) -> Iterator[int]:
    """Ask for the stop of a run; yield the exit code that it must have. A command is waited for at the end."""
    if way == "supervise stop":
        with supervise.started_command("stop", "job") as command:
            yield 128 + signal.SIGTERM
            assert command.end()[0] == 0
    else:
        run.signal(signal.Signals[way])
        yield 128 + signal.Signals[way]


@each_way
@pytest.mark.parametrize(("strategy", "phase"), CASES)
def test_t8_a_stop_in_each_phase_has_its_exit_code_and_its_words(
    supervise: Command, strategy: str, phase: str, way: str
):
    """The result is that of the library; the exit code and the first line of the report tell the stop."""
    words = ["--no-prefix", "--run-id", "job", "-n", "2", "--shutdown-timeout", "1000", "--strategy", strategy]
    words += ["--max-restarts", "3", "--backoff", "1000", *(["--ready", "notify"] if phase == "start" else [])]
    with supervise.started(*words, "sh", "-c", PHASES[phase], ASKED=ASKED) as run:
        if phase in ("start", "running"):
            assert run.hear(2) == ["up\n", "up\n"]
        elif phase == "waiting":
            run.hear_error("restart 1 of ")
        else:
            until_exists(supervise, "asked")
        with stopped(supervise, run, way) as code:
            if phase.startswith("stopping"):
                run.hear_error(f"{way}: stopping ")
                (supervise.tmp_path / "go").touch()
            found, _, err = run.end()
    assert found == code, err
    [headline] = [line for line in err.splitlines() if "stopped by " in line and line.startswith("supervise: ")]
    assert headline.endswith(f"stopped by {'SIGINT (Ctrl-C)' if way == 'SIGINT' else way}")
    failed = phase not in ("start", "running")
    assert ("rank 0 of 2 failed: exit code 3" in headline) == failed
    result = json.loads((supervise.directory() / "result.json").read_text())
    assert (result["exit_code"], result["outcome"]) == (code, "failed" if failed else "stopped")


@each_strategy
@pytest.mark.parametrize("most", ["1", "9"])  # the restart that is canceled may be the last
@pytest.mark.parametrize("way", ["SIGTERM", "SIGINT", "supervise stop", "--timeout"])
def test_t8_a_stop_while_a_permanent_rank_waits_to_start_again(supervise: Command, strategy: str, way: str, most: str):
    """The success of its last life is not the end of the run."""
    words = ["--run-id", "job", "-n", "2", "--strategy", strategy, "--restart", "permanent"]
    words += ["--max-restarts", most, "--backoff", "1000", *(["--timeout", "5"] if way == "--timeout" else [])]
    with supervise.started(*words, "sh", "-c", f"[ $RANK = 0 ] && exit 0; {HANG}") as run:
        if way == "--timeout":
            code, (found, _, err) = 124, run.end()
        else:
            run.hear_error("restart 1 of ")
            with stopped(supervise, run, way) as code:
                found, _, err = run.end()
    assert found == code, err
    assert "no restart is left" not in err
    assert re.search(r"supervise: stopped(:| by)", err)
    result = json.loads((supervise.directory() / "result.json").read_text())
    assert (result["exit_code"], result["outcome"]) == (code, "timed_out" if way == "--timeout" else "stopped")


@each_way
def test_t8_a_stop_of_a_gang_that_has_gone_on_after_a_failure(supervise: Command, way: str):
    """With --keep-going, the stop ends the ranks that are left."""
    words = ("--no-prefix", "--run-id", "job", "-n", "2", "--keep-going", "sh", "-c")
    with supervise.started(*words, f"if [ $RANK = 0 ]; then exit 3; else wait; echo up; {HANG}; fi") as run:
        run.hear()
        events = supervise.directory() / "events.jsonl"
        end_s = time.monotonic() + PATIENCE_S
        while '"exit_code": 3' not in events.read_text():
            assert time.monotonic() < end_s
            select.select([], [], [], 0.02)
        with stopped(supervise, run, way) as code:
            found, _, err = run.end()
    assert found == code
    [headline] = [line for line in err.splitlines() if "rank 0 of 2 failed: exit code 3" in line]
    assert headline.endswith(f"; stopped by {'SIGINT (Ctrl-C)' if way == 'SIGINT' else way}")


def test_t8_a_stop_of_a_gang_that_has_failed_for_good_keeps_the_exit_code(supervise: Command):
    """Without restarts, the failure has ended the run, not the signal."""
    words = ("--no-prefix", "-n", "2", "--shutdown-timeout", "1000", "sh", "-c", PHASES["stopping others"])
    with supervise.started(*words) as run:
        until_exists(supervise, "asked")
        run.signal(signal.SIGTERM)
        run.hear_error("SIGTERM: stopping ")
        (supervise.tmp_path / "go").touch()
        code, _, err = run.end()
    assert code == 3
    assert "rank 0 of 2 failed: exit code 3" in err


@each_strategy
@pytest.mark.parametrize("phase", ["waiting", "stopping others"])
def test_the_time_limit_while_a_restart_is_pending(supervise: Command, strategy: str, phase: str):
    """Exit code 124 under each strategy; the last failure and the limit are told."""
    words = ("-n", "2", "--timeout", "5", "--strategy", strategy, "--max-restarts", "3", "--backoff", "1000")
    script, grace = f"[ $RANK = 0 ] && exit 3; {HANG}", "1000"
    if phase == "stopping others":
        script, grace = f"if [ $RANK = 0 ]; then {FAILS}; else {ASKED}; fi", "8"
    done = supervise.run(*words, "--shutdown-timeout", grace, "sh", "-c", script)
    assert done.returncode == 124
    assert ": --timeout of 5 s exceeded\n" in done.stderr


@contextmanager
def without_reader(supervise: Command, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a run with --halt-on-broken-pipe whose stdout is a pipe that the test closes."""
    process = subprocess.Popen(
        [*SUPERVISE, "run", "--halt-on-broken-pipe", "--no-prefix", *words],
        env=environment(supervise.tmp_path),
        cwd=supervise.tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


RESTARTS = ("-n", "2", "--max-restarts", "3", "--backoff", "1000")
SPEAKS = "echo up; while echo more; do sleep 0.05; done"


@pytest.mark.parametrize(
    "words",
    [
        ("--ready", "notify", "sh", "-c", SPEAKS),
        ("sh", "-c", SPEAKS),
        *(
            (*RESTARTS, "--strategy", strategy, "sh", "-c", f"[ $RANK = 1 ] && exec sh -c 'echo up; exit 3'; {SPEAKS}")
            for strategy in ("one_for_one", "rest_for_one")
        ),
        ("sh", "-c", "echo up; read word < closed; echo more"),
    ],
    ids=["start", "running", "waiting", "waiting of rest_for_one", "the last line"],
)
def test_the_reader_ends_at_any_moment(supervise: Command, words: tuple[str, ...]):
    """Exit code 141: also during the start, while a restart is pending, and after the end of the rank."""
    os.mkfifo(supervise.tmp_path / "closed")
    with without_reader(supervise, *words) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() in ("up\n", "more\n")
        process.stdout.close()
        if words[-1].endswith("closed; echo more"):
            (supervise.tmp_path / "closed").write_text("go\n")
        assert process.wait(PATIENCE_S) == 141, process.stderr.read()
        assert "cannot start" not in process.stderr.read()
