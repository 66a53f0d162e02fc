"""Breadth-first search over all orders of events around the core of a tree, to the fixpoint."""

from collections import deque
from dataclasses import dataclass, fields
from operator import attrgetter

from supervise.restarts import RestartKind, RestartPolicy, Strategy
from tests.model.graph import Graph
from tests.model.search import Found
from tests.model.timed import UNIT_NS, UNIT_S, Calendar, Time
from tests.model.tree_world import FATE, Actor, World, check_state, learn, moves, obey, ts


@dataclass(frozen=True, kw_only=True)
class TreeSetting:
    """One tree to be searched."""

    strategy: Strategy
    kinds: tuple[RestartKind, ...] = ("transient", "transient")
    max_restarts: int = 2
    backoff: float = 1.0
    """Units of time before the first restart."""
    within: float | None = None
    """Units of time for which a restart counts."""
    failures: int | None = None
    """How many children fail while time passes; None: time does not pass, and each child may fail."""
    asks: int = 1
    ignores: bool = False

    def tree(self) -> ts.Tree:
        """Return the tree, not started yet."""
        within_s = None if self.within is None else self.within * UNIT_S
        policy = RestartPolicy(self.max_restarts, within_s=within_s, backoff=self.backoff * UNIT_S)
        children = {name: ts.Child(name, kind) for name, kind in zip("abcd", self.kinds, strict=False)}
        return ts.Tree(self.strategy, policy, children)

    def time(self) -> Time:
        """Return the policy as the world knows it."""
        backoff_s = self.backoff * UNIT_S
        return Time(most=self.max_restarts, within=self.within, backoff_s=backoff_s, failures=self.failures)


_child_fields = attrgetter(*(each.name for each in fields(ts.Child)))
_child_key = attrgetter(*(each.name for each in fields(ts.Child) if each.name != "life"))
State = tuple[World, ts.Tree]


def search_tree(setting: TreeSetting) -> Found:
    """Visit every state that can be reached; stop at the first broken invariant."""
    tree = setting.tree()
    begin: State = World(tuple((name, Actor()) for name in tree.children), time=setting.time()), tree
    graph, found = Graph(), Found()
    graph.visit(key(begin, graph), 0, "")
    queue, ends, asked = deque([(begin, 0)]), list[int](), bytearray([0])
    while queue:
        state, place = queue.popleft()
        if state[0].published:
            ends.append(place)
        for name, world, events in moves(*state, asks=setting.asks, ignores=setting.ignores):
            found.steps += 1
            try:
                after = step((world, state[1]), events)
            except Exception as error:
                found.broken, found.path = str(error) or repr(error), [*graph.path(place), name]
                found.states = len(graph)
                return found
            there, is_new = graph.visit(key(after, graph), place, name)
            graph.add_move(place, there, flag=name.rpartition(" ")[0] in FATE)
            if is_new:
                asked.append(after[0].ending)
                queue.append((after, there))
    found.states = len(graph)
    for freely, wanted in ((True, "no end can be reached"), (False, "the end needs the good will of an actor")):
        reached = graph.leading_to(ends, with_flagged=freely)
        for place in range(len(graph)):
            if not found.broken and not reached[place] and (freely or asked[place]):
                found.broken, found.path = wanted, graph.path(place)
    return found


def step(state: State, events: tuple[ts.Event, ...]) -> State:
    """Tell the core, obey its actions, check that it may ask for them."""
    world, tree = state[0], _copy(state[1])
    for event in events:
        actions = ts.decide(tree, event)
        world = learn(state[1], world, tree)
        for action in actions:
            world = obey(world, action, tree)
    check_state(world, tree)
    return world, tree


def _copy(tree: ts.Tree) -> ts.Tree:
    """Return a tree that can go another way from here."""
    children = {name: ts.Child(*_child_fields(child)) for name, child in tree.children.items()}
    return ts.Tree(
        tree.strategy, tree.policy, children, tree.phase, tree.backoff, dict(tree.asks), tree.outcome, tree.culprit
    )


def key(state: State, graph: Graph) -> tuple[int, ...]:
    """Return what tells this state from others; the numbers of lives do not matter."""
    world, tree = state
    actors = tuple((name, actor.stage, actor.timed) for name, actor in world.actors)
    children = tuple(_child_key(child) for child in tree.children.values())
    rest = tree.phase, len(tree.backoff.counted_ns), tuple(sorted(tree.asks.items())), tree.outcome, tree.culprit
    clockless = world._replace(actors=(), now=0, time=Time(), waits=frozenset())
    found = graph.part((clockless, actors)), graph.part(children), graph.part(rest)
    return found if world.time.failures is None else (*found, graph.part(_times(world, tree)))


def _times(world: World, tree: ts.Tree) -> tuple[object, ...]:
    """Return the times on which the next restart depends, without their distance from the begin."""
    counted_ns, dues = tree.backoff.counted_ns, [each.due or 0 for each in world.waits]
    days = Calendar(world.time, world.now, (*counted_ns, *(due * UNIT_NS for due in dues)), over=world.ending)
    waits = frozenset(
        (each.ids, each.delay_s, each.due and days.day(max(each.due, world.now) * UNIT_NS)) for each in world.waits
    )
    return days.of(world.time, {}), waits, tree.backoff.in_a_row, tuple(map(days.day, counted_ns))
