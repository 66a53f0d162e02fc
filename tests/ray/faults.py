"""Faults of gangs on a Ray cluster of this machine: each function starts a gang, breaks a part, and observes."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from supervise import Close, GangFailed, RestartPolicy, Start, Status, Wait
from supervise.ray import RayGang, RaySupervisor
from tests.conformance.work import pause
from tests.ray.cluster import MARK, PATIENCE_S, marked, until_gone, until_there

LEASE_S = 3.0
WORLD = 4
DRIVER = """
import sys, threading
from supervise.ray import RayGang
gang = RayGang(name="d", entrypoint="sleep", nnodes=2, nproc_per_node=2, args=("1000",), lease_s=3,
               envs={rank: {%r: sys.argv[1]} for rank in range(4)})
print(*gang.start().values(), flush=True)
threading.Event().wait()
"""
WRITES_TIMES = """
file=$0/$RANK
echo "$SUPERVISE_EPOCH begin $(date +%s.%N)" >> $file
[ $SUPERVISE_EPOCH = 1 ] && exit 0
while :; do echo "0 alive $(date +%s.%N)" >> $file; sleep 0.02; done
"""


class Target:
    """The gang that a fault is for: its events with their times, its pids, and the nodes of its hosts."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.events: list[tuple[float, dict[str, Any]]] = []
        self.pids: dict[int, int] = {}

    def observe(self, event: dict[str, Any]) -> None:
        self.events.append((time.monotonic(), event))

    def first(self, name: str) -> float:
        """Return the time of the first event with this name."""
        return next(at for at, event in self.events if event["event"] == name)

    def victim(self) -> dict[str, Any]:
        """Return the event of the start of a host that is not on the head, to which the driver is connected."""
        nodes = {node.node_id for node in self.cluster.worker_nodes}
        hosts = [event for _, event in self.events if event["event"] == "supervise.host.started"]
        return next(host for host in hosts if host["node_id"] in nodes)


def kill_rank(target: Target) -> int:
    rank = 2 * int(target.victim()["host"]) + 1
    os.kill(target.pids[rank], signal.SIGKILL)
    return rank


def kill_host(target: Target) -> int:
    os.kill(target.victim()["pid"], signal.SIGKILL)
    return 2 * int(target.victim()["host"])


def stop_host(target: Target) -> int:
    os.kill(target.victim()["pid"], signal.SIGSTOP)
    return 2 * int(target.victim()["host"])


def kill_raylet(target: Target) -> int:
    victim = target.victim()
    node = next(node for node in target.cluster.worker_nodes if node.node_id == victim["node_id"])
    target.cluster.remove_node(node, allow_graceful=False)
    return 2 * int(victim["host"])


def kill_many(target: Target) -> int:
    """Kill two ranks, and at the same time the host and the raylet of one of them."""
    victim = target.victim()
    first = 2 * int(victim["host"])
    for rank in range(WORLD):
        if rank != first:
            os.kill(target.pids[rank], signal.SIGKILL)
    os.kill(victim["pid"], signal.SIGKILL)
    kill_raylet(target)
    return -1


FAULTS: dict[str, Callable[[Target], int]] = {
    "kill rank": kill_rank,
    "kill host": kill_host,
    "stop host": stop_host,
    "kill raylet": kill_raylet,
    "kill many": kill_many,
}
"""Each returns the rank that must be the root cause; -1: it may be any."""
KNOWN_BY = {"kill rank": "supervise.process.exited"}
"""Fault to the event by which the driver learns of it, if that is not `supervise.host.lost`."""


def broken(cluster: Any, fault: str) -> dict[str, Any]:
    """Start a gang without restarts, and break a part of it."""
    mark, target = f"broken-{fault.replace(' ', '-')}", Target(cluster)
    ref = sleeping(target, mark)
    found = until_there(mark, WORLD)
    began_s = time.monotonic()
    rank = FAULTS[fault](target)
    gone_s = until_gone(mark, began_s)
    result: Any = ref.ask(Wait(), timeout=PATIENCE_S)
    result_s = time.monotonic() - began_s
    ref.stop(timeout=PATIENCE_S)
    return {
        "ranks": found,
        "outcome": result.outcome,
        "root cause is the broken part": rank in (result.root_cause, -1),
        "roles": sorted(end.role for end in result.ends.values()),
        "message": result.failures[result.root_cause].message,
        "report": str(GangFailed(result)),
        "known_s": target.first(KNOWN_BY.get(fault, "supervise.host.lost")) - began_s,
        "gone_s": gone_s,
        "result_s": result_s,
    }


