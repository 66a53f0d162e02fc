"""The options of ``torchrun`` 2.13 that have no effect here or are refused, and the variables ``PET_*``."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_WITHOUT_EFFECT = {
    "--rdzv-conf": "supervise run needs no rendezvous",
    "--monitor-interval": "the kernel reports each exit at once",
    "--event-log-handler": "the events are in events.jsonl of the run directory, with -v also on stderr",
}
"""Option to the reason why it has no effect; a message shows the reason."""
_START_METHODS = ("spawn", "fork", "forkserver")
_BACKENDS = ("static", "c10d")
FLAGS = ("standalone", "module", "no-python", "run-path", "virtual-local-rank")
VALUES = (
    *("nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port", "local-addr", "role"),
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "monitor-interval", "event-log-handler", "start-method"),
    *(
        "max-restarts",
        "log-dir",
        "redirects",
        "tee",
        "local-ranks-filter",
        "duplicate-stdout-filters",
        "signals-to-handle",
        "shutdown-timeout",
    ),
    "duplicate-stderr-filters",
)
"""The options, without their dashes, for which torchrun reads a default from a variable ``PET_<NAME>``."""


def defaults(environ: Mapping[str, str]) -> list[str]:
    """Return the options that variables such as ``PET_NNODES`` give, in the form of arguments."""
    words = []
    for name in (*FLAGS, *VALUES):
        value = environ.get(f"PET_{name.replace('-', '_').upper()}")
        if not value:
            continue
        if name not in FLAGS:
            words.append(f"--{name}={value}")
        elif value.strip() != "0":
            words.append(f"--{name}")
    return words


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options, in both spellings of torchrun. The help does not show them."""
    _add(parser, "--rdzv-backend", type=_backend)
    _add(parser, "--rdzv-endpoint")
    _add(parser, "--rdzv-id", dest="rdzv_id")
    _add(parser, "--local-addr")
    _add(parser, "--logs-specs", type=_logs_specs)
    parser.set_defaults(notes=[])
    _add(parser, "--start-method", dest="notes", action="append", type=_start_method)
    for name, why in _WITHOUT_EFFECT.items():
        _add(parser, name, dest="notes", action="append", type=partial(_note, name, why))


def _add(parser: argparse.ArgumentParser, name: str, **settings: Any) -> None:
    spelled = dict.fromkeys((name, f"--{name[2:].replace('-', '_')}"))
    parser.add_argument(*spelled, help=argparse.SUPPRESS, **settings)


def _note(name: str, why: str, _text: str) -> str:
    return f"{name} has no effect: {why}"


def _start_method(text: str) -> str:
    if text not in _START_METHODS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a start method; give {', '.join(_START_METHODS)}")
    return _note("--start-method", "it is for functions, and PROGRAM is executed", text)


def _backend(text: str) -> str:
    if text not in _BACKENDS:
        raise argparse.ArgumentTypeError(
            f"{text!r}: supervise run needs no rendezvous server; give --nnodes, --node-rank and --master-addr"
        )
    return text


def _logs_specs(text: str) -> str:
    if text != "default":
        raise argparse.ArgumentTypeError(
            f"{text!r}: supervise run has no plug-ins for logs; pass logs_specs to supervise.start_processes"
        )
    return text
