"""What can happen around the core of a gang with roles: the order of launches and of a close, the end of services."""

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.model.neutral import Neutral, check

if TYPE_CHECKING:
    from tests.model.world import World


class Roles(NamedTuple):
    """The roles of a gang, and the state of its ordered close."""

    of: tuple[int, ...] = ()
    """The role of each rank; empty if there is one role."""
    needs: tuple[frozenset[int], ...] = ()
    """The roles that each role needs, directly or not."""
    services: frozenset[int] = frozenset()
    order: str = ""
    """How the roles are closed: "each" with a grace, one for the "whole", or "": all at once."""
    killed: frozenset[int] = frozenset()
    """Ranks to which a stop of the gang has sent SIGKILL."""
    over: frozenset[int] = frozenset()
    """Roles whose grace is over in a stop of the gang."""
    waited: frozenset[int] = frozenset()
    """Roles whose wait after SIGKILL is over in a stop of the gang."""

    def needed_by(self, role: int) -> frozenset[int]:
        """Return the roles that need a role."""
        return frozenset(other for other, needed in enumerate(self.needs) if role in needed)


def check_launch(world: "World", number: int) -> None:
    """Check that every rank that the rank needs was launched and is ready."""
    from tests.model.world import ABSENT, ALIVE, LAUNCHING

    roles = world.roles
    for other, rank in enumerate(world.ranks if roles.of else ()):
        if roles.of[other] in roles.needs[roles.of[number]]:
            unready = rank.stage == LAUNCHING or (world.notify and rank.stage == ALIVE and not rank.ready)
            unlaunched = rank.stage == ABSENT and not world.running and other not in world.lives.down
            check(not (unready or unlaunched), "a role is launched before one that it needs is ready")


def following(world: "World", number: int) -> set[int]:
    """Return the ranks that a failure of a rank concerns under rest_for_one, apart from the rank."""
    roles, ranks = world.roles, range(len(world.ranks))
    if not roles.of:
        return set(ranks[number + 1 :])
    own, dependent = roles.of[number], roles.needed_by(roles.of[number])
    return {rank for rank in ranks if roles.of[rank] in dependent or (roles.of[rank] == own and rank > number)}


def closed(world: "World", fields: dict[str, Any]) -> Roles:
    """Return the state behind a close: the first gives the order, a shorter one gives it up."""
    roles, order = world.roles, fields.get("order", "")
    if fields["death_sig"] == "SIGKILL":
        roles = roles._replace(over=frozenset(roles.of))
    if not world.ended:
        stops = world.counting or world.counted or world.published
        return roles._replace(order=order if roles.of and not stops else "")
    return roles if order in ("each", roles.order) else roles._replace(order="")


def clients_are_over(world: "World") -> bool:
    """Return whether every rank that is no service has ended, in a gang that restarts none of them."""
    from tests.model.world import REAPED

    roles = world.roles
    clients = [rank for number, rank in enumerate(world.ranks) if number not in roles.services]
    over = all(rank.stage == REAPED and not (rank.failed and world.lives.most) for rank in clients)
    return bool(roles.services) and world.running and over


def must_end(world: "World") -> bool:
    """Return whether the gang must come to its end by itself: only services are left, and none is being launched."""
    from tests.model.world import LAUNCHING

    return clients_are_over(world) and all(rank.stage != LAUNCHING for rank in world.ranks)


def obey(world: "World", action: Neutral) -> "World | None":
    """Do what the core says during a stop of a gang with roles; None for another action.

    Raises:
        BrokenPromiseError: Names the invariant.
    """
    roles, fields = world.roles, action.fields
    if action.name == "ReportUnkillable" and roles.killed.issuperset(fields["ranks"]):
        waited = not roles.of or roles.waited.issuperset(roles.of[number] for number in fields["ranks"])
        check(waited, "a role is called unkillable before its own wait is over")
        for number in fields["ranks"]:
            world = world.with_rank(number, stuck=True)
        return world
    if not roles.of or not (world.counted or world.published):
        return None
    if action.name == "SetTimer" and fields["name"] == "kill":
        name = "kill" if (role := fields.get("role")) is None else f"kill {role}"
        return world._replace(timers=world.timers | {name})
    if action.name != "SendSignal":
        return None
    _check_there(world, fields["ranks"])
    over = [roles.of[number] in roles.over for number in fields["ranks"]]
    if fields["sig"] == "SIGKILL":
        check(all(over), "SIGKILL before the grace of a role is over")
        return world._replace(roles=roles._replace(killed=roles.killed | set(fields["ranks"])))
    check(not any(over), "a polite signal after the grace of the role")
    if roles.order:
        _check_turn(world, fields["ranks"])
    return world


def check_due(world: "World", pending: frozenset[int], signaled: frozenset[int]) -> None:
    """Check that a stop of the gang has signaled each rank that nothing waits for."""
    roles = world.roles
    left = {roles.of[number] for number in pending} if roles.of else set()
    for number in pending if roles.of else ():
        due = left.isdisjoint(roles.needed_by(roles.of[number]))
        check(number in signaled or not due, "a role waits for one that does not need it")


def expired(world: "World", name: str) -> Roles:
    """Return the state behind the end of a grace or of the wait behind it: of a role, "grace 1", or of all, "grace"."""
    roles, (kind, _, role) = world.roles, name.partition(" ")
    if kind == "kill":
        return roles._replace(waited=roles.waited | {int(role)} if role else frozenset(roles.of))
    if kind != "grace":
        return roles
    return roles._replace(over=roles.over | {int(role)} if role else frozenset(roles.of))


def _check_turn(world: "World", targets: tuple[int, ...]) -> None:
    roles = world.roles
    left = {role for role, rank in zip(roles.of, world.ranks, strict=True) if rank.left}
    for number in targets:
        check(left.isdisjoint(roles.needed_by(roles.of[number])), "a role is signaled before one that needs it is gone")


def _check_there(world: "World", targets: tuple[int, ...]) -> None:
    from tests.model.world import ALIVE, DEAD

    for number in targets:
        rank = world.ranks[number]
        there = rank.stage in (ALIVE, DEAD) or rank.group
        check(there and not rank.given_up, "a signal to a rank that does not run")


def late(world: "World", number: int) -> bool:
    """Return whether the expiry of the wait after SIGKILL concerns the pending launch of a rank."""
    return world.roles.of[number] in world.roles.waited if world.roles.of else world.killed


def check_dismissed(world: "World", targets: tuple[int, ...]) -> None:
    """Check that a service is stopped after those that need it."""
    from tests.model.world import ABSENT, REAPED

    roles = world.roles
    for number in roles.services.intersection(targets) if clients_are_over(world) else ():
        later = [each for each in roles.services if roles.of[each] in roles.needed_by(roles.of[number])]
        check(
            all(world.ranks[each].stage in (ABSENT, REAPED) for each in later),
            "a service is stopped before one that needs it",
        )


def check_verdict(world: "World", result: dict[str, Any]) -> None:
    """Check that a gang has succeeded whose services were stopped because all others had."""
    services, found = world.roles.services, result["roles"]
    others = [found.get(number) for number in range(len(world.ranks)) if number not in services]
    given_up = any(rank.given_up for rank in world.ranks)
    if services and services <= world.lives.told and set(others) == {"finished"} and not given_up:
        check(result["outcome"] in ("succeeded", "failed"), f"{result['outcome']} after all but services had succeeded")
        check("root_cause" in found.values() or result["outcome"] == "succeeded", "failed without a cause")
