"""Reads return values off the loop: unpickling runs code of the user's and may take its time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervise._process.launch.return_value import OutcomeFile


def load_values(
    outcomes: Mapping[int, OutcomeFile],
    known: Mapping[int, Any],
    tell: Callable[[dict[int, Any], dict[int, str]], object],
) -> None:
    """Unpickle each rank's return value, then call `tell`. On a thread of its own.

    Args:
        outcomes: Local rank to the file with its value.
        known: Local rank to the values that need not be read.
        tell: Called with two mappings by local rank: the values, and what is wrong with those that
            could not be read.
    """
    values = dict(known)
    problems: dict[int, str] = {}
    for rank, outcome in sorted(outcomes.items()):
        try:
            values[rank] = outcome.load()
        except BaseException as error:
            problems[rank] = f"its return value could not be unpickled here: {type(error).__name__}: {error}"
    tell(values, problems)
