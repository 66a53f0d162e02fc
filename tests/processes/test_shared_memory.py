"""What SIGKILL leaves of the shared memory of ranks: nothing, because their resource trackers unlink it first."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from supervise import Signal
from tests.processes.gangs import Stopwatch, faulty
from tests.processes.hosts import watched

SHARES = """
from multiprocessing import resource_tracker, shared_memory
signal.signal(signal.SIGTERM, signal.SIG_IGN)
segment = shared_memory.SharedMemory(create=True, size=4096)
say(f"{segment.name.lstrip('/')} {resource_tracker._resource_tracker._pid}")
"""
"""The resource tracker is a process of the rank's group."""
ALONE = SHARES + "signal.pause()"
WITH_WORKERS = (
    SHARES
    + """
import multiprocessing
children = [multiprocessing.get_context("fork").Process(target=signal.pause) for _ in range(2)]
for child in children:
    child.start()
say(" ".join(str(child.pid) for child in children))
signal.pause()
"""
)
"""They have copies of the pipe at whose end the tracker unlinks the memory."""


def exists(segment):
    return Path("/dev/shm", segment).exists()


@pytest.mark.parametrize("how", ["close", "grace", "signal"])
def test_s13_sigkill_leaves_no_shared_memory(tmp_path, how, trackers_have_time):
    with faulty(tmp_path, "binary", [ALONE] * 2) as gang:
        said = [line.split() for line in gang.hear(2)]
        assert all(exists(segment) for segment, _ in said)
        with watched([int(tracker) for _, tracker in said]) as watch:
            if how == "close":
                gang.close(death_sig=signal.SIGKILL)
            elif how == "grace":
                gang.close(timeout=0.2)
            else:
                gang.ask(Signal(sig=signal.SIGKILL, group=True))
                gang.wait()
                gang.close()
            assert watch.survivors(0) == set()
        assert [segment for segment, _ in said if exists(segment)] == []


@pytest.mark.parametrize("sig", [signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM])
def test_s13_another_signal_of_a_stop_leaves_no_shared_memory(tmp_path, sig, trackers_have_time, monkeypatch):
    """Such as SIGHUP of a terminal that closes. The signal reaches the workers of the rank, but not its tracker."""
    heeds = WITH_WORKERS.replace("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "")
    with faulty(tmp_path, "binary", [heeds]) as gang:
        segment, tracker = gang.hear()[0].split()
        workers = gang.hear()[0].split()
        with watched([int(pid) for pid in (tracker, *workers)]) as watch:
            scan = SimpleNamespace(begun_s=time.monotonic(), groups={})  # as if another gang had just scanned
            monkeypatch.setattr("supervise._process.containment.groups._newest", scan)
            gang.close(death_sig=sig)
            assert watch.survivors(0) == set()
        assert not exists(segment)


def test_a_tracker_without_a_command_line_is_spared_as_well(tmp_path):
    """So the kernel shows a tracker that has just started, until its exec is complete. The test takes a shell."""
    names = tmp_path / "names"
    source = f"""
import subprocess
streams = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
tracker = subprocess.Popen([""], executable="/bin/sh", cwd="/", **streams)  # cwd: posix_spawn refuses an empty name
tracker.stdin.write("trap '' INT TERM; echo ready; read gone; rm {names}\\n")
tracker.stdin.flush()
tracker.stdout.readline()
say(tracker.pid)
signal.pause()
"""
    names.touch()
    with faulty(tmp_path, "binary", [source]) as gang, watched([int(gang.hear()[0])]) as watch:
        gang.close(death_sig=signal.SIGHUP)
        assert watch.survivors(0) == set()
    assert not names.exists()


def test_the_workers_of_a_rank_are_killed_before_its_tracker(tmp_path, trackers_have_time):
    with faulty(tmp_path, "binary", [WITH_WORKERS]) as gang:
        segment, tracker = gang.hear()[0].split()
        workers = gang.hear()[0].split()
        with watched([int(pid) for pid in (tracker, *workers)]) as watch, Stopwatch() as taken:
            gang.close(death_sig=signal.SIGKILL)
            assert watch.survivors(0) == set()
        assert not exists(segment)
        assert taken.seconds < 20  # the time of the tracker is not used up


def test_a_suspended_tracker_is_killed_as_well(tmp_path):
    """It cannot unlink the memory, so the test does."""
    with faulty(tmp_path, "binary", [WITH_WORKERS]) as gang:
        segment, tracker = gang.hear()[0].split()
        workers = gang.hear()[0].split()
        os.kill(int(tracker), signal.SIGSTOP)
        with watched([int(pid) for pid in (tracker, *workers)]) as watch:
            gang.close(death_sig=signal.SIGKILL)
            assert watch.survivors(0) == set()
    Path("/dev/shm", segment).unlink()


def test_what_a_rank_has_left_behind_is_killed_in_the_same_order(tmp_path, trackers_have_time):
    """The rank has exited, and its worker keeps the tracker."""
    leaves = WITH_WORKERS.replace("signal.pause()\n", "") + "os._exit(0)"
    leaves = leaves.replace("target=signal.pause", "target=deaf").replace(
        "children =", "def deaf():\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    signal.pause()\nchildren ="
    )
    with faulty(tmp_path, "binary", [leaves]) as gang:
        segment, tracker = gang.hear()[0].split()
        workers = gang.hear()[0].split()
        gang.wait()
        with watched([int(pid) for pid in (tracker, *workers)]) as watch:
            gang.close(timeout=0.2)
            assert watch.survivors(0) == set()
        assert not exists(segment)


def test_a_group_without_a_tracker_is_killed_at_once(tmp_path, trackers_have_time):
    """Its close does not wait for the time that trackers have."""
    source = "import subprocess\nsubprocess.Popen(['sleep', '1000'])\nsay('runs')\nsignal.pause()"
    with faulty(tmp_path, "binary", [source]) as gang:
        gang.hear()
        with Stopwatch() as taken:
            gang.close(death_sig=signal.SIGKILL)
    assert taken.seconds < 20
