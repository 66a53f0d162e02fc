"""The trace: valid by the Trace Event Format, and true."""

import json
from pathlib import Path
from typing import Any

import jsonschema

from tests.cli.command import Command
from tests.views.fake_run import large_run

_COMMON = {"name": {"type": "string"}, "pid": {"type": "integer", "minimum": 0}, "tid": {"type": "integer"}}
_TIME = {"type": "number", "minimum": 0}


def _kind(phase: str, required: list[str], **more: Any) -> dict[str, Any]:
    properties = {**_COMMON, "ph": {"const": phase}, "ts": _TIME, "cat": {"type": "string"}, **more}
    return {
        "type": "object",
        "required": ["name", "ph", "ts", "pid", "tid", *required],
        "properties": properties | ({"args": {"type": "object"}} if "args" not in more else {}),
        "additionalProperties": False,
    }


NAMES = {"type": "object", "properties": {"name": {"type": "string"}, "sort_index": {"type": "integer"}}}
SERIES = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "number"}}
SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    _kind("X", ["dur"], dur=_TIME),
                    _kind("i", ["s"], s={"enum": ["g", "p", "t"]}),
                    _kind("C", ["args"], args=SERIES),
                    _kind("M", ["args"], args=NAMES),
                ]
            },
        },
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "additionalProperties": False,
}
"""The JSON object form of the Trace Event Format, as far as the trace uses it: complete, instant, counter, metadata."""


def trace_of(supervise: Command, tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "trace.json"
    done = supervise.supervise("report", "job", "--trace", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    trace: dict[str, Any] = json.loads(path.read_text())
    jsonschema.validate(trace, SCHEMA)
    return trace


def test_a_real_run(supervise: Command, tmp_path: Path) -> None:
    words = ("--strategy", "one_for_one", "--max-restarts", "1", "--backoff", "0")
    assert supervise.run("-n", "2", "--run-id", "job", *words, "sh", "-c", "exit $RANK").returncode == 1
    events = trace_of(supervise, tmp_path)["traceEvents"]
    names = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert names[1] == "rank 0 (default0)"
    assert names[2] == "rank 1 (default1)"
    lives = [each for each in events if each["ph"] == "X" and each["cat"].startswith("life")]
    assert [each["name"] for each in lives if each["pid"] == 2] == [
        "attempt 0: exit code 1",
        "attempt 1: exit code 1, root cause",
    ]
    first, second = [each for each in lives if each["pid"] == 2]
    assert first["ts"] + first["dur"] <= second["ts"]


def test_samples_are_counters(supervise: Command, tmp_path: Path) -> None:
    large_run(tmp_path / "runs" / "job_x", 8)
    events = trace_of(supervise, tmp_path)["traceEvents"]
    counters = [each for each in events if each["ph"] == "C" and each["pid"] == 3]
    assert {each["name"] for each in counters} == {"processors", "memory", "output", "step"}
    busy = [each["args"]["busy"] for each in counters if each["name"] == "processors"]
    assert min(busy[1:]) == max(busy[1:]) == 0.9
    hung = [each for each in events if each["ph"] == "i" and each.get("cat") == "hung" and each["pid"] == 6]
    assert [each["ts"] for each in hung] == [2000e6]
