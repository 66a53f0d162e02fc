"""PyTorch's ``torch.multiprocessing.spawn``: processes that call a function, and the first failure among them."""

from __future__ import annotations

import logging
import signal
import time
import warnings
from typing import TYPE_CHECKING, Any

from supervise._blame import Cause, lost_peer, put_dead_first
from supervise._settings import GRACE_S, usual_grace_s
from supervise.multiprocessing._rank import LONGEST_WAIT_S, RankProcess, wait_for_any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SpawnContext",
    "spawn",
    "start_processes",
]

ENV_VAR_PARALLEL_START = "TORCH_MP_PARALLEL_START"
"""PyTorch's variable. It has no effect, because processes always start in parallel."""

_KILL_WAIT_S = 5.0
_PR_SET_PDEATHSIG = 1

log: logging.Logger = logging.getLogger("supervise")


class ProcessException(Exception):  # noqa: N818 - PyTorch's name
    """A process of `spawn` failed.

    Args:
        msg: The text of the exception.
        error_index: The process's index.
        error_pid: Its pid.
    """

    msg: str
    """The text of the exception."""
    error_index: int
    """Index of the failed process in `ProcessContext.processes`."""
    error_pid: int
    """Its pid."""

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        super().__init__(msg)
        self.msg = msg
        self.error_index = error_index
        self.error_pid = error_pid

    @property
    def pid(self) -> int:
        """The name of `error_pid` in older versions of PyTorch."""
        return self.error_pid

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.msg, self.error_index, self.error_pid)


class ProcessRaisedException(ProcessException):
    """The function of a process raised an exception; the text holds its traceback."""


class ProcessExitedException(ProcessException):
    """A process was killed by a signal, or exited with a code other than 0.

    Args:
        msg: The text of the exception.
        error_index: The process's index.
        error_pid: Its pid.
        exit_code: Its exit code.
        signal_name: Name of the signal that killed it.
    """

    exit_code: int
    """1 to 255, ``-N`` when killed by signal N."""
    signal_name: str | None
    """Such as ``SIGSEGV``; None if no signal killed it."""

    def __init__(
        self, msg: str, error_index: int, error_pid: int, exit_code: int, signal_name: str | None = None
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code = exit_code
        self.signal_name = signal_name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.msg, self.error_index, self.error_pid, self.exit_code, self.signal_name)


def _wrap(fn: Callable[..., Any], i: int, args: Iterable[Any], error_file: str) -> None:
    """Call ``fn(i, *args)`` in a process that other code has started; pickle the traceback of an exception into a file.

    Programs that start processes themselves import this name from PyTorch. The process gets SIGINT when the thread that
    started it ends.
    """
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
    try:
        fn(i, *args)
    except KeyboardInterrupt:
        return
    except Exception as error:
        import pickle

        from supervise.recording import traceback_of

        with open(error_file, "wb") as file:
            pickle.dump(traceback_of(error), file)
        raise SystemExit(1) from None


