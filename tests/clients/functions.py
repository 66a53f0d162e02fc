"""Launches functions through PyTorch's `elastic_launch`, and says line by line what came of it. Argument: start method."""

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


def values(word):
    """Tensors, one of which is a view; small and large."""
    rank = int(os.environ["RANK"])
    large = torch.arange(8 * MEBI, dtype=torch.int32)
    return {"word": word, "rank": rank, "large": large, "view": large[:4], "small": torch.ones(2, requires_grad=True)}


def fail_once():
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ArithmeticError("once")
    return os.environ["TORCHELASTIC_RESTART_COUNT"]


def fail():
    if os.environ["RANK"] == "1":
        raise LookupError("rank 1 has no luck")
    import signal

    signal.pause()


def launch(function, *args):
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id=function.__name__,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=1,
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
    found = launch(values, "hello")
    for rank in (0, 1):
        value = found[rank]
        assert (value["word"], value["rank"]) == ("hello", rank), value
        assert torch.equal(value["large"], torch.arange(8 * MEBI, dtype=torch.int32))
        assert value["small"].requires_grad
        print("mapped", mapped(value["large"]))
        value["large"][0] = 7
        print("shared", int(value["view"][0]) == 7)
    assert int(found[1]["large"][1]) == 1
    print("attempts", launch(fail_once))
    try:
        launch(fail)
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        print("failed", rank, first.exitcode, first.error_file_data["message"]["message"])
        print(error)


if __name__ == "__main__":
    main()
