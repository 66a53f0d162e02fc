"""``supervise status RUN``: the present state of a running gang and its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervise._printable import one_line
from supervise._story.wording import columns, fitted, spans
from supervise._views.top.reader import Reader
from supervise.cli.commands import steering
from supervise.cli.commands.runs import terminal_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._control.client import ControlClient
    from supervise.cli.commands.runs import RunParser


_COLUMNS = ("RANK", "ROLE", "STATE", "PID", "RESTARTS", "STEP", "BEAT", "STATUS")
_LEFT_OUT = ("PID", "RESTARTS", "BEAT", "STEP")
"""The columns that a narrow terminal lacks, the first to go first."""


def options() -> RunParser:
    """Return the parser."""
    return steering.SteeringParser("status", "Show the state of a running gang and of each rank.")


def status(words: Sequence[str]) -> int:
    """Print the state; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = options().read(words)

    def act(client: ControlClient) -> int:
        result = client.request("status", timeout_s=steering.REPLY_S)
        if found.target.run is not None:  # the state is `hung` if the watchdog has reported a hang, and it continues
            for rank, row in Reader(found.target.run).read(result, same_pids=False).ranks.items():
                result["ranks"][str(rank)]["state"] = row.state
        return steering.show(found, result, _lines(found.target, result))

    return steering.steer("status", found.target, act)


def _lines(target: steering.Target, result: dict[str, Any]) -> list[str]:
    phase = "starting" if result["phase"] == "new" else result["phase"]
    attempt = f", attempt {result['attempt']}" if result["attempt"] else ""
    head = f"{phase}: {target.name} (supervise has pid {result['pid']}{attempt})"
    rows = [_COLUMNS, *(_row(rank, row, roles=bool(target.titles)) for rank, row in result["ranks"].items())]
    always = ("RANK", "STATE", "PID")
    used = [at for at, head in enumerate(_COLUMNS) if head in always or any(row[at] != "-" for row in rows[1:])]
    table = columns(fitted([[row[column] for column in used] for row in rows], terminal_columns(), _LEFT_OUT))
    left = result["leftovers"]
    return [head, *table, *([f"processes remain in the groups of {spans(left, target.titles)}"] if left else [])]


def _row(rank: str, row: dict[str, Any], *, roles: bool) -> tuple[str, ...]:
    age_s = row["beat_age_s"]
    return (
        rank,
        f"{row['role']}.{row['role_rank']}" if roles else "-",
        str(row["state"]),
        "-" if row["pid"] is None else str(row["pid"]),
        str(row["restarts"] or "-"),
        "-" if row["step"] is None else str(row["step"]),
        "-" if age_s is None else f"{age_s:.1f} s",
        one_line(str(row["status"] or "-")),
    )
