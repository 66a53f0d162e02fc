"""Run the job of the README on a terminal, and put what a person sees into it.

    python docs/capture.py            rewrite the block between the markers in README.md
    python docs/capture.py --check    only compare: same lines, whatever the pids, times and names of directories

The terminal is real (a pty), 100 columns wide, so the program behaves as it does for a person. What it writes is
shown as a terminal shows it, without colors. Only three things are written differently: the path of the checkout, the
name of the host, and the home directory.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import struct
import sys
import tempfile
import termios
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md",)
COLUMNS = 100
JOBS = {
    "failure": ("supervise run -n 4 examples/wordcount.py --fail-rank 2", 1),
}
"""Name of the marker to ``(command, exit code)``."""
BLOCK = "<!-- capture: {name} -->\n```text\n{text}\n```\n<!-- end -->"
_SGR = re.compile(r"\x1b\[[0-9;]*m")
_ERASURE = re.compile(r"\x1b\[[KJ]")
_NOT_INHERITED = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_|GROUP_|ROLE_|MASTER_|TORCHELASTIC_|OMP_|PYTHON|NO_COLOR|SUPERVISE_)"
)


def on_a_terminal(command: str, temporary: str) -> tuple[str, int]:
    """Run `command` in the checkout, on a new terminal; return what it wrote and its exit code."""
    words = [sys.executable, "-m", *command.split()]
    env = {key: value for key, value in os.environ.items() if not _NOT_INHERITED.match(key)}
    env |= {"TERM": "xterm", "TMPDIR": temporary, "PYTHONPATH": str(ROOT)}
    env["XDG_STATE_HOME"] = f"{temporary}/.local/state"
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        os.chdir(ROOT)
        os.execve(sys.executable, words, env)  # noqa: S606
    pieces = []
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux says so when the last writer has gone
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(terminal)
    return b"".join(pieces).decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def rendered(written: str) -> str:
    """Return the screen that `written` leaves: a carriage return goes back, ``ESC[K`` and ``ESC[J`` erase the rest."""
    lines = []
    for row in _SGR.sub("", written).split("\n"):
        shown = ""
        for segment in row.split("\r"):
            erased = segment.startswith(("\x1b[K", "\x1b[J"))
            text = _ERASURE.sub("", segment)
            shown = text if erased else text + shown[len(text) :]
        lines.append(shown.rstrip())
    return "\n".join(lines).strip("\n")


def capture(name: str) -> str:
    """Run one job and return its block's text.

    Raises:
        SystemExit: It did not end as it must.
    """
    command, expected = JOBS[name]
    with tempfile.TemporaryDirectory() as temporary:
        written, code = on_a_terminal(command, temporary)
        text = rendered(written).replace(temporary, "~").replace(str(ROOT), "~/supervise")
    text = text.replace(f"host {os.uname().nodename},", "host myhost,")
    if code != expected:
        sys.exit(f"{command} ended with {code} instead of {expected}:\n{text}")
    end = f"\n$ echo $?\n{code}" if code else ""
    return f"$ {command}\n{text}{end}"


def shape(text: str) -> list[str]:
    """Return what every run has in common: the lines that are certain, in a fixed order, without what varies.

    What the ranks that did not fail say before they are stopped depends on the moment, and so does how they end.
    """
    certain = []
    failed = "failed:" in text
    for line in text.splitlines():
        if failed and re.match(r"\[default[013]\]:|  ranks? [0-9, -]+: ", line):
            continue
        if re.fullmatch(r"(\[default2\]:)?[ ~^]*[~^]", line):  # newer Pythons mark more of a traceback
            continue
        plain = re.sub(r"(logs:? (?:in )?)\S+", r"\1DIRECTORY", line)
        certain.append(re.sub(r"pid \d+, after [\d.]+ m?s", "pid N, after T", plain))
    return sorted(certain)


def between(page: Path, name: str) -> str:
    """Return the text of one block of a page.

    Raises:
        SystemExit: There is no such block.
    """
    pattern = re.escape(BLOCK).replace(r"\{name\}", re.escape(name)).replace(r"\{text\}", "(.*?)")
    found = re.search(pattern, page.read_text(), re.DOTALL)
    if found is None:
        sys.exit(f"{page.name} has no block for {name!r}")
    return found[1]


def main() -> None:
    """Rewrite the blocks, or compare them."""
    parser = argparse.ArgumentParser(description="Capture the runs that the README and the overview show.")
    parser.add_argument("--check", action="store_true", help="compare the shape; change nothing")
    check = parser.parse_args().check
    different = []
    for name in JOBS:
        new = capture(name)
        for page in PAGES:
            old = between(page, name)
            if shape(old) != shape(new):
                different.append(f"--- {name}, in {page.name}\n{old}\n--- {name}, now\n{new}")
            if not check:
                before, after = BLOCK.format(name=name, text=old), BLOCK.format(name=name, text=new)
                page.write_text(page.read_text().replace(before, after))
    if check and different:
        sys.exit("\n".join([*different, "run: python docs/capture.py"]))


if __name__ == "__main__":
    main()
