"""The mark ``ranks``: its arguments, checked at collection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

_MOST = 1024
_START_METHODS = ("fork", "spawn")
_KEYWORDS = {"timeout_s", "grace_s", "start_method"}
_EXAMPLE = "write for example @pytest.mark.ranks(4) or @pytest.mark.ranks([1, 2, 4], timeout_s=30)"
_PARAMETER = "world_size"
"""The name by which a list of counts is a parameter of the test."""


class MarkError(Exception):
    """A mark, or an option of the configuration, has a value that is not valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the ranks of one test run."""

    counts: tuple[int, ...]
    """The numbers of ranks; several only until the test is parametrized."""
    is_list: bool
    timeout_s: float | None
    """Seconds from the start of the ranks until they are ended; None for no limit."""
    grace_s: float
    """Seconds that the other ranks get after the first has failed."""
    start_method: str


def generate(metafunc: pytest.Metafunc, mark: pytest.Mark) -> None:
    """Check `mark`; parametrize the test by a list of counts.

    Raises:
        CollectError: The mark is not valid.
    """
    try:
        settings = read(mark, metafunc.config)
    except MarkError as error:
        raise pytest.Collector.CollectError(f"{metafunc.definition.nodeid}: {error}") from None
    if settings.is_list:
        if _PARAMETER not in metafunc.fixturenames:
            metafunc.fixturenames.append(_PARAMETER)
        metafunc.parametrize(_PARAMETER, settings.counts, ids=[f"ranks{count}" for count in settings.counts])


def of_item(item: pytest.Item) -> Settings:
    """Return the settings of a collected test, with a single count.

    Raises:
        MarkError: The mark is not valid.
    """
    mark = item.get_closest_marker("ranks")
    assert mark is not None  # noqa: S101 - the caller has seen it
    settings = read(mark, item.config)
    if not settings.is_list:
        return settings
    callspec: Any = getattr(item, "callspec", None)
    if callspec is None or _PARAMETER not in callspec.params:
        raise MarkError(
            f"ranks({list(settings.counts)}): only a mark of the test function, its class or its module takes a list;"
            " a test of unittest, a pytest.param and a mark that is added later take one number"
        )
    return Settings(
        counts=(callspec.params[_PARAMETER],),
        is_list=False,
        timeout_s=settings.timeout_s,
        grace_s=settings.grace_s,
        start_method=settings.start_method,
    )


def read(mark: pytest.Mark, config: pytest.Config) -> Settings:
    """Return the settings that a mark and the configuration give.

    Raises:
        MarkError: A value is not valid; the text names it and the valid values.
    """
    unknown = sorted(mark.kwargs.keys() - _KEYWORDS)
    if unknown:
        raise MarkError(f"ranks(...) does not accept {unknown[0]!r}; it accepts {', '.join(sorted(_KEYWORDS))}")
    if len(mark.args) != 1:
        raise MarkError(f"ranks(...) takes one number or one list of numbers, not {len(mark.args)}; {_EXAMPLE}")
    given = mark.args[0]
    is_list = isinstance(given, (list, tuple, range))
    counts = tuple(given) if is_list else (given,)
    if not counts:
        raise MarkError(f"ranks({given!r}) has no number of ranks; {_EXAMPLE}")
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST:
            raise MarkError(f"ranks({given!r}): {count!r} is not a number of ranks from 1 to {_MOST}; {_EXAMPLE}")
    method = mark.kwargs.get("start_method", "fork")
    if method not in _START_METHODS:
        raise MarkError(f"ranks(start_method={method!r}) is not valid; use one of {', '.join(_START_METHODS)}")
    timeout_s = _seconds("ranks(timeout_s=...)", mark.kwargs.get("timeout_s"), config, "ranks_timeout")
    return Settings(
        counts=counts,
        is_list=is_list,
        timeout_s=timeout_s or None,
        grace_s=_seconds("ranks(grace_s=...)", mark.kwargs.get("grace_s"), config, "ranks_grace"),
        start_method=method,
    )


def budget(config: pytest.Config) -> int:
    """Return the option ``ranks_budget``; 0 for no limit.

    Raises:
        MarkError: The option is not valid.
    """
    text = str(config.getini("ranks_budget"))
    if not text.isdecimal():
        raise MarkError(f"the option ranks_budget is {text!r}; it is a whole number of ranks, 0 for no limit")
    return int(text)


def _seconds(name: str, given: object, config: pytest.Config, option: str) -> float:
    """Return a number of seconds of the mark, or of the configuration if the mark has none."""
    if given is None:
        name, given = f"the option {option}", config.getini(option)
    try:
        seconds = math.nan if isinstance(given, bool) else float(str(given))
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise MarkError(f"{name} is {given!r}; it is a number of seconds, 0 or more")
    return seconds
