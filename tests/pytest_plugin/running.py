"""Runs of pytest in a process of its own, with the plugin as users get it: by the entry point."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.patience import PATIENCE_S

CONFTEST = """
import json, os, pathlib

FILE = pathlib.Path(__file__).with_name("reports.jsonl")

def pytest_configure(config):
    global SILENT
    SILENT = hasattr(config, "workerinput") or "RANK" in os.environ

def pytest_runtest_logreport(report):
    if not SILENT:
        entry = {
            "nodeid": report.nodeid.partition("::")[2], "when": report.when, "outcome": report.outcome,
            "text": report.longreprtext, "sections": report.sections, "properties": report.user_properties,
            "wasxfail": getattr(report, "wasxfail", None),
        }
        with FILE.open("a") as file:
            file.write(json.dumps(entry) + "\\n")
"""
UNUSED = ("cacheprovider", "randomly", "rerunfailures", "hypothesispytest", "anyio")
QUIET = [word for name in UNUSED for word in ("-p", f"no:{name}")]
"""Plugins that a test does not need, and whose imports are a third of a run; a test of one does not pass this."""


@dataclass
class Run:
    """One run of pytest that has ended."""

    code: int
    out: str
    reports: list[dict] = field(default_factory=list)

    def of(self, name: str, when: str = "call") -> dict:
        """Return the last report of a test in a phase."""
        found = [each for each in self.reports if each["nodeid"] == name and each["when"] == when]
        assert found, f"no {when} of {name} in\n{self.out}"
        return found[-1]

    def section(self, name: str, title: str) -> str:
        """Return the text of a section of the call of a test; "" if it has none."""
        return "".join(text for found, text in self.of(name)["sections"] if found == title)


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a user's pytest, without what the pytest around it has set."""
    gone = ("PYTEST", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "COV_")
    return {k: v for k, v in os.environ.items() if not k.startswith(gone)} | {"COLUMNS": "160", **more}


def write(folder: Path, **files: str) -> None:
    """Write test modules by name without suffix, a conftest that notes reports, and an empty configuration."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))


def command(folder: Path, *args: str, launcher: Sequence[str] = ()) -> list[str]:
    """Return the command line of a run in a folder; its temporary folders are below it."""
    return [sys.executable, *launcher, "-m", "pytest", f"--basetemp={folder / 'base'}", *args]


def run(folder: Path, *args: str, launcher: Sequence[str] = (), patience_s: float = PATIENCE_S, **env: str) -> Run:
    """Run pytest in a folder to its end; `launcher` are arguments of Python before ``-m pytest``."""
    done = subprocess.run(
        command(folder, *args, launcher=launcher),
        cwd=folder,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # without a terminal
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=patience_s,
        check=False,
    )
    return Run(done.returncode, done.stdout, reports(folder))


def reports(folder: Path) -> list[dict]:
    """Return the reports that the conftest has noted, in order."""
    path = folder / "reports.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
