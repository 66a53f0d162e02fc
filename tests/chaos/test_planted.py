"""The chaos finds what it is for: each bug that is planted makes it fail, and it says why."""

import re
import signal
import threading
import time
from pathlib import Path

import pytest

from supervise import RestartRanks
from tests.chaos import case, places, planted
from tests.chaos.driver import run, silenced
from tests.chaos.machine import BrokenError, Chaos, Tally
from tests.chaos.scripts import Script
from tests.chaos.shapes import Spec
from tests.patience import PATIENCE_S


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a rank that is lost is never reaped
@pytest.mark.parametrize("bug", planted.PLANTS)
def test_a_planted_bug_is_found(monkeypatch, bug):
    """Within a few seeds; most of them within the first ten machines."""
    monkeypatch.setattr(case, "PATIENCE_S", 6.0)
    with planted.planted(bug):
        assert any(re.search(planted.FINDS[bug], _found(seed)) for seed in range(6))


def _found(seed):
    """Return what a seed has found; on a busy machine that may be an answer that took long, so others follow."""
    try:
        run(seed, machines=30)
    except BrokenError as broken:
        return str(broken)
    return ""


FAILS = Spec(
    kind="binary",
    ranks=(Script("exit", 3), Script("sleep")),
    logs="files",
    console="file",
    grace=0.4,
    timeout=None,
    restarts=1,
    strategy="one_for_one",
)
DEAF = Spec(
    kind="binary",
    ranks=(Script("deaf"), Script("sleep")),
    logs="files",
    console="file",
    grace=2.0,
    timeout=None,
)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a life that is lost is never reaped
@pytest.mark.parametrize("bug", planted.IN_LIVES)
def test_a_bug_that_is_planted_in_restarts_is_found_by_a_plan(bug):
    """One rank fails again and again, or is restarted while it ignores SIGTERM."""

    class Planned(Chaos):
        tally = Tally()

    Planned.tally.shrinking = True  # no seed to say
    with planted.planted(bug), places.small_disk(), silenced():
        machine = Planned()
        machine.new_gang(FAILS if "counted" in bug else DEAF, "wait")
        if "beside" in bug:
            _await_ignores(machine.cases[0].pids()[0], signal.SIGTERM)
            machine.restart_or_terminate_ranks(number=0, kind=RestartRanks, ranks=frozenset({0}))
        _await_events(machine.cases[0], *(("restarting", 2) if "counted" in bug else ("started", 3)))
        with pytest.raises(BrokenError, match=planted.IN_LIVES[bug][1]):
            machine.teardown()


def _await_events(made, name, count):
    """Wait until so many events of this name were told: a life may take as long as the machine wants."""
    deadline_s, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while sum(event["event"] == f"supervise.process.{name}" for event in made.events) < count:
        assert time.monotonic() < deadline_s
        pause.wait(0.01)


def _await_ignores(pid, sig):
    """Wait until a rank ignores a signal: until then, the signal would end it."""
    deadline_s, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while True:
        found = re.search(r"^SigIgn:\t(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        if int(found[1], 16) >> (sig - 1) & 1:
            return
        assert time.monotonic() < deadline_s
        pause.wait(0.01)
