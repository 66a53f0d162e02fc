"""When a gang that failed is started anew: an intensity, as OTP's supervisors have it, and a backoff."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from supervise._seconds import check_seconds
from supervise.errors import SpecError

_LONGEST_BACKOFF_S = 60.0


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often a gang that failed is restarted as a whole, and how soon.

    Only a failure of a rank is followed by a restart: never a stop or a `timeout`, and never a start
    that did not succeed. Nothing of one attempt lives when the next begins.

    Raises:
        SpecError: A number makes no sense; names it.
    """

    max_restarts: int = 3
    """How many restarts there may be, in `within_s` where that is given."""
    within_s: float | None = None
    """Seconds: a restart counts for so long. None: for ever. One more than `max_restarts` gives up."""
    backoff: float = 1.0
    """Seconds before the first restart. Each further one that counts doubles it, up to a minute, or never where it is
    a minute or more; plus or minus a quarter, so that many machines do not start at once."""

    def __post_init__(self) -> None:
        most = self.max_restarts
        if not isinstance(most, int) or isinstance(most, bool) or not 0 <= most <= sys.maxsize:
            raise SpecError(f"max_restarts is {self.max_restarts!r}; it is a number of restarts, 0 or more")
        if self.within_s is not None:
            check_seconds("within_s", self.within_s, above_zero=True)
        check_seconds("backoff", self.backoff)

    def counting(self, restarts_ns: tuple[int, ...], now_ns: int) -> tuple[int, ...]:
        """Return those of these moments (monotonic ns of earlier restarts) that still count at `now_ns`."""
        if self.within_s is None:
            return restarts_ns
        since_ns = now_ns - int(self.within_s * 1e9)
        return tuple(at_ns for at_ns in restarts_ns if at_ns > since_ns)

    def delay_s(self, earlier: int) -> float:
        """Return the seconds, before jitter, that a restart waits which follows `earlier` ones that count."""
        return min(self.backoff * 2.0 ** min(earlier, 32), max(_LONGEST_BACKOFF_S, self.backoff))
