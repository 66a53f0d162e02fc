"""Time around the core of a gang: when a backoff is over, and what the restart policy promises, in its own words.

Time passes in units of 30 seconds. So the first delay is one unit, and all others are two, because a minute is the
longest. A stamp of the world is a number of nanoseconds: its order among the stamps of one unit is that of the events.
"""

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from tests.model.neutral import check

if TYPE_CHECKING:
    from tests.model.world import World

UNIT_S = 30
UNIT_NS = UNIT_S * 10**9
LONGEST_S = 60.0
LEAST_S = 0.134
"""The delay of a restart that does not count, if the backoff is shorter."""
ALL = -1
"""Whose end caused a restart: a rank, or all of them."""


class Restart(NamedTuple):
    """A restart that the policy allowed."""

    whose: int
    at_ns: int
    """The stamp of the end that caused it."""
    counted: bool


class Due(NamedTuple):
    """A backoff that runs, or is over."""

    number: int
    """That of the batch; `ALL` for the gang."""
    unit: int
    """When it is over."""
    ranks: frozenset[int] = frozenset()
    """The ranks of the set that have not started again."""


class Time(NamedTuple):
    """The policy, and what it has led to so far."""

    most: int = 0
    within: float | None = None
    """Units."""
    backoff_s: float = 0.0
    uncounted: bool = False
    """Whether some failures have an exit code that does not count."""
    failures: int | None = None
    """How many there may still be; None: time does not pass, and failures do not end."""
    dues: frozenset[Due] = frozenset()
    restarts: tuple[Restart, ...] = ()
    """Those that the next one depends on, in their order."""
    owed: frozenset[tuple[int, float]] = frozenset()
    """Ranks that will start again after their own failure, and the delays that they need."""
    early: tuple[int, ...] = ()
    """Ranks that have failed before the start was answered: they are judged then."""
    exhausted: bool = False
    """Whether a single rank has failed once more than the policy allows."""

    def allows(self, at_ns: int, *, counted: bool = True) -> bool:
        """Return whether a restart may follow a failure."""
        return not counted or self.recent(at_ns) < self.most

    def recent(self, at_ns: int) -> int:
        """Return how many restarts count at this time."""
        return sum(each.counted and not self._apart(each.at_ns, at_ns) for each in self.restarts)

    def delay_s(self, whose: int, at_ns: int, *, counted: bool) -> float:
        """Return the delay that the next restart needs."""
        delay_s = self.delay_after_s(len(self._row(whose, at_ns)))
        return delay_s if counted else max(delay_s, LEAST_S)

    def delay_after_s(self, restarts: int) -> float:
        """Return the delay after so many restarts in a row."""
        return min(self.backoff_s * 2**restarts, max(LONGEST_S, self.backoff_s))

    def with_restart(self, whose: int, at_ns: int, *, counted: bool) -> "Time":
        """Return the state behind a restart, without earlier ones on which nothing depends any more."""
        kept = {each for each in self.restarts if not self._apart(each.at_ns, at_ns)}
        for other in {each.whose for each in self.restarts}:
            kept.update(self._row(other, at_ns))
        earlier = tuple(each for each in self.restarts if each in kept)
        return self._replace(restarts=(*earlier, Restart(whose, at_ns, counted)))

    def _row(self, whose: int, at_ns: int) -> list[Restart]:
        """Return the restarts in a row that an end at `at_ns` continues."""
        row: list[Restart] = []
        for each in reversed(self.restarts):
            if each.whose == whose:
                if self._apart(each.at_ns, row[-1].at_ns if row else at_ns):
                    break
                row.append(each)
        return row

    def _apart(self, earlier_ns: int, later_ns: int) -> bool:
        return self.within is not None and later_ns - earlier_ns > self.within * UNIT_NS


def unit(world: "World") -> int:
    """Return the present time."""
    return world.clock // UNIT_NS


def passed(world: "World") -> "World":
    """Return the world one unit later."""
    return world._replace(clock=(unit(world) + 1) * UNIT_NS)


