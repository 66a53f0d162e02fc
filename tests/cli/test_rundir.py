"""events.jsonl and result.json, which machines read."""

import json
import re
import signal
import stat
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from supervise.cli.run.directory import EventFile
from tests.cli.command import HANG, ROOT, Command

SCHEMA = json.loads((ROOT / "docs/reference/result.schema.json").read_text())


def read(directory: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    for name in ("result.json", "events.jsonl"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600
    names = {path.name for path in directory.iterdir()} - {"samples.jsonl"}  # of a run that takes a second
    assert sorted(names) == ["attempt_0", "events.jsonl", "result.json", "run.json"]
    lines = (directory / "events.jsonl").read_text().splitlines()
    result = json.loads((directory / "result.json").read_text())
    jsonschema.validate(result, SCHEMA)
    return result, [json.loads(line) for line in lines]


def test_a_success(supervise: Command):
    """Each event is one line, in order and without a hole."""
    supervise.run("-n", "3", "--run-id", "job", "--role", "trainer", "true", "--flag", SECRET="hunter2")
    directory = supervise.directory()
    result, events = read(directory)
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert {(event["run_id"], event["role"], event["schema_version"]) for event in events} == {("job", "trainer", 1)}
    names = [event["event"] for event in events]
    assert names[0] == "supervise.gang.starting"
    assert names[-1] == "supervise.gang.finished"
    assert names.count("supervise.process.exited") == 3
    assert "hunter2" not in (directory / "events.jsonl").read_text() + (directory / "result.json").read_text()
    assert (
        result.items()
        >= {
            "schema_version": 1,
            "run_id": "job",
            "role": "trainer",
            "program": ["true", "--flag"],
            "world_size": 3,
            "exit_code": 0,
            "outcome": "succeeded",
            "root_cause": None,
            "error": None,
            "failures": {},
        }.items()
    )
    assert {rank: end["exitcode"] for rank, end in result["ends"].items()} == {"0": 0, "1": 0, "2": 0}
    assert result["stdouts"]["2"] == str(directory / "attempt_0/2/stdout.log")


def test_a_failure(supervise: Command):
    """The root cause, and the part that each rank had."""
    script = f'[ "$RANK" = 1 ] && {{ echo oops >&2; exit 3; }}; {HANG}'
    done = supervise.run("-n", "2", "--", "sh", "-c", script)
    result, events = read(supervise.directory())
    assert (done.returncode, result["exit_code"], result["outcome"], result["root_cause"]) == (3, 3, "failed", 1)
    assert [result["ends"][rank]["role"] for rank in ("0", "1")] == ["bystander", "root_cause"]
    assert result["ends"]["1"]["stderr_tail"] == "oops"
    assert (result["ends"]["0"]["exitcode"], result["failures"]["1"]["exitcode"]) == (-15, 3)
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert [event["root_cause_rank"] for event in events if event["event"] == "supervise.gang.failed"] == [1]


def test_a_stop(supervise: Command):
    """128 + signal, and who was stopped."""
    with supervise.started("--", "sh", "-c", f"echo ready; {HANG}") as run:
        run.hear()
        run.signal(signal.SIGTERM)
        assert run.end()[0] == 143
    result, events = read(supervise.directory())
    assert (result["exit_code"], result["outcome"], result["root_cause"]) == (143, "stopped", None)
    assert [event["outcome"] for event in events if event["event"] == "supervise.gang.finished"] == ["stopped"]


def test_a_start_that_fails(supervise: Command):
    """There is no end to tell of, but an error."""
    script = supervise.tmp_path / "script"
    script.write_text("#!/nowhere/interpreter\n")
    script.chmod(0o755)
    supervise.run("-n", "2", str(script))
    result, events = read(supervise.directory())
    assert (result["exit_code"], result["outcome"], result["ends"]) == (127, "failed", {})
    assert (
        result["error"]
        == f"cannot start rank 0: {script}: its first line names '/nowhere/interpreter', which does not exist"
    )
    assert "supervise.process.start_failed" in [event["event"] for event in events]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk_costs_the_events_and_not_the_run(tmp_path: Path):
    """The gang's thread must not be harmed by it."""
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    file = EventFile()
    file.open(str(tmp_path))
    file.write({"event": "x"})
    file.close()
    file.write({"event": "y"})
    EventFile().write({"event": "z"})


@pytest.mark.parametrize(
    "words",
    [
        ("--max-restarts", "1", "--backoff", "0", "sh", "-c", "exit 3"),
        ("--output-timeout", "0.2", "--on-hang", "fail", "sh", "-c", "echo up; exec sleep 1000"),
        ("--timeout", "0.2", "sleep", "1000"),
        ("-n", "2", "--keep-going", "python3", "-c", "raise ValueError"),
    ],
    ids=["restart", "hang", "timeout", "failures"],
)
def test_each_result_has_the_form_of_the_schema(supervise: Command, words: tuple[str, ...]):
    """The report of the console is in it, too."""
    done = supervise.run(*words)
    result = json.loads((supervise.directory() / "result.json").read_text())
    jsonschema.validate(result, SCHEMA)
    assert result["exit_code"] == done.returncode
    assert done.stderr.endswith("\n".join(result["report"]) + "\n")


REMOVES = """
mkdir second 2>/dev/null || { echo again; exit; }
directory=$(dirname "$(dirname "$(dirname "$(readlink /proc/$$/fd/1)")")")
while [ -e "$directory" ]; do rm -rf "$directory"; done
exit 3
"""


@pytest.mark.parametrize("strategy", ["one_for_all", "one_for_one"])
def test_the_loss_of_events_in_a_directory_that_was_removed_is_told_once(supervise: Command, strategy: str):
    """A restart of ranks makes their logs again; the run goes on."""
    words = ("--max-restarts", "1", "--backoff", "0", "--strategy", strategy, "--run-id", "job", "sh", "-c", REMOVES)
    done = supervise.run("-q", *words)
    assert done.returncode == 0
    found = re.findall("events? missing in events.jsonl: .*/events.jsonl: it was removed", done.stderr)
    assert len(found) == len(done.stderr.splitlines()) == 1
    [log] = supervise.directory().rglob("stdout.log")
    assert log.read_text() == "again\n"


def test_a_directory_that_was_removed_stays_removed_without_a_restart(supervise: Command):
    """Nothing is written where it was."""
    done = supervise.run("-q", "--run-id", "job", "sh", "-c", REMOVES)
    assert done.returncode == 3
    assert "no result.json: " in done.stderr
    assert not list((supervise.tmp_path / "runs").iterdir())
