"""Launches functions through PyTorch's `elastic_launch`: rank 0 hosts a store and returns first.

The argument is the start method.
"""

import os
import select
import sys

from tests.clients import shim

if __name__ == "__main__":
    shim.install()

from torch.distributed import TCPStore
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

NO_EXIT_S = 2.0
"""How long rank 1 waits for an exit of rank 0 that must not come."""


def late():
    """Host the store and return; in rank 1, use the store when rank 0 has returned."""
    rank = int(os.environ["RANK"])
    store = TCPStore("127.0.0.1", int(os.environ["STORE_PORT"]), is_master=rank == 0, wait_for_workers=False)
    if rank == 0:
        store.set("pid", str(os.getpid()))
        kept.append(store)  # a module's global, as that of the default process group
        return "hosted"
    pid = int(store.get("pid"))
    exited = select.select([os.pidfd_open(pid)], [], [], NO_EXIT_S)[0]
    store.set("late", "1")
    return f"used {store.get('late').decode()}, exited {bool(exited)}"


kept = []


def main():
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        start_method=sys.argv[1],
    )
    if sys.argv[2] == "ours":
        from supervise.agent import launch

        print(sorted(launch(config, late).items()))
    else:
        config.run_id = "store"
        print(sorted(elastic_launch(config, late)().items()))


if __name__ == "__main__":
    main()