def may_pass(world: "World") -> bool:
    """Return whether time is part of the model, and something may still depend on it."""
    return world.time.failures is not None and bool(world.start) and not (world.ended or world.published)


def may_escalate(world: "World") -> bool:
    """Return whether ranks may outlive the grace. Where time passes, they do so only after a close."""
    return world.time.failures is None or world.ended


def is_over(world: "World", number: int) -> bool:
    """Return whether the backoff of a batch, or of the gang, is over: its timer may expire."""
    return all(due.unit <= unit(world) for due in world.time.dues if due.number == number)


def failed(world: "World", number: int) -> "World":
    """Return the world behind one of its failures, which the policy judges, unless all ranks restart together."""
    time = world.time
    if time.failures is None:
        return world
    stops = world.counting or world.counted or world.published or world.ended
    time = time._replace(failures=max(time.failures - 1, 0))
    if stops or number in world.lives.told or world.lives.strategy == "one_for_all":
        return world._replace(time=time)
    if not world.running:
        return world._replace(time=time._replace(early=(*time.early, number)))
    return world._replace(time=_judged(time, world, number))


def _judged(time: Time, world: "World", number: int) -> Time:
    rank = world.ranks[number]
    counted = not rank.uncounted
    if not time.allows(rank.died, counted=counted):
        return time._replace(exhausted=True)
    delay_s = time.delay_s(number, rank.died, counted=counted)
    return time.with_restart(number, rank.died, counted=counted)._replace(owed=time.owed | {(number, delay_s)})


def running(world: "World") -> "World":
    """Return the world behind the answer to the start: the policy judges the failures before it."""
    time, taken = world.time, set[int]()
    for number in time.early:
        if number not in taken and not time.exhausted:
            time = _judged(time, world, number)
            taken |= set(range(number, len(world.ranks))) if world.lives.strategy == "rest_for_one" else {number}
    return world._replace(time=time._replace(early=()))


def all_announced(world: "World", delay_s: float, root: int) -> Time:
    """Return the state behind the announcement that all ranks restart.

    Raises:
        BrokenPromiseError: The policy allows no restart now, or another delay.
    """
    time, counted = world.time, not world.ranks[root].uncounted
    if time.failures is None:
        return time
    at_ns = max(rank.died for rank in world.ranks)
    check(time.allows(at_ns, counted=counted), "more restarts within the window than the policy allows")
    _check_delay(delay_s, time.delay_s(ALL, at_ns, counted=counted), counted=counted)
    time = time.with_restart(ALL, at_ns, counted=counted)
    return time._replace(dues=frozenset({Due(ALL, unit(world) + ceil(delay_s / UNIT_S))}))


def batch_announced(world: "World", number: int, ranks: tuple[int, ...], delay_s: float) -> Time:
    """Return the state behind the announcement that the ranks of a set restart.

    Raises:
        BrokenPromiseError: The delay is not the longest that one of them needs.
    """
    time = world.time
    if time.failures is None:
        return time
    check(not time.exhausted, "more restarts within the window than the policy allows")
    owed = {rank: delay_s for rank, delay_s in time.owed if rank in ranks}
    check(bool(owed), "a restart of ranks of which none has failed")
    _check_delay(delay_s, max(owed.values()), counted=not any(world.ranks[rank].uncounted for rank in owed))
    due = Due(number, unit(world) + ceil(delay_s / UNIT_S), frozenset(ranks))
    return time._replace(dues=frozenset(each for each in time.dues if each.ranks.isdisjoint(ranks)) | {due})


def _check_delay(delay_s: float, needed_s: float, *, counted: bool) -> None:
    check(counted or delay_s * 0.75 >= 0.1, "a restart that does not count comes too soon")
    check(delay_s == needed_s, f"a delay of {delay_s:g} s where the policy has {needed_s:g} s")


