"""The step and the status that a rank reports last, also if it ends at once."""

import json
import subprocess
import sys

import pytest

from supervise import Status, Watchdog
from tests.patience import PATIENCE_S
from tests.processes.gangs import each_kind, faulty
from tests.processes.hosts import ROOT

REPORTS = f"""
sys.path.insert(0, {ROOT!r})
from supervise import notify
for step in range(1195, 1201):
    notify(step=step, status=f"epoch {{step // 400}}")
os._exit(3)
"""
FLOODS = f"""
sys.path.insert(0, {ROOT!r})
from supervise import notify, notifying
notifying._PATIENCE_S = 900.0
for step in range(1201):
    notify(step=step, status=f"epoch {{step // 400}}")
raise LookupError("no luck")
"""


@each_kind
def test_n17_steps_that_the_queue_has_no_room_for_do_not_displace_the_last_one(tmp_path, kind):
    """The rank sends far more than the queue holds, and fails at once."""
    with faulty(tmp_path, kind, [FLOODS], watchdog=Watchdog(heartbeat_timeout_s=60.0)) as gang:
        result = gang.wait()
    assert result.root_cause == 0
    assert (result.ends[0].step, result.ends[0].status) == (1200, "epoch 3")


@each_kind
def test_n17_the_end_of_a_rank_has_its_last_step_and_status(tmp_path, kind):
    with faulty(tmp_path, kind, [REPORTS], watchdog=Watchdog(heartbeat_timeout_s=60.0)) as gang:
        result = gang.wait()
        event = gang.await_event("supervise.process.exited")
        row = gang.ask(Status()).ranks[0]
    assert (result.ends[0].step, result.ends[0].status) == (1200, "epoch 3")
    assert (event["step"], event["status"]) == (1200, "epoch 3")
    assert (row.step, row.status) == (1200, "epoch 3")


def test_a_rank_that_reports_nothing_ends_without_a_step(tmp_path):
    with faulty(tmp_path, "fork", ["value = 1"]) as gang:
        result = gang.wait()
    assert (result.ends[0].step, result.ends[0].status) == (None, None)


@pytest.mark.timeout(2 * PATIENCE_S)
def test_the_report_and_show_have_the_last_step(tmp_path):
    program = tmp_path / "train.py"
    program.write_text("import os, signal, sys\nif os.environ['RANK'] == '0':\n    signal.pause()\n" + REPORTS)
    supervise = [sys.executable, "-m", "supervise"]
    logs = tmp_path / "logs"
    done = _output([*supervise, "run", "--log-dir", str(logs), "-n", "2", "--heartbeat-timeout", "60", str(program)])
    assert "rank 1 of 2 failed at step 1200 (epoch 3): exit code 3 (host " in done.stderr
    (run,) = logs.iterdir()
    ends = json.loads((run / "result.json").read_text())["ends"]
    assert (ends["1"]["step"], ends["1"]["status"]) == (1200, "epoch 3")
    (run / "result.json").unlink()  # as if supervise had been killed
    shown = _output([*supervise, "show", str(run)])
    assert "the first failure: rank 1 at step 1200 (epoch 3), exit code 3\n" in shown.stdout


def _output(command):
    env = {"PYTHONPATH": ROOT, "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
