"""Ranks, durations, sizes and ends of processes as text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from supervise._printable import ending, first_columns, one_line, runs_of, width_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence


_SPANS = 12
_OF_RANKS = re.compile(r"ranks? (\d{1,9}(?:-\d{1,9})?(?:, \d{1,9}(?:-\d{1,9})?)*)(?=: )", re.ASCII)
_STATUS_CHARS = 60
_EVIDENCE_CHARS = 300
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024
_LONGEST = 60
"""Columns that the last column of a table has in a pipe or a file."""
_LEAST = 16
"""Columns of the last column for which others are left out."""
_SHORTEST = 5
_PIDS = 5


def seconds(value: float) -> str:
    """Format a duration."""
    if round(value * 1000) < 1000:
        return f"{value * 1000:.0f} ms"
    if round(value) < 60:
        return f"{value:.1f} s" if round(value, 1) < 10 and value != int(value) else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def spans(ranks: Iterable[int], titles: Sequence[str] = (), *, local: bool = False) -> str:
    """Format ranks: ``rank 3``, ``ranks 0-2, 5``; with roles ``rank 3 (web 1)``, ``ranks 0-2, 5 (web 0-2, db 1)``.

    Args:
        ranks: The ranks.
        titles: Role and role rank of each rank, such as ``web 1``; empty if all have the same role.
        local: Whether these are the local ranks of one host of several, whose messages also have global ranks.
    """
    numbers = sorted(ranks)
    roles: dict[str, list[int]] = {}
    for title in (titles[rank] for rank in numbers if 0 <= rank < len(titles)):
        role, _, number = title.rpartition(" ")
        roles.setdefault(role, []).append(int(number))
    named = [f"{role} {_spans(each)}" for role, each in roles.items()]
    if len(named) > _SPANS:
        named[_SPANS:] = ["..."]
    roled = f" ({', '.join(named)})" if named else ""
    return f"{'local ' if local else ''}rank{'s' if len(numbers) > 1 else ''} {_spans(numbers)}{roled}"


def titled(line: str, titles: Sequence[str]) -> str:
    """Add the roles to the ranks at the beginning of a line of `group_stacks`; another line is returned as it is."""
    found = _OF_RANKS.match(line) if titles else None
    if found is None:
        return line
    numbers: list[int] = []
    for word in found[1].split(", "):
        low, _, high = word.partition("-")
        numbers += range(int(low), min(int(high or low), len(titles)) + 1)
    return line if max(numbers, default=len(titles)) >= len(titles) else spans(numbers, titles) + line[found.end() :]


def _spans(numbers: list[int]) -> str:
    runs = runs_of(numbers)
    text = ", ".join(runs[:_SPANS])
    return f"{text}, ... ({len(numbers)} in all)" if len(runs) > _SPANS else text


def size(size_bytes: float | None) -> str:
    """Format a number of bytes; ``-`` for None."""
    if size_bytes is None:
        return "-"
    for unit in _UNITS[:-1]:
        if round(size_bytes) < _STEP:
            return f"{size_bytes:.0f} {unit}"
        size_bytes /= _STEP
    return f"{size_bytes:.1f} {_UNITS[-1]}"


def exit_of(fields: Mapping[str, Any]) -> str:
    """Format the exit in an event: ``exit code 3``, ``SIGKILL``."""
    return str(fields.get("exit_signal") or ending(fields.get("exit_code")))


def at_step(step: int | None, status: str | None) -> str:
    """Return what a rank reported last, to follow a verb: `` at step 1200 (epoch 3)``; "" if that is nothing."""
    where = "" if step is None else f" at step {step}"
    return f"{where} ({shortened(status, _STATUS_CHARS)})" if status else where


def hang_of(fields: Mapping[str, Any]) -> str:
    """Return what was missing in a hang, and its culprit: ``no heartbeat for 30 s (step 4, "loading"); ...``."""
    seen = [f"step {fields['step']}"] if "step" in fields else []
    seen += [f'"{shortened(fields["status"], _STATUS_CHARS)}"'] if fields.get("status") else []
    details = f" ({', '.join(seen)})" if seen else ""
    why = f"; {shortened(fields['evidence'], _EVIDENCE_CHARS)}" if fields.get("evidence") else ""
    return f"no {shortened(fields['tier'], _STATUS_CHARS)} for {seconds(fields['age_s'])}{details}{why}"


def left_outside(fields: Mapping[str, Any]) -> str:
    """Format the event `process.leaked`, after the name of a rank."""
    found = fields["descendants"]
    pids = ", ".join(map(str, found[:_PIDS]))
    more = f" and {len(found) - _PIDS} more" if len(found) > _PIDS else ""
    then = (
        "ended" if fields["ended"] else "still alive after the end of the rank; --containment sweep ends such processes"
    )
    return f"left processes outside of its group (pid {pids}{more}): {then}"


def failed_or_ended(error_type: object) -> str:
    """Return the verb for the rank that caused a restart of all. A `permanent` rank causes one after a success, too."""
    return "ended" if error_type == "exit code 0" else "failed"


def shortened(text: str, limit: int) -> str:
    """Return `text` on one line of at most `limit` columns."""
    text = one_line(text)
    return text if width_of(text) <= limit else f"{first_columns(text, limit - 4)} ..."


def counted(count: int, what: str) -> str:
    """Format a number of things: ``1 rank``, ``2 ranks``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def columns(rows: Sequence[Sequence[str]], *, right: Container[int] = ()) -> list[str]:
    """Format the rows of a table as lines.

    Args:
        rows: The texts of each row, the heads first.
        right: The indexes of the columns that are aligned to the right.
    """
    widths = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for at, (text, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - width_of(text))
            cells.append(space + text if at in right else text + space)
        lines.append("  ".join(cells).rstrip())
    return lines


def fitted(rows: Sequence[Sequence[str]], room: int | None, left_out: Sequence[str]) -> list[list[str]]:
    """Return the rows of a table so that `columns` makes lines that fit a terminal, if that is possible.

    Args:
        rows: The texts of each row, the heads first. The texts of the last column may be shortened; if that is STATE,
            which stays whole, those of the column before it.
        room: Columns of the terminal; None: there is none.
        left_out: The heads of the columns that a narrow terminal lacks, the first to go first.
    """
    heads = list(rows[0])
    width = {head: max(map(width_of, texts)) for head, texts in zip(heads, zip(*rows, strict=True), strict=True)}
    left, short = _LONGEST, heads[-1]
    if room is not None:

        def left_for(short: str) -> int:
            return room - sum(width[head] + 2 for head in heads if head != short)

        for head in left_out:
            if head in heads and left_for(heads[-1]) < min(_LEAST, width[heads[-1]]):
                heads.remove(head)
        if left_for(heads[-1]) < min(_SHORTEST, width[heads[-1]]) and len(heads) > 2 and heads[-1] != "STATE":
            heads.pop()
        short = heads[-2] if heads[-1] == "STATE" else heads[-1]
        left = max(_SHORTEST, left_for(short))
    return [
        [shortened(row[at], left) if head == short else row[at] for at, head in enumerate(rows[0]) if head in heads]
        for row in rows
    ]
