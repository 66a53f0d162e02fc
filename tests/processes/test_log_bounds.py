"""log_max_bytes of a gang: its check, and a file system that cannot make holes."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

import supervise
from tests.faults import Holes
from tests.processes.gangs import faulty

FLOOD = "for i in range(40): os.write(1, b'x' * 4095 + b'\\n')\nsay('done')\nwait_for_word()"


@pytest.mark.parametrize("size", [0, 65535, -1, 1e9, "10M", True])
def test_a_bound_is_a_number_of_bytes(size: Any):
    """The error names the setting, the value and the least bound."""
    with pytest.raises(supervise.SpecError, match=r"log_max_bytes is .*; give at least 65536 bytes, or None"):
        supervise.Supervisor(name="w", entrypoint="true", args={0: ()}, log_max_bytes=size)


def test_a_file_system_without_holes_is_reported_once(tmp_path: Path, holes: Holes):
    """One event for all logs of the gang, whose ranks run on."""
    holes.error = OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    with faulty(tmp_path, "binary", [FLOOD, FLOOD], log_max_bytes=65536) as gang:
        gang.hear(2)
        event = gang.await_event("supervise.log.failed")
        gang.tell(0)
        gang.tell(1)
        result = gang.wait()
        gang.close()
        rest = [gang._events.get_nowait() for _ in range(gang._events.qsize())]
    assert "log_max_bytes has no effect, its oldest part cannot be removed: Operation not supported" in event["error"]
    assert event["log_iostream"] == "stdout"
    assert [each for each in rest if each["event"].startswith("supervise.log")] == []
    assert result.outcome == "succeeded"
    assert {Path(path).stat().st_size for path in result.stdouts.values()} == {40 * 4096}
