"""`SupervisedElasticAgent`: an elastic agent of PyTorch whose ranks are a gang of supervise."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
from string import Template
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing import LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.utils import macros

import supervise
from supervise.events import log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from supervise._settings import Containment, KillMode


# The environment variables that torchelastic promises to a rank


def rank_environment(group: WorkerGroup, worker: Worker, restarts: int) -> dict[str, str]:
    """Return the variables of one rank, name to value.

    Args:
        group: The ranks of this node, after the rendezvous.
        worker: The rank.
        restarts: How often the ranks were restarted after a failure.

    Raises:
        ValueError: With virtual local ranks, ``CUDA_VISIBLE_DEVICES`` has fewer devices than there are ranks.
    """
    spec, handler = group.spec, group.spec.rdzv_handler
    return {
        "RANK": str(worker.global_rank),
        "WORLD_SIZE": str(worker.world_size),
        "LOCAL_WORLD_SIZE": str(spec.local_world_size),
        "GROUP_RANK": str(group.group_rank),
        "GROUP_WORLD_SIZE": str(group.group_world_size),
        "ROLE_NAME": spec.role,
        "ROLE_RANK": str(worker.role_rank),
        "ROLE_WORLD_SIZE": str(worker.role_world_size),
        "MASTER_ADDR": group.master_addr,
        "MASTER_PORT": str(group.master_port),
        "TORCHELASTIC_RUN_ID": handler.get_run_id(),
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": str(handler.use_agent_store),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        **_devices(worker.local_rank, virtual=getattr(spec, "virtual_local_rank", False)),
    }


def _devices(local_rank: int, *, virtual: bool) -> dict[str, str]:
    """Return the local rank, and for a virtual local rank also the only device that the rank sees, as its device 0."""
    if not virtual:
        return {"LOCAL_RANK": str(local_rank)}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": str(local_rank)}
    devices = visible.split(",")
    if local_rank >= len(devices):
        raise ValueError(f"local rank {local_rank} has no device in CUDA_VISIBLE_DEVICES={visible}")
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": devices[local_rank].strip()}


# Signal handlers of an agent while it has no gang: at the exit barrier, and in the rendezvous before a restart


_DEFAULT = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


@contextlib.contextmanager
def handlers() -> Iterator[None]:
    """Raise PyTorch's `SignalException` in the main thread for the signals of ``TORCHELASTIC_SIGNALS_TO_HANDLE``.

    Ignored signals stay ignored. Outside of the main thread, no handler is installed. The previous handlers are
    restored at the end.
    """
    old: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", _DEFAULT).split(","):
            sig = getattr(signal, name.strip(), None)
            if isinstance(sig, signal.Signals) and signal.getsignal(sig) not in {None, signal.SIG_IGN}:
                old[sig] = signal.signal(sig, _raise)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, old)  # the starter of this process may have blocked them
    try:
        yield
    finally:
        for sig, handler in old.items():
            signal.signal(sig, handler)


def _raise(signum: int, _frame: FrameType | None) -> None:
    sig = signal.Signals(signum)
    raise SignalException(f"Process {os.getpid()} got signal: {sig}", sig)


_TURN_S = 1e-6
"""Interval of the sleep in PyTorch's loop. It is short, because `_monitor_workers` itself waits for the gang."""
_NOT_SUPPORTED = {
    "TORCHELASTIC_ENABLE_FILE_TIMER": "the timer server for expiring ranks",
    "TORCHELASTIC_HEALTH_CHECK_PORT": "the health check server",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "the check for ranks in uninterruptible sleep",
}


