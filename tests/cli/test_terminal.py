"""What a person sees: the real program on a real terminal."""

import json
import os
import re
import signal
import subprocess
import sys

from tests.cli.command import HANG, Command, plain, until_another_signal
from tests.cli.test_signals import STUBBORN

ERASE = "\x1b[K"
SAY = ("--", "sh", "-c", "echo hello from $RANK")


def test_a_run_says_what_runs_where(supervise: Command):
    """The first line on a terminal; then the ranks, each in its color."""
    with supervise.on_terminal("-n", "2", *SAY, OMP_NUM_THREADS="1") as terminal:
        code, shown = terminal.end()
    assert code == 0
    first, *rest = plain(shown).splitlines()
    assert first == f"supervise: sh -c 'echo hello from $RANK' on 2 ranks, logs in {supervise.directory()}"
    assert sorted(rest) == ["[default0]:hello from 0", "[default1]:hello from 1"]
    colors = set(re.findall(r"\x1b\[(\d+)m\[default\d\]:\x1b\[0m", shown))
    assert len(colors) == 2


def test_no_color_where_it_is_not_wanted(supervise: Command):
    """NO_COLOR, --color never and a dumb terminal; --color always wins over NO_COLOR."""
    for words, env in (((), {"NO_COLOR": "1"}), (("--color", "never"), {}), ((), {"TERM": "dumb"})):
        with supervise.on_terminal(*words, *SAY, **env) as terminal:
            assert not re.search(r"\x1b\[[0-9;]*m", terminal.end()[1])
    with supervise.on_terminal("--color", "always", *SAY, NO_COLOR="1") as terminal:
        assert "\x1b[36m[default0]:\x1b[0mhello" in terminal.end()[1]
    assert supervise.run("--color", "always", *SAY).stdout == "\x1b[36m[default0]:\x1b[0mhello from 0\n"


def test_a_pipe_gets_plain_lines_even_beside_a_terminal(supervise: Command):
    """``supervise run ... | tee log``: no escapes in the log, whatever stderr is."""
    with supervise.on_terminal(*SAY, stdout=subprocess.PIPE) as terminal:
        _, shown = terminal.end()
        out = terminal.process.stdout.read()
    assert out == b"[default0]:hello from 0\n"
    assert "logs in" in shown


def test_ctrl_c_shows_a_countdown_that_is_removed(supervise: Command):
    """The first Ctrl-C is polite and counts down, the second kills; at the end no trace of the line is left."""
    with supervise.on_terminal("--shutdown-timeout", "600", sys.executable, "-c", STUBBORN) as terminal:
        terminal.until("ready")
        terminal.type(b"\x03")
        terminal.until_match(r"SIGINT: stopping 1 rank, SIGKILL in \d+ s; Ctrl-C again kills now")
        terminal.until_match(r"SIGKILL in 5\d\d s(?s:.*)SIGKILL in 5\d\d s")
        terminal.type(b"\x03")
        code, shown = terminal.end()
    assert code == 130
    *_, countdown, after = shown.split("\r \x1b[J\r")
    assert "SIGKILL in" in countdown
    assert countdown.rstrip("^C").endswith("\r")
    assert [line.split(" (")[0] for line in plain(after).splitlines()[:3]] == [
        "supervise: SIGINT again: killing 1 rank now",
        "supervise: killed after SIGINT",
        "  rank 0: killed by SIGKILL",
    ]


