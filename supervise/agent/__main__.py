"""``python -m supervise.agent``: torchrun with the agent of supervise."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.errors import record

from supervise.agent.launcher import launch

if TYPE_CHECKING:
    from argparse import Namespace


def main() -> None:
    """Run the command line of this process, as torchrun would.

    Raises:
        ChildFailedError: A rank failed. `record` writes the root cause into ``TORCHELASTIC_ERROR_FILE``.
        SignalException: A termination signal arrived.
    """
    parser = torchrun.get_args_parser()
    parser.prog = "python -m supervise.agent"
    args = parser.parse_args()
    _choose_rendezvous(args)
    config, command, command_args = torchrun.config_from_args(args)
    launch(config, command, *command_args)


def _choose_rendezvous(args: Namespace) -> None:
    """Use a c10d rendezvous on a free port of this machine, for a single node that has no other rendezvous."""
    static = args.rdzv_backend == "static" and not args.rdzv_endpoint and args.master_port is None
    single = static and torchrun.parse_min_max_nnodes(args.nnodes)[1] == 1
    if args.standalone or single:
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "c10d", "localhost:0", str(uuid.uuid4())
    if args.master_port is None:
        args.master_port = 29500


if __name__ == "__main__":  # false when a spawned worker imports its main module
    record(main)()
