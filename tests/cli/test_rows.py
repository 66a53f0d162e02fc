"""Unfinished lines, such as progress bars: rows on a real terminal, the last state in a pipe."""

import fcntl
import re
import signal
import struct
import sys
import termios

from tests.cli.command import Command, Terminal, until_another_signal

STEPS = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
def step(text, sig=signal.SIGUSR1):
    sys.stderr.write(text)
    sys.stderr.flush()
    signal.sigwait([sig])
"""
BAR = f"""{STEPS}
step("\\r 10%|#\\r 50%|###")
print("a line")
sys.stderr.write("\\r 90%|#####\\r100%|######\\n")
"""
WIDE = f"""{STEPS}
step("\\r 50%|" + "\u2588" * 100)
step("\\r 60%|" + "\u2588" * 100)
"""
SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")


def rows(raw: str) -> list[str]:
    """Return the rows that a terminal, which is high enough, shows after these bytes."""
    lines, row, column = [""], 0, 0
    for found in SEQUENCE.finditer(raw):
        number, kind, back, down, text = found.groups()
        if text:
            lines[row] = lines[row].ljust(column)[:column] + text + lines[row][column + len(text) :]
            column += len(text)
        elif back:
            column = 0
        elif down:
            row += 1
            lines += [""] * (row == len(lines))
        elif kind == "A":
            row -= int(number)
        elif kind in "JK":
            lines[row] = lines[row][:column]
            lines[row + 1 :] = lines[row + 1 :] if kind == "K" else []
        else:
            assert kind == "m", found
    return [line.rstrip() for line in lines]


def of_ranks(terminal: Terminal) -> list[str]:
    """Return the rows with a prefix."""
    return [row for row in rows(terminal.raw) if row.startswith("[")]


def resize(terminal: Terminal, columns: int) -> None:
    fcntl.ioctl(terminal.master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))


def test_a_bar_is_one_row_and_leaves_its_last_state(supervise: Command):
    """Each rank's bar is redrawn in place below the lines; finished, it is a line like any other."""
    with supervise.on_terminal(
        "--stdin", "none", "-n", "2", sys.executable, "-c", BAR, OMP_NUM_THREADS="1"
    ) as terminal:
        terminal.until("###\r\r\n\x1b[K\x1b[33m[default1]:\x1b[0m 50%|###")
        assert of_ranks(terminal)[-2:] == ["[default0]: 50%|###", "[default1]: 50%|###"]
        terminal.process.send_signal(signal.SIGUSR1)
        code, shown = terminal.end()
    assert code == 0
    found = [row for row in rows(shown) if row.startswith("[")]
    assert sorted(found) == sorted(f"[default{rank}]:{text}" for rank in range(2) for text in ("100%|######", "a line"))
    logs = (supervise.directory() / "attempt_0").glob("*/stderr.log")
    assert {log.read_bytes() for log in logs} == {b"\r 10%|#\r 50%|###\r 90%|#####\r100%|######\n"}


def test_a_row_and_its_line_have_the_time_in_their_prefix(supervise: Command):
    """That of the moment when they are drawn."""
    prefix = ("--log-line-prefix", "[${time} ${rank}]:")
    with supervise.on_terminal("--stdin", "none", *prefix, sys.executable, "-c", BAR) as terminal:
        terminal.until("50%|###")
        assert re.fullmatch(r"\[\d\d:\d\d:\d\d\.\d{3} 0\]: 50%\|###", of_ranks(terminal)[-1])
        terminal.process.send_signal(signal.SIGUSR1)
        code, shown = terminal.end()
    assert code == 0
    found = [re.sub(r"^\[\d\d:\d\d:\d\d\.\d{3} 0\]:", "", row) for row in rows(shown) if row.startswith("[")]
    assert sorted(found) == ["100%|######", "a line"]


def test_a_row_is_cut_to_the_terminal_also_after_a_resize(supervise: Command):
    """A row that wraps could not be redrawn in place."""
    with supervise.on_terminal("--stdin", "none", sys.executable, "-c", WIDE, columns=60) as terminal:
        terminal.until("50%|")
        terminal.until("\u2588\r")
        assert len(of_ranks(terminal)[-1]) == 59
        resize(terminal, 30)
        terminal.process.send_signal(signal.SIGUSR1)
        terminal.until("60%|")
        terminal.until(f"60%|{chr(0x2588) * 13}\r")
        assert len(of_ranks(terminal)[-1]) == 29
        terminal.process.send_signal(signal.SIGUSR1)
        code, shown = terminal.end()
    assert code == 0
    assert rows(shown)[-2] == f"[default0]: 60%|{chr(0x2588) * 100}"


def test_a_prompt_comes_before_the_traceback(supervise: Command):
    """What a rank writes without a newline is shown before what it writes to the other stream later."""
    with supervise.on_terminal("--stdin", "none", sys.executable, "-c", 'input("name? ")') as terminal:
        code, shown = terminal.end()
    assert code == 1
    mine = [row for row in rows(shown) if row.startswith("[")]
    assert mine[:2] == ["[default0]:name?", "[default0]:Traceback (most recent call last):"]
    assert mine[-1] == "[default0]:EOFError: EOF when reading a line"


