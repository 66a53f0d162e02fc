"""Bugs of the kinds that a tree must not have, put into its core for a while: the search must find each."""

from typing import Any
from unittest.mock import patch

from tests.model.tree_world import ts, ts as core


def _instead(name: str, new: Any) -> Any:
    """Replace a function of the core by `new`, which is given the old one first."""
    old = getattr(core, name)
    return patch.object(core, name, lambda *args: new(old, *args))


def a_stop_in_the_backoff_is_forgotten() -> Any:
    """Every path can end."""

    def forget(old: Any, tree: ts.Tree, *args: Any) -> None:
        if not any(child.state == "backoff" for child in tree.children.values()):
            old(tree, *args)

    return _instead("_end", forget)


def a_restart_is_not_counted() -> Any:
    """The intensity is never exceeded."""

    def forget(old: Any, tree: ts.Tree, *args: Any) -> None:
        old(tree, *args)
        tree.backoff = tree.backoff._replace(counted_ns=())

    return _instead("_restart", forget)


def children_stop_in_the_order_of_their_start() -> Any:
    """Children stop in reverse order."""

    def forwards(old: Any, tree: ts.Tree, actions: Any) -> None:
        order = tree.children
        tree.children = dict(reversed(order.items()))
        old(tree, actions)
        tree.children = order

    return _instead("_stop_next", forwards)


def a_restart_starts_beside_what_still_stops() -> Any:
    """A set is gone before it starts anew, in order."""
    return _instead("_keeps_order", lambda _old, tree: tree.phase == "stopping")


def one_for_one_stops_the_siblings() -> Any:
    """The strategy says who is stopped."""
    return _instead("_set_of", lambda _old, tree, _cause: list(tree.children.values()))


def a_temporary_child_is_restarted() -> Any:
    """The restart kind says who is started anew."""

    def forget(old: Any, tree: ts.Tree, child: ts.Child, *args: Any) -> None:
        kind, child.kind = child.kind, "permanent"
        old(tree, child, *args)
        child.kind = kind

    return _instead("_ended", forget)


def a_child_that_is_stuck_is_awaited_for_ever() -> Any:
    """The end needs nobody's good will."""

    def ignore(old: Any, tree: ts.Tree, child: ts.Child, event: Any, actions: Any) -> None:
        if getattr(event, "what", "") != "overdue":
            old(tree, child, event, actions)

    return _instead("_life_changed", ignore)


def an_ask_for_a_child_that_is_terminated_is_forgotten() -> Any:
    """Every ask is answered."""

    def forget(old: Any, *args: Any) -> None:
        if "terminated" not in args:
            old(*args)

    return _instead("_answer", forget)


def the_end_is_published_twice() -> Any:
    """One end."""

    def twice(old: Any, tree: ts.Tree, actions: Any) -> None:
        old(tree, actions)
        if tree.phase == "finished":
            actions.append(ts.Publish())

    return _instead("_settle", twice)


def a_restart_is_begun_after_the_end_was_asked_for() -> Any:
    """No restart after the end was asked for."""

    def stay(old: Any, tree: ts.Tree, outcome: Any, *args: Any) -> None:
        waiting = [child for child in tree.children.values() if child.state == "waiting"]
        old(tree, outcome, *args)
        for child in waiting:
            child.state, child.life = "starting", child.life + 1
            args[-1].append(ts.Start(child.id, child.life))

    return _instead("_end", stay)


TREE_PLANTED = (
    a_stop_in_the_backoff_is_forgotten,
    a_restart_is_not_counted,
    children_stop_in_the_order_of_their_start,
    a_restart_starts_beside_what_still_stops,
    one_for_one_stops_the_siblings,
    a_temporary_child_is_restarted,
    a_child_that_is_stuck_is_awaited_for_ever,
    an_ask_for_a_child_that_is_terminated_is_forgotten,
    the_end_is_published_twice,
    a_restart_is_begun_after_the_end_was_asked_for,
)
