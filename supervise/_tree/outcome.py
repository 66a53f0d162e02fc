"""Errors for the end of a tree, and for an ask that a tree does not fulfill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise._tree.monitor import LOST, NOPROC
from supervise.errors import RestartLimitExceeded, SpecError, SuperviseError, SupervisorCrashed
from supervise.recording import repr_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervise._core.tree_state import Problem, Tree
    from supervise._tree.monitor import Reason
    from supervise.trees import TreePhase


def ask_error(name: str, phase: TreePhase, child_id: str, problem: Problem, reason: Reason) -> BaseException:
    """Return the error for an ask that has failed.

    Args:
        name: Name of the tree.
        phase: Phase of the tree.
        child_id: Id of the child that the ask names.
        problem: The problem that the core reports.
        reason: Reason of the child's last end.
    """
    if problem == "failed":
        return as_error(child_id, reason)
    what = {
        "unknown": f"there is no child {child_id!r}",
        "present": f"there is a child {child_id!r} already",
        "ending": f"the tree is {phase}",
        "ended": f"the tree was stopped before child {child_id!r} had started",
        "terminated": f"child {child_id!r} was stopped before it had started",
        "abandoned": f"child {child_id!r} has not stopped in time; its thread was abandoned",
    }[problem]
    refused = problem in ("unknown", "present", "ending")
    return (SpecError if refused else SuperviseError)(f"{name}: {what}")


def end_error(name: str, tree: Tree, reasons: Mapping[str, Reason]) -> BaseException | None:
    """Return the error with which a tree ends; None if the tree was stopped and no child is left.

    Args:
        name: Name of the tree.
        tree: State of the tree.
        reasons: Child id to the reason of the child's last end.
    """
    culprit, policy = tree.culprit, tree.policy
    abandoned = [child.id for child in tree.children.values() if child.state == "abandoned"]
    if tree.outcome == "stopped" and not abandoned:
        return None
    error: SuperviseError
    if tree.outcome == "not_started":
        error = SuperviseError(f"{name}: child {culprit!r} could not be started")
    elif tree.outcome == "gave_up":
        window = "" if policy.within_s is None else f" within {policy.within_s:g} s"
        restarts = f"{policy.max_restarts} restart{'' if policy.max_restarts == 1 else 's'}"
        msg = f"{name}: child {culprit!r} has failed, after {restarts}{window}"
        error = RestartLimitExceeded(msg, child_id=culprit)
    else:
        culprit = culprit or abandoned[0]
        msg = f"{name}: child {culprit!r} has not stopped in time; its thread was abandoned"
        error = RestartLimitExceeded(msg, child_id=culprit)
    error.__cause__ = as_error(culprit, reasons.get(culprit))
    return error


def crash_error(name: str, error: BaseException) -> SupervisorCrashed:
    """Return the error with which the tree `name` ends after a handler of it has raised `error`."""
    crash = SupervisorCrashed(f"{name}: a handler of the tree raised {repr_of(error)}; its children were stopped")
    crash.__cause__ = error
    return crash


def as_error(child_id: str, reason: Reason) -> BaseException:
    """Return the end of a child as an error, also if no exception is known."""
    if isinstance(reason, BaseException):
        return reason
    what = {
        NOPROC: "was dead when its start function returned; the log of pykka has the exception of its on_start",
        LOST: "was lost: a BaseException left its on_start",
        None: "was stopped",
    }[reason]
    return SuperviseError(f"child {child_id!r} {what}")
