"""The facts about a gang that its result does not have, for the report on its failure."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from signal import SIGINT, SIGKILL, SIGTERM, Signals
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from supervise.result import RunProcsResult

ERRNO = r"\[Errno \d+\] "
_SIGNALS = frozenset(Signals)
_STOPS = frozenset({SIGINT, SIGKILL, SIGTERM})


class Unlaunched(NamedTuple):
    """Why a later life of a rank could not be launched."""

    errno: int | None
    why: str

    def __str__(self) -> str:
        """Return the reason as a message."""
        return f"could not be started: {re.sub(ERRNO, '', self.why)}"


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Story:
    """Facts about a run that its result does not have."""

    nproc: int
    grace_s: float
    hosts: int = 1
    """Number of hosts. All hosts have the same number of ranks."""
    host: int = 0
    """Number of this host, from 0."""
    titles: tuple[str, ...] = ()
    """Role and role rank of each local rank; empty if all have the same role."""
    timeout_s: float | None = None
    stacks: str = ""
    """The file with the stacks of the last hang; empty: none."""
    directory: str | None = None
    """The run directory; None: no files."""
    of_command: bool = True
    """Whether `supervise run` has started the gang, so that the report names its options; otherwise Python code has."""
    by_command: bool = False
    """Whether a command, ``supervise stop``, has stopped the run. Then `user_signal` is the signal of that command."""
    user_signal: Signals | None = None
    """The signal with which the user stopped the run."""
    interrupted: int | None = None
    """The local rank that had the terminal, ended at Ctrl-C, and so stopped the run."""
    killed: bool = False
    """Whether the user sent a second signal."""
    used_up: bool = False
    """Whether the policy permitted no restart after the last failure, even if the user then stopped the run."""
    restarts: int = 0
    """Number of attempts before the present one; if only single ranks restart, the number of restarts that count."""
    waiting: str | None = None
    """The pending restart, such as ``restart 1 of 3``."""
    unlaunched: dict[int, Unlaunched] = field(default_factory=dict)
    """Local rank to the reason why its present life could not be launched."""
    sent: dict[int, list[Signals]] = field(default_factory=dict)
    """Local rank to the signals that supervise sent to stop it."""
    passed_on: dict[int, list[Signals]] = field(default_factory=dict)
    """Local rank to the signals that supervise passed on: SIGUSR1, SIGUSR2."""
    halted: bool = False
    """Whether `--halt-on-broken-pipe` has stopped the run."""
    stderr_shown: frozenset[int] = frozenset()
    """Ranks whose stderr was both shown and written."""


def of_result(result: RunProcsResult, *, timeout_s: float | None = None) -> Story:
    """Return the facts that a result has about a gang that Python code has started.

    A result does not have the signals that supervise has sent. If supervise stopped a rank and a signal ended the rank,
    this function assumes that supervise has sent that signal. It assumes the same of a SIGTERM, SIGINT or SIGKILL that
    ended a rank after the rank had recorded an exception.

    Args:
        result: The result of the gang.
        timeout_s: The timeout of the gang in seconds; None if it is not known.
    """
    ended = {
        end.local_rank: -(end.exitcode or 0)
        for end in result.ends.values()
        if end.role == "bystander" or (-(end.exitcode or 0) in _STOPS and _has_raised(result, end.local_rank))
    }
    logs = [log for log in (*result.stdouts.values(), *result.stderrs.values()) if log and log != os.devnull]
    return Story(
        nproc=max((*result.stdouts, *result.ends, *result.failures), default=-1) + 1,
        grace_s=0.0,
        timeout_s=timeout_s,
        directory=os.path.commonpath(map(os.path.dirname, logs)) if logs else None,
        of_command=False,
        restarts=sum(restart.counted for restart in result.restarts),
        sent={rank: [Signals(number)] for rank, number in ended.items() if number in _SIGNALS},
    )


def _has_raised(result: RunProcsResult, rank: int) -> bool:
    """Return whether a rank has recorded an exception."""
    return rank in result.failures and isinstance(result.failures[rank].message, dict)


def stopped_by_us(rank: int, exitcode: int | None, story: Story) -> bool:
    """Return whether a signal of supervise ended a rank. Such a rank is a cause only if it recorded an exception."""
    return exitcode is not None and -exitcode in story.sent.get(rank, ())
