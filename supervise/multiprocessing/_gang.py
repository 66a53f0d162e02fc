"""The gang behind `spawn`: every rank runs to its own end, and the context decides who is stopped."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pykka

from supervise import messages as say
from supervise._api import own_thread
from supervise._core.steps import PeersStopped
from supervise._gang import shutdown_at_exit
from supervise._gang.attempt import first_attempt
from supervise._gang.results import LOST_CODE
from supervise._gang.supervisor import Supervisor
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
    from supervise._process.launch.return_value import OutcomeFile
    from supervise.errors import SupervisorCrashed

_BEGIN_S = 60.0
"""A supervisor starts in milliseconds: one that takes longer than this is lost."""
_LOOK_S = 60.0
"""A start takes as long as it takes; so often it is made sure that there still is somebody who starts."""

_standing: set[_Slots] = set()
"""The ranks of gangs that this interpreter waits for at its exit."""
_registered_in: set[int] = set()
"""This process's pid, once it has arranged to wait for them."""


class _Slots:
    """Settles the end of each rank, for those who join its process. A `Listener`."""

    def __init__(self, slots: list[ExitSlot]) -> None:
        self._slots = slots

    def exited(self, end: say.WorkerExited, value: OutcomeFile | None) -> None:
        trace, raised_ns = _trace(end, value)
        self._slots[end.local_rank].settle(
            LOST_CODE if end.exitcode is None else end.exitcode,
            failed_ns=end.ended_ns if raised_ns is None else raised_ns,
            trace=trace,
            complaint=end.complaint,
        )

    def left(self, crash: SupervisorCrashed | None) -> None:
        _standing.discard(self)
        why = "it outlived SIGKILL" if crash is None else str(crash)
        for slot in self._slots:
            slot.settle(LOST_CODE, failed_ns=time.monotonic_ns(), complaint=why)

    def wait(self) -> None:
        """Wait until every rank has ended."""
        for slot in self._slots:
            slot.wait()


def _trace(end: say.WorkerExited, value: OutcomeFile | None) -> tuple[str | None, int | None]:
    """Return the trace of what the rank's function raised, and the monotonic ns when it was caught."""
    if end.exitcode == 0 or value is None or value.kind() != "value":
        return None, None
    try:
        raised_ns, trace = value.load()
    except Exception:  # overwritten by the rank: the exit code remains
        return None, None
    return str(trace), int(raised_ns)


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
    slots = [ExitSlot() for _ in range(nprocs)]
    listener = _Slots(slots)
    settings.update({"logs_specs": _Inherited(), "plain": plain, "stop_on_failure": False})
    attempt = first_attempt(**settings)
    _wait_at_exit()
    box: Reply[pykka.ActorRef[Supervisor]] = Reply()
    thread = own_thread.prepare(attempt, partial(_start, attempt, listener, waited_for=not daemon), box)
    try:
        own_thread.start(thread, attempt, box)
        gang = box.get(timeout=_BEGIN_S)
        pids = _pids(gang)
        return [
            RankProcess(local_rank=rank, pid=pids[rank], name=plain.name(rank), daemon=daemon, fate=slot, gang=gang)
            for rank, slot in enumerate(slots)
        ]
    except BaseException:
        own_thread.give_up(box)
        raise


def _start(attempt: Attempt, listener: _Slots, *, waited_for: bool) -> pykka.ActorRef[Supervisor]:
    gang = Supervisor.start_attempt(attempt, own_thread=False, listener=listener)
    if waited_for:  # the gang cannot have left: this thread is to run it
        _standing.add(listener)
    return gang


def _pids(gang: pykka.ActorRef[Supervisor]) -> dict[int, int]:
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
            gang.tell(PeersStopped(ranks=frozenset(each._local_rank for each in processes)))  # noqa: SLF001 - the same


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
    for slots in list(_standing):
        slots.wait()


def _drop_in_child() -> None:
    _standing.clear()
    _registered_in.clear()


fork_hooks.register("multiprocessing", in_child=_drop_in_child)
