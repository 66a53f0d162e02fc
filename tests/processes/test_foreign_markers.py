"""The sweep ends what a gang has left behind, by exact markers: others may look like it, and nothing stops it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervise._process.containment import ancestry, marker
from supervise._process.files import anonymous_file
from tests.processes.gangs import each_kind, faulty
from tests.processes.hosts import pids_of, watched
from tests.processes.test_containment import DAEMONS

HOLDS = """
import os, signal, sys
folder, token = sys.argv[1:]
os.memfd_create("x-supervise-worker-" + token + ":0")
os.memfd_create("supervise-worker-" + token + ":0-and-more")
os.memfd_create("supervise-worker-" + token + ":")
os.memfd_create("supervise-worker-" + token + ":" + "7" * 200)
for name in ("supervise-worker-%s:0", "supervise-worker-%s:", "supervise-worker-%s:0-abcd1234 (deleted) x"):
    os.open(os.path.join(folder, name % token), os.O_RDWR | os.O_CREAT)
print("ready", flush=True)
signal.pause()
"""
"""A stranger that has files open whose names hold a marker, be it a whole one."""


def variables(token: str) -> list[dict[str, str]]:
    """Return environments that hold something like a marker."""
    values = [f"{token}:", f"{token}:{'9' * 5000}", f"x{token}:0", f"{token}:0x", f"{token}:-1", f"{token} :0"]
    return [{marker.VARIABLE: value} for value in values] + [{f"MY_{marker.VARIABLE}": f"{token}:0"}]


@contextmanager
def strangers(folder: Path, token: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield processes that are not the gang's and look like it. They are still there at the end."""
    found = []
    try:
        path = {"PATH": os.environ["PATH"]}
        found.extend(subprocess.Popen(["sleep", "1000"], env=env | path) for env in variables(token))
        holding = subprocess.Popen([sys.executable, "-S", "-c", HOLDS, folder, token], stdout=subprocess.PIPE)
        found.append(holding)
        assert holding.stdout is not None
        assert holding.stdout.readline() == b"ready\n"
        holding.stdout.close()
        yield found
        assert [process.poll() for process in found] == [None] * len(found)
    finally:
        for process in found:
            process.kill()
            process.wait()


@each_kind
@pytest.mark.parametrize("daemon", ["forked", "executed"])
def test_p4_malformed_and_foreign_markers_end_neither_the_sweep_nor_strangers(tmp_path, kind, daemon):
    """What the gang has left behind is ended, in spite of them."""
    source = f"say(os.environ['{marker.VARIABLE}'])\n" + DAEMONS[daemon]
    with faulty(tmp_path, kind, [source], grace=5.0, containment="sweep") as gang:
        token = gang.hear()[0].rpartition(" ")[2].partition(":")[0]
        daemons = pids_of(gang.hear())
        gang.wait()
        with strangers(tmp_path, token), watched(daemons) as watch:
            assert watch.survivors(0) == set(daemons)
            gang.close()
            assert watch.survivors(0) == set()
        event = gang.await_event("supervise.process.leaked")
        assert (event["descendants"], event["ended"]) == (daemons, True)


def test_p4_the_marker_of_every_start_is_known_again(monkeypatch):
    """Also in a gang within a gang; of no other gang."""
    monkeypatch.setenv(marker.VARIABLE, "outer:4")
    token = marker.new_token()
    monkeypatch.setenv(marker.VARIABLE, marker.value(token, 12))
    whole = b"A=1\0" + f"{marker.VARIABLE}={os.environ[marker.VARIABLE]}".encode() + b"\0Z=2\0"
    assert marker.number_in_environment(whole, token) == 12
    assert marker.number_in_environment(whole, "outer") == 4
    assert marker.number_in_environment(whole, token[1:]) is None
    held: list[int] = []
    monkeypatch.setattr(marker, "anonymous_file", lambda name: held.append(anonymous_file(name)))
    marker.carry()
    try:
        assert ancestry.number_of(os.getpid(), token, forked=True) == 12
        assert ancestry.number_of(os.getpid(), "outer", forked=True) is None
    finally:
        os.close(held[0])
