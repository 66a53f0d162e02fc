"""Training with DistributedDataParallel over gloo, in which a rank hangs: the watchdog finds it, and the job goes on.

    python examples/ddp_hang.py --steps 20 --hang-at 12

Each rank reports a step by `supervise.notify` when it has read its batch. In the first attempt, rank 1 hangs in such a
read, as with a file system that does not answer; all others wait for it in their all-reduce. After `--timeout` seconds
without a report, the watchdog names the rank with the lowest step: the one that hangs. That is a failure, so the policy
restarts all ranks, which continue from the last checkpoint. It needs PyTorch (`pip install torch`).
"""

import argparse
import asyncio
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from supervise import GangRestarting, RestartPolicy, Watchdog, WorkerHung, aio, notify

if TYPE_CHECKING:
    import torch


def train(folder: Path, rank: int, ranks: int, steps: int, hang_at: int) -> float:
    """Train a small model, and return the last loss: what a rank runs."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    # A file of each attempt: a new attempt must not meet what an earlier one has left
    dist.init_process_group("gloo", init_method=f"file://{folder}/attempt-{attempt}", rank=rank, world_size=ranks)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    checkpoint, first, loss = folder / "checkpoint.pt", 0, torch.zeros(())
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"] + 1
    for step in range(first, steps):
        inputs = read_batch(hangs=(attempt, rank, step) == (0, 1, hang_at))
        notify(step=step, status="trains", heartbeat=True)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"{checkpoint}.new"
            )
            Path(f"{checkpoint}.new").replace(checkpoint)
    notify(stopping=True)
    dist.barrier()
    dist.destroy_process_group()
    return float(loss.detach())


def read_batch(*, hangs: bool) -> "torch.Tensor":
    """Return the next batch, which takes a while, or forever."""
    import torch

    threading.Event().wait(None if hangs else 0.05)
    return torch.rand(16, 4)


async def run(folder: Path, ranks: int, steps: int, hang_at: int, timeout_s: float) -> None:
    """Train, and say what the watchdog and the policy do."""
    async with aio.Gang(
        name="train",
        entrypoint=train,
        args={rank: (folder, rank, ranks, steps, hang_at) for rank in range(ranks)},
        restart_policy=RestartPolicy(max_restarts=1, backoff=0.0),
        watchdog=Watchdog(heartbeat_timeout_s=timeout_s, action="fail"),
        grace=5.0,
    ) as gang:
        async for event in gang.events():
            if isinstance(event, WorkerHung):
                print(f"rank {event.local_rank} hangs after step {event.step}")
            elif isinstance(event, GangRestarting):
                first = event.result.root_cause or 0
                why = event.result.failures[first].message
                print(f"attempt {event.attempt} begins, because rank {first} failed: {why}")
        result = await gang.wait()
    if result.is_failed():
        sys.exit(f"the training failed: {result.failures}")
    print(f"{ranks} ranks have trained for {steps} steps; the last losses:")
    print(*(f"{result.return_values[rank]:.4f}" for rank in range(ranks)))


def main() -> None:
    """Train in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--hang-at", type=int, default=12, help="step in which rank 1 hangs, in the first attempt")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds without a report after which a rank hangs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ddp-") as folder:
        asyncio.run(run(Path(folder), given.ranks, given.steps, given.hang_at, given.timeout))


if __name__ == "__main__":
    main()
