"""The exit code of ``supervise run``."""

from __future__ import annotations

from signal import SIGPIPE
from typing import TYPE_CHECKING

from supervise._views.story import stopped_by_us
from supervise.cli import program

if TYPE_CHECKING:
    from supervise._views.story import Story
    from supervise.result import RunProcsResult

TIMED_OUT = 124


def exit_code(result: RunProcsResult, story: Story, rank: int | None) -> int:
    """Return the exit code for a result.

    Args:
        result: The result of the gang.
        story: Further facts: the signals of the user, and a pending restart.
        rank: The local rank whose exit code is returned; None: the root cause. It does not count if the user or a
            timeout ended the run.
    """
    sig = SIGPIPE if story.halted else story.user_signal
    by_user = 1 if sig is None else 128 + sig
    if result.outcome == "timed_out" or (story.waiting is not None and story.user_signal is None):
        return TIMED_OUT
    if story.waiting is not None or (result.outcome == "stopped" and sig is not None):
        return by_user  # also if a pending restart was canceled
    if rank is not None and rank in result.ends:
        code = result.ends[rank].exitcode
        return _unlaunched(rank, story) if code is None else program.as_shell(code)
    if result.outcome == "succeeded":
        return 0
    root = result.root_cause if result.outcome == "failed" else None
    if root is not None and root in result.ends and result.ends[root].pid is None:
        return _unlaunched(root, story)
    return by_user if root is None else _of_root_cause(root, result.failures[root].exitcode, story)


def _unlaunched(rank: int, story: Story) -> int:
    """Return the exit code for a rank without one: that of shells if its program could not be launched; otherwise 1."""
    failed = story.unlaunched.get(rank)
    if failed is None:
        return 1
    if story.directory is not None and story.directory in failed.why:  # the error is about a log file
        return program.USAGE
    return program.launch_code(failed.errno)


def _of_root_cause(root: int, code: int, story: Story) -> int:
    if stopped_by_us(root, code, story):  # the rank had raised an exception and was exiting
        return 1
    return program.as_shell(code) or 1
