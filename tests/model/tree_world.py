"""Everything that can happen around the core of a tree: its actors, the asks, the timers, as one hashable state."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from supervise._core import tree_state as ts
from tests.model.world import BrokenPromiseError

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
        yield f"backoff {name}", world._replace(backoffs=world.backoffs - {name}), (ts.BackoffExpired(name),)
    if not world.stop_asked and world.begun:
        yield "stop", world._replace(stop_asked=True, ending=True), (ts.StopAsked(),)
    if world.begun and world.asked < asks and not world.published:
        yield from _asks(world, tree)


def _actor_moves(world: World, name: str, actor: Actor, *, ignores: bool) -> Iterator[Move]:
    life = actor.life
    if actor.stage == STARTING:
        yield "ready", world.with_actor(name, stage=UP), (ts.Ready(name, life),)
        if ignores:
            yield "ignored", _over(world, name), (ts.Ignored(name, life),)
    if actor.stage in (STARTING, UP):
        ended = world.with_actor(name, stage=ENDED)._replace(may_stop=world.may_stop | {name})
        yield "succeeds", ended, (ts.Ended(name, life, normal=True),)
        yield "fails", ended, (ts.Ended(name, life, normal=False),)
    if actor.stage == ENDED:
        yield "gone", _over(world, name), (ts.Gone(name, life),)
    if actor.timed:
        yield (
            "expires",
            world.with_actor(name, stage=STUCK, timed=False)._replace(ending=True),
            (ts.StopExpired(name, life),),
        )
    if actor.stage == STUCK:
        yield "late end", _over(world, name), (ts.Ended(name, life, normal=False), ts.Gone(name, life))


def _over(world: World, name: str) -> World:
    return world.with_actor(name, stage=NONE, timed=False)._replace(may_stop=world.may_stop - {name})


def _asks(world: World, tree: ts.Tree) -> Iterator[Move]:
    key = world.asked
    for name in [*tree.children, "unknown"]:
        for what, event in (("restart", ts.RestartAsked(key, name)), ("terminate", ts.TerminateAsked(key, name))):
            after = world._replace(asked=key + 1, owed=world.owed | {(key, what, name)})
            yield f"{what} {name}", after._replace(may_stop=world.may_stop | {name}), (event,)
    for kind in ("transient", "temporary"):
        after = world._replace(asked=key + 1, owed=world.owed | {(key, "add", "new")})
        yield f"add {kind}", after, (ts.AddAsked(key, "new", kind),)


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
            return world._replace(backoffs=world.backoffs | {action.id})
        case ts.CancelBackoff():
            check(action.id in world.backoffs, "a backoff is canceled that does not run")
            return world._replace(backoffs=world.backoffs - {action.id})
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
    check(world.restarts <= tree.policy.max_restarts, "the intensity was exceeded")
    return world


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


def check(holds: bool, what: str) -> None:
    """Break off where a promise does not hold.

    Raises:
        BrokenPromiseError: Names it.
    """
    if not holds:
        raise BrokenPromiseError(what)


def learn(before: ts.Tree, world: World, tree: ts.Tree) -> World:
    """Return the world, which learns here that the tree gives up, and checks that it may."""
    ending = tree.phase in ("stopping", "finished")
    check(ending or not world.ending, "the end was asked for in vain")
    if ending and not world.ending:
        given_up = tree.outcome == "gave_up" and world.restarts == tree.policy.max_restarts
        check(given_up or (tree.outcome == "not_started" and before.phase == "starting"), "gives up too early")
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
