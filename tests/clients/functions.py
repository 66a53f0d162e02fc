"""Launches functions through PyTorch's `elastic_launch`, and says line by line what came of it.

The argument is the start method.
"""

import os
import sys
from pathlib import Path

from tests.clients import shim

if __name__ == "__main__":
    shim.install()

import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

MEBI = 1 << 20


class Passing:
    """Its tensors exist only while it is pickled."""

    def __getstate__(self):
        return {"ones": torch.ones(MEBI), "twos": torch.ones(MEBI) * 2, "odd": torch.ones(MEBI, dtype=torch.bfloat16)}


def values(word):
    """Fail once in one rank; then return tensors, one of which is a view; small and large."""
    rank, attempt = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
    if rank == 1 and attempt == "0":
        raise ArithmeticError("once")
    large = torch.arange(8 * MEBI, dtype=torch.int32)
    small = torch.ones(2, requires_grad=True)
    said = (word, rank, attempt)
    return {"say": said, "large": large, "view": large[:4], "small": small, "passing": Passing()}


def fail():
    if os.environ["RANK"] == "1":
        raise LookupError("rank 1 has no luck")
    import signal

    signal.pause()


def launch(restarts, function, *args):
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id=function.__name__,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=restarts,
        start_method=sys.argv[1],
    )
    return elastic_launch(config, function)(*args)


def mapped(tensor):
    """Whether the tensor's memory is a file's, not a copy on the heap."""
    where = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, _, last = line.split()[0].partition("-")
        if int(first, 16) <= where < int(last, 16):
            return "memfd:supervise-outcome" in line
    return False


def main():
    torch.set_num_threads(1)
    found = launch(1, values, "hello")
    for rank in (0, 1):
        value = found[rank]
        print(*value["say"])
        assert torch.equal(value["large"], torch.arange(8 * MEBI, dtype=torch.int32))
        assert value["small"].requires_grad
        passing = value["passing"]
        assert [float(t.float().mean()) for t in (passing.ones, passing.twos, passing.odd)] == [1, 2, 1]
        print("mapped", mapped(value["large"]))
        value["large"][0] = 7
        print("shared", int(value["view"][0]) == 7)
    assert int(found[1]["large"][1]) == 1
    try:
        launch(0, fail)
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        print("failed", rank, first.exitcode, first.error_file_data["message"]["message"])
        print(error)


if __name__ == "__main__":
    main()
