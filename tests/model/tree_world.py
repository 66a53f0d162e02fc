"""Everything that can happen around the core of a tree: its actors, the asks, the timers, as one hashable state."""

from collections.abc import Iterator
from math import ceil
from typing import Any, NamedTuple

from supervise._core import tree as ts
from tests.model.neutral import BrokenPromiseError, check
from tests.model.timed import ALL, UNIT_NS, UNIT_S, Time

NONE, STARTING, UP, ENDED, STUCK = range(5)
"""The stages of an actor; ENDED: its end was told, and its cleanup still runs."""

FATE = frozenset({"ready", "ignored", "succeeds", "fails", "gone", "late end"})
"""Moves that no one can enforce: an actor may be stuck for ever."""


class Actor(NamedTuple):
    """The actor of one child."""

    stage: int = NONE
    life: int = 0
    timed: bool = False
    """Whether the time to stop runs."""


class Wait(NamedTuple):
    """Children that restart together, after a backoff that is not over yet."""

    ids: frozenset[str]
    delay_s: float
    due: int | None = None
    """When it is over; None if it has not begun, or was canceled."""


class World(NamedTuple):
    """The state of everything but the core."""

    actors: tuple[tuple[str, Actor], ...]
    begun: bool = False
    backoffs: frozenset[str] = frozenset()
    owed: frozenset[tuple[int, str, str]] = frozenset()
    """Asks that are not answered: key, what, child."""
    asked: int = 0
    stop_asked: bool = False
    ending: bool = False
    """Whether the end was asked for, or the tree gives up."""
    may_stop: frozenset[str] = frozenset()
    """Children that the tree has a reason to stop."""
    restarts: int = 0
    published: bool = False
    now: int = 0
    """Units of time since the begin."""
    time: Time = Time()
    waits: frozenset[Wait] = frozenset()

    def actor(self, name: str) -> Actor:
        """Return the actor of a child."""
        return dict(self.actors).get(name, Actor())

    def with_actor(self, name: str, **changes: Any) -> "World":
        """Return this world with one actor changed."""
        actors = dict(self.actors)
        actors[name] = actors.get(name, Actor())._replace(**changes)
        return self._replace(actors=tuple(actors.items()))


Move = tuple[str, World, tuple[ts.Event, ...]]
"""Its name, the world behind it, and the events for the core."""


def moves(world: World, tree: ts.Tree, *, asks: int, ignores: bool) -> Iterator[Move]:
    """Yield every event that can come next."""
    if not world.begun:
        yield "start", world._replace(begun=True), (ts.StartAsked(),)
    for name, actor in world.actors:
        for move, after, events in _actor_moves(world, name, actor, ignores=ignores):
            yield f"{move} {name}", after, events
    for name in sorted(world.backoffs):
        mine = {wait for wait in world.waits if name in wait.ids}
        if all(wait.due is not None and wait.due <= world.now for wait in mine):
            after = world._replace(backoffs=world.backoffs - {name}, waits=world.waits - mine)
            yield f"backoff {name}", after, (ts.BackoffExpired(name),)
    if not world.stop_asked and world.begun:
        yield "stop", world._replace(stop_asked=True, ending=True), (ts.StopAsked(),)
    if world.begun and world.asked < asks and not world.published:
        yield from _asks(world, tree)
    if world.time.failures is not None and world.begun and not world.ending:
        yield "time passes", world._replace(now=world.now + 1), ()


def _actor_moves(world: World, name: str, actor: Actor, *, ignores: bool) -> Iterator[Move]:
    life = actor.life
    if actor.stage == STARTING:
        yield "ready", world.with_actor(name, stage=UP), (ts.LifeChanged(name, life, "ready"),)
        if ignores:
            yield "ignored", _over(world, name), (ts.LifeChanged(name, life, "ignored"),)
    if actor.stage in (STARTING, UP):
        ended = world.with_actor(name, stage=ENDED)._replace(may_stop=world.may_stop | {name})
        at_ns = world.now * UNIT_NS
        yield "succeeds", ended, (ts.Ended(name, life, normal=True, at_ns=at_ns),)
        if world.time.failures != 0:
            failures = world.time.failures and world.time.failures - 1
            failed = ended._replace(time=world.time._replace(failures=failures))
            yield "fails", failed, (ts.Ended(name, life, normal=False, at_ns=at_ns),)
    if actor.stage == ENDED:
        yield "gone", _over(world, name), (ts.LifeChanged(name, life, "gone"),)
    if actor.timed and (world.time.failures is None or world.ending):
        yield (
            "expires",
            world.with_actor(name, stage=STUCK, timed=False)._replace(ending=True),
            (ts.LifeChanged(name, life, "overdue"),),
        )
    if actor.stage == STUCK:
        yield "late end", _over(world, name), (ts.Ended(name, life, normal=False), ts.LifeChanged(name, life, "gone"))


