"""The seam between the core of the package and the tests in this folder.

Only this file knows the classes of the core: it makes events from their neutral form, and returns actions and states in
neutral form. The modules `planted...` also know functions of the core, which they replace.
"""

from collections.abc import Callable
from functools import partial
from signal import Signals
from typing import Any, Self

from supervise import messages as said
from supervise._core import steps
from supervise._core.decide import decide
from supervise._core.model import Batch, Drain, Gang, Rank
from supervise._core.verdict import judge
from supervise.restarts import RestartPolicy
from tests.model.neutral import Known, KnownBatch, Neutral, Spec, neutral_of


def _exited(local_rank: int, exitcode: int | None, ended_ns: int, **more: Any) -> said.WorkerExited:
    return said.WorkerExited(local_rank=local_rank, pid=_pid(local_rank), exitcode=exitcode, ended_ns=ended_ns, **more)


def _close(death_sig: str, timeout_s: float, reason: str, order: str = "") -> steps.CloseAsked:
    named: Any = {"reason": reason, "order": order}
    return steps.CloseAsked(death_sig=Signals[death_sig], timeout_s=timeout_s, **named)


def _pid(local_rank: int) -> int:
    return 100 + local_rank


def _timer(name: str) -> Callable[[], steps.TimerExpired]:
    return partial(steps.TimerExpired, name=name)  # type: ignore[arg-type]


_EVENTS: dict[str, Callable[..., object]] = {
    "TailsMade": lambda count, values=False: steps.TailsStarted(tails=count, values=values),
    "StartAsked": steps.StartAsked,
    "CloseAsked": _close,
    "StopOnFailure": steps.StopOnFailure,
    "AllReaped": steps.AllReaped,
    "GraceExpired": partial(steps.TimerExpired, name="grace"),
    "KillExpired": _timer("kill"),
    "DrainExpired": _timer("drain"),
    "BackoffExpired": _timer("backoff"),
    "Assembled": steps.Assembled,
    "NotAssembled": lambda at_ns: steps.NotAssembled(OSError("no"), at_ns),
    "WorkerStarted": lambda local_rank: said.WorkerStarted(local_rank=local_rank, pid=_pid(local_rank), started_ns=0),
    "WorkerFailedToStart": lambda local_rank, at_ns=0: steps.WorkerFailedToStart(
        local_rank=local_rank, error=OSError("no"), at_ns=at_ns
    ),
    "WorkerExited": _exited,
    "WorkerUnkillable": lambda local_rank: steps.WorkerUnkillable(
        local_rank=local_rank, pid=_pid(local_rank), state="D"
    ),
    "RankReady": steps.RankReady,
    "RankFaulted": partial(steps.RankFaulted, why="hung"),
    "GroupEmptied": steps.GroupEmptied,
    "Swept": steps.Swept,
    "BatchSwept": steps.Swept,
    "RestartAsked": partial(steps.RanksAsked, "restart"),
    "TerminateAsked": partial(steps.RanksAsked, "terminate"),
    "BatchGraceExpired": _timer("grace"),
    "BatchKillExpired": _timer("kill"),
    "BatchBackoffExpired": _timer("backoff"),
    "TailDrained": steps.TailDrained,
    "TailEnded": lambda drained=False: steps.TailEnded(name="stdout", drained=drained),
    "ValuesLoaded": lambda problems: steps.ValuesLoaded(complaints=problems),
}
"""The name of a neutral event -> what makes the core's event from its fields."""


_FLAT = {Rank, Drain}
"""Records of the core whose fields do not change by themselves."""
_FIXED: set[type] = {int, float, bool, str, type(None), frozenset}
"""Types of values that do not change; `copied` adds those it meets. A search makes millions of copies."""


def copied(value: Any, known: dict[int, Any] | None = None) -> Any:
    """Return a copy of a gang, or of a part of one, that can change by itself; what is one object stays one."""
    known = {} if known is None else known
    kind = type(value)
    if kind in _FLAT:
        flat = object.__new__(kind)
        for name in value.__slots__:
            setattr(flat, name, getattr(value, name))
        return flat
    if kind is list:
        return [each if type(each) in _FIXED else copied(each, known) for each in value]
    if kind is set:
        return value.copy()
    if kind is dict:
        return {name: each if type(each) in _FIXED else copied(each, known) for name, each in value.items()}
    if kind.__module__ != Gang.__module__ or issubclass(kind, tuple):
        _FIXED.add(kind)
        return value
    if id(value) not in known:
        known[id(value)] = other = object.__new__(kind)
        fields = vars(value) if kind is Gang else {name: getattr(value, name) for name in value.__slots__}
        for name, each in fields.items():
            setattr(other, name, each if type(each) in _FIXED else copied(each, known))
    return known[id(value)]