class ProcessContext:
    """Processes that start together and are joined together.

    Args:
        processes: Objects with the surface of `multiprocessing.Process`.
        error_files: One path per process: the file into which a process that supervise did not start pickles its
            traceback.
    """

    processes: Sequence[Any]
    """Each has the surface of `multiprocessing.Process`."""
    sentinels: dict[int, int]
    """Descriptor to index, for processes not yet joined. A descriptor becomes readable at the end of its process."""
    error_files: Sequence[str | None]
    """Empty strings for processes of supervise, which send their traceback without a file."""

    def __init__(self, processes: Sequence[Any], error_files: Sequence[str | None]) -> None:
        self.processes = processes
        self.error_files = error_files
        self._grace_s = GRACE_S
        self.sentinels = {process.sentinel: index for index, process in enumerate(processes)}

    def pids(self) -> list[int]:
        """Return the pid of each process, also after its end."""
        return [int(process.pid) for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait until a process ends; return whether all have ended. Call it in a loop until it returns True.

        If one has failed, `join` first stops the others by SIGTERM and later SIGKILL, then raises. After that a
        further `join` returns True.

        Args:
            timeout: Seconds to wait; None waits forever.
            grace_period: Seconds that the others have to end by themselves before SIGTERM; after SIGTERM, they have as
                many again before SIGKILL. None: SIGTERM at once, and SIGKILL after 30 seconds, or after the seconds in
                ``SUPERVISE_GRACE`` of the environment at the start.

        Raises:
            ProcessRaisedException: The function of a process raised. If several processes failed, the first failure
                counts.
            ProcessExitedException: A process was killed by a signal or exited with a code other than 0;
                130 is an uncaught `KeyboardInterrupt`.
            UnkillableError: A process survived SIGKILL.
        """
        return self._join(timeout, grace_period, interrupts=True)

    def _join(self, timeout: float | None, grace_period: float | None, *, interrupts: bool) -> bool:
        if not self.sentinels:
            return True
        ours = [process for process in self.processes if isinstance(process, RankProcess)]
        for process in ours[:1]:
            process.check_host()
        try:
            ready = self._ended(ours, timeout)
        except KeyboardInterrupt:  # as in `RankProcess.join`
            for process in ours[:1] if interrupts else ():
                process.interrupt_all()
            raise
        seen_ns = time.monotonic_ns()  # the clock of `RankProcess.failed_ns`
        failed = []
        for sentinel, index in list(self.sentinels.items()):
            if sentinel not in ready:
                continue
            self.processes[index].join(_KILL_WAIT_S)
            if self.processes[index].exitcode is None:  # the process has closed its sentinel, but still runs
                continue
            if self.processes[index].exitcode == 0:
                del self.sentinels[sentinel]
            else:
                failed.append(index)
        if not failed:
            return not self.sentinels
        self._stop(grace_period)
        self.sentinels.clear()
        raise self._error(self._first(failed, seen_ns))

    def _ended(self, ours: list[RankProcess], timeout: float | None) -> list[Any]:
        """Return the sentinels of processes that end within `timeout` seconds."""
        if not ours:
            return wait_for_any(list(self.sentinels), timeout)
        from supervise.multiprocessing import _gang

        with _gang.stopped_first(ours):
            return wait_for_any(list(self.sentinels), timeout)

    def _stop(self, grace_period: float | None) -> None:
        """End all processes: SIGTERM, then SIGKILL.

        Raises:
            UnkillableError: Some processes survived SIGKILL.
        """
        if grace_period is not None:
            self._join_all(grace_period)
        alive = self._alive()
        if ranks := [process for process in alive.values() if isinstance(process, RankProcess)]:
            from supervise.multiprocessing import _gang

            _gang.excuse(ranks)
        for process in alive.values():
            log.warning("Terminating process %s via signal SIGTERM", process.pid)
            process.terminate()
        self._join_all(self._grace_s if grace_period is None else grace_period)
        for process in self._alive().values():
            log.warning("Unable to shutdown process %s via SIGTERM, forcefully exiting via SIGKILL", process.pid)
            process.kill()
        self._join_all(_KILL_WAIT_S)
        if alive := self._alive():
            from supervise.errors import UnkillableError

            raise UnkillableError({index: process.pid for index, process in alive.items()}, {})

    def _alive(self) -> dict[int, Any]:
        return {index: process for index, process in enumerate(self.processes) if process.is_alive()}

    def _join_all(self, timeout: float) -> None:
        """Join all processes, for at most `timeout` seconds in total."""
        deadline = time.monotonic() + min(timeout, LONGEST_WAIT_S)  # `multiprocessing.Process.join` accepts no more
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))

    def _first(self, failed: list[int], seen_ns: int) -> int:
        """Return the index of the process that failed first.

        A process that had raised by `seen_ns` counts, even if it was still exiting then.
        """
        times = {index: getattr(process, "failed_ns", None) for index, process in enumerate(self.processes)}
        causes = sorted((at_ns, index) for index, at_ns in times.items() if at_ns is not None and at_ns <= seen_ns)
        put_dead_first(causes, self._cause)
        return causes[0][1] if causes else failed[0]

    def _cause(self, failure: tuple[int, int]) -> Cause:
        at_ns, index = failure
        trace = self._trace(index)
        if trace is None:
            return Cause(None, at_ns, self.processes[index].exitcode, oom_kill=False, lost_peer=False)
        words = trace[trace.rfind("\n  ") + 1 :].partition("\n")[2]  # behind the last frame, with the notes
        return Cause(at_ns, at_ns, None, oom_kill=False, lost_peer=lost_peer(words))

    def _error(self, index: int) -> ProcessException:
        process = self.processes[index]
        trace = self._trace(index)
        if trace is not None:
            from supervise._printable import printable

            msg = f"\n\n-- Process {index} terminated with the following error:\n{printable(trace)}"
            return ProcessRaisedException(msg, index, process.pid)
        code = process.exitcode
        complaint = getattr(process, "complaint", None)
        why = f" ({complaint})" if complaint else ""
        if code >= 0:
            msg = f"process {index} terminated with exit code {code}{why}"
            return ProcessExitedException(msg, error_index=index, error_pid=process.pid, exit_code=code)
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"<Unknown signal {-code}>"
        msg = f"process {index} terminated with signal {name}{why}"
        return ProcessExitedException(msg, error_index=index, error_pid=process.pid, exit_code=code, signal_name=name)

    def _trace(self, index: int) -> str | None:
        process, path = self.processes[index], self.error_files[index]
        if isinstance(process, RankProcess) or not path:
            return getattr(process, "trace", None)
        import pickle

        try:
            with open(path, "rb") as file:
                return str(pickle.load(file))
        except FileNotFoundError:  # the function raised no exception
            return None


class SpawnContext(ProcessContext):
    """The name of `ProcessContext` before PyTorch 1.4; warns."""

    def __init__(self, processes: Sequence[Any], error_files: Sequence[str | None]) -> None:
        warnings.warn("SpawnContext is renamed to ProcessContext since 1.4 release.", stacklevel=2)
        super().__init__(processes, error_files)


def start_processes(  # noqa: PLR0917 - PyTorch's order
    fn: Callable[..., Any],
    args: Iterable[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str | None = "spawn",
    numa_options: Any = None,
) -> ProcessContext | None:
    """Start `nprocs` processes that call ``fn(i, *args)``, and join them unless `join` is False.

    The return value of the function is ignored. The processes inherit output and environment, read an empty stdin,
    and have their own sessions. When this process dies for any reason, they are killed.

    Args:
        fn: The function. For ``spawn`` and ``forkserver``, defined at the top level of a module.
        args: Its further arguments.
        nprocs: Number of processes.
        join: Wait for all of them and return None; otherwise return the context.
        daemon: End the processes at this interpreter's exit instead of waiting for them. Such a process may not
            start processes with `multiprocessing`.
        start_method: ``spawn``, ``fork`` or ``forkserver``; None for `multiprocessing`'s default.
        numa_options: Bind each process to the CPUs near its GPU; see `NumaOptions`.

    Raises:
        ValueError: The start method is unknown.
        SpecError: The function or an argument cannot be pickled; no process was started.
        OSError: A process could not be started; all started processes are reaped.
        ProcessRaisedException: See `ProcessContext.join`.
        ProcessExitedException: See `ProcessContext.join`.
    """
    import multiprocessing

    method = multiprocessing.get_context(start_method).get_start_method()
    if not callable(fn):
        raise TypeError(f"fn is {fn!r}; give a function")
    grace_s = usual_grace_s()
    processes: list[RankProcess] = []
    try:
        if nprocs > 0:
            from supervise.multiprocessing import _gang

            given = tuple(args)
            processes = _gang.launch(
                nprocs,
                daemon=daemon,
                name="spawn",
                entrypoint=fn,
                args={rank: (rank, *given) for rank in range(nprocs)},
                start_method=method,
                numa_options=numa_options,
                grace=grace_s,
            )
        context = ProcessContext(processes, [""] * len(processes))
        context._grace_s = grace_s  # noqa: SLF001 - a class of this module
        while join and not context._join(None, None, interrupts=False):  # noqa: SLF001 - at Ctrl-C `abandon` signals, not `join`
            pass
    except ProcessException:
        raise
    except BaseException as error:  # the caller has no context with which to stop them
        if processes:
            _gang.abandon(processes, signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
        raise
    return None if join else context


def spawn(  # noqa: PLR0917 - PyTorch's order
    fn: Callable[..., Any],
    args: Iterable[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Start `nprocs` new interpreters that call ``fn(i, *args)``; see `start_processes`.

    Args:
        fn: Defined at the top level of a module.
        args: Its further arguments.
        nprocs: Number of processes.
        join: Wait for all of them and return None; otherwise return the context.
        daemon: End the processes at this interpreter's exit instead of waiting for them.
        start_method: Deprecated. A value other than ``spawn`` warns and is ignored.

    Raises:
        ProcessRaisedException: See `ProcessContext.join`.
        ProcessExitedException: See `ProcessContext.join`.
    """
    if start_method != "spawn":
        msg = (
            f"This method only supports start_method=spawn (got: {start_method}).\n"
            "To use a different start_method use:\n\t\t"
            " torch.multiprocessing.start_processes(...)"
        )
        warnings.warn(msg, FutureWarning, stacklevel=2)
    return start_processes(fn, args, nprocs, join, daemon, start_method="spawn")
