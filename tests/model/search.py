"""Breadth-first search over all orders of events, to the fixpoint; every invariant is checked on every step."""

import pickle
from collections import deque
from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from weakref import WeakValueDictionary

from tests.model.graph import Graph
from tests.model.live import LiveCore
from tests.model.lives import (
    Lives,
    check_answered,
    check_batches,
    check_hung,
    moves as moves_of_lives,
    renumbered,
    without_stale,
)
from tests.model.neutral import Core, Known, Neutral, Spec, check, neutral
from tests.model.roles import Roles, check_verdict, must_end
from tests.model.timed import UNIT_S, Time, calendar, check_end, check_given_up
from tests.model.world import FATE, UNCOUNTED, Rank, World, causes, moves, obey


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
    closes: tuple[str, ...] = ("close, 9 s", "close, 1 s", "kill", "deadline")
    late: bool = False
    strategy: str = "one_for_all"
    kinds: tuple[str, ...] | None = None
    role_of: tuple[int, ...] | None = None
    needs: tuple[frozenset[int], ...] | None = None
    """The roles that each role needs, directly or not; None: those before it."""
    graces_s: tuple[tuple[int, float], ...] = ()
    """Roles with a grace of their own."""
    services: frozenset[int] = frozenset()
    notify: bool = False
    """Whether each rank reports that it is ready."""
    hangs: int = 0
    """How many ranks hang, or are not ready in time."""
    requests: int = 0
    """How many restarts and terminations of ranks are asked for."""
    failures: int | None = None
    """How many ranks fail while time passes; None: time does not pass, and each rank may fail.

    With time, no rank leaves processes in its group, records an exception or cannot be launched.
    """
    within: float | None = None
    """Units of time for which a restart counts."""
    backoff: float = 1.0
    """Units of time before the first restart."""
    uncounted: bool = False
    """Whether some failures have an exit code that does not count."""

    @property
    def single(self) -> bool:
        """Whether single ranks may restart or be terminated."""
        return self.strategy != "one_for_all" or self.requests > 0 or self.kinds is not None or self.role_of is not None

    def spec(self) -> Spec:
        """Return the gang."""
        within_s = None if self.within is None else self.within * UNIT_S
        policy = None if self.max_restarts is None else (self.max_restarts, within_s, self.backoff * UNIT_S)
        window = self.window or self.nprocs
        return Spec(
            nprocs=self.nprocs,
            window=window,
            policy=policy,
            uncounted=frozenset({UNCOUNTED} if self.uncounted else ()),
            stop_on_failure=self.stop_on_failure,
            strategy=self.strategy,
            kinds=self.kinds,
            role_of=self.role_of,
            needs=self.needs,
            graces_s=self.graces_s,
            services=self.services,
            notify=self.notify,
        )

    def time(self) -> Time:
        """Return the policy as the world knows it."""
        return Time(
            most=self.max_restarts or 0,
            within=self.within,
            backoff_s=self.backoff * UNIT_S,
            uncounted=self.uncounted,
            failures=self.failures,
        )


@dataclass(kw_only=True)
class Found:
    """What a search has seen."""

    states: int = 0
    steps: int = 0
    broken: str = ""
    """The first invariant that does not hold; "" if all hold."""
    path: list[str] = field(default_factory=list)
    """The moves that lead there."""


State = tuple[World, Core]


def search(setting: Setting, *, most: int | None = None) -> Found:
    """Visit every state that can be reached; stop at the first broken invariant.

    Args:
        setting: The gang.
        most: How many states there may be, else the search is broken: "unbounded".
    """
    ranks = (Rank(),) * setting.nprocs
    core = LiveCore(setting.spec())
    core.feed(neutral("TailsMade", count=setting.tails))
    temporary = frozenset(number for number, kind in enumerate(setting.kinds or ()) if kind == "temporary")
    lives = Lives(strategy=setting.strategy, most=setting.max_restarts, temporary=temporary)
    world = World(ranks=ranks, tails=setting.tails, heeds_failures=setting.stop_on_failure, lives=lives)
    world = world._replace(notify=setting.notify, hangs=setting.hangs, time=setting.time())
    of = setting.role_of or ()
    needs = setting.needs or tuple(frozenset(range(role)) for role in range(max(of, default=-1) + 1))
    begin: State = world._replace(roles=Roles(of=of, needs=needs, services=setting.services)), core
    graph, found = Graph(), Found()
    graph.visit(key(begin[0], core.known(), setting, graph), 0, "")
    queue = deque([(begin, 0)])
    cores = WeakValueDictionary[bytes, Core]()
    """Equal cores of queued states are one object: seven of eight are equal to another, and each takes kilobytes."""
    ends: list[int] = []
    asked = bytearray([begin[0].ended])
    """For each state whether the end was asked for, or only services run."""
    while queue:
        state, place = queue.popleft()
        if _is_over(state[0]):
            ends.append(place)
        possible = moves(state[0], asks=setting.asks, closes=setting.closes, late=setting.late)
        for name, world, event in chain(possible, moves_of_lives(state[0], setting.requests)):
            found.steps += 1
            try:
                after = step((world, state[1]), event, setting)
                known = after[1].known()
                _check_known(state[0], after[0], known, setting)
            except Exception as error:
                found.broken, found.path = str(error) or repr(error), [*graph.path(place), name]
                found.states = len(graph)
                return found
            there, is_new = graph.visit(key(after[0], known, setting, graph, after[1].numbers()), place, name)
            graph.add_move(place, there, flag=name in FATE)
            if is_new:
                asked.append(after[0].ended or must_end(after[0]))
                same = cores.setdefault(pickle.dumps(after[1]), after[1])
                queue.append(((after[0], same), there))
        if most is not None and len(graph) > most:
            found.broken, found.path = "unbounded", graph.path(place)
            break
    found.states = len(graph)
    if not found.broken:
        _check_every_path_ends(found, graph, asked, ends)
    return found


