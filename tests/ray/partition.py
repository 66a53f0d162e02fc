"""A Ray cluster whose hosts are network namespaces: ``python -m tests.ray.partition``, as root.

Two namespaces with a raylet each, and the head outside of them, joined by a bridge. The link of one host goes down for
less than the lease, which changes nothing, and for longer, which ends the gang: the host that is cut off kills its own
ranks, and the driver stops the others. Then the links are slow and lose frames, which changes the times only. Prints a
line of JSON for each; exits with 1 if a promise is broken.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from supervise import Start, Status, Wait
from supervise.ray import RaySupervisor
from tests.conformance.work import pause
from tests.ray.cluster import MARK, PATIENCE_S, until_gone

NET = "10.213.77"
PORT = 26379
LEASE_S = 10.0
HOSTS = (1, 2)
DELAY_S, LOSS = 0.1, 0.01
"""Of the slow links: one way, and the share of lost frames."""


def sh(line: str, *, check: bool = True) -> None:
    subprocess.run(
        line, shell=True, check=check, stdout=subprocess.DEVNULL, stderr=None if check else subprocess.DEVNULL
    )


def slow_link(n: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.ray.slow_link", f"svv{n}", f"svt{n}", str(DELAY_S), str(LOSS)]
    carrier = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert carrier.stdout is not None
    carrier.stdout.readline()
    sh(f"ip link set svt{n} netns sv{n} name eth0")
    return carrier


def build(*, slow: bool) -> list[subprocess.Popen[str]]:
    """Make the hosts, and the cluster; return the processes that are the slow links."""
    carriers = []
    sh(f"ip link add svbr type bridge && ip addr add {NET}.100/24 dev svbr && ip link set svbr up")
    for n in HOSTS:
        sh(f"ip netns add sv{n}")
        if slow:
            carriers.append(slow_link(n))
        else:
            sh(f"ip link add svv{n} type veth peer name eth0 netns sv{n}")
        sh(f"ip link set svv{n} master svbr up")
        sh(f"ip -n sv{n} addr add {NET}.{n}/24 dev eth0 && ip -n sv{n} link set eth0 up && ip -n sv{n} link set lo up")
    sh(f"ray start --head --node-ip-address {NET}.100 --port {PORT} --num-cpus 0 --include-dashboard false")
    for n in HOSTS:
        sh(f"ip netns exec sv{n} ray start --address {NET}.100:{PORT} --node-ip-address {NET}.{n} --num-cpus 2")
    return carriers


def destroy() -> None:
    sh("ray stop --force", check=False)
    for n in HOSTS:
        sh(f"ip netns del sv{n}", check=False)
        sh(f"ip link del svv{n}", check=False)
    sh("ip link del svbr", check=False)


def cut(seconds: float) -> dict[str, Any]:
    """Run a gang, cut the link of its last host for so long, and observe."""
    with tempfile.TemporaryDirectory() as folder:
        return cut_with(seconds, Path(folder))


def cut_with(seconds: float, folder: Path) -> dict[str, Any]:
    events: list[tuple[float, dict[str, Any]]] = []
    mark = f"cut-{seconds}"
    script = 'while :; do date +%s.%N > "$0/$RANK"; sleep 0.02; done'
    ref = RaySupervisor.start(
        name="p",
        entrypoint="sh",
        nnodes=2,
        nproc_per_node=2,
        args=("-c", script, str(folder)),
        lease_s=LEASE_S,
        envs={rank: {MARK: mark} for rank in range(4)},
        event_sink=lambda event: events.append((time.monotonic(), event)),
    )
    ref.ask(Start(), timeout=PATIENCE_S)
    link = next(n for n in HOSTS if f"{NET}.{n}" == address_of(events))
    began_s, began = time.monotonic(), time.time()
    sh(f"ip link set svv{link} down")
    pause(seconds)
    gone_s = None
    if seconds > LEASE_S:
        gone_s = until_gone(mark, began_s)
    sh(f"ip link set svv{link} up")
    if gone_s is None:
        pause(LEASE_S)  # what would happen by the cut has happened by then
        phase = ref.ask(Status(), timeout=PATIENCE_S).phase
        lost = [event["reason"] for _, event in events if event["event"] == "supervise.host.lost"]
        ref.stop(timeout=PATIENCE_S)
        return {"cut_s": seconds, "phase": phase, "lost": lost, "good": phase == "running" and not lost}
    result: Any = ref.ask(Wait(), timeout=PATIENCE_S)
    ref.stop(timeout=PATIENCE_S)
    known_s = next(at - began_s for at, event in events if event["event"] == "supervise.host.lost")
    last_s = {rank: float((folder / str(rank)).read_text() or 0) - began for rank in (2, 3)}
    good = result.outcome == "failed" and result.root_cause == 2 and max(last_s.values()) < LEASE_S + 0.5
    return {
        "cut_s": seconds,
        "outcome": result.outcome,
        "message": result.failures[result.root_cause].message,
        "known_s": round(known_s, 2),
        "cut off ranks computed until_s": round(max(last_s.values()), 2),
        "all gone_s": round(gone_s, 2),
        "good": good,
    }


def slowly() -> dict[str, Any]:
    """Run a gang whose last rank fails after a lease; observe what the driver learns, and when."""
    events: list[tuple[float, dict[str, Any]]] = []
    began_s = time.monotonic()
    ref = RaySupervisor.start(
        name="s",
        entrypoint="sh",
        nnodes=2,
        nproc_per_node=2,
        args=("-c", f"[ $RANK != 3 ] && exec sleep 1000; sleep {1.5 * LEASE_S}; date +%s.%N >&2; exit 7"),
        lease_s=LEASE_S,
        envs={rank: {MARK: "slow"} for rank in range(4)},
        event_sink=lambda event: events.append((time.monotonic(), event)),
    )
    ref.ask(Start(), timeout=PATIENCE_S)
    start_s = time.monotonic() - began_s
    result: Any = ref.ask(Wait(), timeout=PATIENCE_S)
    told = time.time()
    ref.stop(timeout=PATIENCE_S)
    failed = float(result.ends[3].stderr_tail.split()[-1]) if 3 in result.failures else told
    lost = [event["reason"] for _, event in events if event["event"] == "supervise.host.lost"]
    good = (result.outcome, result.root_cause, result.failures[3].exitcode, lost) == ("failed", 3, 7, [])
    return {
        "delay_s": DELAY_S,
        "loss": LOSS,
        "start_s": round(start_s, 2),
        "from the failure to the result_s": round(told - failed, 2),
        "lost": lost,
        "good": good,
    }


def address_of(events: list[tuple[float, dict[str, Any]]]) -> str:
    """The address of host 1, by Ray's list of nodes."""
    node = next(e["node_id"] for _, e in events if e["event"] == "supervise.host.started" and e["host"] == 1)
    return str(next(each["NodeManagerAddress"] for each in ray.nodes() if each["NodeID"] == node))


def main() -> int:
    os.environ["RAY_ADDRESS"] = f"{NET}.100:{PORT}"
    with cluster(slow=False):
        good = [tell(cut(LEASE_S / 2)), tell(cut(LEASE_S * 1.5))]
    with cluster(slow=True):
        good.append(tell(slowly()))
    return 0 if all(good) else 1


@contextlib.contextmanager
def cluster(*, slow: bool) -> Iterator[None]:
    """Provide the hosts, and connect to their cluster."""
    destroy()
    carriers: list[subprocess.Popen[str]] = []
    try:
        carriers += build(slow=slow)
        ray.init(address="auto", logging_level="error", log_to_driver=False, _node_ip_address=f"{NET}.100")
        yield
        ray.shutdown()
    finally:
        destroy()
        for carrier in carriers:
            carrier.communicate()


def tell(found: dict[str, Any]) -> bool:
    print(json.dumps(found), flush=True)
    return bool(found["good"])


if __name__ == "__main__":
    sys.exit(main())
