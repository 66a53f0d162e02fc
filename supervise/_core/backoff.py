"""The count of restarts: whether another one follows a failure, and after which delay.

Gangs, single ranks, trees and gangs over several hosts count with the same record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise._record import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise.restarts import RestartPolicy

LEAST_UNCOUNTED_S = 0.134
"""Minimum delay, before the jitter of a quarter, of a restart that does not count toward the limit: at least 0.1 s."""


class Backoff(NamedTuple):
    """The restarts so far, as far as the next one depends on them.

    Where single ranks restart, the record of the gang has the limit, and the record of each rank has the delay. The
    time of a restart is that of the end that causes it. `codes` are the exit codes of its causes, with the root cause
    first; None stands for a cause without an exit code.
    """

    counted_ns: tuple[int, ...] = ()
    """Monotonic times of the restarts that count toward the limit."""
    in_a_row: int = 0
    """Number of consecutive restarts. The delay doubles with each of them."""
    last_ns: int = 0
    """Monotonic time of the last restart, also of one that does not count."""
    counted: bool = True
    """Whether the last restart counts toward the limit."""
    delay_s: float = 0.0
    """Delay before the last restart, without jitter."""
    by_count: bool = False
    """Whether the restarts that count within the policy's `within_s` are the consecutive ones (tree, several hosts).

    Otherwise a restart is consecutive if it follows the last one within `within_s`. Without `within_s`, every one is.
    """

    def gives_up(self, policy: RestartPolicy, at_ns: int, codes: Sequence[int | None] = ()) -> bool:
        """Return whether no restart follows an end at `at_ns`."""
        if not policy.never_restart_exit_codes.isdisjoint(codes):
            return True
        return _counts(policy, codes) and len(policy.counting(self.counted_ns, at_ns)) >= policy.max_restarts

    def next(self, policy: RestartPolicy, at_ns: int, codes: Sequence[int | None] = ()) -> Backoff:
        """Return the record that includes the restart after an end at `at_ns`."""
        counted = _counts(policy, codes)
        counted_ns = (*policy.counting(self.counted_ns, at_ns), at_ns) if counted else self.counted_ns
        if policy.within_s is None:
            in_a_row = self.in_a_row + 1
        elif self.by_count:
            in_a_row = max(len(policy.counting(counted_ns, at_ns)), 1)
        else:
            in_a_row = 1 if at_ns - self.last_ns > policy.within_s * 1e9 else self.in_a_row + 1
        delay_s = policy.delay_s(in_a_row - 1)
        return self._replace(
            counted_ns=counted_ns,
            in_a_row=in_a_row,
            last_ns=at_ns,
            counted=counted,
            delay_s=delay_s if counted else max(delay_s, LEAST_UNCOUNTED_S),
        )


def _counts(policy: RestartPolicy, codes: Sequence[int | None]) -> bool:
    return policy.uncounted_exit_codes.isdisjoint(codes[:1])
