"""A Ray cluster of this machine for one program, and the search for processes that a gang has left."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conformance.work import pause

MARK = "SUPERVISE_RAY_TEST"
"""A variable in the environment of ranks."""
PATIENCE_S = 60.0


@contextlib.contextmanager
def cluster(nodes: int = 2) -> Iterator[Any]:
    """Provide a cluster of nodes with two CPUs each, and connect to it; `RAY_ADDRESS` is its address for children."""
    import ray
    from ray.cluster_utils import Cluster

    temp = tempfile.mkdtemp(prefix="sr-", dir="/tmp")  # Ray's sockets need a short path
    os.environ["RAY_TMPDIR"] = temp
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            found.add_node(num_cpus=2)
        found.wait_for_nodes()
        ray.init(address=found.address, logging_level="error", log_to_driver=False)
        os.environ["RAY_ADDRESS"] = found.address
        yield found
    finally:
        ray.shutdown()
        found.shutdown()
        shutil.rmtree(temp, ignore_errors=True)


def marked(mark: str) -> set[int]:
    """Return the running processes whose environment has the mark."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if entry.name.isdigit() and f"{MARK}={mark}\0".encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
    return found


def until_there(mark: str, count: int) -> int:
    """Wait until `count` marked processes run, and return it; during its exec a process has no environment."""
    deadline_s = time.monotonic() + PATIENCE_S
    while len(marked(mark)) != count:
        assert time.monotonic() < deadline_s, f"there are {len(marked(mark))} of {count} ranks"
        pause(0.01)
    return count


def until_gone(mark: str, began_s: float) -> float:
    """Return after how many seconds no marked process runs any more."""
    while marked(mark):
        assert time.monotonic() - began_s < PATIENCE_S, f"left: {marked(mark)}"
        pause(0.01)
    return time.monotonic() - began_s
