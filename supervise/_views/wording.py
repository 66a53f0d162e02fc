"""Ranks, durations, sizes and ends of processes as text."""

from __future__ import annotations

from datetime import UTC, datetime
from signal import Signals
from typing import TYPE_CHECKING, Any

from supervise._printable import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

_SPANS = 12
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024
_LONGEST_TEXT = 300


def seconds(value: float) -> str:
    """Format a duration."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s" if value < 10 and value != int(value) else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def ending(exitcode: int | None, *, core_dumped: bool = False) -> str:
    """Format the end of a process: ``exit code 3``, ``SIGKILL``."""
    if exitcode is None:
        return "exit status lost"
    if exitcode >= 0:
        return f"exit code {exitcode}"
    try:
        name = Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    return f"{name}, core dumped" if core_dumped else name


def spans(ranks: Iterable[int]) -> str:
    """Format ranks: ``rank 3``, ``ranks 0-2, 5``."""
    numbers = sorted(ranks)
    runs: list[list[int]] = []
    for rank in numbers:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    text = ", ".join("-".join(map(str, run)) for run in runs[:_SPANS])
    if len(runs) > _SPANS:
        text += f", ... ({len(numbers)} in all)"
    return f"rank{'s' if len(numbers) > 1 else ''} {text}"


def size(size_bytes: float | None) -> str:
    """Format a number of bytes; ``-`` for None."""
    if size_bytes is None:
        return "-"
    for unit in _UNITS[:-1]:
        if size_bytes < _STEP:
            return f"{size_bytes:.0f} {unit}"
        size_bytes /= _STEP
    return f"{size_bytes:.1f} {_UNITS[-1]}"


def ended_how(event: dict[str, Any]) -> str:
    """Format the end of a process from its event: ``exit code 3``, ``SIGKILL, core dumped``.

    Raises:
        KeyError, TypeError, ValueError: The event lacks the fields of an end.
    """
    if event.get("exit_signal"):
        core = ", core dumped" if event.get("core_dumped") else ""
        return f"{one_line(str(event['exit_signal']))[:_LONGEST_TEXT]}{core}"
    code = event["exit_code"]
    complaint = f" ({one_line(str(event['complaint']))[:_LONGEST_TEXT]})" if event.get("complaint") else ""
    return "exit status lost" if code is None else f"exit code {int(code)}{complaint}"


def failed_or_ended(error_type: object) -> str:
    """Return the verb for the rank that caused a restart of all. A `permanent` rank causes one after a success, too."""
    return "ended" if error_type == "exit code 0" else "failed"


def event_time_s(text: str) -> float:
    """Return the timestamp of an event in seconds since the epoch.

    Raises:
        TypeError, ValueError: It is not a time.
    """
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


def shortened(text: str, limit: int) -> str:
    """Return `text` on one line of at most `limit` characters."""
    text = one_line(text)
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."
