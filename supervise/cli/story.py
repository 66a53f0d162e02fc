"""The facts about a run that its result does not have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from supervise._printable import one_line

if TYPE_CHECKING:
    from signal import Signals


@dataclass(slots=True, kw_only=True)
class Story:
    """Facts about a run that its result does not have."""

    nproc: int
    grace_s: float
    hosts: int = 1
    """Number of hosts, each with as many ranks."""
    host: int = 0
    """Number of this host, from 0."""
    titles: tuple[str, ...] = ()
    """Role and role rank of each local rank; empty if all have the same role."""
    timeout_s: float | None = None
    stacks: str = ""
    """The file with the stacks of the last hang; empty: none."""
    directory: str | None = None
    """The run directory; None: no files."""
    by_command: bool = False
    """Whether a command, ``supervise stop``, has stopped the run; then `user_signal` is the signal that it gave."""
    user_signal: Signals | None = None
    """The signal with which the user stopped the run."""
    interrupted: int | None = None
    """The local rank that had the terminal and ended at Ctrl-C, which stopped the run."""
    killed: bool = False
    """Whether the user sent a second signal."""
    restarts: int = 0
    """Number of attempts before the present one."""
    waiting: str | None = None
    """The pending restart, such as ``restart 1 of 3``."""
    sent: dict[int, list[Signals]] = field(default_factory=dict)
    """Local rank to the signals that supervise sent to stop it."""
    passed_on: dict[int, list[Signals]] = field(default_factory=dict)
    """Local rank to the signals that supervise passed on: SIGUSR1, SIGUSR2."""
    halted: bool = False
    """Whether `--halt-on-broken-pipe` has stopped the run."""
    stderr_shown: frozenset[int] = frozenset()
    """Ranks whose stderr was both shown and written."""


def stopped_by_us(rank: int, exitcode: int | None, story: Story) -> bool:
    """Return whether a signal of supervise ended a rank. Such a rank is a cause only if it recorded an exception."""
    return exitcode is not None and -exitcode in story.sent.get(rank, ())


def shortened(text: str, limit: int) -> str:
    """Return `text` on one line of at most `limit` characters."""
    text = one_line(text)
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."
