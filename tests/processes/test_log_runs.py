"""A log folder that was used before; and streams and environment that are in place before the user's first line."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from supervise import DefaultLogsSpecs, RestartPolicy, SpecError, Std, SubprocessContext, start_processes
from tests.processes import work
from tests.processes.console import ROOT
from tests.processes.test_log_files import start
from tests.processes.test_logs import each_kind

RECORD = """
import json, time
os.write(1, b"bad run\\n")
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    json.dump({"message": {"message": "ValueError: stale", "extraInfo": {"py_callstack": "", "timestamp": "1"}}}, file)
os._exit(3)
"""
DIE = "os.write(1, b'worse run\\n'); os._exit(4)"
SPEAK = "os.write(1, b'good run\\n')"


def start_once(kind, source, folder):
    """Start a gang of one rank in the way of the generation up to 2.1."""
    if kind == "binary":
        entrypoint, args, method = sys.executable, ("-S", "-c", work.PREAMBLE + source), "spawn"
    else:
        entrypoint, args, method = work.run_source, (source,), kind
    return start_processes("w", entrypoint, {0: args}, {0: {}}, str(folder), method, Std.ALL, Std.NONE)


def read(folder):
    """All files below a folder: relative path to text."""
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


@each_kind
def test_l8_earlier_files_move_aside_and_a_stale_error_is_nobodys(tmp_path, kind):
    """The older generation's folder has no attempts: three runs in it, and nothing of any is lost or mixed up."""
    first = start_once(kind, RECORD, tmp_path).wait(30)
    second = start_once(kind, DIE, tmp_path).wait(30)
    third = start_once(kind, SPEAK, tmp_path).wait(30)
    assert "stale" in str(first.failures[0].message)
    assert (second.failures[0].exitcode, "stale" in str(second.failures[0].message)) == (4, False)
    assert (third.outcome, third.failures) == ("succeeded", {})
    files = read(tmp_path)
    assert json.loads(files.pop("0/error.json.1"))["message"]["message"] == "ValueError: stale"
    assert files == {
        "0/stdout.log.1": "bad run\n",
        "0/stdout.log.2": "worse run\n",
        "0/stdout.log": "good run\n",
        "0/stderr.log": "",
    }


@each_kind
def test_l8_the_same_specs_started_twice_lose_nothing(tmp_path, kind):
    """Reified again they mean the same paths: the first run's files are moved aside, the filtered one too."""
    specs = DefaultLogsSpecs(str(tmp_path), tee=Std.OUT)
    assert specs.reify({0: {}}).stdouts == specs.reify({0: {}}).stdouts
    bad = start(kind, [RECORD], specs, duplicate_stdout_filters=["run"]).wait(30)
    good = start(kind, [SPEAK], specs, duplicate_stdout_filters=["run"]).wait(30)
    assert ("stale" in str(bad.failures[0].message), good.outcome) == (True, "succeeded")
    [run] = tmp_path.iterdir()
    files = read(run / "attempt_0")
    assert "stale" in files.pop("0/error.json.1")
    assert files == {
        "0/stdout.log": "good run\n",
        "0/stdout.log.1": "bad run\n",
        "filtered_stdout.log": "[w0]:good run\n",
        "filtered_stdout.log.1": "[w0]:bad run\n",
    }


@each_kind
def test_l8_of_two_running_gangs_with_the_same_specs_each_keeps_its_output(tmp_path, kind):
    """The second moves the first one's files aside while they are written: the first goes on writing there."""
    specs = DefaultLogsSpecs(str(tmp_path), redirects=Std.ALL)
    os.mkfifo(tmp_path / "gate")
    os.mkfifo(tmp_path / "ear")
    paths = f"ear, gate = {str(tmp_path / 'ear')!r}, {str(tmp_path / 'gate')!r}\n"
    wait = "os.write(1, b'early\\n'); open(ear, 'w').close(); open(gate).read(); os.write(1, b'late\\n')"
    early = start(kind, [paths + wait], specs)
    (tmp_path / "ear").open().close()
    assert start(kind, [SPEAK], specs).wait(30).outcome == "succeeded"
    (tmp_path / "gate").open("w").close()
    assert early.wait(30).outcome == "succeeded"
    [run] = (path for path in tmp_path.iterdir() if path.is_dir())
    files = read(run / "attempt_0")
    assert (files["0/stdout.log"], files["0/stdout.log.1"]) == ("good run\n", "early\nlate\n")


USERS_PROGRAM = """
import os, sys
SEEN = os.environ.get("FLAVOR", "none"), os.environ.get("LOCAL_RANK", "none")
print("import", *SEEN, flush=True)
os.write(2, b"first bytes\\n")
SEEN_BY_C = os.popen("printf %s $FLAVOR").read()

def work():
    return [*SEEN, SEEN_BY_C]

if __name__ == "__main__":
    import json, supervise
    changes = []
    sys.addaudithook(lambda event, args: changes.append(args) if event in ("os.putenv", "os.unsetenv") else None)
    before = dict(os.environ)
    envs = {rank: {"FLAVOR": f"f{rank}", "LOCAL_RANK": rank} for rank in range(2)}
    specs = supervise.DefaultLogsSpecs(sys.argv[2], redirects=supervise.Std.ALL)
    gang = supervise.start_processes("w", work, {0: (), 1: ()}, envs, specs, start_method=sys.argv[1])
    result = gang.wait()
    print(json.dumps([result.return_values, changes, before == os.environ]))
"""
SPOILED = """
import os, sys
if __name__ == "__main__":
    import supervise
    def work(): pass
    specs = supervise.DefaultLogsSpecs(sys.argv[2], redirects=supervise.Std.ALL)
    with open(__file__, "w") as file:
        file.write("def broken(:")
    result = supervise.start_processes("w", work, {0: ()}, {0: {}}, specs, start_method=sys.argv[1]).wait()
    print(result.failures[0].exitcode)
"""
UNBORN = """
import sys, supervise
def work(): pass
if __name__ == "__main__":
    specs = supervise.DefaultLogsSpecs(sys.argv[2], redirects=supervise.Std.ALL)
    work = work if sys.argv[1] == "spawn" else sys.executable
    envs = {0: {"PYTHONHOME": "/proc/nonexistent"}}
    result = supervise.start_processes("w", work, {0: ()}, envs, specs).wait()
    print(result.failures[0].exitcode != 0)
"""


