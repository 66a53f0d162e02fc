"""When the old core restarts a gang; from ``supervise/restarts.py``, without its checks. See `tests.oracle.core`."""

from __future__ import annotations

from dataclasses import dataclass

_LONGEST_BACKOFF_S = 60.0


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often a gang that failed is restarted as a whole, and how soon.

    Only a failure of a rank is followed by a restart: never a stop or a `timeout`, and never a start
    that did not succeed. Nothing of one attempt lives when the next begins.
    """

    max_restarts: int = 3
    """How many restarts there may be, in `within_s` where that is given."""
    within_s: float | None = None
    """Seconds: a restart counts for so long. None: for ever. One more than `max_restarts` gives up."""
    backoff: float = 1.0
    """Seconds before the first restart. Each further one that counts doubles it, up to a minute; plus or minus a
    quarter, so that many machines do not start at once."""

    def counting(self, restarts_ns: tuple[int, ...], now_ns: int) -> tuple[int, ...]:
        """Return those of these moments (monotonic ns of earlier restarts) that still count at `now_ns`."""
        if self.within_s is None:
            return restarts_ns
        since_ns = now_ns - int(self.within_s * 1e9)
        return tuple(at_ns for at_ns in restarts_ns if at_ns > since_ns)

    def delay_s(self, earlier: int) -> float:
        """Return the seconds, before jitter, that a restart waits which follows `earlier` ones that count."""
        return min(self.backoff * 2.0 ** min(earlier, 32), max(_LONGEST_BACKOFF_S, self.backoff))
