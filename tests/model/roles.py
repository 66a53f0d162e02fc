"""What can happen around the core of a gang with roles: the order of launches and of a close, the end of services."""

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.model.neutral import Neutral, check

if TYPE_CHECKING:
    from tests.model.world import World


class Roles(NamedTuple):
    """The roles of a gang, and the state of its ordered close."""

    of: tuple[int, ...] = ()
    """The role of each rank; empty if there is one role."""
    services: frozenset[int] = frozenset()
    order: str = ""
    """How the roles are closed: "each" with a grace, one for the "whole", or "": all at once."""
    killed: frozenset[int] = frozenset()
    """Ranks to which an ordered close has sent SIGKILL."""
    killed_from: int | None = None
    """The lowest role whose grace is over in a close with a grace for each."""


def check_launch(world: "World", number: int) -> None:
    """Check that every rank of a lower role that was launched is ready."""
    from tests.model.world import ALIVE, LAUNCHING

    of = world.roles.of
    lower = [rank for rank, role in zip(world.ranks, of, strict=False) if of and role < of[number]]
    for rank in lower:
        unready = rank.stage == LAUNCHING or (world.notify and rank.stage == ALIVE and not rank.ready)
        check(not unready, "a role is launched before the one below it is ready")


def closed(world: "World", fields: dict[str, Any]) -> Roles:
    """Return the state behind a close: the first gives the order, a shorter one gives it up."""
    roles, order = world.roles, fields.get("order", "")
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
    """Do what the core says during an ordered close; None for another action.

    Raises:
        BrokenPromiseError: Names the invariant.
    """
    roles, fields = world.roles, action.fields
    if action.name == "ReportUnkillable" and roles.killed.issuperset(fields["ranks"]):
        for number in fields["ranks"]:
            world = world.with_rank(number, stuck=True)
        return world
    if not roles.order or not world.counted:
        return None
    match action.name:
        case "SendSignal" if fields["sig"] != "SIGKILL":
            _check_turn(world, fields["ranks"])
            check(roles.killed.isdisjoint(fields["ranks"]), "a polite signal after SIGKILL to the role")
            return None
        case "SendSignal" if roles.order == "each":
            _check_there(world, fields["ranks"])
            _check_turn(world, fields["ranks"])
            return world._replace(roles=roles._replace(killed=roles.killed | set(fields["ranks"])))
        case "SetTimer" if fields["name"] == "kill" and roles.order == "each":
            turn = min(_last_role(world), len(world.ranks) if roles.killed_from is None else roles.killed_from)
            return world._replace(timers=world.timers | {"kill"}, roles=roles._replace(killed_from=turn))
    return None


def _last_role(world: "World") -> int:
    return max((role for role, rank in zip(world.roles.of, world.ranks, strict=True) if rank.left), default=0)


def _check_turn(world: "World", targets: tuple[int, ...]) -> None:
    for number in targets:
        check(world.roles.of[number] >= _last_role(world), "a role is signaled before a later one has ended")


def _check_there(world: "World", targets: tuple[int, ...]) -> None:
    from tests.model.world import ALIVE, DEAD

    for number in targets:
        rank = world.ranks[number]
        there = rank.stage in (ALIVE, DEAD) or rank.group
        check(there and not rank.given_up, "a signal to a rank that does not run")


def late(world: "World", number: int) -> bool:
    """Return whether the expiry of the wait after SIGKILL concerns the pending launch of a rank."""
    roles = world.roles
    if roles.order != "each" or world.killed:
        return world.killed
    return roles.killed_from is not None and roles.of[number] >= roles.killed_from


def check_dismissed(world: "World", targets: tuple[int, ...]) -> None:
    """Check that services are stopped from the last role to the first."""
    from tests.model.world import ABSENT, REAPED

    roles = world.roles
    for number in roles.services.intersection(targets) if clients_are_over(world) else ():
        later = [each for each in roles.services if roles.of[each] > roles.of[number]]
        check(
            all(world.ranks[each].stage in (ABSENT, REAPED) for each in later),
            "a service is stopped before a later one",
        )


def check_verdict(world: "World", result: dict[str, Any]) -> None:
    """Check that a gang has succeeded whose services were stopped because all others had."""
    services, found = world.roles.services, result["roles"]
    others = [found.get(number) for number in range(len(world.ranks)) if number not in services]
    given_up = any(rank.given_up for rank in world.ranks)
    if services and services <= world.lives.told and set(others) == {"finished"} and not given_up:
        check(result["outcome"] in ("succeeded", "failed"), f"{result['outcome']} after all but services had succeeded")
        check("root_cause" in found.values() or result["outcome"] == "succeeded", "failed without a cause")
