"""Events as lines on stderr: for people (``-v``), or as JSON (``--log-format json``)."""

from __future__ import annotations

import json
from typing import Any

from supervise._printable import one_line

_COMMON = frozenset(
    "event level schema_version timestamp monotonic_ns run_id gang role attempt rank local_rank host_name seq".split()  # noqa: SIM905 - shorter
)
_MOST_CHARS = 400


def as_text(event: dict[str, Any]) -> str:
    """Return an event as one line: time, name, rank, and the other fields that are not empty."""
    rank = event.get("local_rank")
    who = "" if rank is None else f" rank={rank}"
    fields = (f"{key}={_value(value)}" for key, value in event.items() if key not in _COMMON and value not in _EMPTY)
    line = f"{str(event['timestamp'])[11:23]} {event['event'].removeprefix('supervise.')}{who} {' '.join(fields)}"
    return one_line(line.rstrip())[:_MOST_CHARS]


_EMPTY: tuple[Any, ...] = (None, "", [], {}, ())


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return json.dumps(text) if " " in text and isinstance(value, str) else text


def as_json(event: dict[str, Any]) -> str:
    """Return an event as a JSON object on one line."""
    return json.dumps(event, default=str)
