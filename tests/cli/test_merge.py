"""--merge: both streams of a rank in one file, in the order of the writes."""

import os
from pathlib import Path

import pytest

from tests.cli.command import Command

ALTERNATE = 'for i in 1 2 3 4 5; do echo "out $i"; echo "err $i" >&2; done'
IN_ORDER = [f"{stream} {i}" for i in range(1, 6) for stream in ("out", "err")]


def test_both_streams_are_in_the_order_of_the_writes(supervise: Command):
    """In the file, and on stdout behind one prefix."""
    done = supervise.run("-q", "--merge", "--", "sh", "-c", ALTERNATE)
    assert done.stdout.splitlines() == [f"[default0]:{line}" for line in IN_ORDER]
    assert done.stderr == ""
    folder = supervise.directory() / "attempt_0/0"
    assert (folder / "stdout.log").read_text().splitlines() == IN_ORDER
    assert [path.name for path in folder.iterdir()] == ["stdout.log"]


def test_the_failure_screen_has_the_end_of_both(supervise: Command):
    """The tail is that of the one file; a silent rank has written nothing at all."""
    done = supervise.run(
        "-n", "2", "--merge", "--", "sh", "-c", f'[ "$RANK" = 0 ] || exec sleep 1000; {ALTERNATE}; exit 3'
    )
    assert done.returncode == 3
    assert "the end of its output:\n    out 1\n    err 1\n" in done.stderr
    done = supervise.run("--merge", "--", "sh", "-c", f"{ALTERNATE}; exit 3")
    assert "the end of its output:\n    out 1\n" in done.stderr  # stdout may be a file
    done = supervise.run("-n", "2", "--merge", "--", "false")
    assert "  it wrote nothing\n" in done.stderr


def test_each_attempt_has_one_file(supervise: Command):
    """Restarts of all ranks and of one, and ranks that are only written."""
    fails = f'{ALTERNATE}; [ "$TORCHELASTIC_RESTART_COUNT" = 1 ]'
    for number, given in enumerate((("--strategy", "one_for_one"), (), ("-r", "3"))):
        logs = Path(supervise.tmp_path) / str(number)
        words = (*given, "--max-restarts", "1", "--backoff", "0", "--log-dir", str(logs))
        done = supervise.run("--merge", *words, "--", "sh", "-c", fails)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ([f"[default0]:{line}" for line in IN_ORDER * 2] if number < 2 else [])
        files = sorted(logs.glob("*/attempt_*/0/std*"))
        assert [file.read_text().splitlines() for file in files] == [IN_ORDER, IN_ORDER]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--log-dir", os.devnull), "--merge needs files, and --log-dir /dev/null keeps none"),
        (("-t", "1"), "-t and -r treat those of rank 0 differently"),
        (("-r", "2"), "-t and -r treat those of rank 0 differently"),
        (("-n", "2", "-t", "0:3"), "--merge needs a file, and -t and -r name no stream of rank 1"),
        (("--duplicate-stderr-filters", "x"), "give --duplicate-stdout-filters"),
    ],
)
def test_what_has_no_common_file_is_refused(supervise: Command, words: tuple[str, ...], why: str):
    """Before any process starts."""
    done = supervise.run("--merge", *words, "--", "echo", "no")
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr
    assert not list(supervise.tmp_path.iterdir())
