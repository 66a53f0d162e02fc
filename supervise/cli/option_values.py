"""The values of options: from text to what is meant.

Raises:
    argparse.ArgumentTypeError: Each, where the text makes no sense; says what would.
"""

from __future__ import annotations

import argparse

from supervise._seconds import LONGEST_S
from supervise.logs import Std

_MOST_DIGITS = 18


def worker_count(text: str) -> int:
    """Return how many ranks `-n` asks for."""
    from supervise.cli import ranks

    try:
        return ranks.worker_count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def streams(text: str) -> Std | dict[int, Std]:
    """Return a choice of streams, for all ranks or for each."""
    try:
        return Std.from_str(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no choice of streams; give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), "
            "or one per rank, such as 0:3,1:2"
        ) from None


def rank_list(text: str) -> frozenset[int]:
    """Return the ranks of a list such as ``0,2``."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(map(_is_count, words)):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of ranks; give numbers, such as 0,2")
    return frozenset(map(int, words))


def seconds(text: str) -> float:
    """Return seconds, 0 or more."""
    if (value := _number(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds; give 0 or more, such as 30 or 0.5")
    return value


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= LONGEST_S else None


def span_s(text: str) -> float:
    """Return seconds, more than 0, in which restarts are counted."""
    value = seconds(text)
    if not value:
        raise argparse.ArgumentTypeError("0 would count no restart; leave the option out to count all")
    return value


def restart_count(text: str) -> int:
    """Return how many restarts are allowed."""
    if not _is_count(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of restarts; give 0 or more")
    return int(text)


def _is_count(text: str) -> bool:
    """Whether `text` is a number, 0 or more, which is no longer than any that counts something."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def time_limit(text: str) -> float:
    """Return seconds, more than 0, after which a run is stopped."""
    if (value := _number(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time limit; give seconds, more than 0, such as 3600 or 0.5")
    if not value:
        raise argparse.ArgumentTypeError("0 would stop the run at once; leave the option out for no limit")
    return value


def name(text: str) -> str:
    """Return a name that can be a part of paths and lines."""
    if not text or not text.isprintable() or "/" in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} becomes part of paths and lines; give printable characters without '/'"
        )
    return text


def directory(text: str) -> str:
    """Return the path of a directory."""
    if not text:
        raise argparse.ArgumentTypeError("'' names no directory; leave the option out for a new temporary one")
    return text
