"""Row K9: no thread is to be had. Each start and restart that wants one fails by name, and all else goes on."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes.gangs import Fifo, each_function, each_kind
from tests.processes.hosts import ROOT, Host

NO_MORE = """
from supervise import DefaultLogsSpecs, RestartPolicy, Std, start_processes, multiprocessing as mp
from tests.processes import work

def no_more_threads():
    threading.stack_size(1 << 47)  # the kernel has no room for such a stack

def said(call):
    try:
        print("answered", call(), flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
        return error

def started(kind, source, ranks=1, **more):
    env = {rank: {"EAR": ear, "GATE": os.environ["GATE"]} for rank in range(ranks)}
    if kind == "binary":
        args = {rank: ("-S", "-c", work.PREAMBLE + source) for rank in env}
        return start_processes("k9", sys.executable, args, env, **more)
    return start_processes("k9", work.run_source, {rank: (source,) for rank in env}, env, start_method=kind, **more)

def left():
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    for thread in others:
        thread.join(30)
    return [thread.name for thread in others if thread.is_alive()]

TEE = DefaultLogsSpecs(os.environ["LOGS"], tee=Std.ALL)
NONE = DefaultLogsSpecs(os.devnull)
"""
NAMED = "BlockingIOError [Errno 11] no thread for "


@contextmanager
def host(folder, monkeypatch, kind, program):
    """Run a program that may have no more threads; yield it, and pipes to hear its ranks and to let them go on."""
    ear, gate = Fifo(folder / "ear"), Fifo(folder / "gate")
    monkeypatch.setenv("GATE", gate.path)
    monkeypatch.setenv("LOGS", str(folder / "logs"))
    try:
        with Host(NO_MORE + program, kind, ear.path) as running:
            yield running, ear, gate
    finally:
        ear.close()
        gate.close()


@pytest.mark.parametrize(
    "call",
    [
        "started('binary', '')",
        "started('fork', '')",
        "mp.spawn(work.run_source, ('',))",
        "Supervisor.start(name='k9', entrypoint='true', args={0: ()}).ask(Start())",
    ],
)
def test_k9_a_start_that_gets_no_thread_says_so_and_leaves_nothing(tmp_path, monkeypatch, call):
    program = f"""
import pykka
no_more_threads()
said(lambda: {call})
print(pykka.ActorRegistry.get_all(), left(), flush=True)
threading.stack_size(0)
said(lambda: started('fork', 'value = 7', logs_specs=NONE).wait().return_values)
"""
    with host(tmp_path, monkeypatch, "fork", program) as (running, _, _):
        assert running.hear().startswith(NAMED)  # the supervisor's or, without F_SETSIG, the guard's
        assert running.hear() == "[] []"
        assert running.hear() == "answered {0: 7}"
        assert running.exit_code() == 0


@each_kind
def test_k9_a_start_whose_logs_get_no_thread_says_so_and_harms_nobody(tmp_path, monkeypatch, kind):
    """The supervisor lives, and says what became of its gang."""
    program = """
gang = make_gang(kind, ["value = 7"] * 2, logs_specs=TEE)
no_more_threads()
said(lambda: gang.ask(Start()))
print(gang.ask(Status()).phase, gang.ask(Pids()), flush=True)
said(lambda: gang.stop())
print(left(), flush=True)
"""
    with host(tmp_path, monkeypatch, kind, program) as (running, _, _):
        assert running.hear().startswith(NAMED)
        assert running.hear() == "new {}"
        assert running.hear() == "answered True"
        assert running.hear() == "[]"
        assert running.exit_code() == 0


@each_kind
def test_k9_a_restart_whose_logs_get_no_thread_is_a_failure_and_has_a_result(tmp_path, monkeypatch, kind):
    program = """
context = started(kind, "say('ready'); wait_for_word(); os._exit(3)", logs_specs=TEE,
                  restart_policy=RestartPolicy(max_restarts=2, backoff=0.0))
print("runs", flush=True)
sys.stdin.readline()
no_more_threads()
with open(os.environ["GATE"], "w") as gate:
    gate.write("go\\n")
result = context.wait()
print(result.outcome, result.failures[0].message, flush=True)
print([each.end.exitcode for each in result.restarts], flush=True)
context.close()
print(left(), flush=True)
"""
    with host(tmp_path, monkeypatch, kind, program) as (running, ear, _):
        assert ear.hear() == "ready"
        assert running.hear() == "runs"
        running.process.stdin.write(b"\n")
        running.process.stdin.flush()
        assert running.hear().startswith("failed attempt 2 could not be started: [Errno 11] no thread for ")
        assert running.hear() == "[3, None]"
        assert running.hear() == "[]"
        assert running.exit_code() == 0


@each_function
def test_k9_values_are_read_without_a_thread(tmp_path, monkeypatch, kind):
    """A drain needs none: the gang's own does that."""
    program = """
context = started(kind, "say('ready'); wait_for_word(); value = 7", logs_specs=NONE, containment="sweep")
no_more_threads()
with open(os.environ["GATE"], "w") as gate:
    gate.write("go\\n")
said(lambda: context.wait().return_values)
said(context.close)
"""
    with host(tmp_path, monkeypatch, kind, program) as (running, ear, _):
        assert ear.hear() == "ready"
        assert running.hear() == "answered {0: 7}"
        assert running.hear() == "answered None"
        assert running.exit_code() == 0


def test_k9_a_fork_server_is_started_without_a_thread(tmp_path, monkeypatch):
    """Also where SIGCHLD is blocked. The thread that is missing then is that of the supervisor."""
    program = """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
no_more_threads()
said(lambda: started("forkserver", "", logs_specs=NONE))
"""
    with host(tmp_path, monkeypatch, "forkserver", program) as (running, _, _):
        assert running.hear().startswith(NAMED + "the supervisor")
        assert running.exit_code() == 0


RUN = """
import sys, threading
from supervise.cli import main
when, *sys.argv[1:] = sys.argv[1:]
start, left = threading.Thread.start, [int(when)]
def counted(thread):
    if not left[0]:
        threading.stack_size(1 << 47)
    left[0] -= 1
    start(thread)
threading.Thread.start = counted
sys.exit(main())
"""


@pytest.mark.parametrize("threads", range(5))
def test_k9_the_command_line_says_it_in_one_line(tmp_path, threads):
    """After so many threads of its own, there are no more. The control socket may be missing; it has its own line."""
    options = ["run", "-n", "2", "--log-dir", str(tmp_path), "--tee", "3"]
    command = [sys.executable, "-c", RUN, str(threads), *options, "true"]
    env = {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    failed = [line for line in done.stderr.splitlines() if "no thread for" in line and "no control socket" not in line]
    assert len(failed) == 1, done.stderr


UNDER_A_LIMIT = """
import os, resource, sys, threading
from supervise import DefaultLogsSpecs, RestartPolicy, Std, SpawnError, start_processes
from tests.processes import work

kind, limit, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
source = "os._exit(3)"
what = (sys.executable, ("-S", "-c", work.PREAMBLE + source)) if kind == "binary" else (work.run_source, (source,))
more = {"start_method": kind} if kind != "binary" else {}
logs = DefaultLogsSpecs(folder, tee=Std.ALL)
more |= {"logs_specs": logs, "restart_policy": RestartPolicy(max_restarts=2, backoff=0.0)}
resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
try:
    context = start_processes("k9", what[0], dict.fromkeys(range(3), what[1]), **more)
    try:
        result = context.wait()
        assert result.outcome == "failed", result
    finally:
        context.close()
except (BlockingIOError, SpawnError, ConnectionError, EOFError) as error:
    print("refused", repr(error), file=sys.stderr)
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join(20)
        assert not thread.is_alive(), thread
"""


def of_another_user(command):
    """Return a command that runs as a user who has no other process: nobody else's count for the limit."""
    if os.geteuid() != 0:
        return ["unshare", "--user", "--map-root-user", *command]
    user, caps = str(60_000 + os.getpid() % 5000), "+dac_override,+dac_read_search"  # it may read what root may
    as_user = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"]
    return [*as_user, "--inh-caps", caps, "--ambient-caps", caps, *command]


def run_as_another_user(folder, *arguments):
    """Run a program of Python's, with its temporary files in `folder`; skip the test where that cannot be done."""
    env = {**os.environ, "PYTHONPATH": ROOT, "TMPDIR": folder, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*words):
        command = of_another_user([sys.executable, "-c", *words])
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env, cwd="/")

    if shutil.which("setpriv") is None or run("import supervise._torch.contexts").returncode:
        pytest.skip("another user cannot be had")
    return run(*arguments)


@pytest.mark.stress
@pytest.mark.timeout(300)
@each_kind
def test_k9_whatever_the_limit_of_processes_each_failure_has_a_name(kind):
    """From none at all to enough; nothing hangs, and nothing is left."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        refused = 0
        for limit in (*range(1, 15), 200):
            done = run_as_another_user(folder, UNDER_A_LIMIT, kind, str(limit), folder)
            assert done.returncode == 0, (limit, done.stderr)
            refused += "refused" in done.stderr
            assert ("temporarily unavailable" in done.stderr) <= ("ulimit -u" in done.stderr), done.stderr
        assert 0 < refused < 15


NO_MORE_PROCESSES = """
import resource
from multiprocessing import resource_tracker
from supervise import multiprocessing as mp, start_processes
from tests.processes import work

import sys
kind, call = sys.argv[1:]
if kind == "forkserver":
    resource_tracker.ensure_running()
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
try:
    if call == "spawn":
        mp.start_processes(work.run_source, ("",), start_method=kind)
    else:
        start_processes("k9", work.run_source, {0: ("",)}, start_method=kind)
except OSError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("kind", "call", "what"),
    [
        ("spawn", "start_processes", "the resource tracker of multiprocessing"),
        ("forkserver", "spawn", "the fork server"),
    ],
)
def test_k9_a_process_of_multiprocessing_that_cannot_be_had_is_named(kind, call, what):
    """Which one, and what may be the limit, in place of the kernel's bare word."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        done = run_as_another_user(folder, NO_MORE_PROCESSES, kind, call)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"BlockingIOError [Errno 11] no process for {what}: "), done.stdout
    assert "ulimit -u" in done.stdout


NO_SECOND_LIFE = """
import os, resource, sys
from supervise import RestartPolicy, start_processes

