"""Validation of settings in seconds, and the default grace."""

from __future__ import annotations

import os
import sys

from supervise.errors import SpecError
from supervise.recording import repr_of

GRACE_S = 30.0
"""The default grace: seconds from the first signal to SIGKILL."""
ENV_GRACE = "SUPERVISE_GRACE"
"""The environment variable with the default grace, for programs that use PyTorch's arguments and cannot pass one."""
LONGEST_S = float(sys.maxsize)
"""The longest accepted time. Programs pass `sys.maxsize` for no limit; far longer times overflow as nanoseconds."""


def check_seconds(what: str, value: object, *, above_zero: bool = False) -> None:
    """Raise unless `value` is a number of seconds.

    Args:
        what: Name of the setting.
        value: Value of the setting.
        above_zero: Whether 0 is refused, as for settings that may be None.

    Raises:
        SpecError: `value` is not valid; the text names the setting and the value.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and 0 <= value <= LONGEST_S and (value > 0 or not above_zero):  # type: ignore[operator]
        return
    most = " above 0, or None" if above_zero else ", 0 or more"
    end = f", at most {LONGEST_S}" if number and value > LONGEST_S else ""  # type: ignore[operator]
    raise SpecError(f"{what} is {repr_of(value)}; it is a number of seconds{most}{end}")


def usual_grace_s() -> float:
    """Return the default grace: the value of the environment variable, or 30 seconds.

    Raises:
        SpecError: The variable does not hold a number of seconds; the text names it and its value.
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
