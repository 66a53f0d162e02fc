"""A driver that waits for a gang on an engine, and prints what a termination signal raises.

Run as ``python -m tests.conformance.driver NAME``. It prints ``waits`` when all ranks run and the main thread is about
to wait, and then a line of JSON. On Ray it connects to the cluster in ``RAY_ADDRESS``.
"""

import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from supervise import DefaultLogsSpecs, SignalException, start_processes
from tests.conformance import work
from tests.conformance.cases import PATIENCE_S, RANKS, Case
from tests.conformance.engines import Torchelastic

NOT_RAISED = "nothing was raised"


def said(folder: str) -> list[Path]:
    return [path for path in Path(folder).glob("*-*") if path.is_file()]


def local(folder: str) -> Any:
    return start_processes(
        "g",
        work.begun,
        dict.fromkeys(range(RANKS), (folder,)),
        {rank: {"RANK": str(rank)} for rank in range(RANKS)},
        DefaultLogsSpecs(),
    )


def ray(folder: str) -> Any:
    from supervise.ray import RayGang

    gang = RayGang("g", work.begun, nnodes=2, nproc_per_node=2, args=(folder,))
    gang.start()
    return gang


def gang_of(name: str, folder: str) -> dict[str, Any]:
    """Start a gang, wait for it, and close it with the signal that arrives, as a program does."""
    gang = {"local": local, "ray": ray}[name](folder)
    while len(said(folder)) < RANKS:
        work.pause(0.01)
    raised, sig = NOT_RAISED, signal.SIGKILL
    try:
        print("waits", flush=True)
        gang.wait(PATIENCE_S)
    except SignalException as error:
        raised, sig = type(error).__name__, error.sigval
    gang.close(sig)
    return {"raised": raised, "signal": sig.name, "ranks left": left(folder)}


def agent(folder: str) -> dict[str, Any]:
    """Run an agent; a thread says when its ranks run, since `launch` blocks."""
    import threading

    from torch.distributed.elastic.multiprocessing import SignalException as TorchSignal

    def tell() -> None:
        while len(said(folder)) < RANKS:
            work.pause(0.01)
        print("waits", file=console, flush=True)

    console = sys.stdout  # the engine redirects it
    threading.Thread(target=tell, daemon=True).start()
    raised, sig = NOT_RAISED, signal.SIGKILL
    try:
        Torchelastic().run(Case(work.begun, {}, (folder,)))
    except TorchSignal as error:
        raised, sig = type(error).__name__, error.sigval
    return {"raised": raised, "signal": sig.name, "ranks left": left(folder)}


def left(folder: str) -> list[int]:
    """Return the ranks that run still."""
    found = []
    for path in said(folder):
        rank, _, pid = path.name.partition("-")
        if Path(f"/proc/{pid}").exists():
            found.append(int(rank))
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as shared:
        observed = agent(shared) if sys.argv[1] == "torchelastic" else gang_of(sys.argv[1], shared)
    print(json.dumps(observed), flush=True)
