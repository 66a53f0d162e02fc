"""The exit code of ``supervise run``."""

from __future__ import annotations

from signal import SIGPIPE
from typing import TYPE_CHECKING

from supervise.cli import program
from supervise.cli.story import stopped_by_us

if TYPE_CHECKING:
    from supervise.cli.story import Story
    from supervise.result import RunProcsResult

TIMED_OUT = 124


def exit_code(result: RunProcsResult, story: Story, rank: int | None) -> int:
    """Return the exit code for a result.

    Args:
        result: The result of the gang.
        story: Further facts: the signals of the user, and a pending restart.
        rank: The local rank whose exit code to return unless the user or a timeout ended the run; None: the root cause.
    """
    sig = SIGPIPE if story.halted else story.user_signal
    by_user = 1 if sig is None else 128 + sig
    if result.outcome == "timed_out" or (story.waiting is not None and story.user_signal is None):
        return TIMED_OUT
    if story.waiting is not None or (result.outcome == "stopped" and sig is not None):
        return by_user  # also if a pending restart was canceled
    if rank is not None and rank in result.ends:
        code = result.ends[rank].exitcode
        return 1 if code is None else program.as_shell(code)
    if result.outcome == "succeeded":
        return 0
    root = result.root_cause if result.outcome == "failed" else None
    return by_user if root is None else _of_root_cause(root, result.failures[root].exitcode, story)


def _of_root_cause(root: int, code: int, story: Story) -> int:
    if stopped_by_us(root, code, story):  # it had raised an exception and was exiting
        return 1
    return program.as_shell(code) or 1
