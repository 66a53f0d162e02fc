"""Gangs of a notebook, in a real Jupyter kernel: functions of cells, live output, the interrupt button, pictures."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipykernel")
pytest.importorskip("nbclient")

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(200)  # the start of a kernel imports much

DEFINE = """
import os, sys, time
import psutil
import supervise

BASE = 5

class Point:
    def __init__(self, x):
        self.x = x

def value(x):
    print("hello from", os.environ["RANK"])
    print("to stderr", file=sys.stderr)
    return x + BASE + int(os.environ["RANK"])

def point(x):
    return Point(x)

def bad():
    raise ValueError("<no such> shard")
"""


@pytest.fixture
def kernel() -> Iterator[Any]:
    """Runs cells; returns the outputs of each."""
    folder = tempfile.mkdtemp(prefix="nb", dir="/tmp")  # a short path, because the fork server has a socket there
    names = ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "TMPDIR")
    env = os.environ | dict.fromkeys(names, folder) | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}

    def run(*cells: Any, client: str = "one by one") -> list[list[dict[str, Any]]]:
        given = [cell if isinstance(cell, dict) else {"code": cell} for cell in cells]
        done = subprocess.run(
            [sys.executable, "-m", "tests.notebook.kernel", client],
            input=json.dumps(given),
            env=env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: list[list[dict[str, Any]]] = json.loads(done.stdout)
        return found

    yield run
    shutil.rmtree(folder)


def streams(outputs: list[dict[str, Any]], name: str) -> list[str]:
    """Return the sorted lines that a cell has on a stream."""
    texts = (out["text"] for out in outputs if out["output_type"] == "stream" and out["name"] == name)
    return sorted("".join(texts).splitlines())


def shown(outputs: list[dict[str, Any]]) -> dict[str, str]:
    """Return the value of a cell by content type."""
    values = [out["data"] for out in outputs if out["output_type"] == "execute_result"]
    assert len(values) == 1, outputs
    data: dict[str, str] = values[0]
    return data


def test_functions_of_cells_run_and_their_output_is_in_the_cell(kernel: Any):
    """Functions with global variables, lambdas, closures, classes of cells in values; by nbclient."""
    _, first, second, third = kernel(
        DEFINE,
        "supervise.run(value, 3, (1,))",
        "y = 7\nsupervise.run(lambda: (lambda z: y + z)(1), 2, start_method='forkserver')",
        "[found] = supervise.run(point, 1, (4,))\ntype(found) is Point, found.x",
        client="nbclient",
    )
    assert shown(first)["text/plain"] == "[6, 7, 8]"
    assert streams(first, "stdout") == ["[value0]:hello from 0", "[value1]:hello from 1", "[value2]:hello from 2"]
    assert streams(first, "stderr") == ["[value0]:to stderr", "[value1]:to stderr", "[value2]:to stderr"]
    assert shown(second)["text/plain"] == "[8, 8]"
    assert shown(third)["text/plain"] == "(True, 4)"


def test_a_failure_is_the_report_with_the_line_of_the_cell(kernel: Any):
    """One screen in place of a traceback of supervise."""
    _, failed = kernel(DEFINE, "supervise.run(bad, 1)")
    [error] = failed
    assert error["ename"] == "GangFailed"
    text = "\n".join(error["traceback"])
    assert text.startswith("supervise: rank 0 failed: exit code 1 (host ")
    assert '    raise ValueError("<no such> shard")\n  ValueError: <no such> shard\n' in text
    assert ".py" in text.partition('File "')[2].partition('"')[0]
    assert "/supervise/" not in text
    assert "_api" not in text


def test_output_is_shown_as_it_comes(kernel: Any, tmp_path: Path):
    """The rank waits for a file that is created when its first line is in the cell."""
    there = tmp_path / "there"
    code = f"""
def wait():
    import os, select
    print("first", flush=True)
    while not os.path.exists({str(there)!r}):
        select.select([], [], [], 0.05)
    return "second"
