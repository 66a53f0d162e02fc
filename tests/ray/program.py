"""Runs the cases and the faults on a Ray cluster of this machine: ``python -m tests.ray.program cases|faults``.

Prints a line of JSON for each. It is a program of its own, since Ray leaves threads and descriptors in a driver.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from supervise import RestartPolicy, Start, SuperviseError, Wait
from supervise.ray import RayGang, RaySupervisor
from tests.ray import cases

MARK = "SUPERVISE_RAY_TEST"
LEASE_S = 3.0
DRIVER = """
import os, sys, time
from supervise.ray import RayGang
gang = RayGang(name="d", entrypoint="sleep", nnodes=2, nproc_per_node=2, args=("1000",), lease_s=3,
               envs={rank: {%r: sys.argv[1]} for rank in range(4)})
print(*gang.start().values(), flush=True)
time.sleep(1000)
"""


def marked(mark: str) -> set[int]:
    """Return the running processes whose environment has the mark."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}={mark}\0".encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def until_gone(mark: str, began_s: float) -> float:
    """Return after how many seconds no marked process runs any more."""
    while marked(mark):
        assert time.monotonic() - began_s < cases.PATIENCE_S, f"left: {marked(mark)}"
        cases.pause(0.01)
    return time.monotonic() - began_s


def removable(cluster: Any, hosts: dict[int, dict[str, Any]]) -> tuple[int, Any]:
    """Return the number and the node of a host that is not on the head, to which the driver is connected."""
    nodes = {node.node_id: node for node in cluster.worker_nodes}
    return next((number, nodes[event["node_id"]]) for number, event in hosts.items() if event["node_id"] in nodes)


def lost(cluster: Any, how: str) -> dict[str, Any]:
    """Start a gang, end or stop a host of it, and observe."""
    mark, events = how.replace(" ", "-"), []
    ref = RaySupervisor.start(
        name="f",
        entrypoint="sleep",
        nnodes=2,
        nproc_per_node=2,
        args=("1000",),
        lease_s=LEASE_S,
        envs={rank: {MARK: mark} for rank in range(4)},
        event_sink=lambda event: events.append((time.monotonic(), event)),
    )
    ref.ask(Start(), timeout=cases.PATIENCE_S)
    hosts = {event["host"]: event for _, event in events if event["event"] == "supervise.host.started"}
    number, node = removable(cluster, hosts)
    began_s = time.monotonic()
    if how == "kill raylet":
        cluster.remove_node(node, allow_graceful=False)
    else:
        os.kill(hosts[number]["pid"], signal.SIGKILL if how == "kill host" else signal.SIGSTOP)
    gone_s = until_gone(mark, began_s)
    result: Any = ref.ask(Wait(), timeout=cases.PATIENCE_S)
    result_s = time.monotonic() - began_s
    ref.stop(timeout=cases.PATIENCE_S)
    known_s = next(at - began_s for at, event in events if event["event"] == "supervise.host.lost")
    return {
        "outcome": result.outcome,
        "lost host is the cause": result.root_cause == 2 * number,
        "roles": sorted(end.role for end in result.ends.values()),
        "message": result.failures[result.root_cause].message,
        "known_s": known_s,
        "gone_s": gone_s,
        "result_s": result_s,
    }


def driver_killed() -> dict[str, Any]:
    words = [sys.executable, "-c", DRIVER % MARK, "driver"]
    driver = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    pids = driver.stdout.readline().split()
    driver.kill()
    began_s = time.monotonic()
    driver.wait()
    return {"ranks": len(pids), "gone_s": until_gone("driver", began_s)}


def replaced(cluster: Any, folder: Path) -> dict[str, Any]:
    """Kill a node of a gang with a restart policy while there is a spare one; each life of a rank writes its times."""
    script = (
        'f=$0/$RANK; echo "$SUPERVISE_EPOCH begin $(date +%s.%N)" >> $f;'
        '[ $SUPERVISE_EPOCH = 1 ] && exit 0; while :; do echo "0 alive $(date +%s.%N)" >> $f; sleep 0.02; done'
    )
    events: list[Any] = []
    gang = RayGang(
        name="r",
        entrypoint="sh",
        nnodes=2,
        nproc_per_node=2,
        args=("-c", script, str(folder)),
        lease_s=LEASE_S,
        restart_policy=RestartPolicy(max_restarts=1, backoff=0.0),
        event_sink=events.append,
    )
    gang.start()
    while any(not (folder / str(rank)).exists() for rank in range(4)):
        cases.pause(0.01)
    hosts = {event["host"]: event for event in events if event["event"] == "supervise.host.started"}
    cluster.remove_node(removable(cluster, hosts)[1], allow_graceful=False)
    result = gang.wait(cases.PATIENCE_S)
    assert result is not None, (gang.status(), ray.nodes(), events)
    gang.close()
    rows = [line.split() for rank in range(4) for line in (folder / str(rank)).read_text().splitlines()]
    last = max(float(at) for epoch, _, at in rows if epoch == "0")
    first = min(float(at) for epoch, _, at in rows if epoch == "1")
    return {"outcome": result.outcome, "lives": result.restarts_total, "overlap": first < last}


