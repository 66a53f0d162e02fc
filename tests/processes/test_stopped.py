"""A rank that is suspended from outside is told once, by an event; a suspension that was asked for is not told."""

import os
import signal
import threading
from pathlib import Path

import pytest

from supervise import Signal, Start, Status, Supervisor
from tests.patience import PATIENCE_S
from tests.processes.gangs import Gang, each_kind, faulty
from tests.processes.stubborn import OBEDIENT

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def states(pid: int) -> set[str]:
    """Return the states of all threads of a process."""
    return {(each / "stat").read_text().rpartition(")")[2].split()[0] for each in Path(f"/proc/{pid}/task").iterdir()}


def await_state(pid: int, letter: str) -> None:
    """Return once all threads of a process have a state, which the kernel tells only to the parent."""
    pause = threading.Event()
    for _ in range(3000):
        if states(pid) == {letter}:
            return
        pause.wait(0.01)
    pytest.fail(f"never in state {letter}")


def suspend(pid: int) -> None:
    """Suspend a process from outside."""
    os.kill(pid, signal.SIGSTOP)
    await_state(pid, "T")


class Told:
    """The suspensions that a gang has told so far. Each look asks the gang for its status, which looks at the ranks."""

    def __init__(self, gang: Gang) -> None:
        self._gang = gang
        self._found: list[tuple[int, int, str]] = []

    def look(self) -> list[tuple[int, int, str]]:
        self._gang.ask(Status())
        while not self._gang._events.empty():
            event = self._gang._events.get()
            if event["event"] == "supervise.process.stopped":
                self._found.append((event["local_rank"], event["pid"], event["signal"]))
        return self._found


@each_kind
def test_s11_a_stop_is_told_once_and_the_next_one_again(tmp_path, kind):
    """Many looks at one stop are one event; a new stop is a new one."""
    with faulty(tmp_path, kind, [OBEDIENT]) as gang:
        gang.hear()
        told, pid = Told(gang), gang.pids[0]
        assert told.look() == []
        suspend(pid)
        for _ in range(3):
            assert told.look() == [(0, pid, "SIGSTOP")]
        os.kill(pid, signal.SIGCONT)
        await_state(pid, "S")
        told.look()
        suspend(pid)
        for _ in range(3):
            assert told.look() == [(0, pid, "SIGSTOP")] * 2


@each_kind
def test_s11_a_stop_that_was_asked_for_is_no_news(tmp_path, kind):
    """A user suspends a rank through us; a later suspension by another process is told."""
    with faulty(tmp_path, kind, [OBEDIENT]) as gang:
        gang.hear()
        told, pid = Told(gang), gang.pids[0]
        gang.ask(Signal(sig=signal.SIGSTOP))
        await_state(pid, "T")
        assert told.look() == []
        gang.ask(Signal(sig=signal.SIGCONT))
        await_state(pid, "S")
        told.look()
        suspend(pid)
        assert told.look() == [(0, pid, "SIGSTOP")]


@each_kind
def test_s11_a_stop_that_was_asked_for_is_in_the_status_and_hides_no_later_one(tmp_path, kind):
    """Also if another program has continued the rank since."""
    with faulty(tmp_path, kind, [OBEDIENT]) as gang:
        gang.hear()
        told, pid = Told(gang), gang.pids[0]
        gang.ask(Signal(sig=signal.SIGSTOP))
        await_state(pid, "T")
        assert told.look() == []
        assert gang.ask(Status()).ranks[0].state == "suspended"
        os.kill(pid, signal.SIGCONT)
        await_state(pid, "S")
        assert gang.ask(Status()).ranks[0].state != "suspended"
        assert told.look() == []
        suspend(pid)
        assert told.look() == [(0, pid, "SIGSTOP")]
        assert gang.ask(Status()).ranks[0].state == "suspended"


@each_kind
def test_s11_a_rank_that_has_ended_is_not_looked_at(tmp_path, kind):
    """Its number may be another's by now."""
    with faulty(tmp_path, kind, ["", OBEDIENT]) as gang:
        gang.hear()
        gang.await_event("supervise.process.exited", local_rank=0)
        assert Told(gang).look() == []


REPORTS = """
import supervise
supervise.notify(ready=True)
for step in range(1, 30):
    supervise.notify(step=step)
    say(str(step))
    wait_for_word()
"""


@each_kind
def test_a_status_has_what_the_rank_has_reported_before(tmp_path, kind):
    """The gang reads the reports a few times a second; after a suspension of supervise, they would be long past."""
    with faulty(tmp_path, kind, [REPORTS], ready="notify") as gang:
        for step in range(1, 30):
            assert gang.hear() == [str(step)]
            row = gang.ask(Status()).ranks[0]
            assert (row.step, row.beat_age_s < PATIENCE_S) == (step, True)
            gang.tell(0, "go on")


def test_the_first_status_after_a_suspension_has_it():
    """Also right after an earlier one: the answer follows the check."""
    with Supervisor.start(name="gang", entrypoint="sleep", args={0: ("600",), 1: ("600",)}) as gang:
        pid = gang.ask(Start(), timeout=PATIENCE_S)[1]
        assert gang.ask(Status(), timeout=PATIENCE_S).ranks[1].state == "ready"
        os.kill(pid, signal.SIGSTOP)
        await_state(pid, "T")
        assert gang.ask(Status(), timeout=PATIENCE_S).ranks[1].state == "suspended"
        os.kill(pid, signal.SIGCONT)
