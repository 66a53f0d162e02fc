"""Starts torchrun, or a script of its own that launches, in a process of its own on our process layer."""

import json
import os
import re
import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.processes.gangs import Fifo

HERE = Path(__file__).parent
PATIENCE_S = 120.0
"""For one run: importing PyTorch takes seconds in each process, and more where many do so at once."""
OURS = re.compile(r"^(RANK|WORLD_SIZE|LOCAL_|GROUP_|ROLE_|MASTER_|TORCHELASTIC_|TORCH_|OMP_|PYTHON|PET_|SHIM_)")
REFERENCE = os.environ.get("SUPERVISE_CLIENTS_REFERENCE", "")
"""Set, the tests ask what PyTorch's own layer does; those that ask for ours fail."""


class Clients:
    """Starts clients that tell the test lines through a pipe, and have their temporary files in one folder."""

    def __init__(self, python: str, folder: Path) -> None:
        self._python, self.folder = python, folder
        self._stack = ExitStack()
        self._count = 0

    def __enter__(self) -> Self:
        self.ear = Fifo(self.folder / "ear")
        self._stack.callback(self.ear.close)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def torchrun(self, *words: str, **env: str) -> "Client":
        """Start torchrun with these words of its command line; its workers are on this machine."""
        return self.start("shim.py", "--local-addr=127.0.0.1", *words, **env)

    def fault(self, source: str, *options: str, nproc: int = 2, **env: str) -> "Client":
        """Start torchrun with ranks that run `source`, and do not need PyTorch."""
        rendezvous = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=fault")
        words = (*rendezvous, f"--nproc-per-node={nproc}", *options, str(HERE / "fault.py"), source)
        return self.torchrun(*words, **env)

    def start(self, script: str, *words: str, **env: str) -> "Client":
        self._count += 1
        client = Client([self._python, str(HERE / script), *words], self.folder, self._count, env)
        self._stack.callback(client.kill)
        return client

    def hear(self, count: int) -> list[str]:
        """Return the next lines that any worker says."""
        return [self.ear.hear() for _ in range(count)]


class Client:
    """One launching program. What it prints is in files, so that it never waits for us."""

    def __init__(self, argv: list[str], folder: Path, number: int, env: dict[str, str]) -> None:
        plain = {key: value for key, value in os.environ.items() if not OURS.match(key)}
        self._out, self._err = folder / f"out-{number}", folder / f"err-{number}"
        self._report = folder / f"report-{number}"
        self.error_file = folder / f"error-{number}.json"
        own = {
            "PYTHONPATH": str(HERE.parents[1]),
            "TMPDIR": str(folder),
            "EAR": str(folder / "ear"),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCHELASTIC_ERROR_FILE": str(self.error_file),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # gloo cannot restart on a shared store
            "SHIM_REPORT": str(self._report),
            "SHIM_REFERENCE": REFERENCE,
        }
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                argv, env=plain | own | env, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    def end(self) -> int:
        """Wait for its end, which must leave nothing of ours running; return its exit code."""
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"still running after {PATIENCE_S} s: {self.told()}") from error
        assert self._report.exists(), self.told()
        if not REFERENCE:
            for line in self._report.read_text().splitlines():
                assert_ours(json.loads(line))
        return code

    def told(self) -> str:
        """Return all that it printed, to explain a failed test."""
        return f"{self.process.args}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"

    def error(self) -> dict[str, object]:
        """Return what stands in the error file of the launcher."""
        found: dict[str, object] = json.loads(self.error_file.read_text())["message"]
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)


def assert_ours(seen: dict[str, object]) -> None:
    """The agent called our function, a thread of ours ran, and not one module of PyTorch's layer was loaded."""
    assert str(seen["start_processes"]).startswith("supervise."), seen
    assert str(seen["contexts"]).startswith("supervise."), seen
    assert "supervise" in seen["threads"], seen  # type: ignore[operator]
    assert seen["from_pytorch"] == seen["running"] == [], seen