COMMANDS = {
    "command": "echo out $RANK",
    "command that fails": "[ $RANK = 3 ] || sleep 1000; sleep 3; echo why >&2; exit 7",
    "command that restarts": "echo $TORCHELASTIC_RESTART_COUNT; sleep 3; [ $RANK$TORCHELASTIC_RESTART_COUNT != 10 ]",
}


def command(script: str) -> dict[str, Any]:
    """Run ``supervise run --engine ray``; return its exit code, its output, and the files of the run directory."""
    with tempfile.TemporaryDirectory() as logs:
        words = ["--engine", "ray", "--nnodes", "2", "-n", "2", "--max-restarts", "1" if "RESTART" in script else "0"]
        done = subprocess.run(
            [sys.executable, "-m", "supervise", "run", *words, "--log-dir", logs, "sh", "-c", script],
            capture_output=True,
            text=True,
            check=False,
            timeout=cases.PATIENCE_S,
        )
        [run] = Path(logs).iterdir()
        files = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
        result = json.loads((run / "result.json").read_text())
    return {
        "code": done.returncode,
        "out": sorted(done.stdout.splitlines()),
        "err": done.stderr.replace(logs, "LOGS"),
        "files": files,
        "root_cause": result["root_cause"],
        "hosts": sorted({end["host"] for end in result["ends"].values()}),
    }


def no_room() -> dict[str, Any]:
    found = {}
    for what, settings in {
        "nodes": {"nnodes": 9},
        "GPUs": {"nnodes": 2, "resources_per_node": {"GPU": 4}},
    }.items():
        gang = RayGang(name="n", entrypoint="true", nproc_per_node=1, placement_timeout_s=1, **settings)
        try:
            gang.start()
        except SuperviseError as error:
            found[what] = str(error)
    return found


def main(what: str) -> None:
    temp = tempfile.mkdtemp(prefix="sr-", dir="/tmp")  # Ray's sockets need a short path
    os.environ["RAY_TMPDIR"] = temp
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)

    def tell(name: str, found: dict[str, Any]) -> None:
        print(json.dumps({"name": name, **found}), flush=True)

    try:
        if what == "cases":
            for name, case in cases.CASES.items():
                tell(name, cases.run(case, cases.make_ray, cases.Seen()))
            tell("no room", no_room())
            tell("closure", {"value": closure(cluster)})
            os.environ["RAY_ADDRESS"] = cluster.address
            for name, script in COMMANDS.items():
                tell(name, command(script))
            return
        os.environ["RAY_ADDRESS"] = cluster.address
        tell("kill host", lost(cluster, "kill host"))
        tell("stop host", lost(cluster, "stop host"))
        tell("kill driver", driver_killed())
        cluster.add_node(num_cpus=2)
        cluster.wait_for_nodes()
        with tempfile.TemporaryDirectory() as folder:
            tell("replace", replaced(cluster, Path(folder)))
        tell("kill raylet", lost(cluster, "kill raylet"))
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(temp, ignore_errors=True)


def closure(_cluster: Any) -> list[Any]:
    """Return the values of a function that no host can import, and that returns an instance of such a class."""

    class Pair:
        def __init__(self, left: int, right: int) -> None:
            self.both = left, right

    factor = 7
    with RayGang(
        "c", lambda add: Pair(int(os.environ["RANK"]) * factor, add), nnodes=2, nproc_per_node=1, args=(1,)
    ) as gang:
        result = gang.wait(cases.PATIENCE_S)
    assert result is not None
    return [found.both for found in result.return_values.values()]


if __name__ == "__main__":
    main(sys.argv[1])
