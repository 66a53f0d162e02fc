"""Which file gets what, who may read it, and what is refused before any process starts."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from supervise import DefaultLogsSpecs, LogsDest, LogsSpecs, Std, start_processes
from tests.processes import work
from tests.processes.console import ROOT, show
from tests.processes.test_logs import OVER, each_kind, log_of

SPEAK = """
rank = os.environ["LOCAL_RANK"]
os.write(1, f"out {rank}\\n".encode())
os.write(2, f"err {rank}\\n".encode())
"""


def text_of(tmp_path, rank, stream="stdout"):
    return log_of(tmp_path, rank, stream).read_text()


@each_kind
def test_l6_ranks_of_two_digits_are_redirected_teed_and_filtered(tmp_path, kind):
    """Of twelve ranks, 10 and 11 are chosen by text, and nothing of the others appears anywhere."""
    host = show(tmp_path, kind, [SPEAK] * 12, redirects="10:3,11:1", tee="10:1,11:1", local_ranks_filter=[10, 11])
    assert sorted(host.out.data.splitlines()) == [b"<over>", b"[w10]:out 10", b"[w11]:out 11"]
    assert host.err.data == b"err 11\n"
    assert (text_of(tmp_path, 10), text_of(tmp_path, 11)) == ("out 10\n", "out 11\n")
    assert text_of(tmp_path, 10, "stderr") == "err 10\n"
    assert len(list(tmp_path.glob("logs/*/attempt_0/*/std*.log"))) == 3


@each_kind
def test_redirected_without_tee_the_console_stays_empty(tmp_path, kind):
    """Both streams of both ranks are in their files, and nowhere else."""
    host = show(tmp_path, kind, [SPEAK] * 2, redirects=3)
    assert (host.out.data, host.err.data, host.complaints) == (OVER, b"", [])
    for rank in range(2):
        assert text_of(tmp_path, rank) == f"out {rank}\n"
        assert text_of(tmp_path, rank, "stderr") == f"err {rank}\n"


@each_kind
def test_only_ranks_in_the_filter_are_shown(tmp_path, kind):
    """The files have everybody."""
    host = show(tmp_path, kind, [SPEAK] * 3, tee=3, local_ranks_filter=[1])
    assert (host.out.data, host.err.data) == (b"[w1]:out 1\n" + OVER, b"[w1]:err 1\n")
    assert [text_of(tmp_path, rank) for rank in range(3)] == ["out 0\n", "out 1\n", "out 2\n"]


LOSSES = """
for fd in (1, 2):
    stream = open(fd, "wb", closefd=False)
    stream.writelines(b"%s %d\\n" % (b"loss" if i % 10 == 0 else b"step", i) for i in range(100_000))
    stream.flush()
"""
READ_FILTERED = """
import glob
result = start().wait()
for stream in ("stdout", "stderr"):
    [path] = glob.glob(f"{spec['folder']}/logs/*/attempt_0/filtered_{stream}.log")
    report[stream] = open(path).read()
"""


@each_kind
def test_filtered_files_are_complete_when_wait_returns(tmp_path, kind):
    """Lines that hold any of the words, of both ranks, each whole behind its prefix; in order for each rank."""
    filters = {"duplicate_stdout_filters": ["loss", "nothing"], "duplicate_stderr_filters": ["step 7", "99999"]}
    host = show(tmp_path, kind, [LOSSES] * 2, tee=3, body=READ_FILTERED, **filters)
    wanted = {
        "stdout": [f"loss {i}" for i in range(0, 100_000, 10)],
        "stderr": [f"step {i}" for i in range(100_000) if i % 10 and (str(i).startswith("7") or i == 99_999)],
    }
    for stream, lines in wanted.items():
        got = host.report[stream].splitlines()
        for rank in range(2):
            assert [x.partition(":")[2] for x in got if x.startswith(f"[w{rank}]:")] == lines
        assert len(got) == 2 * len(lines)


@each_kind
def test_logs_are_private(tmp_path, kind):
    """Folders 0700 and files 0600, whatever the umask."""
    old = os.umask(0)
    try:
        more = {"duplicate_stdout_filters": ["out"], "log_dir": str(tmp_path / "a" / "logs")}
        show(tmp_path, kind, [SPEAK + "raise ValueError"], tee=3, body="start().wait()", **more)
    finally:
        os.umask(old)
    made = [tmp_path / "a", *(tmp_path / "a").rglob("*")]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made}
    folders = {path.name for path in made if path.is_dir()}
    assert {modes[name] for name in folders} == {0o700}
    files = {name: mode for name, mode in modes.items() if name not in folders}
    recorded = set() if kind == "binary" else {"error.json"}
    assert files == dict.fromkeys({"stdout.log", "stderr.log", "filtered_stdout.log", *recorded}, 0o600)


@each_kind
def test_with_devnull_there_are_no_files_and_the_streams_are_the_hosts(tmp_path, kind):
    """Although everything is asked for: PyTorch's meaning of log_dir=os.devnull."""
    filters = {"duplicate_stdout_filters": ["out"], "duplicate_stderr_filters": ["err"]}
    host = show(tmp_path, kind, [SPEAK], log_dir=os.devnull, redirects=3, tee=3, **filters)
    assert (host.out.data, host.err.data, host.complaints) == (b"out 0\n" + OVER, b"err 0\n", [])
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"spec.json", "report.json"}
    assert not list(tmp_path.glob("*/"))