strategy, gate = sys.argv[1:]
os.mkfifo(gate)
more = {"restart_policy": RestartPolicy(max_restarts=1, backoff=0.0), "strategy": strategy}
with start_processes("k9", "sh", {0: ("-c", f"read line <{gate}; exit 3")}, **more) as context:
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    open(gate, "w").close()
    print(context.wait().failures[0].message)
"""


@pytest.mark.parametrize("strategy", ["one_for_one", "one_for_all"])
def test_k9_a_later_life_that_a_limit_refuses_is_named_with_the_limit(strategy):
    """Also where only the failed rank starts again."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        done = run_as_another_user(folder, NO_SECOND_LIFE, strategy, f"{folder}/gate")
    assert done.returncode == 0, done.stderr
    assert "Resource temporarily unavailable; a limit on processes and threads" in done.stdout


COMMAND_UNDER_A_LIMIT = """
import os, resource, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
words = ["run", "--log-dir", sys.argv[2], "-n", "4", "sh", "-c", "exit 3"]
os.execv(sys.executable, [sys.executable, "-m", "supervise", *words])
"""


@pytest.mark.timeout(300)
def test_k9_a_program_that_a_limit_refuses_is_named_with_the_limit():
    """The least limit with which all threads of supervise can be had, and not all ranks: some starts of Python."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        for limit in range(3, 30):
            done = run_as_another_user(folder, COMMAND_UNDER_A_LIMIT, str(limit), folder)
            assert done.returncode
            if "cannot start rank" in done.stderr:
                break
    line = r"^supervise: cannot start rank \d: sh: Resource temporarily unavailable; a limit .* \(ulimit -u, .*\)$"
    assert re.search(line, done.stderr, re.MULTILINE), done.stderr  # a slow machine may print that it stops ranks
