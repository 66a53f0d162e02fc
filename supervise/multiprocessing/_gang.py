"""The gang behind `spawn`: every rank runs to its own end, and the context decides who is stopped."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pykka

from supervise import messages as say
from supervise._api import own_thread
from supervise._core import steps
from supervise._gang import shutdown_at_exit
from supervise._gang.attempt import first_attempt
from supervise._gang.gang_actor import GangActor
from supervise._gang.results import LOST_CODE
from supervise._process.launch.settings import Plain
from supervise._runtime import fork_hooks
from supervise._runtime.future import Reply
from supervise.destinations import LogsDest
from supervise.logs import LogsSpecs
from supervise.multiprocessing._rank import ExitSlot, RankProcess

if TYPE_CHECKING:
    import signal
    from typing import Unpack

    from supervise._gang.attempt import Attempt
    from supervise._gang.spec import GangSettings

_BEGIN_S = 60.0
"""A supervisor starts in milliseconds: one that takes longer than this is lost."""
_LOOK_S = 60.0
"""A start takes as long as it takes; so often it is made sure that there still is somebody who starts."""

_standing: dict[str, list[ExitSlot]] = {}
"""By urn: the ranks of gangs that this interpreter waits for at its exit."""
_registered_in: set[int] = set()
"""This process's pid, once it has arranged to wait for them."""


@dataclass(frozen=True, slots=True)
class PeersStopped:
    """These ranks are going to be signaled because another has failed: their ends are no failures."""

    ranks: frozenset[int]


class SpawnedGang(GangActor):
    """Stops nobody because somebody failed, and ends by itself when the last rank has."""

    def __init__(self, attempt: Attempt, fates: list[ExitSlot]) -> None:
        """Take over `attempt`.

        Args:
            attempt: What to run.
            fates: What to settle when the rank of that index has ended.
        """
        super().__init__(attempt, own_thread=False)
        self._report.failures_raise = True
        self._fates = fates
        plain = attempt.spec.plain
        if plain is not None and not plain.daemon:  # the interpreter's exit waits for the ranks
            _standing[self.actor_urn] = fates

    def _told(self, message: Any) -> None:
        if isinstance(message, PeersStopped):
            self._ranks.slots.ring_if_dead()
            self.loop.poll()  # who is dead by now has not been stopped
            self._step(steps.PeersStopped(ranks=message.ranks, at_ns=time.monotonic_ns()))
            return
        if isinstance(message, say.WorkerExited):
            fine = message.exitcode == 0  # a return value is not expected
            message = replace(message, has_value=False, complaint=None if fine else message.complaint)
        super()._told(message)

    def _step(self, event: steps.Event) -> None:
        if isinstance(event, say.WorkerExited):
            trace, raised_ns = self._trace(event)
            self._fates[event.local_rank].settle(
                LOST_CODE if event.exitcode is None else event.exitcode,
                failed_ns=event.ended_ns if raised_ns is None else raised_ns,
                trace=trace,
                complaint=event.complaint,
            )
        super()._step(event)

    def _trace(self, end: say.WorkerExited) -> tuple[str | None, int | None]:
        """Return the trace of what the rank's function raised, and the monotonic ns when it was caught."""
        outcome = self._ranks.slots.outcomes.get(end.local_rank)
        if end.exitcode == 0 or outcome is None or outcome.kind() != "value":
            return None, None
        try:
            raised_ns, trace = outcome.load()
        except Exception:  # overwritten by the rank: what it died of is still told by its exit code
            return None, None
        return str(trace), int(raised_ns)

    def _publish(self) -> None:
        super()._publish()
        self.actor_ref.stop(block=False)  # which ends what the ranks have left in their groups

    def _left(self) -> None:
        _standing.pop(self.actor_urn, None)
        why = "it outlived SIGKILL" if self._crash is None else str(self._crash)
        for fate in self._fates:
            fate.settle(LOST_CODE, failed_ns=time.monotonic_ns(), complaint=why)
        super()._left()


class _Inherited(LogsSpecs):
    """Workers write where the host does, and nothing is added to their environment."""

    def __init__(self) -> None:
        super().__init__()

    @property
    def root_log_dir(self) -> str:
        return os.devnull

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        return LogsDest(stdouts=dict.fromkeys(envs, ""), stderrs=dict.fromkeys(envs, ""))