class OneFolder(LogsSpecs):
    """A layout of one's own, as small as it can be."""

    @property
    def root_log_dir(self) -> str:
        return str(self._root_log_dir)

    def reify(self, envs):
        paths = {rank: f"{self.root_log_dir}/{rank}.txt" for rank in envs}
        return LogsDest(stdouts=paths, stderrs=dict.fromkeys(envs, os.devnull), error_files=dict.fromkeys(envs, ""))


def start(kind, sources, specs, **more):
    """Start a gang in this process."""
    if kind == "binary":
        args = {rank: ("-S", "-c", work.PREAMBLE + source) for rank, source in enumerate(sources)}
        entrypoint = sys.executable
    else:
        args = {rank: (source,) for rank, source in enumerate(sources)}
        entrypoint, more["start_method"] = work.run_source, kind
    envs = {rank: {"LOCAL_RANK": rank} for rank in args}
    return start_processes("w", entrypoint, args, envs, logs_specs=specs, **more)


@each_kind
def test_a_layout_of_ones_own_is_used(tmp_path, kind):
    """A subclass of LogsSpecs that knows neither run nor attempt, and keeps no error files."""
    assert not start(kind, [SPEAK] * 2, OneFolder(str(tmp_path))).wait(30).is_failed()
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)] == ["out 0\n", "out 1\n"]
    assert len(list(tmp_path.iterdir())) == 2


@each_kind
@pytest.mark.parametrize("log_dir", ["a file", "below a file", "/proc/self/task", "/sys/kernel"])
def test_l8_a_log_dir_that_cannot_be_used_is_a_clear_error_before_any_start(tmp_path, no_launch, kind, log_dir):
    """It names the folder: a file, something below one, and two that not even root can write to. Either generation."""
    (tmp_path / "file").touch()
    path = {"a file": str(tmp_path / "file"), "below a file": str(tmp_path / "file/x")}.get(log_dir, log_dir)
    wanted = NotADirectoryError if "file" in log_dir else OSError
    with pytest.raises(wanted, match=str(tmp_path / "file") if "file" in log_dir else log_dir):
        start(kind, [SPEAK], DefaultLogsSpecs(path, tee=Std.ALL))
    entrypoint = "/bin/true" if kind == "binary" else work.say
    with pytest.raises(wanted):
        start_processes("w", entrypoint, {0: ()}, {0: {}}, path, "spawn", Std.ALL, Std.NONE)


class Misplaced(DefaultLogsSpecs):
    """Names one file in a folder that is not there."""

    def __init__(self, log_dir: str, which: str) -> None:
        super().__init__(log_dir, tee=Std.ALL)
        self._which = which

    def reify(self, envs):
        dest = super().reify(envs)
        path = f"{self.root_log_dir}/missing/file"
        if self._which == "filtered":
            dest.filtered_stderr = path
        else:
            dest.stderrs[0] = dest.tee_stderrs[0] = path
        return dest


@each_kind
@pytest.mark.parametrize("which", ["log", "filtered"])
def test_l8_a_log_file_that_cannot_be_made_is_a_clear_error_before_any_start(tmp_path, no_launch, kind, which):
    """A layout that names a folder which is not there: the error names the file, and nothing is left open."""
    with pytest.raises(FileNotFoundError) as caught:
        start(kind, [SPEAK], Misplaced(str(tmp_path), which), duplicate_stderr_filters=["x"])
    assert caught.value.filename == f"{tmp_path}/missing/file"


AS_NOBODY = """
import os, sys, supervise

def run(folder, program, *args, specs):
    where = [supervise.DefaultLogsSpecs(folder)] if specs else [folder]
    supervise.start_processes("w", program, {0: args}, {0: {}}, *where).wait()

closed, sign, usable = sys.argv[1:]
for specs in (True, False):
    run(usable, "true", specs=specs)  # imports what is imported on first use, while it can be read
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for specs in (True, False):
    try:
        run(closed, "touch", sign, specs=specs)
    except PermissionError as error:
        print(type(error).__name__, error.filename)
"""


def test_l8_a_log_dir_without_permission_is_a_clear_error():
    """For a user who is not root: nothing is started, the error names the folder, in either generation."""
    with tempfile.TemporaryDirectory(prefix="supervise-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        closed = folder / "closed"
        closed.mkdir(0o555)
        open_to_all = folder / "open"
        open_to_all.mkdir()
        open_to_all.chmod(0o777)
        argv = [sys.executable, "-c", AS_NOBODY, str(closed), str(open_to_all / "sign"), str(folder / "usable")]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
        assert (done.stdout, done.stderr) == (f"PermissionError {closed}\n" * 2, "")
        assert not list(open_to_all.iterdir())