supervise.run(wait, 1)
"""
    _, outputs = kernel(DEFINE, {"code": code, "at": "first", "do": str(there)})
    assert streams(outputs, "stdout") == ["[wait0]:first"]
    assert shown(outputs)["text/plain"] == "['second']"


BAR = """
def bar(there):
    import os, select, sys
    for percent in range(0, 101, 4):
        sys.stderr.write(f"\\r{percent:3}%|{'#' * (percent // 10):10}|")
        sys.stderr.flush()
        select.select([], [], [], 0.05)
        while percent == 20 and not os.path.exists(there):
            select.select([], [], [], 0.05)
    sys.stderr.write("\\n")
    print("trained")
"""


def rendered(text: str) -> list[str]:
    """Return the lines of a stream as a notebook shows them: a carriage return goes back to the start of the line."""
    shown = []
    for line in text.split("\n"):
        row: list[str] = []
        for segment in line.split("\r"):
            row[: len(segment)] = segment
        shown.append("".join(row).rstrip())
    return [row for row in shown if row]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_progress_bar_is_one_line_that_is_updated(kernel: Any, ranks: int, tmp_path: Path):
    """One of each rank at the end; those of two ranks do not make a line of each update. It goes on once it is seen."""
    there = str(tmp_path / "there")
    cell = {"code": f"supervise.run(bar, {ranks}, ({there!r},))", "at": " 20%", "do": there}
    _, _, outputs = kernel(DEFINE, BAR, cell)
    text = "".join(out["text"] for out in outputs if out["output_type"] == "stream" and out["name"] == "stderr")
    assert sorted(rendered(text)) == [f"[bar{rank}]:100%|##########|" for rank in range(ranks)]
    assert {"20", "100"} <= set(re.findall(r"(\d+)%", text))
    assert streams(outputs, "stdout") == [f"[bar{rank}]:trained" for rank in range(ranks)]


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("supervise.run(wait, 2)", "supervise: stopped by SIGINT (Ctrl-C)"),
        pytest.param(
            "with supervise.start_processes('wait', wait, {0: (), 1: ()}, logs_specs=logs) as gang: gang.wait()",
            "supervise: interrupted by SIGINT",
            marks=pytest.mark.stress,
        ),
    ],
    ids=["run", "start_processes"],
)
def test_the_interrupt_button_stops_the_gang_and_shows_one_line(kernel: Any, call: str, line: str):
    """The kernel lives on, and can start another gang; no rank is left."""
    wait = """
import signal
logs = supervise.DefaultLogsSpecs(tee=supervise.Std.ALL)
def wait():
    print("waiting", os.getpid(), flush=True)
    signal.pause()
"""
    _, _, interrupted, after = kernel(
        DEFINE,
        wait,
        {"code": call, "at": "waiting", "do": "interrupt"},
        "print(len([p for p in psutil.Process().children() if 'resource_tracker' not in ' '.join(p.cmdline())]))\n"
        "print(supervise.run(lambda: 1, 2))",
    )
    [error] = [out for out in interrupted if out["output_type"] == "error"]
    assert error["traceback"] == [line]
    assert streams(after, "stdout") == ["0", "[1, 1]"]


@pytest.mark.stress
def test_without_cloudpickle_the_error_names_the_extra(kernel: Any):
    """No process starts."""
    _, _, refused = kernel(DEFINE, "sys.modules['cloudpickle'] = None", "supervise.run(value, 2, (1,))")
    [error] = refused
    assert error["ename"] == "SpecError"
    assert error["evalue"].startswith("value was defined at a prompt, in a notebook, ")
    assert "pip install 'supervise-gang[pickle]'" in error["evalue"]


def test_a_result_and_a_gang_are_pictures(kernel: Any):
    """Well-formed, with a bar for each rank, and escaped."""
    settings = "logs_specs=supervise.DefaultLogsSpecs(os.devnull), start_method='fork'"
    _, running, result, ref = kernel(
        DEFINE,
        f"gang = supervise.start_processes('<i>', time.sleep, {{0: (0.1,), 1: (0.1,)}}, {settings}); gang",
        "result = gang.wait(); gang.close(); result",
        "supervise.Supervisor.start(name='a', entrypoint='true', args={0: ()})",
    )
    data = shown(running)["text/html"]
    assert "&lt;i&gt;: " in data
    assert "<i>" not in data
    for html, bars in ((data, 2), (shown(result)["text/html"], 2), (shown(ref)["text/html"], 1)):
        tree = ET.fromstring(html)
        assert len(tree.findall(".//rect")) == bars
    assert "succeeded: 2 ranks, " in shown(result)["text/html"]
