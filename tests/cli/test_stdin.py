"""Which rank reads the stdin of ``supervise run``, from a pipe or a file."""

import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from supervise.cli.run import rank_stdin
from supervise.cli.run.rank_stdin import StdinCopies
from tests.cli.command import SUPERVISE, Command, environment
from tests.patience import PATIENCE_S

COUNT = ("--no-prefix", "--", "wc", "-l")
DROPPED = "stdin has input, but no rank reads it; --stdin RANK or --stdin all passes it on"


def run(supervise: Command, *words: str, stdin=None, text: str | None = None, **env: str):
    with ExitStack() as stack:
        if text is not None:  # before the start: a run whose ranks read nothing may be over before its input arrives
            read, write = os.pipe()
            stdin = stack.enter_context(os.fdopen(read))
            with os.fdopen(write, "w") as end:
                end.write(text)
        return subprocess.run(
            [*SUPERVISE, "run", *words],
            env=environment(supervise.tmp_path, **env),
            cwd=supervise.tmp_path,
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "input"
    found.write_text("0\n1\n2\n")
    return found


@pytest.mark.parametrize("without", ["", "pidfd,group,inotify,glibc"])
def test_the_only_rank_reads_a_pipe(supervise: Command, without: str):
    """``printf 'a\\nb\\n' | supervise run wc -l`` prints 2, also by Python's own posix_spawn."""
    done = run(supervise, "-q", *COUNT, text="a\nb\n", SUPERVISE_WITHOUT=without)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "2", "")


def test_the_only_rank_reads_a_file_from_its_present_position(supervise: Command, file: Path):
    """As a program in the place of supervise would."""
    with file.open("rb") as stdin:
        os.lseek(stdin.fileno(), 2, os.SEEK_SET)
        assert run(supervise, *COUNT, stdin=stdin).stdout.strip() == "2"


def test_one_of_several_ranks_reads_it(supervise: Command):
    """The other ranks have an empty stdin."""
    done = run(supervise, "-n", "3", "--stdin", "1", "--", "sh", "-c", "echo $RANK: $(wc -l)", text="a\nb\n")
    assert sorted(done.stdout.splitlines()) == ["[default0]:0: 0", "[default1]:1: 2", "[default2]:2: 0"]
    assert "stdin" not in done.stderr


def test_each_rank_reads_all_of_a_file(supervise: Command, file: Path):
    """Each rank has a position of its own, which begins at that of supervise."""
    with file.open("rb") as stdin:
        os.lseek(stdin.fileno(), 2, os.SEEK_SET)
        done = run(supervise, "-n", "3", "--stdin", "all", "--no-prefix", "--", "head", "-n", "1", stdin=stdin)
    assert done.stdout.split() == ["1", "1", "1"]