def test_the_countdown_is_below_the_bars(supervise: Command):
    """Both are redrawn together, and neither is left at the end."""
    stubborn = "signal.signal(signal.SIGINT, signal.SIG_IGN); step('\\r 50%|##')"
    with supervise.on_terminal(
        "--stdin", "none", "--shutdown-timeout", "600", sys.executable, "-c", STEPS + stubborn
    ) as terminal:
        terminal.until("50%|##")
        terminal.type(b"\x03")
        terminal.until_match(r"SIGKILL in 5\d\d s(?s:.*)SIGKILL in 5\d\d s")
        below = ["[default0]: 50%|##", "supervise: SIGINT: stopping 1 rank, SIGKILL in 5"]
        terminal.until_true(lambda: [row[: len(below[-1])] for row in rows(terminal.raw)[-2:]] == below)
        until_another_signal()
        terminal.type(b"\x03")
        code, shown = terminal.end()
    assert code == 130
    shown_rows = rows(shown)
    assert [row for row in shown_rows if "SIGKILL in" in row] == []
    assert [row for row in shown_rows if "50%" in row] == ["[default0]: 50%|##"]


def test_rows_are_on_the_terminal_of_stderr_beside_a_file(supervise: Command):
    """``supervise run ... > file``: the messages of supervise come between the lines and the rows."""
    file = supervise.tmp_path / "file"
    with (
        file.open("wb") as stdout,
        supervise.on_terminal("--stdin", "none", sys.executable, "-c", BAR, stdout=stdout) as terminal,
    ):
        terminal.until(" 50%|###\r")
        assert of_ranks(terminal)[-1] == "[default0]: 50%|###"
        terminal.process.send_signal(signal.SIGUSR1)
        code, shown = terminal.end()
    assert code == 0
    assert [row for row in rows(shown) if row.startswith("[")] == ["[default0]:100%|######"]
    assert file.read_bytes() == b"[default0]:a line\n"


NESTED = f"""{STEPS}
import os
UP, rank = "\\x1b[A", os.environ["RANK"]
for epoch in range(3):
    sys.stderr.write(f"\\rEpoch: {{epoch}}/3")
    for number in range(4):
        texts = "\\n", f"\\rValid {{rank}}: {{number}}/4", UP, f"\\rEpoch: {{epoch}}/3 step {{number}}"
        for text in texts if number or epoch else ["".join(texts)]:
            sys.stderr.write(text)
            sys.stderr.flush()
            select.select([], [], [], 0.03)
    if epoch == 1:
        step("")
    sys.stderr.write("\\n\\r" + " " * 40 + "\\r" + UP)
sys.stderr.write("\\rEpoch: 3/3\\n")
print("done", rank)
"""
RICH = """
import time
from rich.console import Console
from rich.progress import Progress, TextColumn
with Progress(TextColumn("{task.description} {task.completed}"), console=Console(force_terminal=True)) as bars:
    tasks = [bars.add_task(name) for name in ("one", "two", "three")]
    for number in range(1, 9):
        for task in tasks:
            bars.update(task, completed=10**task * number)
        bars.refresh()
        if number == 4:
            bars.console.print("a message")
"""


def test_l4_nested_bars_are_live_rows_and_leave_their_last_states(supervise: Command):
    """On a terminal, each rank has a row for each bar; the lower bar is cleared at the end."""
    program = f"import select\n{NESTED}"
    with supervise.on_terminal("--stdin", "none", "-n", "2", sys.executable, "-c", program) as terminal:
        wanted = [f"[default{rank}]:{bar}" for rank in range(2) for bar in ("Epoch: 1/3 step 3", f"Valid {rank}: 3/4")]
        terminal.until_true(lambda: of_ranks(terminal)[-4:] == wanted)
        terminal.process.send_signal(signal.SIGUSR1)
        code, shown = terminal.end()
    assert code == 0
    found = [row for row in rows(shown) if row.startswith("[")]
    assert sorted(found) == sorted(
        f"[default{rank}]:{text}" for rank in range(2) for text in ("Epoch: 3/3", f"done {rank}")
    )


def test_l4_a_pipe_gets_the_last_states_of_nested_bars(supervise: Command):
    """However the writes of a bar are cut; the log has every byte."""
    program = f"import select\n{NESTED}".replace('step("")', "pass")
    done = supervise.run("-n", "2", sys.executable, "-c", program)
    assert sorted(line for line in done.stderr.splitlines() if line.startswith("[")) == [
        *("[default0]:Epoch: 3/3", "[default1]:Epoch: 3/3")
    ]
    assert (supervise.directory() / "attempt_0/0/stderr.log").read_bytes().count(b"\x1b[A") == 15


def test_l4_a_pipe_gets_the_last_frame_of_rich(supervise: Command):
    """With the messages that are printed above the bars, in their order."""
    done = supervise.run(sys.executable, "-c", RICH)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    assert [line.rstrip() for line in plain.splitlines()] == [
        f"[default0]:{text}" for text in ("a message", "one 8", "two 80", "three 800")
    ]


def test_a_pipe_gets_the_last_state_only(supervise: Command):
    """However slowly the states follow each other."""
    step = "print(f'\\r{i}', end='', flush=True); select.select([], [], [], 0.15)"
    program = f"import select\nfor i in range(3): {step}"
    done = supervise.run(sys.executable, "-c", program)
    assert done.stdout == "[default0]:2\n"
    assert (supervise.directory() / "attempt_0/0/stdout.log").read_bytes() == b"\r0\r1\r2"