def launch(nprocs: int, *, daemon: bool, **settings: Unpack[GangSettings]) -> list[RankProcess]:
    """Start the processes; return when all run.

    Args:
        nprocs: How many.
        daemon: Whether they are ended, not waited for, when this interpreter exits.
        **settings: Of their gang.

    Raises:
        SpecError: Something makes no sense, or cannot be pickled.
        OSError: A process could not be started; all that had started are reaped.
        SpawnError: The same, for another reason than an `OSError`.
    """
    prefix, first = _names(settings["start_method"], nprocs)
    plain = Plain(prefix=prefix, first=first, daemon=daemon)
    fates = [ExitSlot() for _ in range(nprocs)]
    settings.update({"logs_specs": _Inherited(), "plain": plain, "stop_on_failure": False})
    attempt = first_attempt(**settings)
    _wait_at_exit()
    box: Reply[pykka.ActorRef[SpawnedGang]] = Reply()
    thread = own_thread.prepare(attempt, partial(SpawnedGang.start, attempt, fates), box)
    try:
        own_thread.start(thread, attempt, box)
        gang = box.get(timeout=_BEGIN_S)
        pids = _pids(gang)
        return [
            RankProcess(local_rank=rank, pid=pids[rank], name=plain.name(rank), daemon=daemon, fate=fate, gang=gang)
            for rank, fate in enumerate(fates)
        ]
    except BaseException:
        own_thread.give_up(box)
        raise


def _pids(gang: pykka.ActorRef[SpawnedGang]) -> dict[int, int]:
    """Have the gang start, and return its pids."""
    reply = gang.ask(say.Start(), block=False)
    while gang.is_alive():
        with contextlib.suppress(pykka.Timeout):
            return cast("dict[int, int]", reply.get(timeout=_LOOK_S))
    return cast("dict[int, int]", reply.get(timeout=_LOOK_S))  # its last word


def excuse(processes: list[RankProcess]) -> None:
    """Tell the gang of these that they are going to be stopped because another has failed."""
    if processes:
        gang = processes[0]._gang  # noqa: SLF001 - our own
        with contextlib.suppress(pykka.ActorDeadError):
            gang.tell(PeersStopped(frozenset(process._local_rank for process in processes)))  # noqa: SLF001 - the same


def abandon(processes: list[RankProcess], sig: signal.Signals) -> None:
    """Have the gang of these stopped, without waiting for it: nobody is left who could join them."""
    processes[0]._gang.ask(say.Close(death_sig=sig), block=False)  # noqa: SLF001 - our own


def _names(start_method: str, nprocs: int) -> tuple[str, int]:
    """Return a prefix and a first number for the names of so many processes, in multiprocessing's way."""
    from multiprocessing import process

    here: Any = process.current_process()
    taken = [next(process._process_counter) for _ in range(nprocs)]  # type: ignore[attr-defined]  # noqa: SLF001
    kind = {"spawn": "Spawn", "fork": "Fork", "forkserver": "ForkServer"}[start_method]
    above = "".join(f"{number}:" for number in here._identity)  # noqa: SLF001
    return f"{kind}Process-{above}", taken[0]


# The exit of the interpreter


def _wait_at_exit() -> None:
    """Have this process wait for its ranks at its end, where multiprocessing waits for its own."""
    if os.getpid() in _registered_in:
        return
    from multiprocessing import util

    _registered_in.add(os.getpid())
    util.Finalize(None, _await_ranks, exitpriority=100)  # in a worker, whose exit may run nothing else
    shutdown_at_exit.before_closing(_await_ranks)


def _await_ranks() -> None:
    if issubclass(getattr(sys, "last_type", None) or object, KeyboardInterrupt):
        return  # on a terminal, Ctrl-C is for the ranks as well: they are closed
    for fates in list(_standing.values()):
        for fate in fates:
            fate.wait()


def _drop_in_child() -> None:
    _standing.clear()
    _registered_in.clear()


fork_hooks.register("multiprocessing", in_child=_drop_in_child)