def sleeping(target: Target, mark: str) -> Any:
    """Start a gang of ranks that sleep; return its actor."""
    ref = RaySupervisor.start(
        name="f",
        entrypoint="sleep",
        nnodes=2,
        nproc_per_node=2,
        args=("1000",),
        lease_s=LEASE_S,
        envs={rank: {MARK: mark} for rank in range(WORLD)},
        event_sink=target.observe,
    )
    target.pids = ref.ask(Start(), timeout=PATIENCE_S)
    return ref


def raylet_stopped(cluster: Any) -> dict[str, Any]:
    """Stop the raylet of a host for ten leases, and close the gang meanwhile. Calls to actors do not pass a raylet."""
    target = Target(cluster)
    ref = sleeping(target, "raylet")
    found = until_there("raylet", WORLD)
    node = next(node for node in cluster.worker_nodes if node.node_id == target.victim()["node_id"])
    [raylet] = node.all_processes["raylet"]
    os.kill(raylet.process.pid, signal.SIGSTOP)
    pause(10 * LEASE_S)
    phase, running = ref.ask(Status(), timeout=PATIENCE_S).phase, len(marked("raylet"))
    began_s = time.monotonic()
    result: Any = ref.ask(Close(), timeout=PATIENCE_S)
    gone_s = until_gone("raylet", began_s)
    os.kill(raylet.process.pid, signal.SIGCONT)
    ref.stop(timeout=PATIENCE_S)
    return {"ranks": found, "phase": phase, "running": running, "outcome": result.outcome, "gone_s": gone_s}


def driver_killed() -> dict[str, Any]:
    """Kill the driver of a gang. It connects to the cluster in `RAY_ADDRESS`."""
    return without_driver("driver", lambda driver: driver.kill())


def head_killed(cluster: Any) -> dict[str, Any]:
    """Kill all of Ray's processes of the head node, to which the driver is connected."""
    return without_driver("head", lambda _driver: cluster.head_node.kill_all_processes(check_alive=False))


def without_driver(mark: str, end: Callable[[subprocess.Popen[str]], object]) -> dict[str, Any]:
    """Start a driver with a gang, do what ends it, and observe when its ranks are gone."""
    driver = subprocess.Popen([sys.executable, "-c", DRIVER % MARK, mark], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    pids = driver.stdout.readline().split()
    found = until_there(mark, len(pids))
    began_s = time.monotonic()
    end(driver)
    gone_s = until_gone(mark, began_s)
    driver.kill()
    driver.communicate()
    return {"ranks": len(pids), "found": found, "gone_s": gone_s}


def restarted(cluster: Any, fault: str) -> dict[str, Any]:
    """Break a part of a gang that restarts once; each life of a rank writes its times."""
    mark, target = f"restarted-{fault.replace(' ', '-')}", Target(cluster)
    with tempfile.TemporaryDirectory() as folder:
        gang = RayGang(
            name="r",
            entrypoint="sh",
            nnodes=2,
            nproc_per_node=2,
            args=("-c", WRITES_TIMES, folder),
            lease_s=LEASE_S,
            envs={rank: {MARK: mark} for rank in range(WORLD)},
            restart_policy=RestartPolicy(max_restarts=1, backoff=0.0),
            event_sink=target.observe,
        )
        target.pids = gang.start()
        files = [Path(folder, str(rank)) for rank in range(WORLD)]
        while any(not file.exists() or "alive" not in file.read_text() for file in files):
            pause(0.01)
        began_s = time.monotonic()
        rank = FAULTS[fault](target)
        result = gang.wait(PATIENCE_S)
        took_s = time.monotonic() - began_s
        assert result is not None, (gang.status(), target.events)
        gang.close()
        rows = [line.split() for file in files for line in file.read_text().splitlines()]
    times = {epoch: [float(at) for number, _, at in rows if number == epoch] for epoch in ("0", "1")}
    return {
        "outcome": result.outcome,
        "lives": result.restarts_total,
        "cause": [each.local_rank for each in result.restarts if each.counted] == [rank],
        "begun": len(times["1"]),
        "gap_s": min(times["1"]) - max(times["0"]),
        "left": len(marked(mark)),
        "took_s": took_s,
    }
