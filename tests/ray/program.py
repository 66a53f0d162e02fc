"""Runs gangs on a Ray cluster of this machine: ``python -m tests.ray.program calls|engine|faults|rare|restarts``.

Prints a line of JSON for each. It is a program of its own, since Ray leaves threads and descriptors in a driver.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from supervise import Close, SpecError, Start, SuperviseError
from tests.conformance.work import pause
from tests.hosts import ranks
from tests.ray.cluster import PATIENCE_S, cluster

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "command": "echo out $RANK",
    "command that fails": "[ $RANK = 3 ] || sleep 1000; echo why >&2; exit 7",
    "command that restarts": "echo $TORCHELASTIC_RESTART_COUNT; [ $RANK$TORCHELASTIC_RESTART_COUNT != 10 ]",
}
ROUNDS = 5


def tell(name: str, found: dict[str, Any]) -> None:
    print(json.dumps({"name": name, **found}), flush=True)


def command(script: str) -> dict[str, Any]:
    """Run ``supervise run --engine ray``; return its exit code, its output, and the files of the run directory."""
    with tempfile.TemporaryDirectory() as logs:
        words = ["--engine", "ray", "--nnodes", "2", "-n", "2", "--max-restarts", "1" if "RESTART" in script else "0"]
        done = subprocess.run(
            [sys.executable, "-m", "supervise", "run", *words, "--log-dir", logs, "sh", "-c", script],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        [run] = Path(logs).iterdir()
        files = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
        result = json.loads((run / "result.json").read_text())
        report = [sys.executable, "-m", "supervise", "report", "--json", str(run)]
        found = subprocess.run(report, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
        reported_ranks = json.loads(found.stdout)["ranks"]
    return {
        "code": done.returncode,
        "out": sorted(done.stdout.splitlines()),
        "err": done.stderr.replace(logs, "LOGS"),
        "files": files,
        "root_cause": result["root_cause"],
        "endings": {rank: [life["ending"] for life in each["newest_lives"]] for rank, each in reported_ranks.items()},
        "hosts": sorted({end["host"] for end in result["ends"].values()}),
    }


def no_room() -> dict[str, Any]:
    from supervise.ray import RayGang

    found = {}
    for what, settings in {
        "nodes": {"nnodes": 9},
        "GPUs": {"nnodes": 2, "resources_per_node": {"GPU": 4}},
        "packed": {"nnodes": 3, "placement_strategy": "STRICT_PACK", "resources_per_node": {"CPU": 1}},
    }.items():
        gang = RayGang(name="n", entrypoint="true", nproc_per_node=1, placement_timeout_s=1, **settings)
        try:
            gang.start()
        except SuperviseError as error:
            found[what] = str(error)
            found["closed"] = found.get("closed", True) and not gang.ref.is_alive()
    return found


def closed_without_room() -> dict[str, Any]:
    """Close a gang that waits for room; return what the start raises, and the placement groups that are left."""
    from ray.util import placement_group_table

    from supervise.ray import RaySupervisor

    ref = RaySupervisor.start(
        name="n", entrypoint="true", nnodes=9, nproc_per_node=1, placement_timeout_s=10 * PATIENCE_S
    )
    started = ref.ask(Start(), block=False)
    while not waiting(placement_group_table()):
        pause(0.01)
    ref.ask(Close(), timeout=PATIENCE_S)
    try:
        raised = repr(started.get(timeout=PATIENCE_S))
    except SuperviseError as error:
        raised = str(error)
    ref.stop(timeout=PATIENCE_S)
    return {"raised": raised, "left": waiting(placement_group_table())}


def slow_starts() -> dict[str, Any]:
    """Return how gangs end whose timeout expires while they are placed, and while their ranks become ready."""
    from supervise.ray import RayGang

    found = {}
    for what, settings in {
        "placed": {"entrypoint": "true", "nnodes": 9, "timeout": 1},
        "ready": {"entrypoint": pause, "nnodes": 2, "args": (1000.0,), "ready": "notify", "timeout": 8},
    }.items():
        with RayGang(name="n", nproc_per_node=1, **settings) as gang:
            result: Any = gang.wait(PATIENCE_S)
            closed: Any = gang.close()
        found[what] = [result.outcome, closed.outcome]
    return found


def reported() -> list[Any]:
    """Return step, status text and whether there is a heartbeat in the status of each rank."""
    from supervise.ray import RayGang

    with RayGang(name="s", entrypoint=ranks.reporting, nnodes=2, nproc_per_node=2, ready="notify") as gang:
        return [(row.step, row.status, row.beat_age_s is not None) for row in gang.status().ranks.values()]


def second_start() -> dict[str, Any]:
    """Start a gang twice, close it with arguments that are not valid, then close it twice."""
    from supervise.ray import RayGang

    gang = RayGang(name="twice", entrypoint="sleep", nnodes=1, nproc_per_node=1, args=("1000",))
    pids = gang.start()
    try:
        gang.start()
        raised = ""
    except SpecError as error:
        raised = str(error)
    for wrong in ({"timeout": -1}, {"death_sig": "x"}):
        try:
            gang.close(**cast("Any", wrong))
        except SpecError as error:
            raised += f"; {error}"
    running = gang.pids() == pids and gang.status().phase == "running"
    return {"raised": raised, "running": running, "closed": [str(cast("Any", gang.close()).outcome) for _ in range(2)]}


def waiting(table: dict[str, Any]) -> list[str]:
    return [group for group, row in table.items() if row["state"] != "REMOVED"]


def own_main() -> dict[str, Any]:
    """Run a driver with functions and classes of its ``__main__``."""
    words = [sys.executable, str(ROOT / "tests/ray/own_main.py")]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=2 * PATIENCE_S)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def guide() -> list[str]:
    """Run the program of the page about Ray, with fewer ranks and without GPUs; return what it prints."""
    page = (ROOT / "docs/how-to/run-on-ray.md").read_text()
    (text,) = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for asked, here in (("nnodes=4", "nnodes=2"), ("nproc_per_node=8", "nproc_per_node=2"), ('"GPU": 8', '"CPU": 1')):
        assert text.count(asked) == 1, asked
        text = text.replace(asked, here)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "guide.py"
        program.write_text(text)
        words = [sys.executable, str(program)]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=2 * PATIENCE_S)
    return done.stdout.splitlines()


def calls() -> None:
    with cluster():
        tell("guide", {"lines": guide()})
        tell("no room", no_room())
        tell("closed without room", closed_without_room())
        tell("slow start", slow_starts())
        tell("own main", own_main())
        tell("reported", {"rows": reported()})
        tell("second start", second_start())
        for name, script in COMMANDS.items():
            tell(name, command(script))


def engine() -> None:
    """What the engine does by itself, without a cluster."""
    from ray.exceptions import ActorDiedError, ActorUnavailableError

    from supervise.ray.engine import RayEngine, RayHost, _translated

    class Closed(RayEngine):
        """An engine that is closed when it has just placed the hosts of an attempt."""

        released: list[int] = []  # noqa: RUF012 - one object

        def _hosts(self, *_: Any) -> Any:
            self.close(lambda: None)
            return []

        def release(self, epoch: int) -> None:
            self.released.append(epoch)

    Closed({}, "PACK", 1.0)._place([cast("Any", SimpleNamespace(epoch=5))], lambda *_: None)
    errors = ActorUnavailableError("away", b"0" * 16), ActorDiedError()
    found: list[Any] = []
    RayHost(None, cast("Any", None)).call("renew", 0, done=lambda *each: found.append(repr(each[1])))
    names = [type(_translated(each)).__name__ for each in errors]
    tell("engine", {"released": Closed.released, "errors": names, "disconnected": found})


def run_faults() -> None:
    """Break each part once. The raylet is the last: its node does not come back."""
    from tests.ray import faults

    with cluster() as found:
        for fault in ("kill rank", "kill host", "stop host"):
            tell(fault, faults.broken(found, fault))
        tell("kill driver", faults.driver_killed())
        found.add_node(num_cpus=2)
        found.wait_for_nodes()
        tell("restart", faults.restarted(found, "kill raylet"))
        tell("kill raylet", faults.broken(found, "kill raylet"))


def rare() -> None:
    """Break parts whose loss takes Ray long to notice."""
    from tests.ray import faults

    with cluster() as found:
        tell("stop raylet", faults.raylet_stopped(found))
        tell("kill many", faults.broken(found, "kill many"))
    with cluster() as found:
        tell("kill head", faults.head_killed(found))


def restarts() -> None:
    """Break each part of gangs that restart, several times."""
    from tests.ray import faults

    with cluster() as found:
        for number in range(ROUNDS):
            for fault in ("kill rank", "kill host", "stop host", "kill raylet"):
                if fault == "kill raylet":
                    found.add_node(num_cpus=2)
                    found.wait_for_nodes()
                tell(f"{fault} {number}", faults.restarted(found, fault))


if __name__ == "__main__":
    {"calls": calls, "engine": engine, "faults": run_faults, "rare": rare, "restarts": restarts}[sys.argv[1]]()