def test_the_countdown_is_that_of_the_next_role_and_of_a_stop_by_command(supervise: Command):
    """Each role has its own time until SIGKILL; a command may limit it."""
    command = f"command = {json.dumps([sys.executable, '-c', STUBBORN])}\nneeds = []\n"
    content = f"[roles.a]\n{command}shutdown-timeout = 700\n[roles.b]\n{command}shutdown-timeout = 500\n"
    (supervise.tmp_path / "gang.toml").write_text(f"shutdown-timeout = 900\n{content}[roles.c]\n{command}")
    for timeout, shown in (("", "SIGKILL in [45]\\d\\d s"), ("200", "SIGKILL in [12]\\d\\d s")):
        with supervise.on_terminal("--run-id", f"job{timeout}", "--file", "gang.toml") as terminal:
            terminal.until_true(lambda: terminal.raw.count("ready") == 3)
            if not timeout:
                terminal.type(b"\x03")
                terminal.until_match(f"SIGINT: stopping 3 ranks, {shown}; Ctrl-C again kills now")
            else:
                words = ("stop", f"job{timeout}", "--timeout", timeout)
                with supervise.started_command(*words):
                    terminal.until_match(f"supervise stop: stopping 3 ranks, {shown}")
            until_another_signal()
            os.kill(terminal.process.pid, signal.SIGTERM if timeout else signal.SIGINT)
            assert terminal.end()[0] == (143 if timeout else 130)


def test_a_terminal_of_size_0_x_0_has_room_for_the_countdown(supervise: Command):
    """A bare pty, or a serial line, does not know its size."""
    words = ("--shutdown-timeout", "600", sys.executable, "-c", STUBBORN)
    with supervise.on_terminal(*words, columns=0) as terminal:
        terminal.until("ready")
        os.kill(terminal.process.pid, signal.SIGTERM)
        terminal.until_match(r"SIGTERM: stopping 1 rank, SIGKILL in \d+ s; a second signal kills")  # 80 columns
        until_another_signal()
        os.kill(terminal.process.pid, signal.SIGTERM)
        assert terminal.end()[0] == 143
    with supervise.on_terminal("--help", columns=0) as terminal:
        code, shown = terminal.end()
    assert code == 0
    assert "number of ranks (1)" in shown


def test_the_ranks_lines_go_over_the_countdown(supervise: Command):
    """A line that is shorter than the countdown leaves nothing of it beside itself."""
    program = STUBBORN.replace("signal.pause()", "signal.sigtimedwait([], 0.1), print('still here', flush=True)")
    words = ("--stdin", "none", "--shutdown-timeout", "600", sys.executable, "-c", program)
    with supervise.on_terminal(*words) as terminal:
        terminal.until("ready")
        terminal.type(b"\x03")
        terminal.until_match(r"SIGKILL in \d+ s")
        terminal.until(f"now\x1b[0m\r\r \x1b[J\r{ERASE}\x1b[36m[default0]:\x1b[0mstill here")
        until_another_signal()
        terminal.type(b"\x03")
        assert terminal.end()[0] == 130


def test_no_line_changes_where_ranks_write_to_the_terminal_themselves(supervise: Command):
    """Without a prefix nothing would take the countdown away first: it is said once, on a line of its own."""
    for words in (("-t", "1"), ("--log-dir", "/dev/null"), ("--no-prefix",)):
        with supervise.on_terminal(*words, "--shutdown-timeout", "600", sys.executable, "-c", STUBBORN) as terminal:
            terminal.until("ready")
            terminal.type(b"\x03")
            terminal.until_match(r"SIGINT: stopping 1 rank, SIGKILL in \d+ s; Ctrl-C again kills now\r\n")
            until_another_signal()
            terminal.type(b"\x03")
            code, shown = terminal.end()
        assert code == 130
        assert "\x1b[J" not in shown


def test_the_terminals_end_stops_the_run(supervise: Command):
    """A window that is closed sends SIGHUP; nothing can be shown any more, and nothing is left."""
    with supervise.on_terminal("-n", "2", "--", "sh", "-c", f"echo ready; {HANG}") as terminal:
        terminal.until("ready")
        terminal.hang_up()
        assert terminal.process.wait(50) == 129


def test_a_failure_is_red(supervise: Command):
    """The headline stands out."""
    with supervise.on_terminal("--", "sh", "-c", "exit 3") as terminal:
        code, shown = terminal.end()
    assert code == 3
    assert "\x1b[1;31mrank 0 failed: exit code 3" in shown