class SupervisedElasticAgent(SimpleElasticAgent):  # type: ignore[misc]  # PyTorch is not installed where mypy runs
    """An elastic agent whose ranks are a gang of supervise.

    PyTorch's base class runs the rendezvous, counts the restarts and decides when the ranks start again. This class
    starts, watches and stops them. When the agent is killed, the kernel ends the ranks.

    `run` waits for the end of the gang instead of polling the ranks. The monitor interval of the spec only says how
    often the agent asks the rendezvous for new nodes.

    Not supported: ``TORCHELASTIC_ENABLE_FILE_TIMER``, ``TORCHELASTIC_HEALTH_CHECK_PORT`` and
    ``TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT``. The agent logs a warning if one is set.
    """

    def __init__(  # noqa: PLR0917 - PyTorch's order
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        start_method: str = "spawn",
        exit_barrier_timeout: float = 300,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: int = 30,
        *,
        grace: float | None = None,
        watchdog: supervise.Watchdog | None = None,
        containment: Containment = "group",
        gate: bool = False,
        kill_mode: KillMode = "group",
    ) -> None:
        """Take the arguments of PyTorch's ``LocalElasticAgent``, and some settings of `supervise.start_processes`.

        Args:
            spec: Role, ranks per node, entrypoint, arguments and rendezvous.
            logs_specs: Where output goes: an object of PyTorch or of supervise.
            start_method: How functions start: ``spawn``, ``fork`` or ``forkserver``.
            exit_barrier_timeout: Seconds to wait for the other agents after a success.
            log_line_prefix_template: Prefix of shown lines, with ``${role_name}``, ``${rank}``, ``${local_rank}``.
            shutdown_timeout: Seconds from the first signal to SIGKILL when the agent ends or got a signal.
            grace: Seconds from the first signal to SIGKILL after a failure and before a restart; None for
                `shutdown_timeout`.
            watchdog: When a rank counts as hung, and the consequence; None: no rank ever counts as hung.
            containment: Treatment of processes that leave their process group.
            gate: Whether a program waits until its lifeline is armed.
            kill_mode: Destination of the first signal of a stop: the process group of each rank, or only its own
                process. SIGKILL always goes to the group.

        Raises:
            ValueError: `grace` is not a number.
            SpecError: `grace` is negative or too large. The error is raised when the ranks start.
        """
        super().__init__(dataclasses.replace(spec, monitor_interval=_TURN_S), exit_barrier_timeout, shutdown_timeout)
        self._interval_s = spec.monitor_interval
        self._logs_specs = logs_specs
        self._start_method = start_method
        self._prefix = log_line_prefix_template
        self._grace_s = float(shutdown_timeout if grace is None else grace)
        self._settings: dict[str, Any] = {
            "watchdog": watchdog,
            "containment": containment,
            "gate": gate,
            "kill_mode": kill_mode,
        }
        self._gang: Any = None
        self._handlers = contextlib.ExitStack()
        for name, what in _NOT_SUPPORTED.items():
            if os.environ.get(name):
                log.warning("%s is set, but SupervisedElasticAgent does not have %s", name, what)

    def run(self, role: str = "default") -> RunResult:
        """Run the ranks until they succeed, or fail more often than `max_restarts`; return the result.

        The result maps global ranks to return values or failures.

        Raises:
            SignalException: The class of PyTorch. A termination signal arrived, and the ranks are stopped.
        """
        self._gang = None
        with contextlib.ExitStack() as self._handlers:
            return super().run(role)

    def _invoke_run(self, role: str = "default") -> RunResult:
        try:
            return super()._invoke_run(role)
        except supervise.SignalException as error:  # PyTorch's `run` catches only PyTorch's own class
            raise SignalException(str(error), error.sigval) from None

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Start the ranks; return local rank to pid. A signal before the first start ends the agent, as in PyTorch."""
        if self._gang is None:
            self._handlers.enter_context(handlers())
        spec = worker_group.spec
        restarts = spec.max_restarts - self._remaining_restarts
        workers = {worker.local_rank: worker for worker in worker_group.workers}
        prefixes = None
        if self._prefix:
            template = Template(self._prefix)
            prefixes = {
                local: template.safe_substitute(role_name=spec.role, rank=worker.global_rank, local_rank=local)
                for local, worker in workers.items()
            }
        self._gang = supervise.start_processes(
            name=spec.role,
            entrypoint=spec.entrypoint,
            args={local: tuple(macros.substitute(list(spec.args), str(local))) for local in workers},
            envs={local: rank_environment(worker_group, worker, restarts) for local, worker in workers.items()},
            logs_specs=self._logs_specs,
            log_line_prefixes=prefixes,
            start_method=self._start_method,
            numa_options=spec.numa_options,
            duplicate_stdout_filters=spec.duplicate_stdout_filters,
            duplicate_stderr_filters=spec.duplicate_stderr_filters,
            grace=self._grace_s,
            hold_returned=True,
            **self._settings,
        )
        pids: dict[int, Any] = self._gang.pids()
        return pids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Wait until the gang has ended, at most for the monitor interval; return the state of the ranks.

        If the gang is stopping because a rank has failed, wait until the gang has ended. If the gang counted as healthy
        instead, a new node would cause a restart that does not count.
        """
        result = self._gang.wait(self._interval_s)
        if result is None:
            status = self._gang.status()
            if status is None or status.phase in {"stopping", "finished"}:
                result = self._gang.wait()
            else:
                return RunResult(state=WorkerState.HEALTHY)
        global_ranks = {worker.local_rank: worker.global_rank for worker in worker_group.workers}
        if result.failures:
            failures = {global_ranks[local]: _as_pytorch(failure) for local, failure in result.failures.items()}
            return RunResult(state=WorkerState.FAILED, failures=failures)
        if result.outcome != "succeeded":
            return RunResult(state=WorkerState.UNHEALTHY)
        values = {global_ranks[local]: value for local, value in result.return_values.items()}
        return RunResult(state=WorkerState.SUCCEEDED, return_values=values)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:  # noqa: ARG002 - PyTorch's signature
        if self._gang is not None:
            self._gang.close(timeout=self._grace_s)

    def _shutdown(self, death_sig: signal.Signals | None = None, timeout: float = 30) -> None:
        if self._gang is not None:
            self._gang.close(death_sig, timeout)


def _as_pytorch(failure: supervise.ProcessFailure) -> ProcessFailure:
    """Return the failure as an object of PyTorch's class, with the content and the time that supervise has read."""
    found = ProcessFailure(failure.local_rank, failure.pid, failure.exitcode, "")  # it would read the file again
    found.error_file, found.error_file_data = failure.error_file, failure.error_file_data
    found.message, found.timestamp = failure.message, failure.timestamp
    return found
