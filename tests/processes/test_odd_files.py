"""Pipes, huge and malformed files in the place of logs and error files: all is bounded, and the exit code stays."""

import json
import os
import resource
import subprocess
from pathlib import Path

import pytest

from supervise import RestartPolicy
from supervise._logs.files import last_lines
from supervise.result import MOST_BYTES, ProcessFailure
from tests.cli.command import Command
from tests.processes.console import hosted
from tests.processes.gangs import each_kind, faulty

GIB = 1 << 30
RECORD = {"message": {"message": "E: m", "extraInfo": {"py_callstack": "tb", "timestamp": "7"}}}

ODD = {
    "sparse, 200 GiB": ("open(path, 'w').write('{}'); os.truncate(path, 200 << 30)", "it has more than 4 MiB"),
    "40 MB of JSON": ("open(path, 'w').write('[' + '1,' * 20_000_000 + '1]')", "it has more than 4 MiB"),
    "deep": ("open(path, 'w').write('[' * 500_000)", "it is nested too deeply"),
    "deeper than a record": ("open(path, 'w').write('[' * 100 + ']' * 100)", "it is nested too deeply"),
    "many values": ("open(path, 'w').write('[' + '1,' * 1_000_000 + '1]')", "it holds more than 10000 values"),
    "a huge number": (
        "open(path, 'w').write('{\"message\": \"m\", \"timestamp\": ' + '9' * 5000 + '}')",
        "Exceeds the limit",
    ),
    "a link": ("os.symlink('/etc/passwd', path)", "it is a symbolic link"),
    "a pipe": ("os.mkfifo(path)", None),
    "a folder": ("os.mkdir(path)", None),
}


@pytest.mark.parametrize("odd", ODD)
@each_kind
def test_p3_whatever_is_in_the_place_of_an_error_file_the_exit_code_stays(tmp_path, kind, odd):
    """And the failure says why nothing could be read, where there is a file at all."""
    make, problem = ODD[odd]
    source = f"path = os.environ['TORCHELASTIC_ERROR_FILE']\n{make}\nos._exit(3)"
    with faulty(tmp_path, kind, [source]) as gang:
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        [failure] = gang.wait().failures.values()
        after_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert failure.exitcode == 3
    assert after_kib - before_kib < 64 * 1024
    if problem is None:
        assert failure.error_file == "<N/A>"
    else:
        assert problem in str(failure.message)
    for path in tmp_path.glob("logs/*/*/0/error.json"):
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize("odd", ["sparse, 200 GiB", "deep", "a pipe"])
def test_p3_the_command_reports_it_too(tmp_path, odd):
    rank = f"import os; path = os.environ['TORCHELASTIC_ERROR_FILE']; {ODD[odd][0]}; os._exit(3)"
    done = Command(tmp_path).run("--log-dir", str(tmp_path / "logs"), "python3", "-c", rank)
    assert done.returncode == 3
    [result] = tmp_path.glob("logs/*/result.json")
    assert json.loads(result.read_text())["exit_code"] == 3


@pytest.mark.stress
def test_p3_400_mb_of_json(tmp_path):
    """As above; they took 1.2 GB."""
    source = """
with open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w') as file:
    file.write('[')
    for _ in range(400):
        file.write('1,' * 500_000)
    file.write('1]')
os._exit(3)
"""
    body = "[failure] = start().wait().failures.values(); report['said'] = [failure.exitcode, failure.message]"
    with hosted(tmp_path, "binary", [source], body=body + "; mark('over'); wait_for_word()") as host:
        host.out.until(b"<over>")
        assert host.rss_peak_kib() < 150 * 1024
        host.tell()
        host.finish()
    code, message = host.report["said"]
    assert code == 3
    assert "it has more than 4 MiB" in message
    for path in tmp_path.glob("logs/*/*/0/error.json"):
        path.unlink()


FLIPS = """
mkfifo pipe
printf '%s' "$1" > file
echo ready
while :; do ln -f pipe new; mv new error.json; ln -f file new; mv new error.json; done
"""