def assembled(world: "World") -> Time:
    """Return the state behind the begin of the next attempt.

    Raises:
        BrokenPromiseError: The backoff is not over.
    """
    check(is_over(world, ALL), "a start before the backoff is over")
    return world.time._replace(dues=frozenset())


def relaunched(world: "World", number: int) -> Time:
    """Return the state behind the next life of a rank.

    Raises:
        BrokenPromiseError: The backoff is not over.
    """
    time = world.time
    if time.failures is None:
        return time
    mine = [due for due in time.dues if number in due.ranks]
    check(all(due.unit <= unit(world) for due in mine) and bool(mine), "a start before the backoff is over")
    left = {due._replace(ranks=due.ranks - {number}) for due in mine}
    dues = time.dues.difference(mine) | {due for due in left if due.ranks}
    return time._replace(dues=dues, owed=frozenset(each for each in time.owed if each[0] != number))


def check_end(world: "World", guilty: list[int]) -> None:
    """Check that a gang whose ranks restart together gave up because the policy allowed no further restart."""
    time = world.time
    forced = world.ended or any(rank.given_up or rank.late for rank in world.ranks)
    if time.failures is None or world.lives.strategy != "one_for_all" or forced or not guilty:
        return
    at_ns, counted = max(rank.died for rank in world.ranks), not world.ranks[guilty[0]].uncounted
    check(not time.allows(at_ns, counted=counted), "the gang gives up too early")


def check_given_up(world: "World") -> None:
    """Check that a gang whose ranks restart alone stops exactly when the policy allows no further restart."""
    time = world.time
    if time.failures is None or world.lives.strategy == "one_for_all" or world.ended:
        return
    stops = world.counting or world.counted or world.published
    check(stops or not time.exhausted, "the gang does not give up")
    forced = time.exhausted or any(rank.given_up or rank.late for rank in world.ranks)
    check(forced or not (world.counting or world.counted), "the gang gives up too early")


class Calendar:
    """The times of a state without their distance from the begin: what is long ago is as long ago as anything else."""

    def __init__(self, time: Time, now: int, times_ns: tuple[int, ...], *, over: bool) -> None:
        """Sort all times, and bound the gaps between them.

        Args:
            time: The policy and its restarts.
            now: The present unit.
            times_ns: The other stamps of the world and of the core.
            over: Whether nothing starts again, so that the times tell no states apart.
        """
        self._now, self._days = now, dict[int, int]()
        if time.failures is None or over:
            return
        times = {now, *(due.unit for due in time.dues), *(each.at_ns // UNIT_NS for each in time.restarts)}
        times.update(at_ns // UNIT_NS for at_ns in times_ns)
        longest, before, day = int(time.within or 1) + 1, min(times), 0
        for each in sorted(times):
            day += min(each - before, longest)
            self._days[each] = day
            before = each

    def day(self, at_ns: int) -> int:
        """Return the place of a stamp among all times."""
        return self._days.get(at_ns // UNIT_NS, 0)

    def of(self, time: Time, numbers: dict[int, int]) -> tuple[object, ...]:
        """Return what tells the state from others; `numbers` has the place of each batch."""
        if time.failures is None:
            return ()
        if not self._days:
            return time.failures, frozenset((numbers.get(due.number, -1), due.unit <= self._now) for due in time.dues)
        dues = frozenset(
            (numbers.get(due.number, -1), self._days[due.unit] if due.unit > self._now else 0, due.ranks)
            for due in time.dues
        )
        restarts = tuple((each.whose, self.day(each.at_ns), each.counted) for each in time.restarts)
        now = self._days[self._now]
        return time.failures, now, dues, restarts, time.owed, time.early, time.exhausted


def calendar(world: "World", times_ns: tuple[int, ...]) -> Calendar:
    """Return the times of a world, and those of its core, which are `times_ns`."""
    died_ns = (rank.died for rank in world.ranks)
    return Calendar(world.time, unit(world), (*times_ns, *died_ns), over=world.ended or world.published)
