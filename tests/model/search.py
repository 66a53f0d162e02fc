"""Breadth-first search over all orders of events, to the fixpoint; every invariant is checked on every step."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from supervise._core.decide import decide
from supervise._core.state import Gang
from supervise._core.verdict import judge
from supervise.restarts import RestartPolicy
from tests.model.world import CLOSES, FATE, BrokenPromiseError, Rank, World, causes, moves, obey


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One gang to be searched."""

    nprocs: int
    max_restarts: int | None = None
    """None: no policy."""
    asks: int = 2
    tails: int = 1
    window: int | None = None
    """How many launches at once; None: all, so that ranks are symmetric."""
    stop_on_failure: bool = True
    closes: tuple[str, ...] = tuple(CLOSES)
    late: bool = False

    def gang(self) -> Gang:
        """Return the core's first state."""
        policy = None if self.max_restarts is None else RestartPolicy(max_restarts=self.max_restarts)
        window = self.window or self.nprocs
        return Gang(nprocs=self.nprocs, grace_s=5.0, window=window, policy=policy, stop_on_failure=self.stop_on_failure)


@dataclass(kw_only=True)
class Found:
    """What a search has seen."""

    states: int = 0
    steps: int = 0
    broken: str = ""
    """The first invariant that does not hold; "" if all hold."""
    path: list[str] = field(default_factory=list)
    """The moves that lead there."""


State = tuple[World, Gang]


def search(setting: Setting, *, most: int | None = None) -> Found:
    """Visit every state that can be reached; stop at the first broken invariant.

    Args:
        setting: The gang.
        most: How many states there may be, else the search is broken: "unbounded".
    """
    ranks = (Rank(),) * setting.nprocs
    begin: State = (
        World(ranks=ranks, tails=setting.tails, heeds_failures=setting.stop_on_failure),
        setting.gang()._replace(tails=setting.tails),
    )
    seen: dict[Any, tuple[Any, str]] = {key(begin, setting): (None, "")}
    queue = deque([(begin, key(begin, setting))])
    found = Found()
    before: dict[Any, list[tuple[Any, bool]]] = {}
    ends: list[Any] = []
    while queue:
        state, place = queue.popleft()
        if _is_over(state[0]):
            ends.append(place)
        for name, world, event in moves(state[0], asks=setting.asks, closes=setting.closes, late=setting.late):
            found.steps += 1
            try:
                after = step((world, state[1]), event, setting)
            except Exception as error:
                found.broken, found.path = str(error) or repr(error), [*_path(seen, place), name]
                found.states = len(seen)
                return found
            there = key(after, setting)
            before.setdefault(there, []).append((place, name in FATE))
            if there not in seen:
                seen[there] = (place, name)
                queue.append((after, there))
        if most is not None and len(seen) > most:
            found.broken, found.path = "unbounded", _path(seen, place)
            break
    found.states = len(seen)
    if not found.broken:
        _check_every_path_ends(found, seen, before, ends)
    return found


def step(state: State, event: object, setting: Setting) -> State:
    """Tell the core, obey its actions, check what must hold between two states."""
    world, gang = state
    if event is None:
        return state
    was, ended = gang, world.ended
    gang, actions = decide(gang, event)
    for action in actions:
        published = world.published
        world = obey(world, action, tails=setting.tails)
        if type(action).__name__ == "Assemble":
            gang = gang._replace(tails=setting.tails)
        if world.published and not published:
            _check_verdict(world, gang, setting)
    _hold(gang.attempt <= (setting.max_restarts or 0), "the intensity was exceeded")
    _hold(gang.attempt == world.restarts, "an attempt without an assembly")
    _hold(not (ended and gang.attempt > was.attempt), "a restart after the end was asked for")
    _hold(not gang.running & gang.starting, "a rank both starts and runs")
    return world, gang


def _check_verdict(world: World, gang: Gang, setting: Setting) -> None:
    if gang.start_failure is not None or world.aborted or not world.start:
        return
    verdict = judge(gang)
    guilty = causes(world)
    roots = [rank for rank, role in verdict.roles.items() if role == "root_cause"]
    _hold(roots == guilty[:1], f"the root cause is not the first cause: {roots}, not {guilty[:1]}")
    _hold((verdict.outcome == "failed") == bool(guilty), f"{verdict.outcome} with causes {guilty}")
    if verdict.outcome == "succeeded":
        good = {end.local_rank for end in gang.ends if end.exitcode == 0}
        _hold(len(good) == setting.nprocs, "success without every rank")


def _hold(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenPromiseError(what)


def _is_over(world: World) -> bool:
    return world.published and not world.close_owed


def _check_every_path_ends(
    found: Found, seen: dict[Any, tuple[Any, str]], before: dict[Any, list[tuple[Any, bool]]], ends: list[Any]
) -> None:
    """From every state the end can be reached; once it was asked for, whatever the processes do."""
    for freely, wanted in ((True, "no end can be reached"), (False, "the end needs the good will of a process")):
        reached, stack = set(ends), list(ends)
        while stack:
            for place, fate in before.get(stack.pop(), ()):
                if place not in reached and (freely or not fate):
                    reached.add(place)
                    stack.append(place)
        for place in seen:
            if place not in reached and (freely or place[0]):
                found.broken, found.path = wanted, _path(seen, place)
                return


def _path(seen: dict[Any, tuple[Any, str]], place: Any) -> list[str]:
    names: list[str] = []
    while seen[place][0] is not None:
        place, name = seen[place]
        names.append(name)
    return names[::-1]


def key(state: State, setting: Setting) -> Any:
    """Return what tells this state from others: stamps become ranks of order, equal ranks are sorted.

    Once there is a result, who failed first does not matter any more.
    """
    world, gang = state
    judged = world.published
    stamps = {rank.died for rank in world.ranks} | {rank.recorded for rank in world.ranks} | {gang.census_ns, 0}
    order = dict.fromkeys(stamps, 0) if judged else {stamp: number for number, stamp in enumerate(sorted(stamps))}
    ends = {end.local_rank: position for position, end in enumerate(gang.ends)}
    stuck = {told.local_rank for told in gang.unkillable}
    ranks = []
    for number, rank in enumerate(world.ranks):
        blame = (
            0 if judged or number not in ends else ends[number] + 1,
            not judged and rank.failed,
            not judged and rank.signaled,
            not judged and rank.accused,
            not judged and number in gang.spontaneous,
            not judged and gang.start_failure is not None and gang.start_failure.local_rank == number,
            order[rank.recorded],
            order[rank.died],
        )
        core = (number in gang.starting, number in gang.running, number in gang.leftovers, number in stuck)
        mine = (rank.stage, rank.group, rank.stuck, rank.given_up, rank.late, number < gang.launched)
        ranks.append((mine, core, blame))
    if setting.window is None:
        ranks.sort()
    rest = world._replace(ranks=(), clock=0)
    core = gang._replace(
        ends=(),
        launched=0,
        starting=_NOBODY,
        running=_NOBODY,
        leftovers=_NOBODY,
        accused=None,  # type: ignore[arg-type]
        spontaneous=_NOBODY,
        stopped_ns=None,  # type: ignore[arg-type]
        unkillable=(),
        start_failure=None,
        census_ns=order[gang.census_ns],
        restarts_ns=(0,) * len(gang.restarts_ns),
    )
    return (world.ended, tuple(ranks), rest, core)


_NOBODY: frozenset[int] = frozenset()