def test_each_rank_reads_all_of_a_pipe_whatever_the_others_do(supervise: Command):
    """One rank never reads, one ends at once, one reads last: more input than all pipes hold reaches the others."""
    program = "case $RANK in 0) read a; exec sleep 1000;; 1) exit;; *) exec wc -c; esac"
    size = 3_000_000
    words = ("-n", "4", "--stdin", "all", "--strategy", "one_for_one", "--timeout", "1000", "--no-prefix")
    with subprocess.Popen(
        [*SUPERVISE, "run", *words, "--", "sh", "-c", program],
        env=environment(supervise.tmp_path),
        cwd=supervise.tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            process.stdin.write("x" * (size - 1) + "\n")
            process.stdin.close()
            assert [process.stdout.readline().strip() for _ in range(2)] == [str(size)] * 2
            process.terminate()
            assert process.wait(PATIENCE_S) == 143
        finally:
            process.kill()


READS = "import select; print(repr(select.select([0], [], [], {})[0] and open(0).read()))"


@pytest.mark.parametrize(("kind", "wanted"), [("", "'a\\n'"), ("null", "''"), ("open", "[]"), ("inherit", "'a\\n'")])
@pytest.mark.parametrize("count", [1, 2])
def test_the_stdin_of_a_role(supervise: Command, kind: str, wanted: str, count: int):
    """Empty, without an end, or that of supervise; without the key as for a run without a file."""
    key = f"stdin = {kind!r}" if kind else ""
    other = "\n[roles.b]\ncommand = 'true'" if count == 2 else ""
    reads = READS.format(0.3 if kind == "open" else PATIENCE_S)
    command = f"command = ['python', '-S', '-c', {reads!r}]"
    (supervise.tmp_path / "gang.toml").write_text(f"[roles.a]\n{command}\n{key}{other}")
    done = run(supervise, "-q", "--no-prefix", "--file", "gang.toml", text="a\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (wanted if kind or count == 1 else "''")


def test_a_role_that_inherits_a_closed_stdin_has_an_empty_one(supervise: Command):
    """And no other file of supervise."""
    (supervise.tmp_path / "gang.toml").write_text("[roles.a]\ncommand = 'wc -c'\nstdin = 'inherit'\n")
    closed = ("sh", "-c", 'exec "$@" <&-', "sh")
    done = supervise.run("-q", "--no-prefix", "--file", "gang.toml", before=closed)
    assert (done.returncode, done.stdout) == (0, "0\n")


def test_no_rank_reads_it(supervise: Command):
    """``none`` is a choice, so it warns of nothing."""
    done = run(supervise, "-q", "--stdin", "none", *COUNT, text="a\n")
    assert (done.stdout.strip(), done.stderr) == ("0", "")


def test_input_that_no_rank_reads_is_reported_once(supervise: Command, file: Path):
    """For a file and for a pipe, but not for the null device or without input."""
    two = ("-n", "2", *COUNT)
    with file.open("rb") as stdin:
        both = run(supervise, *two, text="a\n"), run(supervise, *two, stdin=stdin)
    for done in both:
        assert done.stdout.split() == ["0", "0"]
        assert done.stderr.count(DROPPED) == 1
    assert DROPPED not in run(supervise, "-q", *two, text="a\n").stderr
    assert DROPPED not in run(supervise, *two, text="").stderr
    assert DROPPED not in run(supervise, *two, stdin=subprocess.DEVNULL).stderr


def test_a_restarted_rank_reads_on(supervise: Command):
    """The input goes on where the life before has stopped to read."""
    program = "import os, sys; print(os.read(0, 2)); sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')"
    words = ("--max-restarts", "1", "--backoff", "0", "--no-prefix", "--no-python", sys.executable)
    for more in ((), ("--stdin", "all")):
        done = run(supervise, *more, *words, "-c", program, text="a\nb\n")
        assert (done.returncode, done.stdout) == (0, "b'a\\n'\nb'b\\n'\n")


def test_a_closed_stdin_is_empty(supervise: Command):
    """``supervise run ... <&-``: the rank has the null device, and no other file of supervise."""
    script = 'exec "$@" <&-'
    for words in ((), ("--stdin", "0"), ("-n", "2", "--stdin", "all")):
        done = supervise.run(*words, *COUNT, before=("sh", "-c", script, "sh"))
        assert set(done.stdout.split()) == {"0"}
        assert done.returncode == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--stdin", "2", "-n", "2"), "--stdin: rank 2 does not exist; the ranks are 0 to 1"),
        (("--stdin", "1"), "--stdin: rank 1 does not exist; the ranks are 0 only"),
        (("--stdin", "first"), "--stdin: 'first' is not a rank or a role"),
        (("--stdin", "all", "--gate"), "--stdin all and --gate exclude each other"),
    ],
)
def test_a_wrong_choice_is_refused(supervise: Command, words: tuple[str, ...], complaint: str):
    """Before any process starts."""
    done = supervise.run(*words, "true")
    assert done.returncode == 2
    assert complaint in done.stderr


def test_a_gate_has_the_stdin(supervise: Command):
    """A gated rank has an empty stdin, which is reported if there is input."""
    done = run(supervise, "--gate", *COUNT, text="a\n")
    assert done.stdout.strip() == "0"
    assert DROPPED in done.stderr


def test_no_more_is_read_while_a_rank_is_too_late(monkeypatch: pytest.MonkeyPatch, system_call: Any):
    """The file is bounded: a rank that does not read stops the input in the end, and nothing is lost."""
    monkeypatch.setattr(rank_stdin, "MOST_BYTES", 100_000)
    full, ends = threading.Event(), []

    def recorded(pwrite: Any, fd: int, chunk: bytes, at: int) -> int:
        written = pwrite(fd, chunk, at)
        ends.append(at + written)
        if ends[-1] >= 100_000:
            full.set()
        return written

    system_call("pwrite", recorded)
    source, write = os.pipe()
    data = os.urandom(50_000) * 20
    copies = StdinCopies(source, 1, pytest.fail)

    def write_all() -> None:
        with os.fdopen(write, "wb") as end:
            end.write(data)

    writer = threading.Thread(target=write_all)
    writer.start()
    assert full.wait(PATIENCE_S)
    found = b""
    while chunk := os.read(copies.read_ends[0], 10_000):
        found += chunk
    writer.join()
    assert found == data
    assert max(ends) == 100_000
    copies.close()
    os.close(source)
    os.close(copies.read_ends[0])


def test_a_full_disk_ends_the_copies(system_call: Any):
    """The ranks read to the end of their input, and supervise says why."""
    said: list[str] = []

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    system_call("pwrite", full)
    source, write = os.pipe()
    copies = StdinCopies(source, 2, said.append)
    os.write(write, b"a")
    assert [os.read(fd, 1) for fd in copies.read_ends] == [b"", b""]
    copies.close()
    assert said == ["the copies of stdin end here: No space left on device"]
    for fd in (source, write, *copies.read_ends):
        os.close(fd)
