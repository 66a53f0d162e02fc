"""Runs drivers, one after the other, and keeps what they measured."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks import contenders, readers
from tests.benchmarks.scenarios import EVERY_OTHER_ROUND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.job import Figures
    from tests.benchmarks.scenarios import Case

ROOT = Path(__file__).parents[2]
_LIMIT_S = 300.0


@dataclass(slots=True)
class Taken:
    """What was measured of one contender in one case."""

    first: list[Figures] = field(default_factory=list)
    """The first run of each process: imports and all that happens once included."""
    again: list[Figures] = field(default_factory=list)
    """All later runs."""
    why_not: str = ""
    """Why there is nothing, or no more."""

    def values(self, metric: str, *, first: bool = False) -> list[float]:
        """Return the figures of a metric: of the later runs where there are any, else (or if asked) of the first."""
        runs = self.first if first or not self.again else self.again
        return [run[metric] for run in runs if metric in run]


@dataclass(slots=True)
class Runner:
    """Knows which interpreter runs which contender."""

    pythons: dict[str, str] = field(default_factory=dict)
    """Contender to interpreter."""
    names: dict[str, str] = field(default_factory=dict)
    """Interpreter to what it is called in the figures, which hold no paths."""
    absent: dict[str, str] = field(default_factory=dict)
    """Contender to the reason why it cannot run."""
    _left: list[str] = field(default_factory=list)
    """Folders that are to be removed."""

    @classmethod
    def probe(cls, names: list[str], torch_python: str) -> Runner:
        """Find out who can run where: in this interpreter, or in that of PyTorch."""
        found = cls(names={torch_python: "of PyTorch", sys.executable: "this"})
        for name in names:
            tried = [sys.executable, torch_python] if name in contenders.OTHERS else [sys.executable]
            needs = contenders.load(name).needs
            for python in dict.fromkeys(filter(None, tried)):
                why = _import_error(python, needs)
                if why is None:
                    found.pythons[name] = python
                    found.absent.pop(name, None)
                    break
                found.absent[name] = f"{why} (interpreter: {found.names[python]})"
        return found

    def called(self) -> dict[str, str]:
        """Return the interpreters in use, by what they are called."""
        return {self.names[python]: python for python in dict.fromkeys(self.pythons.values())}

    def run(self, case: Case, rounds: int) -> dict[str, Taken]:
        """Run a case in all contenders alternately, `rounds` times; who fails is left out from then on.

        Some take part in every other round, or in the first one only.
        """
        present = [name for name in case.contenders if name in self.pythons]
        taken = {name: Taken() for name in present}
        for number in range(rounds):
            turn = number % len(present) if present else 0
            for name in present[turn:] + present[:turn]:
                left_out = number if name in case.once else number % 2 if name in EVERY_OTHER_ROUND else 0
                if not taken[name].why_not and not left_out:
                    self._take(name, case, taken[name])
        return taken

    def _take(self, name: str, case: Case, taken: Taken) -> None:
        try:
            answer, seen = self._drive(name, case)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            taken.why_not = f"no answer: {error}"
            return
        taken.why_not = answer.get("absent") or answer.get("error", "")
        runs = list(_with_seen(answer.get("runs", []), seen))
        taken.first += runs[:1]
        taken.again += runs[1:]

    def _drive(self, name: str, case: Case) -> tuple[dict[str, Any], Figures]:
        """Run one driver in a folder for temporary files; return its answer and what was seen."""
        request = {
            "contender": name,
            "task": case.task,
            "params": case.params,
            "again": case.again,
            "budget_s": case.budget_s,
        }
        folder = tempfile.mkdtemp(prefix="bench-")
        out = Path(folder) / "answer.json"
        argv = [self.pythons[name], "-m", "tests.benchmarks.driver", json.dumps(request), str(out)]
        reader = readers.make(case.reader, folder)
        try:
            with (Path(folder) / "stderr").open("w+b") as stderr:
                process = subprocess.Popen(
                    argv,
                    cwd=ROOT,
                    env=_environment(folder),
                    stdin=subprocess.DEVNULL,
                    stdout=reader.target,
                    stderr=stderr,
                )
                reader.started()
                try:
                    process.wait(_LIMIT_S)
                finally:
                    process.kill()
                    process.wait()
                    seen = reader.ended()
                if not out.exists():
                    stderr.seek(0)
                    tail = stderr.read().decode(errors="replace").strip().splitlines()[-1:]
                    raise ValueError(f"exit code {process.returncode} {tail}")
            answer: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
            return answer, seen
        finally:
            if case.reader:  # its logs are large
                shutil.rmtree(folder, ignore_errors=True)
            else:
                self._left.append(folder)

    def tidy(self) -> None:
        """Remove what the drivers have left; not earlier, since folders are made more slowly after a removal."""
        while self._left:
            shutil.rmtree(self._left.pop(), ignore_errors=True)


def _environment(folder: str) -> dict[str, str]:
    """Return ours, with temporary files in `folder`, and without settings that slow an interpreter down."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON") or key == "PYTHONPATH"}
    return {**ours, "TMPDIR": folder}


def _with_seen(runs: list[Figures], seen: Figures) -> Iterator[Figures]:
    """Add what the reader saw, which is of all runs together, to the first."""
    if seen and runs:
        good = seen.pop("good_lines", None)
        if good is not None:
            seen["lost_lines"] = sum(run["written_lines"] for run in runs) - good
        runs = [{**run, **seen} for run in runs]
    yield from runs


def _import_error(python: str, modules: tuple[str, ...]) -> str | None:
    """Return why `python` cannot import all of `modules`; None if it can."""
    done = subprocess.run(
        [python, "-c", "".join(f"import {name}\n" for name in modules)], check=False, capture_output=True, text=True
    )
    return (done.stderr.strip().splitlines() or ["it ended"])[-1] if done.returncode else None
