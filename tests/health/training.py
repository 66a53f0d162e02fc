"""`python -m tests.health.training`: hangs in real trainings with DistributedDataParallel, named by their stacks.

All ranks report the same step and fall silent together, so only their stacks tell which of them hangs. The command
ends with code 1 if fewer than 19 of 20 ranks are named. It needs PyTorch.
"""

import argparse
import logging
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from supervise import Close, DefaultLogsSpecs, Start, Std, Supervisor, Wait, Watchdog, notify
from tests.patience import PATIENCE_S

PERIOD_S = 5.0
WANTED = 0.95
HANG_AT = 4
HOW = ("sleep", "lock", "loader", "left_early")
SIZES = ((2, 0), (2, 1), (3, 1), (3, 2), (4, 2))
"""Number of ranks, and the rank at fault."""


@dataclass(frozen=True)
class Case:
    """One training in which one rank hangs, or leaves."""

    how: str
    ranks: int
    culprit: int

    def __str__(self) -> str:
        return f"{self.how}, {self.ranks} ranks, rank {self.culprit}"


class Data:
    """Samples that a worker of the data loader reads; one of them never arrives."""

    def __init__(self, hangs_at: int | None) -> None:
        self._hangs_at = hangs_at

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        import torch

        if index == self._hangs_at:
            threading.Event().wait()
        return torch.full((4,), float(index))


def read_from_share() -> None:
    """Sleep, as a read of a file system that does not answer."""
    time.sleep(1000)  # noqa: TID251 - the hang


def write_checkpoint() -> None:
    """Wait for a lock that is never released."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def train(case: Case, rank: int, folder: str) -> None:
    """Train a small model: what a rank runs."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    at_fault = rank == case.culprit
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=case.ranks)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = Data(HANG_AT if at_fault and case.how == "loader" else None)
    # Workers that read only one batch ahead, so that all ranks have reported the step of the hang
    batches = iter(DataLoader(data, num_workers=1, prefetch_factor=1, multiprocessing_context="fork"))  # type: ignore[arg-type, var-annotated]
    for step in range(1000):
        notify(step=step)
        inputs = next(batches)
        if step == HANG_AT and case.how == "left_early":
            if at_fault:
                return
            dist.new_group()
        loss = model(inputs).square().sum()
        if step == HANG_AT and at_fault and case.how == "sleep":
            read_from_share()
        if step == HANG_AT and at_fault and case.how == "lock":
            write_checkpoint()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@contextmanager
def job(case: Case, folder: Path, events: SimpleQueue[dict[str, Any]]) -> Iterator[Any]:
    """Start a training; afterwards, end it."""
    supervisor = Supervisor.start(
        name="training",
        entrypoint=train,
        args={rank: (case, rank, str(folder)) for rank in range(case.ranks)},
        envs={rank: {"OMP_NUM_THREADS": "1", "RANK": str(rank)} for rank in range(case.ranks)},
        start_method="spawn",
        logs_specs=DefaultLogsSpecs(str(folder / "logs"), redirects=Std.ALL),
        watchdog=Watchdog(heartbeat_timeout_s=PERIOD_S, action="fail"),
        grace=1.0,
        event_sink=events.put,
    )
    try:
        supervisor.ask(Start(), timeout=PATIENCE_S)
        yield supervisor
    finally:
        supervisor.ask(Close(timeout=1.0), timeout=PATIENCE_S)
        supervisor.stop(timeout=PATIENCE_S)


def evidence_of(case: Case) -> tuple[int | None, str]:
    """Run a training; return the rank that the failure blames, and the message of the failure."""
    events: SimpleQueue[dict[str, Any]] = SimpleQueue()
    with tempfile.TemporaryDirectory() as folder, job(case, Path(folder), events) as supervisor:
        result = supervisor.ask(Wait(timeout=2 * PATIENCE_S), timeout=3 * PATIENCE_S)
    if result is None or result.root_cause is None:
        return None, "the training did not fail"
    return result.root_cause, str(result.failures[result.root_cause].message)


def is_right(case: Case, blamed: int | None, message: str) -> bool:
    """Return whether the message names the rank at fault.

    On a busy machine, the process of a rank that has left early may need longer than the watchdog's period to exit.
    Then the message says that it returned, or the rank's own stack names it.
    """
    if case.how == "left_early" and not (blamed == case.culprit and "; by its stack: " in message):
        exited = re.search(rf"; rank {case.culprit} (exited [\d.]+ s ago with code 0|returned before), while ", message)
        return exited is not None and message.endswith((" wait", " waits"))
    return blamed == case.culprit and "; by its stack: " in message


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.health.training", description=__doc__)
    parser.add_argument("--only", default="", metavar="HOW", help=f"only this way to hang: {', '.join(HOW)}")
    parser.add_argument("--ranks", type=int, default=0, help="only trainings with this number of ranks")
    asked = parser.parse_args()
    logging.lastResort = None
    cases = [Case(how, *size) for how in HOW for size in SIZES]
    cases = [case for case in cases if asked.only in ("", case.how) and asked.ranks in (0, case.ranks)]
    right = 0
    for case in cases:
        blamed, message = evidence_of(case)
        good = is_right(case, blamed, message)
        right += good
        print(f"{'right' if good else 'WRONG'}  {case}: rank {blamed}: {message}", flush=True)
    print(f"{right} of {len(cases)} ranks named")
    return 0 if right >= WANTED * len(cases) else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[2]))
    sys.exit(main())
