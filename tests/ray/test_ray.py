"""Gangs on a real Ray cluster of this machine: settings, the command, functions, and faults that lose nothing.

`tests/conformance` has what every engine does.
"""

import os
import re
import signal
from typing import Any

import pytest

from supervise.ray.gang import _connect
from tests.ray.running import program

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def calls() -> dict[str, dict[str, Any]]:
    return program("calls")


@pytest.fixture(scope="module")
def faults() -> dict[str, dict[str, Any]]:
    return program("faults")


def test_the_program_of_the_guide(calls: dict[str, dict[str, Any]]):
    """Of `run-on-ray.md`, with two ranks on each of two hosts."""
    outcome, values = calls["guide"]["lines"]
    assert outcome == "succeeded None"
    assert re.fullmatch(r"\{0: (1\.6\d+), 1: \1, 2: \1, 3: \1\}", values)


def test_a_cluster_without_room_is_an_error_that_says_what_is_missing(calls: dict[str, dict[str, Any]]):
    found = calls["no room"]
    assert "2 nodes are alive, and 2 of them have that much" in found["nodes"]
    assert "0 of them have that much in all" in found["GPUs"]
    assert "has GPU 0" in found["GPUs"]
    assert "CPU" in found["packed"]
    assert found["closed"], "the start leaves no actor"


def test_a_close_ends_the_wait_for_room(calls: dict[str, dict[str, Any]]):
    """And no call of Ray is left."""
    assert "was closed before its start had ended" in calls["closed without room"]["raised"]
    assert calls["closed without room"]["left"] == []


def test_a_close_beside_a_placement_leaves_no_host_and_a_lost_call_is_no_death():
    found = program("engine")["engine"]
    assert found["released"] == [5]
    assert found["errors"] == ["HostUnavailable", "HostDead"]
    assert found["disconnected"] == ["HostDead('this process has disconnected from Ray')"], "and did not connect again"


class Connects:
    """Takes the place of ray, which installs a handler of its own."""

    @staticmethod
    def is_initialized() -> bool:
        return False

    @staticmethod
    def init(**_: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)


def test_a_connection_keeps_the_handler_of_sigterm():
    before = signal.getsignal(signal.SIGTERM)
    try:
        _connect(Connects)
        assert signal.getsignal(signal.SIGTERM) == before
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_timeout_that_expires_during_the_start_is_the_outcome(calls: dict[str, dict[str, Any]]):
    """While the cluster has no room, and while the ranks are not ready: with a result, not an exception."""
    assert calls["slow start"] == {key: ["timed_out", "timed_out"] for key in ("placed", "ready")}


def test_a_second_start_is_refused_and_a_second_close_has_the_result(calls: dict[str, dict[str, Any]]):
    found = calls["second start"]
    assert found["raised"].startswith("twice: the gang was started or closed before (it is running)")
    assert "; timeout is -1; " in found["raised"]
    assert "; death_sig is 'x'; " in found["raised"]
    assert (found["running"], found["closed"]) == (True, ["stopped", "stopped"])


def test_status_has_what_ranks_have_reported_to_their_hosts(calls: dict[str, dict[str, Any]]):
    assert calls["reported"]["rows"] == [[10 * rank, f"epoch of {rank}", True] for rank in range(4)]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("function", [[0, 0], [2, 3]]),
        ("lambda", [[3, 0], [3, 1]]),
        ("closure", [[14, 0], [14, 1]]),
        ("object", [[2, 3], [3, 4]]),
        ("method", [[2, 3], [3, 4]]),
    ],
)
def test_functions_arguments_and_values_need_not_be_importable_on_the_hosts(
    kind: str, values: Any, calls: dict[str, dict[str, Any]]
):
    assert calls["own main"][kind] == values


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("exception", "NotFoundAtAllError: there is nothing"),
        ("value that cannot be loaded", "its return value could not be unpickled here: KeyError: 'RANK'"),
        (
            "value that cannot be pickled",
            "TypeError: the return value, of type _thread.lock, cannot be pickled: TypeError: cannot pickle",
        ),
    ],
)
def test_what_goes_wrong_with_a_value_is_the_failure_of_its_rank(
    kind: str, message: str, calls: dict[str, dict[str, Any]]
):
    assert calls["own main"][kind]["outcome"] == "failed"
    assert message in calls["own main"][kind]["message"]