def _over(world: World, name: str) -> World:
    return world.with_actor(name, stage=NONE, timed=False)._replace(may_stop=world.may_stop - {name})


def _asks(world: World, tree: ts.Tree) -> Iterator[Move]:
    key = world.asked
    for name in [*tree.children, "unknown"]:
        for event in (ts.Asked(key, name, "restart"), ts.Asked(key, name, "terminate")):
            what = event.what
            after = world._replace(asked=key + 1, owed=world.owed | {(key, what, name)})
            yield f"{what} {name}", after._replace(may_stop=world.may_stop | {name}), (event,)
    for kind in ("transient", "temporary"):
        after = world._replace(asked=key + 1, owed=world.owed | {(key, "add", "new")})
        yield f"add {kind}", after, (ts.Asked(key, "new", "add", kind),)


def obey(world: World, action: ts.Action, tree: ts.Tree) -> World:  # noqa: PLR0911 - one line an action
    """Do what the core says, and check that it may say so.

    Raises:
        BrokenPromiseError: Names the invariant.
    """
    check(not world.published, "something is done after the end")
    match action:
        case ts.Start():
            return _start(world, action, tree)
        case ts.Stop():
            return _stop(world, action, tree)
        case ts.SetBackoff():
            check(not world.ending, "a backoff after the end was asked for")
            check(action.id not in world.backoffs, "two backoffs of a child")
            world = world._replace(backoffs=world.backoffs | {action.id})
            return _begun(world, action) if world.time.failures is not None else world
        case ts.CancelBackoff():
            check(action.id in world.backoffs, "a backoff is canceled that does not run")
            waits = frozenset(each._replace(due=None) if action.id in each.ids else each for each in world.waits)
            return world._replace(backoffs=world.backoffs - {action.id}, waits=waits)
        case ts.Restarting():
            return _restarting(world, action, tree)
        case ts.Answer():
            return _answered(world, action, tree)
        case ts.Started():
            check(all(actor.stage in (UP, NONE) for _, actor in world.actors), "started beside a start")
            return world
        case ts.Stopping():
            check(world.ending, "an end is told that has no cause")
            return world
        case ts.Publish():
            return _published(world)


def _start(world: World, action: ts.Start, tree: ts.Tree) -> World:
    check(not world.ending, "a start after the end was asked for")
    actor = world.actor(action.id)
    check(actor.stage == NONE, "two lives of a child")
    check(action.life > actor.life or action.id == "new", "the number of an earlier life")
    mine = {each for each in world.waits if action.id in each.ids}
    check(all(each.due is not None and each.due <= world.now for each in mine), "a start before the backoff is over")
    world = world._replace(waits=world.waits - mine)
    check(all(other.stage != STARTING or other.timed for _, other in world.actors), "two starts at once")
    if tree.strategy != "one_for_one" or tree.phase == "starting":
        names = list(tree.children)
        for name in names[: names.index(action.id)]:
            check(tree.children[name].state not in ("waiting", "backoff"), "a start before an earlier child's")
        check(all(other.stage != ENDED and not other.timed for _, other in world.actors), "a start beside a stop")
    return world.with_actor(action.id, stage=STARTING, life=action.life)


def _stop(world: World, action: ts.Stop, tree: ts.Tree) -> World:
    actor = world.actor(action.id)
    check(actor.stage in (STARTING, UP, ENDED), "a stop of nobody")
    check(action.life == actor.life, "a stop of another life")
    check(world.ending or action.id in world.may_stop, "a stop of a child that the strategy lets live")
    in_order = tree.strategy != "one_for_one" or tree.phase != "running"
    if actor.stage != ENDED and in_order:
        names = list(tree.children)
        for name in names[names.index(action.id) + 1 :]:
            later, child = world.actor(name), tree.children[name]
            check(
                not later.timed and not (child.doomed and later.stage in (STARTING, UP)),
                "a stop before a later child's",
            )
    return world.with_actor(action.id, timed=True)


