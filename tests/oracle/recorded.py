"""Histories recorded from the old core: those of the tests in ``tests/core``, and those of real gangs.

They were recorded once, by tracing `decide` under those tests and some of ``tests/gang``, ``tests/processes``,
``tests/api``, ``tests/elastic``, ``tests/multiprocessing`` and ``tests/chaos``. Of histories that differ only in
times and texts one was kept, and at most eight of a test. A line has the test, the gang, and the events with fields.
"""

import json
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from tests.model.neutral import Neutral, Spec


class Recorded(NamedTuple):
    """One history."""

    test: str
    spec: Spec
    events: list[Neutral]


def recorded() -> list[Recorded]:
    """Return all of them."""
    lines = Path(__file__).with_name("recorded.jsonl").read_text().splitlines()
    return [_history(json.loads(line)) for line in lines]


def _history(line: dict[str, Any]) -> Recorded:
    spec = line["spec"]
    policy = None if spec["policy"] is None else tuple(spec["policy"])
    events = [Neutral(name, {key: _by_rank(value) for key, value in fields.items()}) for name, fields in line["events"]]
    return Recorded(line["test"], Spec(**{**spec, "policy": policy}), [*_with_values(events)])


def _with_values(events: list[Neutral]) -> Iterator[Neutral]:
    """Yield the events; the old core counted return values that are to be loaded as one of the Tails."""
    for at, event in enumerate(events):
        if event.name == "TailsMade":
            later = takewhile(lambda name: name != "TailsMade", (each.name for each in events[at + 1 :]))
            values = "ValuesLoaded" in later
            yield Neutral(event.name, {"count": event.fields["count"] - values, "values": values})
        else:
            yield event


def _by_rank(value: Any) -> Any:
    return {int(rank): each for rank, each in value.items()} if isinstance(value, dict) else value
