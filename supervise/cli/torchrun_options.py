"""Options that ``torchrun`` has and `run` does not: those that say one node are taken, the others get a reason."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

_ONE_NODE = "supervise run starts the ranks of this machine only"
_REFUSED = {
    ("--rdzv-backend", "--rdzv-endpoint", "--rdzv-conf"): "no rendezvous is needed; leave the option out",
    ("--rdzv-id",): "no rendezvous is needed; to name the run, give --run-id",
    ("--master-addr",): "to give the ranks another address, set MASTER_ADDR in the environment",
    ("--master-port",): "a free port is found; to choose one, set MASTER_PORT in the environment",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add them, outside of the help, with both spellings as torchrun has them."""
    _add(parser, "--standalone", action="store_true")
    _add(parser, "--nnodes", type=_nnodes)
    _add(parser, "--node-rank", type=_node_rank)
    for names, reason in _REFUSED.items():
        for name in names:
            _add(parser, name, type=partial(_refuse, reason))


def _add(parser: argparse.ArgumentParser, name: str, **settings: Any) -> None:
    for spelled in dict.fromkeys((name, f"--{name[2:].replace('-', '_')}")):
        parser.add_argument(spelled, help=argparse.SUPPRESS, default=argparse.SUPPRESS, **settings)


def _nnodes(text: str) -> str:
    if text not in ("1", "1:1"):
        raise argparse.ArgumentTypeError(
            f"{text!r}: {_ONE_NODE}; leave the option out, and for several nodes use torchrun"
        )
    return text


def _node_rank(text: str) -> str:
    if text != "0":
        raise argparse.ArgumentTypeError(f"{text!r}: {_ONE_NODE}, as node 0; for several nodes use torchrun")
    return text


def _refuse(reason: str, _text: str) -> str:
    raise argparse.ArgumentTypeError(f"{_ONE_NODE}; {reason}")
