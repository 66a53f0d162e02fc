"""The old core behind the same seam as the live one. Does not change with `tests.model.live`."""

from collections.abc import Callable
from dataclasses import replace
from signal import Signals
from typing import Any, Self

from tests.model.neutral import Known, Neutral, Spec, neutral_of
from tests.oracle.core import messages as said
from tests.oracle.core import state as st
from tests.oracle.core.decide import decide
from tests.oracle.core.restarts import RestartPolicy
from tests.oracle.core.verdict import judge


def _exited(local_rank: int, exitcode: int | None, ended_ns: int, **more: Any) -> said.WorkerExited:
    return said.WorkerExited(local_rank=local_rank, pid=_pid(local_rank), exitcode=exitcode, ended_ns=ended_ns, **more)


def _close(death_sig: str, timeout_s: float, reason: str) -> st.CloseAsked:
    return st.CloseAsked(death_sig=Signals[death_sig], timeout_s=timeout_s, reason=reason)  # type: ignore[arg-type]


def _pid(local_rank: int) -> int:
    return 100 + local_rank


_EVENTS: dict[str, Callable[..., object]] = {
    "StartAsked": st.StartAsked,
    "CloseAsked": _close,
    "StopOnFailure": st.StopOnFailure,
    "AllReaped": st.AllReaped,
    "GraceExpired": st.GraceExpired,
    "KillExpired": st.KillExpired,
    "DrainExpired": st.DrainExpired,
    "BackoffExpired": st.BackoffExpired,
    "Assembled": st.Assembled,
    "NotAssembled": st.NotAssembled,
    "WorkerStarted": lambda local_rank: said.WorkerStarted(local_rank=local_rank, pid=_pid(local_rank), started_ns=0),
    "WorkerFailedToStart": lambda local_rank: said.WorkerFailedToStart(local_rank=local_rank, error=OSError("no")),
    "WorkerExited": _exited,
    "WorkerUnkillable": lambda local_rank: said.WorkerUnkillable(
        local_rank=local_rank, pid=_pid(local_rank), state="D"
    ),
    "GroupEmptied": said.GroupEmptied,
    "Swept": said.Swept,
    "TailEnded": lambda: said.TailEnded(name="stdout"),
}
"""The name of a neutral event -> what makes the core's event from its fields."""

_NOBODY: frozenset[int] = frozenset()


class OldCore:
    """The old core, as a `Core`."""

    __slots__ = ("_gang",)

    def __init__(self, spec: Spec) -> None:
        policy = None if spec.policy is None else RestartPolicy(*spec.policy)
        self._gang = st.Gang(
            nprocs=spec.nprocs,
            grace_s=spec.grace_s,
            window=spec.window,
            kill_wait_s=spec.kill_wait_s,
            stop_on_failure=spec.stop_on_failure,
            policy=policy,
        )

    def copy(self) -> Self:
        other = object.__new__(type(self))
        other._gang = self._gang
        return other

    def feed(self, event: Neutral) -> list[Neutral]:
        if event.name == "TailsMade":  # the actors write it into the state
            self._gang = self._gang._replace(tails=event.fields["count"] + event.fields.get("values", False))
            return []
        told = self._values_loaded(event) if event.name == "ValuesLoaded" else _EVENTS[event.name](**event.fields)
        self._gang, actions = decide(self._gang, told)
        return [neutral_of(action) for action in actions]

    def _values_loaded(self, event: Neutral) -> object:
        """The actors write complaints into the state, then say that the last "tail" has ended."""
        problems = event.fields["problems"]
        ends = (replace(end, complaint=problems.get(end.local_rank, end.complaint)) for end in self._gang.ends)
        self._gang = self._gang._replace(ends=tuple(ends))
        return said.TailEnded(name="values")

    def status(self) -> dict[str, Any]:
        gang = self._gang
        return {
            "phase": gang.phase,
            "attempt": gang.attempt,
            "running": sorted(gang.running | gang.starting),
            "reachable": sorted(gang.running),
            "leftovers": sorted(gang.leftovers),
            "unkillable": sorted(found.local_rank for found in gang.unkillable),
            "reason": gang.reason,
            "ended by themselves": sorted(gang.spontaneous),
        }

    def result(self) -> dict[str, Any]:
        gang = self._gang
        verdict = judge(gang)
        return {
            "outcome": verdict.outcome,
            "blamed": verdict.blamed,
            "kind": verdict.kind,
            "roles": dict(sorted(verdict.roles.items())),
            "ends": {
                end.local_rank: (end.exitcode, end.ended_ns, end.error_ns, end.complaint)
                for end in sorted(gang.ends, key=lambda end: end.local_rank)
            },
            "start failure": None if gang.start_failure is None else gang.start_failure.local_rank,
            "signal": gang.death_sig.name,
        }

    def known(self) -> Known:
        gang = self._gang
        return Known(
            launched=gang.launched,
            starting=gang.starting,
            running=gang.running,
            leftovers=gang.leftovers,
            ended=tuple(end.local_rank for end in gang.ends),
            stuck=frozenset(told.local_rank for told in gang.unkillable),
            spontaneous=gang.spontaneous,
            start_failure=None if gang.start_failure is None else gang.start_failure.local_rank,
            census_ns=gang.census_ns,
            attempt=gang.attempt,
            rest=gang._replace(
                launched=0,
                starting=_NOBODY,
                running=_NOBODY,
                leftovers=_NOBODY,
                ends=(),
                unkillable=(),
                spontaneous=_NOBODY,
                start_failure=None,
                census_ns=0,
                accused=None,  # type: ignore[arg-type] # it follows from the ranks of the world
                stopped_ns=None,  # type: ignore[arg-type]
                restarts_ns=(0,) * len(gang.restarts_ns),
            ),
        )

    def numbers(self) -> dict[int, int]:
        return {}

    def counted(self) -> int:
        return len(self._gang.restarts_ns)