def _restarting(world: World, action: ts.Restarting, tree: ts.Tree) -> World:
    check(not world.ending, "a restart after the end was asked for")
    names = list(tree.children)
    expected = {"one_for_one": [action.id], "one_for_all": names, "rest_for_one": names[names.index(action.id) :]}
    members = set(expected[tree.strategy])
    check(set(action.ids) <= members, "a restart beyond the strategy")
    check(action.id in action.ids, "a restart without the child that has failed")
    check(tree.children[action.id].kind != "temporary", "a restart of a temporary child")
    world = world._replace(restarts=world.restarts + 1, may_stop=world.may_stop | members)
    if world.time.failures is not None:
        return _timed(world, action)
    check(world.restarts <= tree.policy.max_restarts, "the intensity was exceeded")
    return world


def _timed(world: World, action: ts.Restarting) -> World:
    """Check the limit within the window and the delay; a backoff that was not over is part of this one."""
    time, at_ns = world.time, world.now * UNIT_NS
    check(time.allows(at_ns), "more restarts within the window than the policy allows")
    needed_s = time.delay_after_s(time.recent(at_ns))
    check(action.delay_s == needed_s, f"a delay of {action.delay_s:g} s where the policy has {needed_s:g} s")
    earlier = {each for each in world.waits if not each.ids.isdisjoint(action.ids)}
    longest = Wait(
        frozenset(action.ids).union(*(each.ids for each in earlier)),
        max(needed_s, *(each.delay_s for each in earlier), 0),
    )
    waits = world.waits - earlier | ({longest} if longest.delay_s else set())
    return world._replace(waits=waits, time=time.with_restart(ALL, at_ns, counted=True))


def _begun(world: World, action: ts.SetBackoff) -> World:
    """Begin the backoff of children that restart together."""
    mine = [each for each in world.waits if action.id in each.ids]
    check(len(mine) == 1, "a backoff that no failure needs")
    check(action.delay_s == mine[0].delay_s, f"a backoff of {action.delay_s:g} s instead of {mine[0].delay_s:g} s")
    due = world.now + ceil(action.delay_s / UNIT_S)
    return world._replace(waits=world.waits - {mine[0]} | {mine[0]._replace(due=due)})


def _answered(world: World, action: ts.Answer, tree: ts.Tree) -> World:
    (found,) = [each for each in world.owed if each[0] == action.key] or [None]
    if found is None:
        raise BrokenPromiseError("an ask is answered twice")
    _, what, name = found
    actor = world.actor(name)
    if not action.problem and what == "terminate":
        check(actor.stage == NONE, "a terminated child lives")
    elif not action.problem:
        doomed = name in tree.children and tree.children[name].doomed
        check(actor.stage == ENDED or (actor.stage in (UP, NONE) and not doomed), "a child is said to have started")
    return world._replace(owed=world.owed - {found})


def _published(world: World) -> World:
    check(world.ending, "an end that nobody asked for")
    check(all(actor.stage in (NONE, STUCK) for _, actor in world.actors), "an end beside what lives")
    check(not world.owed, "an ask is not answered")
    check(not world.backoffs, "a backoff outlives the end")
    return world._replace(published=True)


def learn(before: ts.Tree, world: World, tree: ts.Tree) -> World:
    """Return the world, which learns here that the tree gives up, and checks that it may."""
    ending = tree.phase in ("stopping", "finished")
    check(ending or not world.ending, "the end was asked for in vain")
    if ending and not world.ending:
        given_up = tree.outcome == "gave_up" and world.restarts == tree.policy.max_restarts
        if world.time.failures is not None:
            given_up = tree.outcome == "gave_up" and not world.time.allows(world.now * UNIT_NS)
        check(given_up or (tree.outcome == "not_started" and before.phase == "starting"), "the tree gives up too early")
    return world._replace(ending=ending)


def check_state(world: World, tree: ts.Tree) -> None:
    """Check what must hold between two moves."""
    busy = any(actor.stage in (STARTING, ENDED) or actor.timed for _, actor in world.actors)
    if not world.ending and world.begun and not busy and not world.backoffs:
        for child in tree.children.values():
            check(child.state != "waiting" and not child.doomed, "a child is forgotten")
    for name, child in tree.children.items():
        alive = world.actor(name).stage in (STARTING, UP, ENDED)
        check((child.state in ts.ALIVE) == alive, "a child's state is not that of its actor")
