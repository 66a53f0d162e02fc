"""An interactive bash with job control, on a terminal of its own."""

import codecs
import os
import pty
import select
import shlex
import shutil
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cli.command import SUPERVISE, Command, environment
from tests.patience import PATIENCE_S

RUN = shlex.join([*SUPERVISE, "run"])
PROMPT = "<shell>"


@dataclass
class Shell:
    """A shell, and what its terminal has shown."""

    process: "subprocess.Popen[bytes]"
    master: int
    slave: int
    raw: str = ""
    seen: int = 0
    decoder: codecs.IncrementalDecoder = field(default_factory=codecs.getincrementaldecoder("utf-8"))

    def until(self, *texts: str) -> str:
        """Read until these texts are shown, in this order, after those that were awaited before; return what was."""
        start = self.seen
        for text in texts:
            while (at := self.raw.find(text, self.seen)) < 0:
                readable = select.select([self.master], [], [], PATIENCE_S)[0]
                assert readable, f"{text!r} is not shown: {self.raw[start:]!r}"
                with suppress(BlockingIOError):
                    self.raw += self.decoder.decode(os.read(self.master, 65536))
            self.seen = at + len(text)
        return self.raw[start : self.seen]

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def line(self, text: str) -> None:
        """Enter a command and read its echo."""
        self.type(f"{text}\n")
        self.until(text[-20:])

    def until_in_front(self) -> None:
        """Wait until a job has the foreground: the shell names it before, and a key would still be the shell's."""
        deadline_s = time.monotonic() + PATIENCE_S
        while os.tcgetpgrp(self.master) == self.process.pid:
            assert time.monotonic() < deadline_s, f"no job has the foreground: {self.raw!r}"
            select.select([], [], [], 0.01)

    def modes(self) -> list[int]:
        """Return the local modes of the terminal, such as echo."""
        return termios.tcgetattr(self.slave)[3]


@contextmanager
def shell(supervise: Command, **env: str) -> Iterator[Shell]:
    """Start an interactive shell; it and its jobs are gone afterwards."""
    if (bash := shutil.which("bash")) is None:
        pytest.skip("needs bash")
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    script = 'stty cols 200 rows 50 <"$0"; exec "$@" <"$0" >"$0" 2>"$0"'  # a new session's first terminal is its own
    process = subprocess.Popen(
        ["sh", "-c", script, os.ttyname(slave), bash, "--norc", "--noprofile", "--noediting", "-i"],
        env=environment(supervise.tmp_path, PS1=PROMPT, HISTFILE="/dev/null", NO_COLOR="1") | env,
        cwd=supervise.tmp_path,
        start_new_session=True,
    )
    with process:
        found = Shell(process, master, slave)
        try:
            found.until(PROMPT)
            yield found
        finally:
            groups = _groups(process.pid)
            for group in groups:
                with suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
            process.kill()
            process.wait()
            os.close(master)
            os.close(slave)


def _groups(session: int) -> set[int]:
    """Return the process groups of a session."""
    found = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            pid = int(entry.name)
            if os.getsid(pid) == session and pid != session:
                found.add(os.getpgid(pid))
    return found
