"""Starts agents: ours, or PyTorch's torchrun, with the same words of the command line."""

import json
import os
import re
import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.clients.torchrun import OURS, PATIENCE_S
from tests.processes.gangs import Fifo

ROOT = Path(__file__).parents[2]
FAULT = str(ROOT / "tests" / "clients" / "fault.py")
MODULES = {"ours": "supervise.agent", "theirs": "torch.distributed.run"}
ROOT_CAUSE = re.compile(r"FAILED\n.*?^(Root Cause.*?)^={20,}\n", re.DOTALL | re.MULTILINE)
"""Without other failures: PyTorch may list ranks that it has stopped."""
VARIES = [
    (r"\(pid: \d+\)", "(pid: N)"),
    (r"PID \d+", "PID N"),
    (r"time +: \S+", "time"),
    (r"(error_file:) /.*", r"\1 F"),
]


class Agents:
    """Starts agents whose ranks tell the test lines through a pipe."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python, self.folder = python, folder
        self._stack = ExitStack()
        self._count = 0

    def __enter__(self) -> Self:
        self.ear = Fifo(self.folder / "ear", PATIENCE_S)
        self._stack.callback(self.ear.close)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def fault(self, whose: str, source: str, *options: str, nproc: int = 2) -> "Agent":
        """Start an agent on its own, whose ranks run `source` and do not need PyTorch."""
        alone = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=fault")
        return self.start(whose, *alone, f"--nproc-per-node={nproc}", *options, FAULT, source)

    def start(self, whose: str, *words: str) -> "Agent":
        return self.program("-m", MODULES[whose], "--local-addr=127.0.0.1", *words)

    def program(self, *words: str) -> "Agent":
        """Start a Python with these arguments."""
        self._count += 1
        agent = Agent([self.python, *words], self.folder, self._count)
        self._stack.callback(agent.kill)
        return agent

    def hear(self, count: int) -> list[str]:
        """Return the next lines that any rank says."""
        return [self.ear.hear() for _ in range(count)]


class Agent:
    """One agent. Its output is in files, so that it never waits for the test."""

    def __init__(self, argv: list[str], folder: Path, number: int) -> None:
        plain = {key: value for key, value in os.environ.items() if not OURS.match(key)}
        self._out, self._err = folder / f"out-{number}", folder / f"err-{number}"
        self._error = folder / f"error-{number}.json"
        own = {
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(folder),
            "EAR": str(folder / "ear"),
            "OMP_NUM_THREADS": "1",
            "TORCHELASTIC_ERROR_FILE": str(self._error),
        }
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                argv, env=plain | own, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    def end(self) -> int:
        """Wait for its end; return its exit code."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"still running after {PATIENCE_S} s: {self.told()}") from error

    def told(self) -> str:
        """Return all that it printed, to explain a failed test."""
        return f"{self.process.args}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"

    def seen(self) -> dict[str, Any]:
        """Wait for its end; return what its user sees, without pids, times and names of files."""
        code = self.end()
        report = "".join(ROOT_CAUSE.findall(self.stderr))
        for pattern, text in VARIES:
            report = re.sub(pattern, text, report)
        message = json.loads(self._error.read_text())["message"]["message"] if self._error.exists() else None
        return {"code": code, "report": report, "message": message, "stdout": sorted(self.stdout.splitlines())}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
