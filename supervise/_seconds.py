"""What is a number of seconds, for every setting that is one."""

from __future__ import annotations

from supervise.errors import SpecError


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
    if number and 0 <= value < float("inf") and (value > 0 or not above_zero):  # type: ignore[operator]
        return
    most = " above 0, or None" if above_zero else ", 0 or more"
    raise SpecError(f"{what} is {value!r}; it is a number of seconds{most}")
