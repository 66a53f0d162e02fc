"""Runs the real program in a process of its own, on pipes or on a terminal."""

import codecs
import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from supervise.cli import main
from tests.patience import PATIENCE_S, PATIENT_STACKS

ROOT = Path(__file__).parents[2]
SUPERVISE = (sys.executable, "-W", "error", "-m", "supervise")
OURS = re.compile(r"^(RANK|WORLD_SIZE|LOCAL_|GROUP_|ROLE_|MASTER_|TORCHELASTIC_|OMP_|PYTHON|NO_COLOR|PET_)")
HANG = "exec sleep 1000"
ANNOUNCED = re.compile(
    r"^supervise: .*(stopping .*, SIGKILL (in \d+ s|sent)|looking for remaining processes"
    r"|showing the rest of the output)(; .* kills now)?\n",
    re.MULTILINE,
)
"""What a run says of a stop that takes more than a second: any stop does on a machine that stands still."""


def environment(tmp_path: Path, **extra: str) -> dict[str, str]:
    """Return ours, without what a launcher above may have set."""
    plain = {key: value for key, value in os.environ.items() if not OURS.match(key)}
    return (
        plain
        | {
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(tmp_path),
            "TERM": "xterm",
            "SUPERVISE_RUNS_DIR": str(tmp_path / "runs"),
        }
        | extra
    )


@dataclass
class Command:
    """The program, with temporary files under one directory."""

    tmp_path: Path

    def run(self, *words: str, before: tuple[str, ...] = (), **env: str) -> subprocess.CompletedProcess[str]:
        """Run ``supervise run`` to its end, on pipes."""
        return self.supervise("run", *words, before=before, **env)

    def refused(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run ``supervise`` in this process: what is wrong usage is refused before a process starts."""
        out, err = io.StringIO(), io.StringIO()
        with (
            chdir(self.tmp_path),
            patch.dict(os.environ, environment(self.tmp_path, **env), clear=True),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            code = main(words)
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    def supervise(self, *words: str, before: tuple[str, ...] = (), **env: str) -> subprocess.CompletedProcess[str]:
        """Run ``supervise`` to its end, on pipes; its stderr is without announcements of slow stops."""
        done = subprocess.run(
            [*before, *SUPERVISE, *words],
            env=environment(self.tmp_path, **env),
            cwd=self.tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        done.stderr = ANNOUNCED.sub("", done.stderr)
        return done

    @contextmanager
    def started(self, *words: str, before: tuple[str, ...] = (), **env: str) -> Iterator["Started"]:
        """Start ``supervise run`` on pipes; it is gone afterwards."""
        with self.started_command("run", *words, before=before, **env) as started:
            yield started

    @contextmanager
    def started_command(
        self, *words: str, before: tuple[str, ...] = (), program: tuple[str, ...] = SUPERVISE, **env: str
    ) -> Iterator["Started"]:
        """Start ``supervise`` on pipes; it is gone afterwards."""
        process = subprocess.Popen(
            [*before, *program, *words],
            env=environment(self.tmp_path, **env),
            cwd=self.tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield Started(process)
            finally:
                process.kill()

    @contextmanager
    def on_terminal(
        self, *words: str, command: str = "run", stdout: Any = None, columns: int = 100, **env: str
    ) -> Iterator["Terminal"]:
        """Start ``supervise run``, or another command, on a terminal of its own; it is gone afterwards."""
        master, slave = pty.openpty()
        os.set_blocking(master, False)
        name = os.ttyname(slave)
        to = "" if stdout else '>"$0"'
        size = f"cols {columns} rows {40 if columns else 0}"
        script = f'stty {size} <"$0"; exec "$@" <"$0" {to} 2>"$0"'  # a new session's first terminal is its own
        process = subprocess.Popen(
            ["sh", "-c", script, name, *SUPERVISE, command, *words],
            env=environment(self.tmp_path, **env),
            cwd=self.tmp_path,
            stdout=stdout,
            start_new_session=True,
        )
        exit_notice = os.pidfd_open(process.pid)
        with process:
            try:
                yield (terminal := Terminal(process, master, exit_notice))
            finally:
                process.kill()
                for fd in (
                    slave,
                    terminal.master,
                    exit_notice,
                ):  # the slave until now: without any the master reads as ended
                    os.close(fd)

    def patient_stacks(self) -> dict[str, str]:
        """Return variables of a command that waits longer for the stacks of ranks."""
        folder = self.tmp_path / "patient"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(PATIENT_STACKS)
        return {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}

    def directory(self) -> Path:
        """Return the run directory, the only one."""
        [found] = self.tmp_path.glob("runs/*_*")
        return found


@dataclass
class Started:
    """A run that goes on."""

    process: "subprocess.Popen[str]"

    def hear(self, count: int = 1) -> list[str]:
        """Return the next lines of stdout, in any order of ranks."""
        assert self.process.stdout is not None
        return sorted(self.process.stdout.readline() for _ in range(count))

    def hear_error(self, text: str) -> str:
        """Return the next line of stderr with this text."""
        assert self.process.stderr is not None
        return next(line for line in self.process.stderr if text in line)

    def signal(self, sig: signal.Signals) -> None:
        os.kill(self.process.pid, sig)

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return the exit code and the rest of stdout and stderr."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


def until_another_signal() -> None:
    """Let so much time pass since a signal was told that one of the same kind is another: 50 ms."""
    select.select([], [], [], 0.1)


@dataclass
class Terminal:
    """A run on a terminal, and what it has shown."""

    process: "subprocess.Popen[bytes]"
    master: int
    exit_notice: int
    raw: str = ""
    decoder: codecs.IncrementalDecoder = field(default_factory=codecs.getincrementaldecoder("utf-8"))

    def until(self, text: str) -> str:
        """Read until this text is shown; return all that was shown."""
        while text not in self.raw:
            assert select.select([self.master], [], [], PATIENCE_S)[0], f"{text!r} is not shown: {self.raw!r}"
            self._read()
        return self.raw

    def until_match(self, pattern: str) -> None:
        """Read until this is shown. A program that stood still has skipped a second of a countdown, so no number is."""
        while not re.search(pattern, self.raw):
            assert select.select([self.master], [], [], PATIENCE_S)[0], f"{pattern!r} is not shown: {self.raw!r}"
            self._read()

    def until_true(self, holds: Callable[[], bool]) -> None:
        """Read until what was shown is as wanted."""
        while not holds():
            assert select.select([self.master], [], [], PATIENCE_S)[0], f"it is not shown: {self.raw!r}"
            self._read()

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and all that was shown."""
        ended: list[int] = []
        while not ended:
            readable, _, _ = select.select([self.master, self.exit_notice], [], [], PATIENCE_S)
            assert readable, f"it does not end: {self.raw!r}"
            ended = [fd for fd in readable if fd == self.exit_notice]
            self._read()
        return self.process.wait(PATIENCE_S), self.raw

    def hang_up(self) -> None:
        """Close the window."""
        master, self.master = self.master, os.open(os.devnull, os.O_RDONLY)
        os.close(master)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self.master, 65536):
                self.raw += self.decoder.decode(data)

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)


def plain(text: str) -> str:
    """Return `text` without escape sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
