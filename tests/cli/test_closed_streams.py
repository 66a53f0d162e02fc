"""Commands whose stdin, stdout or stderr is closed, or whose stdout takes no output."""

import fcntl
import os
import re
import select
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import HANG, SUPERVISE, Command, environment
from tests.patience import PATIENCE_S

OF_A_RECORDED_RUN = {
    "check": ("gang.toml",),
    "ls": (),
    "show": ("job",),
    "logs": ("job",),
    "report": ("job",),
    "wait": ("job",),
    "completion": ("bash",),
    "clean": ("--all",),
}
OF_A_RUNNING_RUN = {
    "status": ("job",),
    "signal": ("job", "CONT"),
    "stacks": ("job",),
    "top": ("job", "--json"),
    "restart": ("job", "--rank", "0"),
    "reload": ("job",),
    "stop": ("job",),
}
HELP = (
    ("--help",),
    ("--version",),
    ("run", "--help"),
    *((command, "--help") for command in (*OF_A_RECORDED_RUN, *OF_A_RUNNING_RUN)),
)


def with_streams(supervise: Command, redirection: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with a redirection of the shell."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *SUPERVISE, *words],
        env=environment(supervise.tmp_path),
        cwd=supervise.tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def record(supervise: Command) -> None:
    """Record a run named job, and write a gang file."""
    (supervise.tmp_path / "gang.toml").write_text('[roles.a]\ncommand = "true"\n')
    assert supervise.run("-q", "--run-id", "job", "echo", "hi").returncode == 0


def refusal(command: str, why: str = "Bad file descriptor") -> str:
    return f"supervise {command}: cannot write to stdout: {why}\n"


def test_every_command_is_tested(supervise: Command):
    """In one of the two tables, except run."""
    text = with_streams(supervise, "", "--help").stdout.partition("commands:")[2].partition("options:")[0]
    assert {"run", *OF_A_RECORDED_RUN, *OF_A_RUNNING_RUN} == set(re.findall(r"^  (\w+)  ", text, re.MULTILINE))


@pytest.mark.parametrize("command", OF_A_RECORDED_RUN)
def test_a_command_about_files(supervise: Command, command: str):
    """Closed stdout: an error as of coreutils. Closed stdin or stderr: the same output; no error message on stdout."""
    record(supervise)
    words = (command, *OF_A_RECORDED_RUN[command])
    for redirection in ("2>&-", "<&-", "<&- 2>&-"):
        done = with_streams(supervise, redirection, *words)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout
        if command == "clean":
            record(supervise)
    assert with_streams(supervise, "2>&-", command, "--nope", "x").stdout == ""
    done = with_streams(supervise, ">&-", *words)
    assert (done.returncode, done.stderr) == (1, refusal(command))
    if command == "clean":
        record(supervise)
    assert with_streams(supervise, "<&- >&- 2>&-", *words).returncode == 1
    if command == "clean":
        record(supervise)
    done = with_streams(supervise, ">/dev/full", *words)
    assert (done.returncode, done.stderr) == (1, refusal(command, "No space left on device"))


def test_commands_about_a_running_run(supervise: Command):
    """They act, and then fail because they cannot print what they did."""
    with supervise.started("--no-prefix", "--run-id", "job", "sh", "-c", f"echo up; {HANG}") as run:
        run.hear()
        for command, words in OF_A_RUNNING_RUN.items():
            done = with_streams(supervise, ">&-", command, *words)
            assert (done.returncode, done.stderr) == (1, refusal(command))
            if command in ("restart", "reload"):
                run.hear()
        assert run.end()[0] == 128 + 15
    with supervise.started("--no-prefix", "--run-id", "job", "sh", "-c", f"echo up; {HANG}") as run:
        run.hear()
        for command, words in OF_A_RUNNING_RUN.items():
            if command != "top":  # ends with the run only
                done = with_streams(supervise, "<&- 2>&-", command, *words)
                assert (done.returncode, done.stderr) == (0, "")
            if command in ("restart", "reload"):
                run.hear()
        run.end()


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_a_help_that_cannot_be_written(supervise: Command, words: tuple[str, ...]):
    """It is an error, and no traceback."""
    command = words[0] if words[1:] else ""
    done = with_streams(supervise, ">&-", *words)
    assert (done.returncode, done.stderr) == (1, refusal(command).replace(" :", ":"))


def test_a_dry_run_that_cannot_be_written(supervise: Command):
    """Also if its output is longer than a buffer."""
    words = ("run", "--dry-run", "-n", "200", "true")
    for redirection, why in ((">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")):
        done = with_streams(supervise, redirection, *words)
        assert (done.returncode, done.stderr) == (1, refusal("run", why))
    assert with_streams(supervise, "| true; exit 0; :", *words).stderr == ""


def test_output_that_is_lost_is_an_error_also_without_messages(supervise: Command):
    """With ``-q``, which leaves out all messages but errors."""
    done = with_streams(supervise, ">/dev/full", "run", "-q", "echo", "hi")
    assert done.returncode == 0
    assert done.stderr.startswith("supervise: stdout is no longer shown: No space left on device; the logs are in ")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_of_which_a_part_was_written(supervise: Command, unbuffered: str):
    """The limit on the size of files is reached in the middle of one write, of which the kernel writes a part."""
    record(supervise)
    limited = ["sh", "-c", 'ulimit -f 1; exec "$@" >out', "sh", *SUPERVISE, "report", "job", "-o", "-"]
    env = environment(supervise.tmp_path) | {"PYTHONUNBUFFERED": unbuffered, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        limited, env=env, cwd=supervise.tmp_path, stderr=-1, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, "File too large\n" in done.stderr) == (1, True)


@pytest.mark.parametrize("words", [("run", "--help"), ("completion", "bash")], ids=" ".join)
def test_a_pipe_that_another_program_has_made_non_blocking(supervise: Command, words: tuple[str, ...]):
    """The command waits for a reader that is slower, as at a blocking pipe."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(write, False)
    with subprocess.Popen([*SUPERVISE, *words], env=environment(supervise.tmp_path), stdout=write) as process:
        select.select([read], [], [], PATIENCE_S)
        os.close(write)
        with os.fdopen(read, encoding="utf-8") as reader:
            assert reader.read() == supervise.supervise(*words).stdout
    assert process.returncode == 0


def test_without_a_folder_for_temporary_files_there_are_no_runs(supervise: Command):
    """The limit keeps `tempfile` from finding one, as a read-only file system does. Nothing else is said to be gone."""
    lost = {"SUPERVISE_RUNS_DIR": "", "HOME": "/dev/null", "XDG_STATE_HOME": "", "TMPDIR": str(supervise.tmp_path)}
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *SUPERVISE, "ls"],
        env={**environment(supervise.tmp_path), **lost},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"no runs in {supervise.tmp_path}/supervise-")


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_run_goes_on(supervise: Command, redirection: str):
    """Its output is discarded where a stream is closed, and its logs are whole."""
    script = "echo out; echo err >&2; exit 5"
    done = with_streams(supervise, redirection, "run", "--no-prefix", "sh", "-c", script)
    assert done.returncode == 5
    assert done.stdout == ("out\n" if ">&-" not in redirection.split() else "")
    assert ("err" in done.stderr) == ("2>&-" not in redirection)
    logs = supervise.directory() / "attempt_0/0"
    assert [Path(logs / f"{name}.log").read_text() for name in ("stdout", "stderr")] == ["out\n", "err\n"]


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
def test_clean_removes_all_runs_before_it_fails(supervise: Command, redirection: str):
    """Its stdout may be on the full disk that it is to empty: it fails afterwards."""
    record(supervise)
    record(supervise)
    assert with_streams(supervise, redirection, "clean", "--all").returncode == 1
    assert not list((supervise.tmp_path / "runs").glob("job_*"))
