"""Parsers of option values.

Raises:
    argparse.ArgumentTypeError: By each parser, if the value is not valid; the text has the accepted values.
"""

from __future__ import annotations

import argparse
import os
import re
from signal import SIGKILL, SIGSTOP, Signals
from typing import TYPE_CHECKING, Any

from supervise._seconds import LONGEST_S

if TYPE_CHECKING:
    from supervise.logs import Std

_MOST_DIGITS = 18
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NAME = re.compile("[A-Za-z_][A-Za-z_0-9]*")


def worker_count(text: str) -> int:
    """Return the number of ranks of ``-n``."""
    from supervise.cli import worker_count as counts

    try:
        return counts.worker_count(text)
    except ValueError as error:
        mpirun = "; did you mean -n? (-np is mpirun's)" if text[:1] == "p" else ""
        raise argparse.ArgumentTypeError(f"{error}{mpirun}") from None


def streams(text: str) -> Std | dict[int, Std]:
    """Return a choice of streams, one for all ranks or one per rank."""
    from supervise.logs import Std

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
    if not all(map(is_count, words)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid list of ranks; give numbers, such as 0,2")
    return frozenset(map(int, words))


def seconds(text: str) -> float:
    """Return the seconds of a duration, 0 or more."""
    if (value := _duration(text)) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid duration; give seconds, or a unit, such as 0.5, 90s or 5m"
        )
    return value


def _duration(text: str) -> float | None:
    """Return the seconds of a duration, a number with an optional unit; None if `text` is not valid."""
    number, unit = text[:-1], text[-1:]
    if text.endswith("ms"):
        number, unit = text[:-2], "ms"
    if unit not in _UNITS:
        number, unit = text, "s"
    try:
        value = float(number) * _UNITS[unit]
    except ValueError:
        return None
    return value if 0 <= value <= LONGEST_S else None


def span_s(text: str) -> float:
    """Return the seconds of a duration, more than 0."""
    value = seconds(text)
    if not value:
        raise argparse.ArgumentTypeError("the duration must be more than 0; omit the option for the default")
    return value


def exit_codes(text: str) -> frozenset[int]:
    """Return the exit codes in a list such as ``0,3``; ``-9`` is signal 9."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    codes = {int(word) for word in words if is_count(word.removeprefix("-"))}
    if not words or len(codes) < len(set(words)) or not all(-65 < code < 256 for code in codes):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid list of exit codes; give numbers from 0 to 255, or -N for signal N, such as 0,3"
        )
    return frozenset(codes)


def restart_count(text: str) -> int:
    """Return a number of restarts, 0 or more."""
    if not is_count(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid number of restarts; give 0 or more")
    return int(text)


def is_count(text: str) -> bool:
    """Return whether `text` is a number, 0 or more, of at most 18 digits."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def time_limit(text: str) -> float:
    """Return the seconds of a time limit, more than 0."""
    value = seconds(text)
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


def variable(text: str) -> tuple[str, str]:
    """Return the name and the value of an environment variable."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} has no '='; give NAME=VALUE; the ranks inherit your environment")
    if not _NAME.fullmatch(name):
        raise argparse.ArgumentTypeError(f"{name!r} is not the name of a variable; give letters, digits and '_'")
    return name, value


def existing_folder(text: str) -> str:
    """Return the path of a folder that exists."""
    if not os.path.isdir(text):
        what = "is not a folder" if os.path.exists(text) else "does not exist"
        raise argparse.ArgumentTypeError(f"{text!r} {what}; create it, or give another path")
    return text


def any_signal(text: str) -> Signals:
    """Return a signal by its name (``TERM``, ``SIGTERM``) or number."""
    name = text.strip().upper()
    try:
        return Signals(int(name)) if name.isdigit() else Signals[f"SIG{name.removeprefix('SIG')}"]
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a signal; give a name, such as SIGTERM") from None


def signal_number(text: str) -> Signals:
    """Return a signal that a process can handle, by its name or number."""
    found = any_signal(text)
    if found in (SIGKILL, SIGSTOP):
        raise argparse.ArgumentTypeError(f"no process can handle {found.name}; give another signal, such as SIGTERM")
    return found


def signal_list(text: str) -> tuple[Signals, ...]:
    """Return the signals in a list such as ``SIGTERM,SIGINT``."""
    words = [word for word in text.split(",") if word.strip()]
    if not words:
        raise argparse.ArgumentTypeError(f"{text!r} names no signal; give names, such as SIGTERM,SIGINT")
    return tuple(dict.fromkeys(map(signal_number, words)))


def directory(text: str) -> str:
    """Return the path of a directory."""
    if not text:
        raise argparse.ArgumentTypeError("'' is not a directory; omit the option for the default directory")
    return text


def add_option(group: argparse._ArgumentGroup, *names: str, **settings: Any) -> None:
    """Add an option; ``--long_name`` is a hidden alias of each ``--long-name``."""
    added = group.add_argument(*names, **settings)
    spelled = [f"--{name[2:].replace('-', '_')}" for name in names if "-" in name[2:]]
    if spelled:
        hidden = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS, "dest": added.dest}
        group.add_argument(*spelled, **settings | hidden)
