"""The members of process groups: one scan of all processes serves the groups of all ranks that exit together."""

import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from supervise._process.containment import groups
from tests.patience import PATIENCE_S


@pytest.fixture
def leaders() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two groups of a shell and its child."""
    started = [
        subprocess.Popen(["sh", "-c", "sleep 1000 & echo; wait"], stdout=subprocess.PIPE, process_group=0)
        for _ in range(2)
    ]
    for leader in started:
        assert leader.stdout is not None
        leader.stdout.readline()
    yield started
    for leader in started:
        os.killpg(leader.pid, 9)
        leader.wait(PATIENCE_S)
        assert leader.stdout is not None
        leader.stdout.close()


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows with each scan."""
    made: list[None] = []
    real = groups.all_pids

    def counted() -> Iterator[int]:
        made.append(None)
        return real()

    monkeypatch.setattr(groups, "all_pids", counted)
    return made


def size(leader: subprocess.Popen[bytes], since_s: float | None) -> int:
    found = groups.members(leader.pid, since_s=since_s)
    for member in found:
        member.close()
    return len(found)


def test_a_scan_serves_all_groups_that_were_asked_for_before_it(leaders, scans):
    since_s = time.monotonic()
    assert [size(leader, since_s) for leader in leaders] == [2, 2]
    assert len(scans) == 1


def test_an_earlier_scan_is_not_used(leaders, scans):
    """A member may have been forked since; and a caller that names no time wants the present."""
    first, second = leaders
    size(first, time.monotonic())
    assert size(second, time.monotonic()) == 2
    assert size(second, None) == 2
    assert len(scans) == 3
