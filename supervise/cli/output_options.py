"""The options of ``supervise run`` about output: which streams are written and shown, and how."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING

from supervise.cli import option_values
from supervise.cli.option_values import add_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervise.logs import Std

TEMPLATE_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,15})([KMGT]?)(?:i?B)?", re.ASCII | re.IGNORECASE)


def check(parser: argparse.ArgumentParser, found: argparse.Namespace, nproc: int) -> None:
    """Exit with an error message if options contradict each other or name a rank that does not exist."""
    for option, ranks in (
        ("--local-ranks-filter", found.local_ranks_filter),
        ("--redirects", found.redirects if isinstance(found.redirects, dict) else ()),
        ("--tee", found.tee if isinstance(found.tee, dict) else ()),
    ):
        if beyond := sorted(rank for rank in ranks if rank >= nproc):
            parser.error(f"{option} names rank {beyond[0]}; with -n {nproc} the ranks are {span(nproc)}")
    if found.log_dir == os.devnull:
        _check_fileless(parser, found)
    if found.no_prefix and found.log_line_prefix is not None:
        parser.error("--no-prefix shows lines without a prefix; omit it or --log-line-prefix")
    if found.merge:
        _check_merge(parser, found, nproc)


def _check_fileless(parser: argparse.ArgumentParser, found: argparse.Namespace) -> None:
    """Refuse options that need log files, because `--log-dir /dev/null` has none."""
    for option, value in (
        ("--redirects", found.redirects),
        ("--tee", found.tee),
        ("--local-ranks-filter", found.local_ranks_filter),
        ("--merge", found.merge),
        ("--log-max-bytes", found.log_max_bytes),
        ("--log-line-prefix", found.log_line_prefix),
        ("--duplicate-stdout-filters", found.duplicate_stdout_filters),
        ("--duplicate-stderr-filters", found.duplicate_stderr_filters),
    ):
        if any(value.values()) if isinstance(value, dict) else value:
            parser.error(
                f"{option} needs files, and --log-dir {os.devnull} keeps none: ranks inherit both streams;"
                " omit one of them"
            )


def _check_merge(parser: argparse.ArgumentParser, found: argparse.Namespace, nproc: int) -> None:
    """Refuse `--merge` if a rank's streams have different destinations, or no file."""
    from supervise.logs import Std

    redirects, tee = streams(found.redirects, found.tee, nproc)
    for rank in range(nproc):
        if redirects[rank] | tee[rank] == Std.NONE:
            parser.error(f"--merge needs a file, and -t and -r name no stream of rank {rank}; omit one of them")
        if tee[rank] not in (Std.ALL, Std.NONE) or redirects[rank] | tee[rank] != Std.ALL:
            parser.error(
                f"--merge writes both streams of a rank to one file, and -t and -r treat those of rank {rank}"
                " differently; give 3 or 0 there, or omit --merge"
            )
    if found.duplicate_stderr_filters:
        parser.error("--merge leaves no stderr for --duplicate-stderr-filters; give --duplicate-stdout-filters")


def streams(
    redirects: Std | Mapping[int, Std] | None, tee: Std | Mapping[int, Std] | None, nproc: int
) -> tuple[dict[int, Std], dict[int, Std]]:
    """Return two mappings: the streams that are only written, and those that are also shown; see the help."""
    from supervise.logs import Std, to_map

    only = to_map(Std.NONE if redirects is None else redirects, nproc)
    if tee is not None:
        return only, to_map(tee, nproc)
    return only, {rank: Std.ALL & ~std for rank, std in only.items()}


def span(nproc: int) -> str:
    """Return the local ranks of a gang, for messages."""
    return "0 only" if nproc == 1 else f"0 to {nproc - 1}"


def _size(text: str) -> int:
    """Return the bytes of a size such as ``10M``."""
    from supervise.logs import LEAST_LOG_BYTES

    found = _SIZE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid size; give bytes, or a number with K, M or G: 10M")
    size = int(found[1]) * _UNITS[found[2].upper()]
    if size < LEAST_LOG_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is less than {LEAST_LOG_BYTES >> 10}K, the least bound of a log")
    return size


def _texts(text: str) -> tuple[str, ...]:
    """Return the texts of a list such as ``apple,orange``; a double comma stands for a comma, as in torchrun."""
    found = tuple(item.replace("\0", ",") for item in text.replace(",,", "\0").split(","))
    if text and not all(found):
        raise argparse.ArgumentTypeError(
            f"{text!r} has an empty text, which every line contains; give texts such as apple,orange"
        )
    return found if text else ()


_LOG_DIR_HELP = f"parent of the run directory (the folder of your runs); {os.devnull}: no files, no prefixes"


def add_options(group: argparse._ArgumentGroup) -> None:
    """Add the options."""
    add_option(group, "--log-dir", metavar="DIR", type=option_values.directory, help=_LOG_DIR_HELP)
    add_option(
        group,
        "-t",
        "--tee",
        metavar="SPEC",
        type=option_values.streams,
        help="streams to show and to write, see below (3)",
    )
    add_option(
        group,
        "-r",
        "--redirects",
        metavar="SPEC",
        type=option_values.streams,
        help="streams to write without showing them, see below",
    )
    add_option(
        group,
        "--merge",
        action="store_true",
        help="write the stderr of each rank to the file of its stdout, and show both there: in the order of the writes",
    )
    add_option(
        group,
        "--local-ranks-filter",
        metavar="0,2",
        type=option_values.rank_list,
        default=frozenset(),
        help="show only these ranks; log files are not affected",
    )
    add_option(group, "--no-prefix", action="store_true", help="show lines without [ROLE RANK]:")
    add_option(
        group,
        "--log-line-prefix",
        metavar="TEMPLATE",
        help="prefix of shown lines, in which ${role_name}, ${rank} and ${local_rank} are replaced"
        f" ({TEMPLATE_VARIABLE})",
    )
    add_option(
        group,
        "--log-max-bytes",
        metavar="SIZE",
        type=_size,
        help="remove the oldest part of a log from the disk when it is larger, such as 10M or 1G (no bound)",
    )
    for stream in ("stdout", "stderr"):
        add_option(
            group,
            f"--duplicate-{stream}-filters",
            metavar="LIST",
            type=_texts,
            default=(),
            help=f"write shown lines of {stream} that contain one of these texts to filtered_{stream}.log, too",
        )
    add_option(
        group,
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto: color on a terminal unless NO_COLOR is set",
    )
    add_option(
        group,
        "--halt-on-broken-pipe",
        action="store_true",
        help="stop the run if the reader of the output is gone, as in a pipe to head; the exit code is then 141",
    )