def run_program(tmp_path, text, kind):
    """Run a user's program; return what it shows."""
    program = tmp_path / "users.py"
    program.write_text(text)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, str(program), kind, str(tmp_path / "logs")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def logs(tmp_path, rank):
    [folder] = tmp_path.glob(f"logs/*/attempt_0/{rank}")
    return (folder / "stdout.log").read_text(), (folder / "stderr.log").read_text()


@pytest.mark.parametrize("kind", ["spawn", "forkserver"])
def test_l9_environment_and_streams_are_there_before_the_users_module(tmp_path, kind):
    """Its import sees its rank's variables, and so do programs; what it prints is in its log; ours are untouched."""
    out, err = run_program(tmp_path, USERS_PROGRAM, kind)
    assert out.splitlines()[0] == "import none none"
    assert len(out.splitlines()) == 2
    assert json.loads(out.splitlines()[1]) == [{"0": ["f0", "0", "f0"], "1": ["f1", "1", "f1"]}, [], True]
    assert err == "first bytes\n"
    for rank in range(2):
        assert logs(tmp_path, rank) == (f"import f{rank} {rank}\n", "first bytes\n")


@pytest.mark.parametrize("kind", ["spawn", "forkserver"])
def test_l9_a_main_module_that_cannot_be_imported_says_so_in_the_ranks_log(tmp_path, kind):
    """A syntax error, long before the user's function is reached."""
    shown, said = run_program(tmp_path, SPOILED, kind)
    assert (shown, said.count("\n")) == ("1\n", 1)
    assert "stderr.log" in said
    out, err = logs(tmp_path, 0)
    assert out == ""
    assert "SyntaxError" in err
    assert "users.py" in err


@pytest.mark.parametrize("kind", ["spawn", "binary"])
def test_l9_an_interpreter_that_cannot_start_says_so_in_the_ranks_log(tmp_path, kind):
    """It dies before the first line of Python."""
    shown, said = run_program(tmp_path, UNBORN, kind)
    assert (shown, said.count("\n")) == ("True\n", 1)
    assert "stderr.log" in said
    _out, err = logs(tmp_path, 0)
    assert "Fatal Python error" in err


def of_no_logs(kind, source, **more):
    """Run a gang of one rank whose starter has asked for no logs, to its end; return the result."""
    if kind == "binary":
        entrypoint, args = sys.executable, ("-S", "-c", work.PREAMBLE + source)
    else:
        entrypoint, args, more = work.run_source, (source,), {"start_method": kind} | more
    with start_processes("w", entrypoint, {0: args}, **more) as context:
        return context.wait(30)


@each_kind
def test_a_gang_that_asks_for_no_logs_leaves_no_folder(temporary_folder, kind):
    """Its ranks have a place for their error files; nothing was written, and with the gang the folders are gone."""
    look = "assert os.path.isdir(os.path.dirname(os.environ['TORCHELASTIC_ERROR_FILE']))"
    assert of_no_logs(kind, look).outcome == "succeeded"
    assert list(temporary_folder.iterdir()) == []


@each_kind
def test_what_was_recorded_stays_where_the_failure_says(temporary_folder, kind):
    """Also what a rank of an earlier attempt has written; the empty folders beside it are gone."""
    source = f"if os.environ['TORCHELASTIC_RESTART_COUNT'] == '1':\n    os._exit(4)\n{RECORD}"
    result = of_no_logs(kind, source, restart_policy=RestartPolicy(max_restarts=1, backoff=0.0))
    assert result.failures[0].exitcode == 4
    assert not Path(result.failures[0].error_file).parent.exists()
    [recorded] = [path for path in temporary_folder.rglob("*") if path.is_file()]
    assert "stale" in recorded.read_text()
    assert "attempt_0" in str(recorded)
    assert not list(temporary_folder.rglob("attempt_1"))


@pytest.mark.parametrize(
    "wrong", [{"args": {0: (threading.Lock(),)}}, {"envs": {0: {"A": None}}}], ids=["args", "envs"]
)
def test_a_gang_that_is_refused_leaves_no_folder(temporary_folder, wrong):
    with pytest.raises(SpecError):
        start_processes("w", work.run_source, **{"args": {0: ("",)}} | wrong)
    assert list(temporary_folder.iterdir()) == []


def test_a_forked_child_of_the_host_leaves_the_folders_of_its_gangs(temporary_folder):
    """It ends as any program does, and finalizers run in it."""
    context = SubprocessContext("w", "sh", {0: ("-c", 'test -d "$(dirname "$TORCHELASTIC_ERROR_FILE")"')}, None)
    child = os.fork()
    if child == 0:
        try:
            context._attempt.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    with context:
        context.start()
        assert context.wait(30).outcome == "succeeded"
    assert list(temporary_folder.iterdir()) == []