class LiveCore:
    """The core of the package, as a `Core`."""

    __slots__ = ("__weakref__", "_gang")

    def __init__(self, spec: Spec) -> None:
        policy = None
        if spec.policy is not None:
            policy = RestartPolicy(*spec.policy, uncounted_exit_codes=spec.uncounted)
        self._gang = Gang(
            nprocs=spec.nprocs,
            grace_s=spec.grace_s,
            window=spec.window,
            kill_wait_s=spec.kill_wait_s,
            stop_on_failure=spec.stop_on_failure,
            policy=policy,
            strategy=spec.strategy,  # type: ignore[arg-type]
            kinds=spec.kinds,  # type: ignore[arg-type]
            notifies=range(spec.nprocs) if spec.notify else (),
            role_of=spec.role_of,
            needs=spec.needs,
            graces_s=dict(spec.graces_s),
            services=spec.services,
        )

    def copy(self) -> Self:
        other = object.__new__(type(self))
        other._gang = copied(self._gang)
        return other

    def feed(self, event: Neutral) -> list[Neutral]:
        fields = event.fields
        if event.name in ("RankReady", "RankFaulted"):
            fields = {**fields, "attempt": self._gang.ranks[fields["local_rank"]].attempt}
        told: Any = _EVENTS[event.name](**fields)
        actions = map(neutral_of, decide(self._gang, told).actions)
        return [_comparable(action) for action in actions if action.name != "LoadValues"]

    def status(self) -> dict[str, Any]:
        gang = self._gang
        return {
            "phase": gang.phase,
            "attempt": gang.attempt,
            "running": sorted(gang.running | gang.starting),
            "reachable": sorted(gang.running),
            "leftovers": sorted(gang.leftovers),
            "unkillable": sorted(gang.unkillable),
            "reason": gang.stop.reason,
            "ended by themselves": sorted(self._by_themselves()),
        }

    def result(self) -> dict[str, Any]:
        gang = self._gang
        verdict = judge(gang)
        return {
            "outcome": verdict.outcome,
            "blamed": verdict.blamed,
            "roles": dict(sorted(verdict.roles.items())),
            "ends": {
                end.local_rank: (end.exitcode, end.ended_ns, end.error_ns, end.complaint)
                for end in sorted(gang.ends, key=lambda end: end.local_rank)
            },
            "start failure": None if gang.start_failure is None else gang.start_failure.local_rank,
            "signal": gang.stop.death_sig.name,
        }

    def known(self) -> Known:
        gang, stop, drain = self._gang, self._gang.stop, self._gang.drain
        return Known(
            launched=frozenset(number for number, rank in enumerate(gang.ranks) if rank.state != "waiting"),
            starting=frozenset(gang.starting),
            running=frozenset(gang.running),
            leftovers=frozenset(gang.leftovers),
            ended=tuple(gang.ended),
            stuck=frozenset(gang.unkillable),
            spontaneous=self._by_themselves(),
            start_failure=None if gang.start_failure is None else gang.start_failure.local_rank,
            census_ns=gang.reaped_ns,
            attempt=gang.attempt,
            batches=self._batches(),
            backoff=(
                gang.backoff.in_a_row,
                len(gang.backoff.counted_ns),
                *(rank.backoff.in_a_row for rank in gang.ranks),
                *(each.delay_s for _, each in sorted(gang.batches.items())),
            ),
            times_ns=(
                gang.backoff.last_ns,
                *gang.backoff.counted_ns,
                *(rank.backoff.last_ns for rank in gang.ranks),
            ),
            rest=(
                (gang.phase, gang.stop_on_failure, gang.attempt, len(gang.backoff.counted_ns), gang.end_asked),
                (stop.reason, stop.death_sig, stop.timeout_s),
                (
                    stop.order,
                    frozenset(stop.roles or ()),
                    stop.signaled,
                    frozenset(stop.killed),
                    frozenset(stop.pending),
                ),
                (
                    drain.tails,
                    drain.values,
                    drain.begun,
                    drain.lasting,
                    drain.last,
                    stop.state,
                    stop.sweep_s,
                    gang.restart_announced,
                ),
                *self._lives(),
            ),
        )

    def _batches(self) -> tuple[KnownBatch, ...]:
        gang = self._gang
        found = [gang.stop] if gang.stop.signaled else [each for _, each in sorted(gang.batches.items())]
        return tuple(map(self._batch, found))

    def _batch(self, batch: Batch) -> KnownBatch:
        of = self._gang.role_of
        signaled = frozenset(rank for rank in batch.ranks if of[rank] in (batch.roles or ()))
        killed = frozenset(rank for rank in batch.ranks if of[rank] in batch.killed)
        return KnownBatch(
            *(batch.number, frozenset(batch.ranks), frozenset(batch.pending), signaled, killed),
            *(batch.state, frozenset(batch.down)),
        )

    def _lives(self) -> tuple[Any, ...]:
        """Return what concerns single ranks; the numbers of batches become their order."""
        gang = self._gang
        batches = tuple((*each[1:],) for each in self._batches() if each.number)
        asks = tuple((key, ask.kind, frozenset(ask.pending), ask.attempt) for key, ask in sorted(gang.asks.items()))
        ranks = tuple((rank.told, rank.terminated, rank.dismissed, rank.caused) for rank in gang.ranks)
        if gang.notifies or any(rank.fault for rank in gang.ranks):
            ranks += tuple((rank.ready, rank.fault is not None) for rank in gang.ranks)
        queue = tuple(rank for waiting in gang.queue for rank in waiting)
        lives = batches, asks, ranks, queue, gang.culprit
        if gang.strategy != "one_for_all":
            return (*lives, tuple(rank.heeded for rank in gang.ranks))
        return lives if any((batches, asks, queue, gang.culprit is not None, *map(any, ranks))) else ()

    def numbers(self) -> dict[int, int]:
        """Return the number of each batch -> its place among them."""
        return {number: place for place, number in enumerate(sorted(self._gang.batches))}

    def counted(self) -> int:
        """Return how many restarts count."""
        return len(self._gang.backoff.counted_ns)

    def _by_themselves(self) -> frozenset[int]:
        return frozenset(number for number in self._gang.ended if self._gang.ranks[number].by_itself)


def _comparable(action: Neutral) -> Neutral:
    """Return an action without the fields that the world of the model does not know."""
    if action.name == "AnnounceRestart":
        return Neutral(action.name, {"delay_s": action.fields["delay_s"], "causes": action.fields["verdict"].blamed})
    if action.name != "SetTimer":
        return action
    names = ("name", "delay_s", *(key for key, none in (("key", 0), ("role", None)) if action.fields[key] != none))
    return Neutral("SetTimer", {name: action.fields[name] for name in names})
