"""Validation of the arguments of a tree, before any child is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise import trees
from supervise.errors import SpecError
from supervise.recording import repr_of
from supervise.restarts import RestartPolicy, check_strategy

if TYPE_CHECKING:
    from collections.abc import Iterable


def checked_specs(
    name: object, children: Iterable[trees.ChildSpec], strategy: object, restart_policy: object, event_sink: object
) -> list[trees.ChildSpec]:
    """Return the specs of the children.

    Raises:
        SpecError: A setting is not valid; the text names it.
    """
    if not isinstance(name, str) or not name:
        raise SpecError(f"name is {name!r}; give the tree a name, a string that is not empty")
    check_strategy(strategy)
    if restart_policy is not None and not isinstance(restart_policy, RestartPolicy):
        raise SpecError(f"restart_policy is {restart_policy!r}; give a RestartPolicy, or None")
    for what in ("uncounted_exit_codes", "never_restart_exit_codes"):
        if getattr(restart_policy, what, None):
            raise SpecError(f"restart_policy has {what}, which are for gangs only; give them to the gang's own policy")
    if event_sink is not None and not callable(event_sink):
        raise SpecError(f"event_sink is {event_sink!r}; give a function of one argument, the event, or None")
    try:
        specs = list(children)
    except TypeError:
        raise SpecError(f"children is {children!r}; give a list of ChildSpec") from None
    seen = set[str]()
    for spec in specs:
        if not isinstance(spec, trees.ChildSpec):
            raise SpecError(f"children holds {spec!r}; give ChildSpec only")
        if spec.id in seen:
            raise SpecError(f"two children have the id {spec.id!r}; give each its own")
        seen.add(spec.id)
    return specs


def stray(message: object) -> SpecError:
    """Return the error for a message that no tree accepts. An ask raises it; for a tell it is logged."""
    accepted = (
        "Start(), Wait(), Status(), Subscribe(...), Unsubscribe(...), StartChild(...), TerminateChild(...)"
        " or RestartChild(...)"
    )
    return SpecError(f"an ActorSupervisor does not accept {repr_of(message)}; send it {accepted}")