def test_what_cannot_travel_is_refused_before_the_start(calls: dict[str, dict[str, Any]]):
    assert "cannot be pickled" in calls["own main"]["entrypoint"]
    assert "rank 1" in calls["own main"]["args"]


def test_the_command_shows_and_keeps_the_output_of_all_hosts(calls: dict[str, dict[str, Any]]):
    seen = calls["command"]
    assert seen["code"] == 0
    assert seen["out"] == [f"[default{rank}]:out {rank}" for rank in range(4)]
    assert {f"attempt_0/{rank}/stdout.log" for rank in range(4)} < set(seen["files"])
    assert {"events.jsonl", "result.json", "run.json"} < set(seen["files"])
    assert seen["hosts"] == [os.uname().nodename]


def test_the_command_reports_a_failure_at_once_as_on_one_host(calls: dict[str, dict[str, Any]]):
    """The exit code, the global rank, the end of its stderr, and the others."""
    seen = calls["command that fails"]
    assert seen["code"] == 7
    assert seen["root_cause"] == 3
    assert seen["endings"] == {"0": ["stopped"], "1": ["stopped"], "2": ["stopped"], "3": ["failed"]}
    for part in (
        "rank 3 of 4 failed: exit code 7 (host ",
        "    why\n",
        "  ranks 0-2: stopped by SIGTERM",
        "  logs: LOGS/",
    ):
        assert part in seen["err"]


def test_the_command_restarts_all_hosts(calls: dict[str, dict[str, Any]]):
    """Rank 1 fails at once, so that the others may be stopped before they have said their first line."""
    seen = calls["command that restarts"]
    assert seen["code"] == 0
    second = {f"[default{rank}]:1" for rank in range(4)}
    assert {"[default1]:0"} | second <= set(seen["out"]) <= {f"[default{rank}]:0" for rank in range(4)} | second
    assert "restart 1 of 1" in seen["err"]
    assert {f"attempt_1/{rank}/stdout.log" for rank in range(4)} < set(seen["files"])


@pytest.mark.parametrize(
    ("fault", "known_s"), [("kill rank", 3.0), ("kill host", 3.0), ("stop host", 9.0), ("kill raylet", 3.0)]
)
def test_a_fault_names_what_broke_and_leaves_nobody(fault: str, known_s: float, faults: dict[str, dict[str, Any]]):
    """The bounds tell a report of the keeper from a timeout, on a busy machine too."""
    seen = faults[fault]
    assert seen["ranks"] == 4
    assert seen["outcome"] == "failed"
    assert seen["root cause is the broken part"]
    others = "bystander" if fault == "kill rank" else "lost"
    assert seen["roles"] == sorted(["bystander", "bystander", others, "root_cause"])
    assert seen["known_s"] < known_s
    assert seen["gone_s"] < known_s + 3.0
    if fault != "kill rank":
        assert re.match(r"host \d \(.*, node \w{8}\): lost since \d{4}-", seen["message"])
        assert "Ray: " in seen["message"] or "Ray has not reported the loss" in seen["message"]
        assert re.search(r"^its logs on that host: /\S+stdout.log, /\S+stderr.log$", seen["message"], re.MULTILINE)
        assert re.match(r"rank \d of 4 failed: lost with host \d, ", seen["report"])
        assert not re.search("exit code|exit status|SIGKILL|not recorded", seen["report"]), seen["report"]


def test_a_killed_driver_leaves_nobody(faults: dict[str, dict[str, Any]]):
    assert faults["kill driver"]["ranks"] == 4
    assert faults["kill driver"]["gone_s"] < 3.0 + 2.0, "the lease and two seconds"


def test_a_gang_restarts_on_a_spare_node_and_no_rank_runs_beside_its_replacement(faults: dict[str, dict[str, Any]]):
    seen = faults["restart"]
    assert (seen["outcome"], seen["lives"], seen["cause"]) == ("succeeded", 4, True)
    assert (seen["begun"], seen["left"]) == (4, 0)
    assert seen["gap_s"] > 0