def step(state: State, event: Neutral | None, setting: Setting) -> State:
    """Tell the core, obey its actions, check that it may ask for them."""
    if event is None:
        return state
    world, core = state[0], state[1].copy()
    for action in core.feed(event):
        published = world.published
        world = obey(world, action, tails=setting.tails)
        if action.name == "Assemble":
            core.feed(neutral("TailsMade", count=setting.tails))
        if world.published and not published:
            _check_verdict(world, core, setting)
    numbers = core.numbers()
    check_given_up(world)
    check(core.counted() <= (setting.max_restarts or 0), "the intensity was exceeded")
    check_answered(world)
    check_hung(world)
    return without_stale(world, numbers), core


def _check_known(before: World, after: World, known: Known, setting: Setting) -> None:
    """Check what must hold between two states; `known` is the core's behind `after`."""
    if (
        not setting.requests and setting.failures is None
    ):  # otherwise an attempt of all ranks has a greater number than every life before
        check(known.attempt <= (setting.max_restarts or 0), "the intensity was exceeded")
        check(known.attempt == after.restarts, "an attempt without an assembly")
    check(not (before.ended and known.attempt > before.restarts), "a restart after the end was asked for")
    check(not known.running & known.starting, "a rank both starts and runs")
    check_batches(after, known)


def _check_verdict(world: World, core: Core, setting: Setting) -> None:
    result = core.result()
    check(result["start failure"] is None or not world.restarts, "a failed restart is an error instead of a result")
    if result["start failure"] is not None or not world.start:
        return
    if setting.single:
        _check_verdict_of_lives(world, result)
        check_verdict(world, result)
        return
    guilty = causes(world)
    roots = [rank for rank, role in result["roles"].items() if role == "root_cause"]
    check(roots == guilty[:1], f"the root cause is not the first cause: {roots}, not {guilty[:1]}")
    check((result["outcome"] == "failed") == bool(guilty), f"{result['outcome']} with causes {guilty}")
    check_end(world, guilty)
    if result["outcome"] == "succeeded":
        good = {rank for rank, (exitcode, *_) in result["ends"].items() if exitcode == 0}
        check(len(good) == setting.nprocs, "success without every rank")


def _check_verdict_of_lives(world: World, result: dict[str, Any]) -> None:
    """Check that the root cause failed, or is the end of which the supervisor gave up."""
    roots = [rank for rank, role in result["roles"].items() if role == "root_cause"]
    check((result["outcome"] == "failed") == bool(roots), f"{result['outcome']} with the root causes {roots}")
    check(len(roots) <= 1 and all(result["blamed"][0] == rank for rank in roots), "the root cause is not the first")
    for rank in roots:
        check(world.ranks[rank].bad or not world.ended, f"a rank is blamed that did not fail: {rank}")
        stopped = rank in world.lives.told and not world.ranks[rank].hung
        check(not stopped, f"a rank is blamed that a restart stopped: {rank}")


def _is_over(world: World) -> bool:
    return world.published and not world.close_owed


def _check_every_path_ends(found: Found, graph: Graph, asked: bytearray, ends: list[int]) -> None:
    """From every state the end can be reached; once it was asked for, whatever the processes do."""
    for freely, wanted in ((True, "no end can be reached"), (False, "the end needs the good will of a process")):
        reached = graph.leading_to(ends, with_flagged=freely)
        for place in range(len(graph)):
            if not reached[place] and (freely or asked[place]):
                found.broken, found.path = wanted, graph.path(place)
                return


def key(
    world: World, known: Known, setting: Setting, graph: Graph, numbers: dict[int, int] | None = None
) -> tuple[int, ...]:
    """Return what tells this state from others: stamps become ranks of order, equal ranks are sorted.

    Once there is a result, who failed first does not matter any more.
    """
    judged = world.published
    stamps = {rank.died for rank in world.ranks} | {rank.recorded for rank in world.ranks} | {known.census_ns, 0}
    stamps |= {rank.hung for rank in world.ranks}
    order = dict.fromkeys(stamps, 0) if judged else {stamp: number for number, stamp in enumerate(sorted(stamps))}
    ends = {rank: position for position, rank in enumerate(known.ended)}
    days = calendar(world, known.times_ns)
    ranks = []
    for number, rank in enumerate(world.ranks):
        blame = (
            0 if judged or number not in ends else ends[number] + 1,
            not judged and rank.failed,
            not judged and rank.signaled,
            not judged and rank.accused,
            not judged and number in known.spontaneous,
            not judged and known.start_failure == number,
            order[rank.recorded],
            order[rank.died],
            order[rank.hung],
            days.day(rank.died),
        )
        places = (number in known.starting, number in known.running, number in known.leftovers, number in known.stuck)
        mine = (
            rank.stage,
            rank.group,
            rank.stuck,
            rank.given_up,
            rank.late,
            rank.again,
            rank.unlaunched,
            rank.ready,
            rank.uncounted,
            number in known.launched,
        )
        ranks.append(graph.part((mine, places, blame)))
    if setting.window is None and not setting.single:
        ranks.sort()
    lives = renumbered(world.lives, numbers or {}) if setting.single else Lives()
    rest = graph.part(world._replace(ranks=(), clock=0, lives=lives, time=Time()))
    found = (rest, graph.part(known.rest), order[known.census_ns], *ranks)
    if setting.failures is None:
        return found
    counted = tuple(map(days.day, known.times_ns))
    return (*found, graph.part((days.of(world.time, numbers or {}), known.backoff, counted)))
