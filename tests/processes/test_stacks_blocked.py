"""A file system that does not answer blocks the thread that collects stacks, and nobody else."""

import os
import subprocess
import sys
import threading
import time
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from supervise import Stacks, SuperviseError
from supervise._process.stacks import py_spy
from supervise._process.stacks.py_spy import PySpy
from tests.patience import PATIENCE_S
from tests.processes.gangs import Fifo, faulty
from tests.processes.test_stacks import fake_py_spy

WAITS = "say('runs')\nwait_for_word()"


@pytest.fixture
def blocked(tmp_path, monkeypatch):
    """A running gang of one rank. The start of py-spy blocks until `answers` is set."""
    begun, answers = threading.Event(), threading.Event()

    def start(*args, **kwargs):
        begun.set()
        assert answers.wait(PATIENCE_S)
        return subprocess.Popen(*args, **kwargs)

    fake_py_spy(monkeypatch, tmp_path, "exit 1")
    names = {name: getattr(subprocess, name) for name in ("DEVNULL", "PIPE", "TimeoutExpired")}
    monkeypatch.setattr(py_spy, "subprocess", SimpleNamespace(Popen=start, **names))
    with faulty(tmp_path, "binary", [WAITS]) as gang:
        gang.hear()
        gang.answers = answers
        gang.reply = gang.supervisor.ask(Stacks(), block=False)
        assert begun.wait(PATIENCE_S)
        yield gang
        answers.set()
        for thread in collecting():  # it starts py-spy only now, and reaps it
            thread.join(PATIENCE_S)


def collecting():
    return [thread for thread in threading.enumerate() if thread.name == "supervise-stacks"]


def test_a_blocked_collection_is_answered_with_what_it_has_found(blocked):
    """Later ones leave py-spy out until the thread has ended."""
    found = blocked.reply.get(timeout=PATIENCE_S)
    assert (found[0].source, found[0].notes) == ("kernel", ())
    assert found[0].threads[0].state
    (thread,) = collecting()
    second = blocked.ask(Stacks())
    assert second[0].notes[0] == "py-spy is not run: an earlier collection of stacks is still blocked"
    assert second[0].source == "kernel"
    blocked.answers.set()
    thread.join(PATIENCE_S)
    assert not blocked.ask(Stacks())[0].notes[0].startswith("py-spy is not run")


def test_a_stop_does_not_wait_for_a_blocked_collection(blocked):
    blocked.tell(0)
    blocked.wait()
    blocked.supervisor.stop(timeout=PATIENCE_S)
    assert not blocked.answers.is_set()
    with pytest.raises(SuperviseError, match="stopped while it collected stacks"):
        blocked.reply.get(timeout=PATIENCE_S)


def test_a_run_that_leaves_its_pipes_open_is_given_up(tmp_path):
    """Its child has them after it was killed."""
    ear, gate = Fifo(tmp_path / "ear"), Fifo(tmp_path / "gate")
    program = tmp_path / "py-spy"
    child = f"(echo begun > {ear.path}; read word < {gate.path}; echo ended > {ear.path})"
    program.write_text(f"#!/bin/sh\n{child} &\nwait\n")
    program.chmod(0o755)
    said = SimpleQueue()

    def run():
        said.put(PySpy(str(program)).threads_of(os.getpid(), time.monotonic() + 1.0))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert said.get(timeout=PATIENCE_S / 2) == "py-spy took too long"
    finally:
        gate.tell()
        thread.join(PATIENCE_S)
        if ear.hear() == "begun":
            ear.hear()
        ear.close()
        gate.close()


def test_a_run_that_starts_after_the_cancel_is_killed(tmp_path, monkeypatch):
    spy = PySpy(sys.executable)

    def start(*_, **pipes):
        spy.cancel()
        return subprocess.Popen(["sleep", "1000"], **pipes)

    names = {name: getattr(subprocess, name) for name in ("DEVNULL", "PIPE", "TimeoutExpired")}
    monkeypatch.setattr(py_spy, "subprocess", SimpleNamespace(Popen=start, **names))
    assert spy.threads_of(os.getpid(), time.monotonic() + PATIENCE_S) == "py-spy: no output"
    assert spy.threads_of(os.getpid(), time.monotonic() + PATIENCE_S) == "the request was canceled"
