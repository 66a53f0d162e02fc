"""Runs ``supervise top`` on a terminal of its own, and shows what a person would see."""

import codecs
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tests.cli.command import SUPERVISE, Command, environment
from tests.patience import PATIENCE_S
from tests.top.emulator import Emulator

SAYS = "echo rank $RANK is up; exec sleep 1000"


@dataclass
class Top:
    """The live table on a terminal."""

    process: "subprocess.Popen[bytes]"
    master: int
    slave: int
    screen: Emulator
    modes: list[object]
    decoder: codecs.IncrementalDecoder = field(default_factory=codecs.getincrementaldecoder("utf-8"))

    def until(self, *texts: str, holds: Callable[[list[str]], object] = bool) -> list[str]:
        """Read until the screen has all these texts, and this holds for its lines; return them.

        A picture may be read in parts, so what is asserted about another line than that of a text belongs to `holds`.
        """
        deadline_s = time.monotonic() + PATIENCE_S
        while not (
            all(any(text in line for line in self.screen.lines()) for text in texts) and holds(self.screen.lines())
        ):
            left_s = deadline_s - time.monotonic()
            readable = select.select([self.master], [], [], max(0.0, left_s))[0]
            assert readable, f"{texts} are not shown:\n" + "\n".join([*self.screen.lines(), self.screen.main])
            self._read()
        return self.screen.lines()

    def hang_up(self) -> None:
        """Close the window."""
        master, self.master = self.master, os.open(os.devnull, os.O_RDONLY)
        os.close(master)

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def resize(self, columns: int, rows: int) -> None:
        self._read()
        self.screen.resize(columns, rows)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def end(self) -> int:
        """Read until it ends; check that the terminal is as before, and return the exit code."""
        found = self._wait()
        self.check_restored()
        return found

    def check_restored(self) -> None:
        assert not self.screen.alternate
        assert self.screen.cursor_shown
        assert self.screen.wraps
        assert termios.tcgetattr(self.slave) == self.modes

    def _wait(self) -> int:
        notice = os.pidfd_open(self.process.pid)
        try:
            ended = False
            while not ended:
                readable = select.select([self.master, notice], [], [], PATIENCE_S)[0]
                assert readable, "it does not end:\n" + "\n".join(self.screen.lines())
                ended = notice in readable
                self._read()
        finally:
            os.close(notice)
        return self.process.wait(PATIENCE_S)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self.master, 65536):
                self.screen.feed(self.decoder.decode(data))


@contextmanager
def top(
    supervise: Command,
    *words: str,
    columns: int = 100,
    rows: int = 24,
    program: tuple[str, ...] = SUPERVISE,
    **env: str,
) -> Iterator[Top]:
    """Start ``supervise top`` on a terminal; it is gone afterwards."""
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    script = 'exec "$@" <"$0" >"$0" 2>"$0"'  # a new session's first terminal is its own
    process = subprocess.Popen(
        ["sh", "-c", script, os.ttyname(slave), *program, "top", *words],
        env=environment(supervise.tmp_path, **env),
        cwd=supervise.tmp_path,
        start_new_session=True,
    )
    with process:
        found = Top(process, master, slave, Emulator(columns, rows), termios.tcgetattr(slave))
        try:
            yield found
        finally:
            process.kill()
            process.wait()
            for fd in {slave, found.master}:
                os.close(fd)


@contextmanager
def running(supervise: Command, *words: str, count: int = 2, **env: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a run named job, whose ranks say something first; yield it when all have, and end it."""
    with supervise.started("--no-prefix", "-n", str(count), "--run-id", "job", *words, **env) as run:
        run.hear(count)
        yield run.process
        if run.process.poll() is None:
            run.signal(signal.SIGCONT)
            run.signal(signal.SIGTERM)
        run.end()
