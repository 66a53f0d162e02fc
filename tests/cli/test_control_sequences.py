"""What ranks, users and files put into names and messages moves no cursor and forges no line of ours."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from supervise._printable import as_prefix, one_line, printable
from supervise.cli.run.console import Console
from supervise.errors import ChildFailedError
from supervise.result import ProcessFailure
from tests.cli.command import Command, environment
from tests.patience import PATIENCE_S

CONTROL = (
    "\x1b]0;owned\x07\x1b]52;c;bWluZQ==\x1b\\\x1b[2J\x1b[1;1H\x1bc\x9b2J\x9d0;x\x9c\x85\x08\x7f\u202e\u2066\u200f\u2028"
)
FORGED = "supervise: rank 9 of 9 failed"
HOSTILE = f"before{CONTROL}after\n{FORGED}\r{FORGED}"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def check(text: str) -> None:
    """Fail if a terminal would obey some of it, or a line looks like one of ours."""
    assert not OBEYED.findall(text), ascii(text)
    assert not [line for line in text.splitlines() if line.startswith(FORGED)], text


def test_all_that_a_terminal_obeys_is_removed_and_all_that_it_shows_stays():
    """Sequences as a whole, also torn ones; letters of every script, lines and tabs stay."""
    assert printable(f"a{CONTROL}b") == "ab"
    assert printable("a\x1b") + printable("\x1b]0;no end") + printable("\x1b[3") == "a0;no end3"
    assert printable("ä語\u0633\t🧑\u200d🚀\u00a0\nb") == "ä語\u0633\t🧑\u200d🚀\u00a0\nb"
    assert one_line("a\nb") == "a b"
    assert as_prefix(f"\x1b[K\x1b[36m[a{CONTROL}\n0]:\x1b[0m") == "\x1b[K\x1b[36m[a0]:\x1b[0m"


def test_every_character_that_a_terminal_obeys_is_one_that_python_does_not_call_printable():
    """For text of printable characters, no pattern is compiled."""
    obeyed = OBEYED.findall("".join(map(chr, range(sys.maxunicode + 1))))
    assert not [ascii(each) for each in obeyed if each.isprintable()]


@pytest.mark.parametrize(
    "message",
    [HOSTILE, {"message": f"{HOSTILE}: text", "extraInfo": {"py_callstack": HOSTILE, "timestamp": "1"}}],
    ids=["text", "record"],
)
def test_p5_messages_of_error_files_reach_no_terminal_as_they_are(supervise: Command, message: object):
    """On the screen, of the root cause and of one that failed too; and in the note of a restart."""
    (supervise.tmp_path / "record.json").write_text(json.dumps({"message": message}))
    script = """
        cp record.json "$TORCHELASTIC_ERROR_FILE"
        : > ready$TORCHELASTIC_RESTART_COUNT.$RANK
        until [ -e ready$TORCHELASTIC_RESTART_COUNT.0 -a -e ready$TORCHELASTIC_RESTART_COUNT.1 ]; do sleep 0.01; done
        [ "$RANK" = 0 ] || exec sleep 1000
        exit 3
    """
    done = supervise.run("-n", "2", "--max-restarts", "1", "--backoff", "0", "--", "sh", "-c", script)
    assert "restart 1 of 1" in done.stderr
    assert "beforeafter" in done.stderr
    assert "failed too: " in done.stderr
    check(done.stderr)


def test_p5_names_reach_no_terminal_as_they_are(supervise: Command):
    """Of the program, the run directory, an option, a command: on a screen, in a note, in a complaint."""
    name, logs = f"x{HOSTILE}.sh".replace("/", ""), f"logs{HOSTILE}"
    program = supervise.tmp_path / name
    program.write_text("#!/bin/sh\nexit 3\n")
    for words in ((f"./{name}",), ("--log-dir", logs, "false"), (f"--x{HOSTILE}", "true"), ("-n", HOSTILE, "true")):
        done = supervise.run(*words)
        assert done.returncode
        check(done.stderr)
    program.chmod(0o700)
    done = supervise.run("--log-dir", logs, "--", f"./{name}")
    assert done.returncode == 3
    assert "/logsbeforeafter" in done.stderr
    check(done.stderr)
    check(supervise.supervise(HOSTILE).stderr)
    with supervise.on_terminal("--log-dir", logs, "--", f"./{name}") as terminal:
        _, shown = terminal.end()
    assert "beforeafter" in shown
    check(re.sub(r"\x1b\[[0-9;]*[mK]|\r", "", shown))
    [run, *_] = (supervise.tmp_path / logs).iterdir()
    with supervise.on_terminal(str(run), command="report") as terminal:
        _, shown = terminal.end()
    assert "beforeafter" in shown
    check(shown.replace("\r", ""))


def test_p5_texts_for_people_in_python_are_clean(tmp_path: Path):
    """The text of a `ChildFailedError`, of what `spawn` raises, and the prefix that is made of a gang's name."""
    error_file = tmp_path / "error.json"
    for message in (HOSTILE, {"message": HOSTILE, "extraInfo": {"py_callstack": HOSTILE, "timestamp": "1"}}):
        error_file.write_text(json.dumps({"message": message}))
        failure = ProcessFailure(0, 1, 1, str(error_file))
        check(str(ChildFailedError(f"name{CONTROL}", {0: failure})).replace(f"\n{FORGED}", ""))
        assert CONTROL in str(failure.message) or isinstance(message, dict)  # the record itself is as it was written
    (tmp_path / "work.py").write_text(
        "import os, sys\nfrom supervise import Std, DefaultLogsSpecs, start_processes\n"
        "from supervise.multiprocessing import spawn, ProcessRaisedException\n"
        f"HOSTILE = {HOSTILE!r}\n"
        "def fails(rank): raise ValueError(HOSTILE)\n"
        "if __name__ == '__main__':\n"
        "    try: spawn(fails)\n"
        "    except ProcessRaisedException as error: print(error)\n"
        "    name = {'name': HOSTILE.replace('/', ''), 'logs_specs': DefaultLogsSpecs('logs', tee=Std.ALL)}\n"
        "    with start_processes(entrypoint='echo', args={0: ('hello',)}, envs={0: {}}, **name) as c: c.wait()\n"
    )
    run = [sys.executable, "-W", "error", "work.py"]
    env = environment(tmp_path)
    done = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert "ValueError: beforeafter" in done.stdout
    assert "0]:hello" in done.stdout
    check(done.stdout.replace(f"\n{FORGED}", "") + done.stderr)  # a traceback is on lines of its own


def test_p5_notes_status_and_the_log_of_the_library_are_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whatever text they are given."""
    with (tmp_path / "stderr").open("w+") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        console = Console("never")
        console.note(HOSTILE)
        console.show_left()
        console.finish()
        shown = (tmp_path / "stderr").read_text()
        assert shown
        check(shown)
