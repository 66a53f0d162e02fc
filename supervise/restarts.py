"""Strategies and the restart policy: a restart intensity, as in OTP's supervisors, and a backoff."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from supervise._seconds import check_seconds
from supervise.errors import SpecError

_LONGEST_BACKOFF_S = 60.0

RestartKind = Literal["transient", "permanent", "temporary"]
"""After which end a rank or a child of a tree restarts: a failure, any end, or none."""
Strategy = Literal["one_for_all", "one_for_one", "rest_for_one"]
"""Which other ranks or children the failure of one concerns: all, none, or those started after it."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When supervise restarts ranks: after which kinds of ends, how often, and with what delay.

    The strategy of the gang says which ranks restart. A close, the gang's `timeout` and a failed first start cause no
    restart. All processes of a life are gone before the next life of the rank begins.

    Raises:
        SpecError: A value is not valid; the text names the field.
    """

    max_restarts: int = 3
    """The largest number of restarts, within `within_s` if that is set. The next failure ends the gang."""
    within_s: float | None = None
    """Seconds for which a restart counts; None: all restarts count."""
    backoff: float = 1.0
    """Seconds before the first restart. Each earlier restart, or each within `within_s`, doubles the delay, up to
    a minute; a value of a minute or more stays as it is. The delay varies at random by a quarter, so that many machines
    do not restart at once."""
    restart: RestartKind = "transient"
    """The restart kind of each rank, or of each child of a tree whose spec has none."""
    uncounted_exit_codes: frozenset[int] = frozenset()
    """Exit codes, such as 75 for preemption, after which the restart of a rank does not count toward `max_restarts`.
    ``-N`` is signal N. The delay is then at least 0.1 s. For gangs only."""
    never_restart_exit_codes: frozenset[int] = frozenset()
    """Exit codes after which the gang ends at once. For gangs only."""

    def __post_init__(self) -> None:
        most = self.max_restarts
        if not isinstance(most, int) or isinstance(most, bool) or not 0 <= most <= sys.maxsize:
            raise SpecError(f"max_restarts is {self.max_restarts!r}; it is a number of restarts, 0 or more")
        if self.within_s is not None:
            check_seconds("within_s", self.within_s, above_zero=True)
        check_seconds("backoff", self.backoff)
        check_restart_kind(self.restart)
        for name in ("uncounted_exit_codes", "never_restart_exit_codes"):
            object.__setattr__(self, name, exit_codes(name, getattr(self, name)))
        check_disjoint(
            uncounted_exit_codes=self.uncounted_exit_codes, never_restart_exit_codes=self.never_restart_exit_codes
        )

    def counting(self, restarts_ns: tuple[int, ...], now_ns: int) -> tuple[int, ...]:
        """Return the times of earlier restarts (monotonic ns) that still count at `now_ns`."""
        if self.within_s is None:
            return restarts_ns
        since_ns = now_ns - int(self.within_s * 1e9)
        return tuple(at_ns for at_ns in restarts_ns if at_ns > since_ns)

    def delay_s(self, earlier: int) -> float:
        """Return the delay in seconds, without jitter, of a restart after `earlier` restarts that count."""
        return min(self.backoff * 2.0 ** min(earlier, 32), max(_LONGEST_BACKOFF_S, self.backoff))


def check_restart_kind(value: object) -> None:
    """Refuse a value that is not a restart kind.

    Raises:
        SpecError: Names the value.
    """
    if value not in get_args(RestartKind):
        raise SpecError(f"restart is {value!r}; it is one of {', '.join(get_args(RestartKind))}")


def check_strategy(value: object) -> None:
    """Refuse a value that is not a strategy.

    Raises:
        SpecError: Names the value.
    """
    if value not in get_args(Strategy):
        raise SpecError(f"strategy is {value!r}; it is one of {', '.join(get_args(Strategy))}")


def exit_codes(name: str, value: object) -> frozenset[int]:
    """Return a set of exit codes.

    Raises:
        SpecError: The value is not a collection of exit codes; names the setting and the value.
    """
    if isinstance(value, Collection) and not isinstance(value, (str, bytes)):
        codes = [code for code in value if isinstance(code, int) and not isinstance(code, bool) and -65 < code < 256]
        if len(codes) == len(value):
            return frozenset(codes)
    raise SpecError(f"{name} is {value!r}; give a set of exit codes: 0 to 255, or -N for signal N")


def check_disjoint(**sets: frozenset[int]) -> None:
    """Refuse an exit code that is in two of the sets.

    Raises:
        SpecError: Names the code and both sets.
    """
    seen: dict[int, str] = {}
    for name, codes in sets.items():
        for code in sorted(codes):
            if code in seen:
                raise SpecError(f"exit code {code} is in {seen[code]} and in {name}; it can be in one of them")
            seen[code] = name
