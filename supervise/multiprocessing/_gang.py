"""The gang of `spawn`. The failure of a rank stops no other rank; the context decides whether to stop the others."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import pykka

from supervise import messages as say
from supervise._api import context
from supervise._core.steps import PeersStopped
from supervise._gang import shutdown
from supervise._gang.attempt import Attempt, first_attempt
from supervise._gang.supervisor import Supervisor, SupervisorRef
from supervise._printable import LOST_CODE
from supervise._process.launch.settings import Plain
from supervise._runtime import fork_hooks
from supervise._runtime.future import Reply
from supervise._settings import usual_grace_s
from supervise.destinations import LogsDest
from supervise.logs import LogsSpecs
from supervise.multiprocessing._rank import RankProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervise._gang.spec import GangSettings
    from supervise._process.launch.return_value import OutcomeFile
    from supervise.errors import SupervisorCrashed

_BEGIN_S = 60.0
"""Deadline for the start of a Supervisor, which normally takes milliseconds."""
_LOOK_S = 60.0
"""A start has no time limit. At this interval, the caller checks that the gang still runs."""

_STOPPED = (-signal.SIGTERM, -signal.SIGKILL)
"""The exit codes of a rank that a stop has ended."""

_standing: set[_Ends] = set()
"""The gangs that this interpreter waits for at its exit."""
_registered_in: set[int] = set()
"""This process's pid, once its exit function is registered."""


class _Ends:
    """The ends of the processes of a gang. A `Listener`."""

    def __init__(self, processes: list[RankProcess]) -> None:
        self._processes = processes
        self._was_interrupted = False

    def exited(self, end: say.WorkerExited, value: OutcomeFile | None) -> None:
        """Set the end of a rank that has been reaped. An exit code that is not known is `LOST_CODE`."""
        left_ns, way = _way_out(end, value)
        exitcode = LOST_CODE if end.exitcode is None else end.exitcode
        if isinstance(way, int) and exitcode in _STOPPED and not end.oom_kill:  # a stop has ended it during its exit
            exitcode = way
        self._processes[end.local_rank].settle(
            exitcode,
            failed_ns=end.ended_ns if left_ns is None else left_ns,
            trace=way if isinstance(way, str) else None,
            complaint=end.complaint,
        )

    def left(self, crash: SupervisorCrashed | None) -> None:
        """Set the end of every rank that was not reaped: the gang has ended."""
        _standing.discard(self)
        why = "it outlived SIGKILL" if crash is None else str(crash)
        for process in self._processes:
            process.settle(LOST_CODE, failed_ns=time.monotonic_ns(), complaint=why)

    def wait(self) -> None:
        """Wait until every rank has ended."""
        for process in self._processes:
            process.join()

    def interrupt(self) -> None:
        """Begin the close of the gang by SIGINT, unless its ranks had a SIGINT before; give them their grace. Once."""
        if self._was_interrupted:
            return
        self._was_interrupted = True
        if not any(process.was_interrupted for process in self._processes):
            abandon(self._processes, signal.SIGINT)
        deadline_s = time.monotonic() + usual_grace_s()
        for process in self._processes:
            process.join(max(0.0, deadline_s - time.monotonic()))


def _way_out(end: say.WorkerExited, value: OutcomeFile | None) -> tuple[int | None, str | int | None]:
    """Return the monotonic time in ns at which an exception left the function of a rank, and its traceback.

    `SystemExit` has an exit code in place of the traceback.
    """
    if end.exitcode == 0 or value is None or value.kind() != "value":
        return None, None
    try:
        left_ns, way = value.load()
    except Exception:  # the rank has overwritten the file: only the exit code is known
        return None, None
    return int(left_ns), way if isinstance(way, int) else str(way)


