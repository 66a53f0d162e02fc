"""A gang that has failed in a program that configures nothing and asks nothing says so in one line."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import logging, os, sys
from supervise import DefaultLogsSpecs, RestartPolicy, Std, Supervisor, Start, Wait, start_processes
def raises(rank):
    if rank == 1:
        raise ValueError("the 7th\\x1b[2J shard\\nis empty")
    import threading; threading.Event().wait(1000)
def run(entrypoint, args, **more):
    specs = DefaultLogsSpecs("logs", Std.ALL)
    context = start_processes("train\\x07", entrypoint, args, dict.fromkeys(args, {}), specs, **more)
    context.wait()
    context.close()
if __name__ == "__main__":
"""
FAIL = "run(raises, {0: (0,), 1: (1,)})"
SHELL = "run('sh', {0: ('-c', 'exit 3')})"


def output_of(tmp_path: Path, *lines: str, **more: object) -> str:
    """Run a program of these lines; return what it wrote to stderr."""
    (tmp_path / "program.py").write_text(PROGRAM + "".join(f"    {line}\n" for line in lines))
    done = subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=more.get("stderr", subprocess.PIPE),
        text=True,
        timeout=50,
        check=True,
    )
    return done.stderr


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ((FAIL,), "rank 1 (pid {pid}): ValueError: the 7th shard is empty; see {logs}/1/stderr.log"),
        ((SHELL,), "rank 0 (pid {pid}): exit code 3; see {logs}/0/stderr.log"),
        (("run('sh', {0: ('-c', 'echo no; exit 3')})",), "rank 0 (pid {pid}): exit code 3; see {logs}/0/stdout.log"),
        (("run('sh', {0: ('-c', 'kill -9 $$')})",), "rank 0 (pid {pid}): SIGKILL; see {logs}/0/stderr.log"),
        (("run(os._exit, {0: (0,)})",), "rank 0 (pid {pid}): exit code 0: exited with code 0 without a return value"),
    ],
    ids=["raised", "exit code", "only stdout", "signal", "no value"],
)
def test_a_failed_gang_is_one_line_where_nobody_asks(tmp_path: Path, lines: tuple[str, ...], told: str):
    """It names rank, cause and log, and holds nothing that a terminal obeys."""
    [line] = output_of(tmp_path, *lines).splitlines()
    start, _, end = told.partition("{pid}")
    begin = end.partition("{logs}")[0]
    assert line.startswith(f"supervise: train failed: {start}"), line
    assert begin in line
    assert line.endswith(told.rpartition("{logs}")[2]) or "{logs}" not in told
    if "{logs}" in told:
        assert Path(line.rpartition("; see ")[2]).is_file()


CONFIGURED = {
    "a handler": "logging.basicConfig(stream=sys.stdout)",
    "a null handler": "logging.getLogger('supervise').addHandler(logging.NullHandler())",
    "a level": "logging.getLogger('supervise').setLevel(logging.CRITICAL)",
    "disabled": "logging.disable()",
    "no propagation": "logging.getLogger('supervise').propagate = False",
    "no last resort": "logging.lastResort = None",
    "structlog": "import structlog; structlog.configure()",
    "no stderr": "sys.stderr = None",
    "a closed stderr": "sys.stderr.close()",
    "a filter that raises": "logging.getLogger('supervise').addFilter(lambda record: 1 / 0)",
}


@pytest.mark.parametrize("name", CONFIGURED)
def test_who_has_configured_anything_is_not_told_again(tmp_path: Path, name: str):
    """Whatever it was."""
    assert output_of(tmp_path, CONFIGURED[name], SHELL) == ""


def test_events_that_structlog_passes_to_logging_without_a_handler_are_not_heard(tmp_path: Path):
    """The program has configured structlog, and nothing of the standard library."""
    configure = "import structlog; structlog.configure(logger_factory=structlog.stdlib.LoggerFactory())"
    [line] = output_of(tmp_path, configure, SHELL).splitlines()
    assert line.startswith("supervise: train failed: rank 0")
    assert output_of(tmp_path, configure, "logging.basicConfig(level=logging.CRITICAL)", SHELL) == ""


@pytest.mark.parametrize("fileno", ["None", "-1", "int('none')", "NotImplemented()"])
def test_a_stream_of_the_application_that_has_no_descriptor_gets_the_line(tmp_path: Path, fileno: str):
    """However it says that it has none."""
    methods = (
        f"{{'write': lambda _, text: real.write(text), 'flush': lambda _: real.flush(), 'fileno': lambda _: {fileno}}}"
    )
    [line] = output_of(tmp_path, "real = sys.stderr", f"sys.stderr = type('Odd', (), {methods})()", SHELL).splitlines()
    assert line.startswith("supervise: train failed: rank 0")


def test_who_listens_or_gets_an_exception_or_has_no_failure_is_told_nothing_more(tmp_path: Path):
    """A sink of events, `spawn`, a success, a close; and of restarts only the last failure is told."""
    assert not output_of(
        tmp_path,
        "from supervise.multiprocessing import ProcessRaisedException, spawn",
        "try: spawn(raises, nprocs=2)",
        "except ProcessRaisedException: pass",
        "gang = Supervisor.start(name='x', entrypoint='false', args={0: ()}, event_sink=lambda event: None)",
        "gang.ask(Start()); gang.ask(Wait()); gang.stop()",
        "run('true', {0: ()})",
        "start_processes('x', 'sleep', {0: ('1000',)}, {0: {}}, DefaultLogsSpecs('logs')).close()",
    )
    twice = "run('sh', {0: ('-c', 'exit 3')}, restart_policy=RestartPolicy(max_restarts=1, backoff=0))"
    assert output_of(tmp_path, twice).count("train failed: rank 0") == 1


def test_a_stderr_that_takes_nothing_holds_no_gang_up(tmp_path: Path):
    """The line is lost, and not the gang's thread."""
    read_end, write_end = os.pipe()
    try:
        os.set_blocking(write_end, False)
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
        os.write(write_end, bytes(4096))
        os.set_blocking(write_end, True)
        output_of(tmp_path, SHELL, stderr=write_end)
    finally:
        os.close(read_end)
        os.close(write_end)


FORGETS = """
import sys
from supervise import Start, Supervisor
gang = Supervisor.start(
    name="x", entrypoint="sh", args={0: ("-c", "trap '' TERM; echo deaf > up; while :; do sleep 1000; done")},
    grace=1000.0, event_sink=lambda event: print(event["event"], event.get("signal", ""), flush=True),
)
gang.ask(Start())
open("up").read()
"""


def test_k5_the_exit_of_the_interpreter_gives_a_gang_five_seconds_at_most(tmp_path):
    """Not its grace: SIGKILL comes from supervise, before the lifeline ends the rank at the end of the process."""
    os.mkfifo(tmp_path / "up")
    done = subprocess.run(
        [sys.executable, "-c", FORGETS], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=True
    )
    signals = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("supervise.process.signaled ")]
    assert signals == ["SIGTERM", "SIGKILL"]
    assert "supervise.process.exited" in done.stdout


def test_the_rank_in_a_job_of_several_hosts_is_named_beside_the_local_rank(tmp_path: Path):
    gang = "Supervisor.start(name='t', entrypoint='sh', args={0: ('-c', 'exit 3')}, envs={0: {'RANK': '2'}})"
    [line] = output_of(tmp_path, f"gang = {gang}", "gang.ask(Start()); gang.ask(Wait()); gang.stop()").splitlines()
    assert line.startswith("supervise: t failed: rank 2, local rank 0 (pid "), line
