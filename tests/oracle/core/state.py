"""What is known of a gang, what can happen to it, and what can be done about it."""

from __future__ import annotations

from dataclasses import dataclass
from signal import Signals
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

from tests.oracle.core.messages import Bare

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.oracle.core.messages import (
        Phase,
        WorkerExited,
        WorkerFailedToStart,
        WorkerUnkillable,
    )
    from tests.oracle.core.restarts import RestartPolicy

Reason = Literal["peer_failed", "close", "timeout", "start_failed"]
"""Why a gang is being stopped."""


class Gang(NamedTuple):
    """One attempt of a gang. Ranks are numbers in ``range(nprocs)``.

    A named tuple, since a changed copy of it is made three times a rank: a dataclass takes five times as long.
    """

    nprocs: int
    grace_s: float
    window: int = 1
    """How many launches may be under way at once."""
    kill_wait_s: float = 5.0
    """How long what was killed may take to be gone."""
    stop_on_failure: bool = True
    """Whether a rank that fails ends the others, too."""
    phase: Phase = "new"
    launched: int = 0
    """Ranks below this number were told to launch."""
    starting: frozenset[int] = frozenset()
    running: frozenset[int] = frozenset()
    ends: tuple[WorkerExited, ...] = ()
    """In the order in which they were noticed."""
    leftovers: frozenset[int] = frozenset()
    """Reaped ranks whose process group is not empty."""
    tails: int = 0
    """Tails that have not ended."""
    draining: bool = False

    reason: Reason | None = None
    """Why it is being stopped; the first reason stays."""
    death_sig: Signals = Signals.SIGTERM
    timeout_s: float = 0.0
    """From the polite signal to SIGKILL, in this stop."""
    bounded: bool = False
    """Whether the wait for the logs has a bound: a `Close` gave one, or the gang's time is up."""
    signaled: bool = False
    """Whether the polite signal was sent: who ends from now on is no cause."""
    census_ns: int = 0
    """When the dead were counted, monotonic: who was found dead by then, but told later, ended by itself too."""
    killed: bool = False
    accused: Mapping[int, int] = MappingProxyType({})
    """Ranks alive at our first signal that had recorded an exception by then: rank -> monotonic ns."""
    spontaneous: frozenset[int] = frozenset()
    """Ranks that had ended when stopping began."""
    stopped_ns: Mapping[int, int] = MappingProxyType({})
    """Ranks that are stopped one by one, since another has failed: rank -> monotonic ns of the decision."""
    start_failure: WorkerFailedToStart | None = None
    unkillable: tuple[WorkerUnkillable, ...] = ()

    ended: bool = False
    """Whether somebody asked for the end, or the gang's time is up: it is not restarted any more."""
    policy: RestartPolicy | None = None
    """When to restart it; None is never."""
    attempt: int = 0
    """How many times it was restarted."""
    restarts_ns: tuple[int, ...] = ()
    """When, monotonic: those that still count."""
    announced: bool = False
    """Whether the restart that it waits for was told."""
    sweep: Literal["due", "asked", "done"] = "due"
    """Whether what has left the groups of its ranks was looked for."""
    sweep_s: float | None = None
    """What a later close gives it; None is `timeout_s`."""


# What happens, beside the messages of Workers and Tails. Nobody changes these, or what follows; that Python checks it
# would double what it takes to import them.


class StartAsked(Bare):
    """Somebody asked for the start."""


@dataclass(slots=True, kw_only=True)
class CloseAsked:
    """Somebody asked for the end, or the gang's time is up."""

    death_sig: Signals
    timeout_s: float
    reason: Reason = "close"


@dataclass(slots=True, kw_only=True)
class StopOnFailure:
    """From now on a rank that fails stops the others, or does not; one that has failed before counts, too."""

    on: bool


@dataclass(slots=True, kw_only=True)
class AllReaped:
    """The exits of all ranks that are dead by now have been told; no signal was sent before."""

    recorded: Mapping[int, int]
    """Running ranks that have recorded an exception: rank -> monotonic ns of the record."""
    taken_ns: int = 0
    """When, monotonic. A fork server tells how a rank ended some time after we have seen that it did."""


class GraceExpired(Bare):
    """The polite signal has had its time."""


class KillExpired(Bare):
    """SIGKILL has had its time. The ranks that are still there were reported as unkillable."""


class DrainExpired(Bare):
    """The wait for the logs has had its time."""


class BackoffExpired(Bare):
    """The wait before a restart has had its time."""


class Assembled(Bare):
    """The files and actors of the next attempt are ready."""


class NotAssembled(Bare):
    """The files and actors of the next attempt cannot be had: there will be none."""


# What is to be done


@dataclass(slots=True, kw_only=True)
class LaunchRank:
    """Start the process of a rank."""

    local_rank: int


class AnswerStart(Bare):
    """Every rank runs (or has run)."""


class ReapAll(Bare):
    """Look which ranks are dead, and which have recorded an exception; then say `AllReaped`."""


@dataclass(slots=True, kw_only=True)
class SendSignal:
    """Signal the groups of these ranks, and wake those of them that are stopped."""

    ranks: frozenset[int]
    sig: Signals
    escalation: int


@dataclass(slots=True, kw_only=True)
class SetTimer:
    """Have the event of this name happen in `delay_s`, instead of an earlier timer's; grace and drain only sooner."""

    name: Literal["grace", "kill", "drain"]
    delay_s: float


@dataclass(slots=True, kw_only=True)
class ReportUnkillable:
    """Say `WorkerUnkillable` for each of these ranks, then `KillExpired`."""

    ranks: frozenset[int]


class DrainTails(Bare):
    """All ranks are reaped: have the Tails show what these had written, and end."""


class AbandonTails(Bare):
    """Have the Tails end now."""


@dataclass(slots=True, kw_only=True)
class SweepUp:
    """Look for what has left the groups of the ranks, end it where that is asked for; then say `Swept`."""

    timeout_s: float
    """From its polite signal to SIGKILL."""


@dataclass(slots=True, kw_only=True)
class HurrySweep:
    """The sweep that is under way kills after this time, if it would not sooner."""

    timeout_s: float


@dataclass(slots=True, kw_only=True)
class AnnounceRestart:
    """Tell everybody that the gang will be restarted, and have `BackoffExpired` happen after about `delay_s`."""

    delay_s: float
    """Before jitter."""


class Assemble(Bare):
    """Make the next attempt's files and actors; then say `Assembled` or `NotAssembled`."""


class Publish(Bare):
    """The gang has ended: answer every wait, now and from now on."""


class AnswerClose(Bare):
    """Nothing of the gang is left: answer every close."""


Action = (
    LaunchRank
    | AnswerStart
    | ReapAll
    | SendSignal
    | SetTimer
    | ReportUnkillable
    | DrainTails
    | AbandonTails
    | SweepUp
    | HurrySweep
    | AnnounceRestart
    | Assemble
    | Publish
    | AnswerClose
)
