"""Options of ``torchrun`` that `run` does not need: accepted if they mean one node, otherwise refused with a reason."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

_ONE_NODE = "supervise run starts ranks only on this machine"
_REFUSED = {
    ("--rdzv-backend", "--rdzv-endpoint", "--rdzv-conf"): "it needs no rendezvous; omit the option",
    ("--rdzv-id",): "it needs no rendezvous; use --run-id to name the run",
    ("--master-addr",): "set MASTER_ADDR in the environment to choose an address",
    ("--master-port",): "it finds a free port; set MASTER_PORT in the environment to choose one",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options, hidden in the help, in both spellings of torchrun."""
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
        raise argparse.ArgumentTypeError(f"{text!r}: {_ONE_NODE}; omit the option, or use torchrun for several nodes")
    return text


def _node_rank(text: str) -> str:
    if text != "0":
        raise argparse.ArgumentTypeError(f"{text!r}: {_ONE_NODE}, as node 0; use torchrun for several nodes")
    return text


def _refuse(reason: str, _text: str) -> str:
    raise argparse.ArgumentTypeError(f"{_ONE_NODE}; {reason}")