def test_p3_a_pipe_that_comes_between_a_look_and_the_open_is_not_waited_for(tmp_path):
    """Another process puts a pipe and a file there by turns, as fast as it can."""
    flips = ["sh", "-c", FLIPS, "sh", json.dumps(RECORD)]
    with subprocess.Popen(flips, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            path = str(tmp_path / "error.json")
            for _ in range(2000):
                ProcessFailure(0, 1, 3, path)
                last_lines(path)
        finally:
            process.kill()


@each_kind
@pytest.mark.parametrize("name", ["stdout.log", "stderr.log", "error.json"])
def test_p3_a_pipe_in_the_place_of_the_next_attempts_file_is_not_waited_for(tmp_path, kind, name):
    """A log is refused by name; a pipe for the error file is the rank's own business, and left alone."""
    source = f"""
folder = os.path.dirname(os.environ['TORCHELASTIC_ERROR_FILE']).replace('attempt_0', 'attempt_1')
if not os.path.exists(folder):
    os.makedirs(folder, 0o700)
    os.mkfifo(os.path.join(folder, '{name}'))
os._exit(3)
"""
    with faulty(tmp_path, kind, [source], restart_policy=RestartPolicy(max_restarts=1, backoff=0.0)) as gang:
        if name == "error.json":
            assert gang.wait().failures[0].exitcode == 3
        else:
            assert "a log cannot be written to" in str(gang.wait().failures[0].message)


@each_kind
def test_p3_a_log_that_a_pipe_has_replaced_is_not_waited_for(tmp_path, kind):
    """When the result asks for its last lines."""
    source = """
path = os.path.join(os.path.dirname(os.environ['TORCHELASTIC_ERROR_FILE']), 'stderr.log')
os.write(2, b'words')
os.unlink(path)
os.mkfifo(path)
open(os.open(path, os.O_RDWR), 'wb', buffering=0).write(b'x')
os._exit(3)
"""
    with faulty(tmp_path, kind, [source]) as gang:
        result = gang.wait()
    assert (result.failures[0].exitcode, result.ends[0].stderr_tail) == (3, "")


@each_kind
def test_p3_a_log_with_a_hole_of_200_gib_is_shown_without_the_hole(tmp_path, kind):
    """One event tells of it. The memory of the host stays what it was."""
    source = f"""
say('ready')
wait_for_word()
for number in (1, 2):
    os.write(number, b'before\\n')
    os.ftruncate(number, {200 * GIB})
    os.write(number, b'\\nafter\\n')
os._exit(3)
"""
    body = "result = start().wait(); report['code'] = result.failures[0].exitcode"
    with hosted(tmp_path, kind, [source], tee=3, body=body) as host:
        assert host.hear() == "ready"
        before_kib = host.rss_peak_kib()
        host.tell(0)
        host.err.until(b"after\n")
        assert host.rss_peak_kib() - before_kib < 32 * 1024
        host.finish()
    assert host.report["code"] == 3
    for shown in (host.out.data, host.err.data):
        lines = shown.replace(b"\0", b"").split(b"\n")
        assert [line for line in lines if line not in {b"", b"[w0]:"}] == [b"[w0]:before", b"[w0]:after"]
        assert len(shown) < 1 << 20
    assert {(e["log_iostream"], "hole" in e["error"]) for e in host.complaints} == {("stdout", True), ("stderr", True)}
    for path in Path(tmp_path).glob("logs/*/*/0/*.log"):
        path.unlink()


def test_p3_an_error_file_at_the_limit_is_read(tmp_path):
    path = tmp_path / "error.json"
    whole = json.dumps(RECORD)
    for size, is_read in ((MOST_BYTES, True), (MOST_BYTES + 1, False)):
        path.write_text(whole + " " * (size - len(whole)))
        failure = ProcessFailure(0, 1, 3, str(path))
        assert (failure.message == RECORD["message"]) is is_read
        assert failure.error_file == os.fspath(path)
