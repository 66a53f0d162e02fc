"""The order of roles: a graph of names, checked before any start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def needs_of(given: Mapping[str, Sequence[str] | None]) -> dict[str, frozenset[str]]:
    """Return the name of each role to the names of those that it needs, directly or not.

    Args:
        given: The name of each role to its ``needs``, in the order of the roles. If all are None, each role needs those
            before it.

    Raises:
        SpecError: A role needs one that does not exist, or roles need each other; the text names the roles.
    """
    names = list(given)
    if all(needs is None for needs in given.values()):
        return {name: frozenset(names[:number]) for number, name in enumerate(names)}
    for name, needs in given.items():
        for each in needs or ():
            if each not in given:
                raise SpecError(f"role {name!r}: needs names {each!r}, which is not a role{_meant(each, names)}")
    from graphlib import CycleError, TopologicalSorter

    try:
        order = tuple(TopologicalSorter({name: needs or () for name, needs in given.items()}).static_order())
    except CycleError as error:
        circle = " needs ".join(map(repr, reversed(error.args[1])))
        raise SpecError(f"roles wait for each other: {circle}; remove one of these needs") from None
    found: dict[str, frozenset[str]] = {}
    for name in order:
        direct = frozenset(given[name] or ())
        found[name] = direct.union(*(found[each] for each in direct))
    return {name: found[name] for name in names}


def _meant(word: str, names: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, names, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; the roles are {', '.join(names)}"


def levels(needs: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Return the roles by levels: those of a level need only roles of lower levels.

    Args:
        needs: The result of `needs_of`.
    """
    depths: dict[str, int] = {}
    for name in sorted(needs, key=lambda each: len(needs[each])):  # a role needs more than each role that it needs
        depths[name] = 1 + max((depths[each] for each in needs[name]), default=-1)
    return [[name for name in needs if depths[name] == depth] for depth in range(1 + max(depths.values(), default=-1))]
