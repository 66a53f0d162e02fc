"""The engines: each runs a case and returns the observation.

An engine of another kind needs a class with these attributes and `run`, a row in `ENGINES`, and the differences in the
table of the test.
"""

import contextlib
import importlib.util
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from supervise import DefaultLogsSpecs, Start, Supervisor, Wait
from tests.conformance.cases import PATIENCE_S, RANKS, Case, Seen, cause, logs


class Engine(Protocol):
    """Where the ranks of a case run."""

    def missing(self) -> str:
        """Return what this Python lacks to run it; "" if it can."""

    def run(self, case: Case) -> dict[str, Any]:
        """Run one case; return its observation, or ``{"error": ..., "errno": ...}`` of its start."""


class ActorEngine:
    """An engine whose gang is an actor that accepts the messages of a `Supervisor`."""

    start_s: float
    make: Callable[[Case, DefaultLogsSpecs, str, Seen], Any]

    def run(self, case: Case) -> dict[str, Any]:
        seen = Seen()
        with tempfile.TemporaryDirectory() as folder:
            ref = self.make(case, case.specs(f"{folder}/logs"), folder, seen)
            try:
                ref.ask(Start(), timeout=PATIENCE_S)
                seen.await_lines(case.until)
                if case.act is not None:
                    case.act(seen, ref)
                return seen.of(ref.ask(Wait(), timeout=PATIENCE_S))
            except (OSError, RuntimeError) as error:
                return {"error": type(error).__name__, "errno": getattr(error, "errno", None)}
            finally:
                ref.stop(timeout=PATIENCE_S)


class Local(ActorEngine):
    """A gang of this host. Its ranks get what a gang over several hosts sets."""

    start_s = 8.0

    def missing(self) -> str:
        return ""

    def make(self, case: Case, specs: DefaultLogsSpecs, folder: str, seen: Seen) -> Any:
        envs = {
            rank: {"RANK": str(rank), "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_RUN_ID": "r"}
            for rank in range(RANKS)
        }
        with shown_in(seen):
            return Supervisor.start(
                name="g",
                entrypoint=case.entrypoint,
                args=dict.fromkeys(range(RANKS), case.args_in(folder)),
                envs=envs,
                logs_specs=specs,
                event_sink=seen.events.append,
                **case.settings_for(self.start_s),
            )


class Ray(ActorEngine):
    """A gang over two hosts of the Ray cluster that this process is connected to."""

    start_s = 10.0

    def missing(self) -> str:
        return next((f"{name} is not installed" for name in ("ray", "cloudpickle") if not has(name)), "")

    def make(self, case: Case, specs: DefaultLogsSpecs, folder: str, seen: Seen) -> Any:
        from supervise._hosts.supervisor import StreamsShown
        from supervise.ray import RaySupervisor

        return RaySupervisor.start(
            name="g",
            entrypoint=case.entrypoint,
            nnodes=2,
            nproc_per_node=2,
            args=case.args_in(folder),
            logs_specs=specs,
            lease_s=10,
            shown=StreamsShown(seen.write),
            event_sink=seen.events.append,
            **case.settings_for(self.start_s),
        )


class Torchelastic:
    """An agent of PyTorch over a gang of supervise. It reports values or failures; the rest is not in its API."""

    def missing(self) -> str:
        return "" if has("torch") else "torch is not installed"

    def run(self, case: Case) -> dict[str, Any]:
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig

        from supervise import agent

        seen, settings = Seen(), dict(case.settings)
        policy = settings.pop("restart_policy", None)
        with tempfile.TemporaryDirectory() as folder, shown_in(seen):
            config = LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=RANKS,
                role="g",
                rdzv_backend="c10d",
                rdzv_endpoint="127.0.0.1:0",
                local_addr="127.0.0.1",
                max_restarts=policy.max_restarts if policy else 0,
                logs_specs=case.specs(f"{folder}/logs"),
                log_line_prefix_template="[g${rank}]:",
                start_method="spawn",
                monitor_interval=0.1,
                run_id="",
            )
            observed: dict[str, Any] = {"outcome": "succeeded", "values": {}, "root cause": None, "failures": []}
            observed |= {"message": None, "exit codes of failures": {}}
            try:
                values = agent.launch(config, case.entrypoint, *case.args_in(folder), **settings)
                observed["values"] = {str(rank): found for rank, found in values.items()}
            except ChildFailedError as error:
                root, first = error.get_first_failure()
                failures = sorted(error.failures)
                observed |= {
                    "outcome": "failed",
                    "root cause": root,
                    "failures": failures,
                    "message": cause(first.message),
                }
                observed["exit codes of failures"] = {str(rank): f.exitcode for rank, f in error.failures.items()}
            except OSError as error:
                return {"error": type(error).__name__, "errno": error.errno}
            newest = max(Path(folder, "logs").rglob("attempt_*"), key=lambda path: int(re.sub(r"\D", "", path.name)))
            for stream in ("stdout", "stderr"):
                paths = {int(path.parent.name): str(path) for path in newest.glob(f"*/{stream}.log")}
                observed[f"{stream} logs"] = logs(paths)
            return observed | {"shown": seen.lines()}


def has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


@contextlib.contextmanager
def shown_in(seen: Seen) -> Any:
    """Let output that gangs show go to an observer."""
    console = io.TextIOWrapper(seen.out, write_through=True)
    with contextlib.redirect_stdout(console), contextlib.redirect_stderr(console):
        yield


ENGINES: dict[str, Engine] = {"local": Local(), "ray": Ray(), "torchelastic": Torchelastic()}
NEEDS = {"ray": "SUPERVISE_NEEDS_RAY", "torchelastic": "SUPERVISE_NEEDS_TORCH"}
"""Engine to the variable that makes it a failure if the engine is missing."""
PYTHONS = {"ray": "SUPERVISE_RAY_PYTHON", "torchelastic": "SUPERVISE_TORCH_PYTHON"}
"""Engine to the variable with the Python that has it, if it is another."""


def python_of(name: str) -> str:
    return os.environ.get(PYTHONS[name]) or sys.executable
