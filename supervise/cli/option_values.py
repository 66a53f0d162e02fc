"""Parsers of option values.

Raises:
    argparse.ArgumentTypeError: By each parser, if the value is not valid; the text has the accepted values.
"""

from __future__ import annotations

import argparse
from typing import Any

from supervise._seconds import LONGEST_S
from supervise.logs import Std

_MOST_DIGITS = 18


def worker_count(text: str) -> int:
    """Return the number of ranks of ``-n``."""
    from supervise.cli import ranks

    try:
        return ranks.worker_count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def streams(text: str) -> Std | dict[int, Std]:
    """Return a choice of streams, one for all ranks or one per rank."""
    try:
        return Std.from_str(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid choice of streams; give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), "
            "or one per rank, such as 0:3,1:2"
        ) from None


def rank_list(text: str) -> frozenset[int]:
    """Return the ranks in a list such as ``0,2``."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(map(_is_count, words)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid list of ranks; give numbers, such as 0,2")
    return frozenset(map(int, words))


def seconds(text: str) -> float:
    """Return seconds, 0 or more."""
    if (value := _number(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid number of seconds; give 0 or more, such as 0.5")
    return value


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= LONGEST_S else None


def span_s(text: str) -> float:
    """Return seconds, more than 0, of a restart window."""
    value = seconds(text)
    if not value:
        raise argparse.ArgumentTypeError("0 would count no restart; omit the option to count all restarts")
    return value


def exit_codes(text: str) -> frozenset[int]:
    """Return the exit codes in a list such as ``0,3``; ``-9`` is signal 9."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    codes = {int(word) for word in words if _is_count(word.removeprefix("-"))}
    if not words or len(codes) < len(set(words)) or not all(-65 < code < 256 for code in codes):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid list of exit codes; give numbers from 0 to 255, or -N for signal N, such as 0,3"
        )
    return frozenset(codes)


def restart_count(text: str) -> int:
    """Return a number of restarts, 0 or more."""
    if not _is_count(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid number of restarts; give 0 or more")
    return int(text)


def _is_count(text: str) -> bool:
    """Return whether `text` is a number, 0 or more, of at most 18 digits."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def time_limit(text: str) -> float:
    """Return seconds, more than 0, of a time limit."""
    if (value := _number(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid time limit; give seconds, more than 0, such as 60")
    if not value:
        raise argparse.ArgumentTypeError("0 would stop the run at once; omit the option for no limit")
    return value


def name(text: str) -> str:
    """Return a name that is safe in paths and lines."""
    if not text or not text.isprintable() or "/" in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid name in paths and lines; give printable characters without '/'"
        )
    return text


def directory(text: str) -> str:
    """Return the path of a directory."""
    if not text:
        raise argparse.ArgumentTypeError("'' is not a directory; omit the option for a new temporary directory")
    return text


def add_option(group: argparse._ArgumentGroup, *names: str, **settings: Any) -> None:
    """Add an option; ``--long_name`` is a hidden alias of each ``--long-name``."""
    added = group.add_argument(*names, **settings)
    spelled = [f"--{name[2:].replace('-', '_')}" for name in names if "-" in name[2:]]
    if spelled:
        hidden = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS, "dest": added.dest}
        group.add_argument(*spelled, **settings | hidden)
