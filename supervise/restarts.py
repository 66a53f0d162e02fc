"""The restart policy of a gang: a restart intensity, as in OTP's supervisors, and a backoff."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal, get_args

from supervise._seconds import check_seconds
from supervise.errors import SpecError

_LONGEST_BACKOFF_S = 60.0

RestartKind = Literal["transient", "permanent", "temporary"]
"""After which end a child of a tree restarts: a failure, any end, or none."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The limits of restarts: how often, and after which delay, supervise restarts all ranks of a gang.

    Only the failure of a rank causes a restart. A close, the gang's `timeout` and a failed start do not. All processes
    of an attempt are gone before the next attempt begins.

    Raises:
        SpecError: A number is not valid; the text names the field.
    """

    max_restarts: int = 3
    """The largest number of restarts, within `within_s` if that is set. The next failure ends the gang."""
    within_s: float | None = None
    """Seconds for which a restart counts; None: all restarts count."""
    backoff: float = 1.0
    """Seconds before the first restart. Each restart that counts doubles the delay, up to a minute; a value of a minute
    or more stays as it is. The delay varies at random by a quarter, so that many machines do not restart at once."""
    restart: RestartKind = "transient"
    """The restart kind of a tree's children that state none. A gang accepts ``"transient"`` only."""

    def __post_init__(self) -> None:
        most = self.max_restarts
        if not isinstance(most, int) or isinstance(most, bool) or not 0 <= most <= sys.maxsize:
            raise SpecError(f"max_restarts is {self.max_restarts!r}; it is a number of restarts, 0 or more")
        if self.within_s is not None:
            check_seconds("within_s", self.within_s, above_zero=True)
        check_seconds("backoff", self.backoff)
        check_restart_kind(self.restart)

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
