"""Strategies and the restart policy: a restart intensity, as in OTP's supervisors, and a backoff."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise._record import record
from supervise._settings import POLICY, RestartKind as RestartKind, Strategy as Strategy
from supervise.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

_LONGEST_BACKOFF_S = 60.0


@record(kw_only=False)
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
    """Seconds before the first restart. Each consecutive restart doubles the delay, up to a minute; a value of a minute
    or more stays constant. A failure more than `within_s` after the last restart resets the delay. In a tree, and in a
    gang across several hosts, each restart within `within_s` doubles it. The delay varies randomly by up to a quarter,
    so that many machines do not restart at the same time."""
    restart: RestartKind = "transient"
    """The restart kind of each rank, or of each child of a tree whose spec has none."""
    uncounted_exit_codes: AbstractSet[int] = frozenset()
    """Exit codes, such as 75 for preemption, after which the restart of a rank does not count toward `max_restarts`.
    ``-N`` is signal N. The delay is then at least 0.1 s. For gangs only."""
    never_restart_exit_codes: AbstractSet[int] = frozenset()
    """Exit codes after which the gang ends at once. For gangs only."""

    def __post_init__(self) -> None:
        for row in POLICY.values():
            object.__setattr__(self, row.name, row.checked(getattr(self, row.name)))
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


def check_disjoint(**sets: AbstractSet[int]) -> None:
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
