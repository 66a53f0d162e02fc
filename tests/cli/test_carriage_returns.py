"""A carriage return in the message of an exception, such as one that quotes a progress bar of another program."""

import json
import subprocess
import sys

import pytest

from tests.cli.command import Command, environment

RAISES = """
import os, signal
if os.environ["RANK"] == "1":
    raise ValueError("disk full\\rretry\\r\\nlast")
signal.pause()
"""
SHOWN = ["ValueError: disk full", "retry", "last"]


@pytest.mark.parametrize("words", [("work.py",), (sys.executable, "work.py")], ids=["recorded", "on stderr"])
def test_p5_a_carriage_return_ends_a_line_of_a_message_in_every_report(supervise: Command, words: tuple[str, ...]):
    """The type and the beginning stay: on the failure screen, in `show`, on the page."""
    (supervise.tmp_path / "work.py").write_text(RAISES)
    done = supervise.run("--run-id", "job", "-n", "2", *words)
    assert done.returncode == 1
    shown = supervise.supervise("show", "job").stdout
    supervise.supervise("report", "job")
    page = (supervise.directory() / "report.html").read_text(encoding="utf-8")
    assert "\r" not in done.stderr.partition("rank 1 of 2 failed")[2] + shown + page
    for text in (done.stderr.partition("rank 1 of 2 failed")[2], shown, page):
        lines = [line.strip().partition("<")[0] for line in text.splitlines()]
        first = lines.index(SHOWN[0])
        assert lines[first : first + 3] == SHOWN
    report = json.loads((supervise.directory() / "result.json").read_text())["report"]
    assert [line.strip() for line in report if "disk full" in line][-1] == SHOWN[0]


@pytest.mark.parametrize("words", [("work.py",), (sys.executable, "work.py")], ids=["recorded", "on stderr"])
def test_p5_the_report_on_a_single_rank_has_what_its_screen_lacks(supervise: Command, words: tuple[str, ...]):
    """The screen shows the last part of the line, as of a progress bar; other tracebacks are not shown twice."""
    (supervise.tmp_path / "work.py").write_text("raise ValueError('disk full\\rretry')\n")
    err = supervise.run(*words).stderr
    assert [line.strip() for line in err.partition("rank 0 failed")[2].splitlines()][-4:-2] == [SHOWN[0], "retry"]
    (supervise.tmp_path / "work.py").write_text("raise ValueError('disk full')\n")
    assert supervise.run(*words).stderr.count(SHOWN[0]) == 1


def test_p5_the_last_state_of_a_bar_in_the_end_of_stderr(supervise: Command):
    """What is no exception of a traceback stays a progress bar."""
    script = 'printf "  indented\\n10%%\\r20%%\\n" >&2; exit 3'
    done = supervise.run("-n", "2", "sh", "-c", script)
    assert "    20%\n" in done.stderr
    assert "10%" not in done.stderr.partition("failed:")[2]


PRINTS = """
import sys, traceback
import supervise
def rank():
    raise ValueError("\\u2603 \\udc80")
if __name__ == "__main__":
    try:
        supervise.run(rank, n=2)
    except supervise.GangFailed as failed:
        print(failed)
        print(repr(failed))
        traceback.print_exc(file=sys.stdout)
        child = supervise.ChildFailedError("job", failed.result.failures)
        print(child)
        print(repr(child))
        raise
"""


@pytest.mark.parametrize("encoding", ["ascii:strict", "utf-8:strict", "latin-1:strict", "utf-16:strict"])
def test_the_text_of_a_failure_prints_under_any_encoding(supervise: Command, encoding: str):
    """What stdout cannot encode, such as a lone surrogate, is escaped; the exception may also leave the program."""
    (supervise.tmp_path / "main.py").write_text(PRINTS)
    done = subprocess.run(
        [sys.executable, "main.py"],
        env=environment(supervise.tmp_path, PYTHONIOENCODING=encoding),
        cwd=supervise.tmp_path,
        capture_output=True,
        timeout=60,
        check=False,
    )
    codec = encoding.partition(":")[0]
    out, err = done.stdout.decode(codec), done.stderr.decode(codec)
    assert "UnicodeEncodeError" not in out + err
    assert (done.returncode, out.count("ValueError:") >= 4) == (1, True)
    assert f"ValueError: {'☃' if codec.startswith('utf') else chr(92) + 'u2603'} \\udc80" in out
    assert "GangFailed" in err


def test_the_end_of_stderr_has_the_reason_above_the_last_states_of_many_bars(supervise: Command):
    """Each of these bars moves the cursor down and up again, also when it is closed."""
    turns = range(30)
    up = "\x1b[A"
    bars = "".join("\n" * bar + f"\rbar {bar}: {turn}" + up * bar for turn in turns for bar in range(1, 9))
    (supervise.tmp_path / "end").write_text(f"the reason\n\rbar 0: 0{bars}\r       \r\nlast\n")
    done = supervise.run("-n", "2", "sh", "-c", "test $RANK = 0 || { cat end >&2; exit 3; }")
    quoted = done.stderr.partition("the end of its stderr:\n")[2].partition("rank 0:")[0].split("\n")
    expected = ["the reason", "last", *(f"bar {bar}: {turns[-1]}" for bar in range(2, 9))]
    assert [line.strip() for line in quoted if line.strip()] == expected
