"""Gangs on a real Ray cluster of this machine: the cases give what they give on one host, and faults lose nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.ray import cases

PROGRAM_S = 280
ROOT = Path(__file__).parents[2]
DIFFERENT = {
    ("hang", "shown"): "how many lines are written before the stop depends on the time",
    ("hang", "logs"): "as above",
    ("simultaneous", "root cause"): "with several hosts the first that the driver learns of",
    ("simultaneous", "codes"): "the host that learns of it later stops its ranks, or they fail as well",
    ("simultaneous", "roles"): "as above",
    ("simultaneous", "failures"): "as above",
    ("exit code", "gang events"): "the order of `stopping` and the events of ranks is that of the driver",
    ("timeout", "shown"): "the time of a start on Ray counts, so that no rank may have begun",
    ("timeout", "logs"): "as above",
}
"""(case, part of its observation) to why engines may differ."""


def needs_ray() -> str:
    """Return why the tests cannot run; "" if they can."""
    try:
        import cloudpickle  # noqa: F401
        import ray  # noqa: F401
    except ImportError as error:
        return f"{error.name} is not installed"
    return ""


REASON = needs_ray()
if REASON and "SUPERVISE_NEEDS_RAY" in os.environ:
    pytest.fail(f"SUPERVISE_NEEDS_RAY is set, and {REASON}", pytrace=False)
pytestmark = [
    pytest.mark.skipif(bool(REASON), reason=f"gangs on Ray: {REASON}"),
    pytest.mark.timeout(300),
]


def program(what: str) -> dict[str, dict[str, Any]]:
    """Run the program; return what it has observed, by name."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ray.program", what],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row.pop("name"): row for row in rows}


@pytest.fixture(scope="module")
def on_ray() -> dict[str, dict[str, Any]]:
    return program("cases")


@pytest.fixture(scope="module")
def faults() -> dict[str, dict[str, Any]]:
    return program("faults")


@pytest.mark.parametrize("name", cases.CASES)
def test_a_case_gives_what_it_gives_on_one_host(name: str, on_ray: dict[str, dict[str, Any]]):
    """But for the table of differences."""
    case = cases.CASES[name]
    here = json.loads(json.dumps(cases.run(case, cases.make_local, cases.Seen())))
    there = on_ray[name]
    assert here.keys() == there.keys()
    different = {key for key in here if here[key] != there[key] and (name, key) not in DIFFERENT}
    assert not different, {key: (here[key], there[key]) for key in different}


def test_of_simultaneous_failures_one_is_the_root_cause(on_ray: dict[str, dict[str, Any]]):
    seen = on_ray["simultaneous"]
    assert seen["root cause"] in (0, 3)
    assert seen["failures"]
    assert set(seen["failures"]) <= {0, 3}


def test_a_cluster_without_room_is_an_error_that_says_what_is_missing(on_ray: dict[str, dict[str, Any]]):
    assert "2 nodes are alive, and 2 of them have that much" in on_ray["no room"]["nodes"]
    assert "0 of them have that much in all" in on_ray["no room"]["GPUs"]
    assert "has GPU 0" in on_ray["no room"]["GPUs"]


def test_functions_and_values_need_not_be_importable_on_the_hosts(on_ray: dict[str, dict[str, Any]]):
    assert on_ray["closure"]["value"] == [[0, 1], [7, 1]]


def test_the_command_shows_and_keeps_the_output_of_all_hosts(on_ray: dict[str, dict[str, Any]]):
    seen = on_ray["command"]
    assert seen["code"] == 0
    assert seen["out"] == [f"[default{rank}]:out {rank}" for rank in range(4)]
    assert {f"attempt_0/{rank}/stdout.log" for rank in range(4)} < set(seen["files"])
    assert {"events.jsonl", "result.json", "run.json"} < set(seen["files"])
    assert seen["hosts"] == [os.uname().nodename]


def test_the_command_reports_a_failure_as_on_one_host(on_ray: dict[str, dict[str, Any]]):
    """The exit code, the global rank, the end of its stderr, and the others."""
    seen = on_ray["command that fails"]
    assert seen["code"] == 7
    assert seen["root_cause"] == 3
    for part in (
        "rank 3 of 4 failed: exit code 7 (host ",
        "    why\n",
        "  ranks 0-2: stopped by SIGTERM",
        "  logs: LOGS/",
    ):
        assert part in seen["err"]


def test_the_command_restarts_all_hosts(on_ray: dict[str, dict[str, Any]]):
    seen = on_ray["command that restarts"]
    assert seen["code"] == 0
    assert seen["out"] == [f"[default{rank}]:{attempt}" for rank in range(4) for attempt in range(2)]
    assert "restart 1 of 1" in seen["err"]
    assert {f"attempt_1/{rank}/stdout.log" for rank in range(4)} < set(seen["files"])


@pytest.mark.parametrize(
    ("fault", "known_s"), [("kill host", 3.0), ("stop host", 3.0 + cases.PATIENCE_S / 10), ("kill raylet", 3.0)]
)
def test_a_lost_host_is_the_cause_and_leaves_nobody(fault: str, known_s: float, faults: dict[str, dict[str, Any]]):
    """The others are stopped at once; the bounds tell a report of the keeper from a timeout, on a busy machine."""
    seen = faults[fault]
    assert seen["outcome"] == "failed"
    assert seen["lost host is the cause"]
    assert seen["roles"] == ["bystander", "bystander", "lost", "root_cause"]
    assert seen["message"].startswith("host ")
    assert seen["known_s"] < known_s
    assert seen["gone_s"] < known_s + 3.0


def test_a_killed_driver_leaves_nobody(faults: dict[str, dict[str, Any]]):
    assert faults["kill driver"]["ranks"] == 4
    assert faults["kill driver"]["gone_s"] < 3.0 + 2.0, "the lease and two seconds"


def test_a_gang_restarts_on_a_spare_node_and_no_rank_runs_beside_its_replacement(faults: dict[str, dict[str, Any]]):
    assert faults["replace"] == {"outcome": "succeeded", "lives": 4, "overlap": False}