class _Inherited(LogsSpecs):
    """Ranks share the host's output, and their environment has no additional variables."""

    @property
    def root_log_dir(self) -> str:
        return os.devnull

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return no log file for any rank."""
        return LogsDest(stdouts=dict.fromkeys(envs, ""), stderrs=dict.fromkeys(envs, ""))


def launch(nprocs: int, *, daemon: bool, **settings: Unpack[GangSettings]) -> list[RankProcess]:
    """Start the processes; return when all of them run.

    Args:
        nprocs: Number of processes.
        daemon: Whether this interpreter ends them at its exit instead of waiting for them.
        **settings: The settings of their gang.

    Raises:
        SpecError: A setting is not valid, or cannot be pickled.
        OSError: A process could not be started; all started processes are reaped.
        SpawnError: The same, for a reason other than an `OSError`.
    """
    prefix, first = _names(settings["start_method"], nprocs)
    plain = Plain(prefix=prefix, first=first, daemon=daemon)
    processes = [RankProcess(rank, name=plain.name(rank), daemon=daemon) for rank in range(nprocs)]
    listener = _Ends(processes)
    settings.update({"logs_specs": _Inherited(), "plain": plain, "stop_on_failure": False})
    attempt = first_attempt(**settings)
    _wait_at_exit()
    box: Reply[SupervisorRef] = Reply()
    try:
        context.begin(attempt, partial(_start, attempt, listener, waited_for=not daemon), box)
        gang = box.get(timeout=_BEGIN_S)
        for rank, pid in _pids(gang).items():
            processes[rank].started(pid, gang)
    except BaseException:
        context.give_up(box)
        raise
    return processes


def _start(attempt: Attempt, listener: _Ends, *, waited_for: bool) -> SupervisorRef:
    gang = Supervisor.start_attempt(attempt, own_thread=False, listener=listener)
    if waited_for:  # the gang has not ended yet: this thread runs it afterwards
        _standing.add(listener)
    return gang


def _pids(gang: SupervisorRef) -> dict[int, int]:
    """Start the gang; return its pids."""
    reply = gang.ask(say.Start(), block=False)
    while gang.is_alive():
        with contextlib.suppress(pykka.Timeout):
            return reply.get(timeout=_LOOK_S)
    return reply.get(timeout=_LOOK_S)  # the gang has answered before its end


def excuse(processes: list[RankProcess]) -> None:
    """Inform the gang that the caller is about to stop these processes because another has failed."""
    gang = processes[0]._gang  # noqa: SLF001 - a class of supervise
    with contextlib.suppress(pykka.ActorDeadError):
        gang.tell(PeersStopped(ranks=frozenset(each._local_rank for each in processes)))  # noqa: SLF001 - a class of supervise


def abandon(processes: list[RankProcess], sig: signal.Signals) -> None:
    """Stop the gang of these processes, and do not wait. The caller has no context to join."""
    processes[0]._gang.ask(say.Close(death_sig=sig), block=False)  # noqa: SLF001 - a class of supervise


_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def stopped_first(processes: list[RankProcess]) -> Iterator[None]:
    """While the main thread waits, stop these processes politely before SIGTERM or SIGHUP ends this process.

    In PyTorch, they get a signal that is sent to the whole process group, such as that of ``timeout``, and at the death
    of this process SIGINT. Here they have their own groups, and would get SIGKILL. A signal that the program handles or
    ignores is not touched. A second signal ends this process at once.
    """

    def end(sig: int, _frame: object) -> None:
        restore()
        abandon(processes, signal.Signals(sig))
        for process in processes:
            process.join()
        os.kill(os.getpid(), sig)

    def restore() -> None:
        for sig in ours:
            signal.signal(sig, signal.SIG_DFL)

    main = threading.current_thread() is threading.main_thread()
    ours = [sig for sig in _ENDING if main and signal.getsignal(sig) == signal.SIG_DFL]
    try:
        for sig in ours:
            signal.signal(sig, end)
        yield
    finally:
        restore()


def _names(start_method: str, nprocs: int) -> tuple[str, int]:
    """Return the prefix and the first number for the names of `nprocs` processes, as in multiprocessing."""
    from multiprocessing import process

    here: Any = process.current_process()
    taken = [next(process._process_counter) for _ in range(nprocs)]  # type: ignore[attr-defined]  # noqa: SLF001
    kind = {"spawn": "Spawn", "fork": "Fork", "forkserver": "ForkServer"}[start_method]
    above = "".join(f"{number}:" for number in here._identity)  # noqa: SLF001
    return f"{kind}Process-{above}", taken[0]


# The exit of the interpreter


def _wait_at_exit() -> None:
    """Make this process wait for its ranks at its exit, at the moment when multiprocessing waits for its processes."""
    if os.getpid() in _registered_in:
        return
    from multiprocessing import util

    _registered_in.add(os.getpid())
    util.Finalize(None, _await_ranks, exitpriority=100)  # for a process of multiprocessing: its exit skips atexit
    shutdown.before_closing(_await_ranks)


def _await_ranks() -> None:
    interrupted = issubclass(getattr(sys, "last_type", None) or object, KeyboardInterrupt)
    for ends in list(_standing):
        if interrupted:  # after Ctrl-C, this process closes its ranks
            ends.interrupt()
        else:
            ends.wait()


def _drop_in_child() -> None:
    _standing.clear()
    _registered_in.clear()


fork_hooks.register("multiprocessing", in_child=_drop_in_child)
