"""The options of ``supervise run`` about the hosts of a run: one gang on each, started by hand or by a job manager."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from supervise.cli import option_values
from supervise.cli.option_values import add_option

if TYPE_CHECKING:
    from typing import NoReturn

    from supervise.cli.parts import Hosts

_PORT = 29500
"""Torchrun's port of rank 0 for several hosts."""
_LARGEST_PORT = 65535


def hosts(parser: argparse.ArgumentParser, found: argparse.Namespace) -> Hosts:
    """Return the hosts that the options describe.

    Raises:
        SystemExit: With code 2 after an error message.
    """
    from supervise.cli.parts import Hosts

    if found.engine == "ray":
        return _of_engine(parser, found)
    if found.standalone and found.nnodes > 1:
        parser.error(f"--standalone is one host, and --nnodes is {found.nnodes}; omit one of them")
    if found.node_rank is not None and found.node_rank >= found.nnodes:
        parser.error(f"--node-rank is {found.node_rank}; with --nnodes {found.nnodes} {_numbers(found.nnodes)}")
    if found.nnodes == 1:
        address = found.master_addr or found.local_addr
        return Hosts(address=address, port=found.master_port)
    if found.node_rank is None:
        parser.error(f"--nnodes {found.nnodes} needs --node-rank, the number of this host; {_numbers(found.nnodes)}")
    address, port = _endpoint(parser, found.rdzv_endpoint)
    address = found.master_addr or address or (found.local_addr if found.node_rank == 0 else None)
    if address is None:
        parser.error(f"--nnodes {found.nnodes} needs --master-addr, the address of the host with --node-rank 0")
    return Hosts(
        count=found.nnodes, number=found.node_rank, address=address, port=found.master_port or port or str(_PORT)
    )


def _of_engine(parser: argparse.ArgumentParser, found: argparse.Namespace) -> Hosts:
    """Return one host: with an engine, this process supervises the ranks of all hosts."""
    from supervise.cli.parts import Hosts

    for name, value in (
        ("--node-rank", found.node_rank),
        ("--master-addr", found.master_addr),
        ("--standalone", found.standalone or None),
        ("--numa-binding", found.numa_binding),
        ("--virtual-local-rank", found.virtual_local_rank or None),
    ):
        if value is not None:
            parser.error(f"{name} and --engine ray exclude each other: Ray chooses the hosts, their order and GPUs")
    if found.file is not None:
        parser.error("--file and --engine ray exclude each other: all ranks on Ray run one PROGRAM")
    if found.keep_going or found.strategy not in (None, "one_for_all"):
        parser.error("a gang on Ray is all or nothing; omit --strategy and --keep-going, or --engine ray")
    if found.restart not in (None, "transient"):
        parser.error("a gang on Ray restarts as a whole after a failure; omit --restart, or --engine ray")
    return Hosts(port=found.master_port)


def _numbers(count: int) -> str:
    return "it is 0" if count == 1 else f"hosts are numbered from 0 to {count - 1}"


def _endpoint(parser: argparse.ArgumentParser, text: str | None) -> tuple[str | None, str | None]:
    """Return the address and the port of ``--rdzv-endpoint``."""
    if not text:
        return None, None
    address, _, port = text.rpartition(":") if re.search(r":\d+$", text) else (text, "", "")
    address = address.removeprefix("[").removesuffix("]")
    if not address:
        parser.error(f"--rdzv-endpoint is {text!r}; give HOST:PORT of the host with --node-rank 0")
    return address, port or None


def add_options(group: argparse._ArgumentGroup) -> None:
    """Add the options."""
    add_option(
        group,
        "--nnodes",
        metavar="N",
        type=_host_count,
        default=1,
        help="number of hosts with -n ranks each; without an engine, each has a supervise run of its own (1)",
    )
    add_option(group, "--node-rank", metavar="R", type=_number, help="number of this host, from 0")
    add_option(
        group,
        "--master-addr",
        metavar="A",
        help="MASTER_ADDR: the address of host 0, on which rank 0 listens (127.0.0.1)",
    )
    add_option(
        group,
        "--master-port",
        metavar="P",
        type=_port,
        help=f"MASTER_PORT (one host: a free port; several: {_PORT})",
    )
    add_option(
        group,
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="local: this host, and others by hand (local); ray: --nnodes hosts of the Ray cluster in RAY_ADDRESS",
    )
    add_option(group, "--standalone", action="store_true", help="one host, as without the option")


def _host_count(text: str) -> int:
    low, _, high = text.partition(":")
    if high and high != low:
        _refuse(f"{text!r}: supervise run starts a fixed number of hosts; give one number, such as --nnodes {high}")
    if not option_values.is_count(low) or not int(low):
        _refuse(f"{text!r} is not a number of hosts; give 1 or more")
    return int(low)


def _number(text: str) -> int:
    if not option_values.is_count(text):
        _refuse(f"{text!r} is not the number of a host; give 0 or more")
    return int(text)


def _port(text: str) -> str:
    if not option_values.is_count(text) or not 0 < int(text) <= _LARGEST_PORT:
        _refuse(f"{text!r} is not a port; give a number from 1 to {_LARGEST_PORT}")
    return text


def _refuse(reason: str) -> NoReturn:
    raise argparse.ArgumentTypeError(reason)
