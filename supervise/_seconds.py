"""What is a number of seconds, for every setting that is one."""

from __future__ import annotations

import os
import sys

from supervise.errors import SpecError

GRACE_S = 30.0
"""Seconds from the polite signal to SIGKILL, where nobody says another time."""
ENV_GRACE = "SUPERVISE_GRACE"
"""The variable that holds another grace for programs that cannot pass one: they speak PyTorch's words only."""
LONGEST_S = float(sys.maxsize)
"""The longest accepted time: programs pass `sys.maxsize` for no limit. Far longer ones overflow as nanoseconds."""


def check_seconds(what: str, value: object, *, above_zero: bool = False) -> None:
    """Refuse what is not a number of seconds.

    Args:
        what: Name of the setting.
        value: What was given.
        above_zero: Whether 0 makes no sense. Those are settings that may be None.

    Raises:
        SpecError: Names the setting and the value.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and 0 <= value <= LONGEST_S and (value > 0 or not above_zero):  # type: ignore[operator]
        return
    most = " above 0, or None" if above_zero else ", 0 or more"
    end = f", at most {LONGEST_S}" if number and value > LONGEST_S else ""  # type: ignore[operator]
    raise SpecError(f"{what} is {value!r}; it is a number of seconds{most}{end}")


def usual_grace_s() -> float:
    """Return the grace of a gang whose starter gives none: the environment's, or 30 seconds.

    Raises:
        SpecError: The variable holds something else than a number of seconds; names it and the value.
    """
    text = os.environ.get(ENV_GRACE)
    if not text:
        return GRACE_S
    try:
        value = float(text)
        check_seconds(ENV_GRACE, value)
    except (ValueError, SpecError):
        raise SpecError(f"the environment's {ENV_GRACE} is {text!r}; it is a number of seconds, 0 or more") from None
    return value
