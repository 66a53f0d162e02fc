"""Supervision of gangs of local processes: all or nothing, complete cleanup, and the root cause of a failure.

Every public name is importable from here. A name is loaded at its first use, so `import supervise` stays fast. The
process of every spawned function executes that import.

PYTEST_DONT_REWRITE: this package is a plugin of pytest. Without this word, pytest warns in a process that has already
imported the package.
"""

from __future__ import annotations

TYPE_CHECKING = False  # instead of importing typing into every worker
if TYPE_CHECKING:
    from typing import Any

    from supervise._api.base import PContext as PContext
    from supervise._api.run import run as run
    from supervise._api.tail_log import TailLog as TailLog, tail_logfile as tail_logfile
    from supervise._gang.supervisor import Supervisor as Supervisor, SupervisorRef as SupervisorRef
    from supervise._process.launch.numa import AffinityMode as AffinityMode, NumaOptions as NumaOptions
    from supervise._process.launch.stack_signal import enable_stacks as enable_stacks
    from supervise._torch.contexts import (
        MultiprocessContext as MultiprocessContext,
        SubprocessContext as SubprocessContext,
    )
    from supervise._torch.redirects import (
        get_std_cm as get_std_cm,
        redirect as redirect,
        redirect_stderr as redirect_stderr,
        redirect_stdout as redirect_stdout,
    )
    from supervise._torch.start import start_processes as start_processes
    from supervise._torch.subprocess_handler import (
        SubprocessHandler as SubprocessHandler,
        get_subprocess_handler as get_subprocess_handler,
    )
    from supervise._tree.lives import TreeRef as TreeRef
    from supervise._tree.monitor import monitor as monitor
    from supervise._tree.supervisor import ActorSupervisor as ActorSupervisor
    from supervise.destinations import LogsDest as LogsDest
    from supervise.errors import (
        ChildFailedError as ChildFailedError,
        GangFailed as GangFailed,
        RestartLimitExceeded as RestartLimitExceeded,
        SignalException as SignalException,
        SpawnError as SpawnError,
        SpecError as SpecError,
        SuperviseError as SuperviseError,
        SupervisorCrashed as SupervisorCrashed,
        UnkillableError as UnkillableError,
    )
    from supervise.logs import (
        DefaultLogsSpecs as DefaultLogsSpecs,
        LogsSpecs as LogsSpecs,
        Std as Std,
        to_map as to_map,
    )
    from supervise.messages import (
        Close as Close,
        GangFinished as GangFinished,
        GangRestarting as GangRestarting,
        GangStarted as GangStarted,
        GangStatus as GangStatus,
        Pids as Pids,
        Poll as Poll,
        RankStatus as RankStatus,
        Reload as Reload,
        RestartRanks as RestartRanks,
        Signal as Signal,
        Stacks as Stacks,
        Start as Start,
        Status as Status,
        Subscribe as Subscribe,
        TerminateRanks as TerminateRanks,
        Unsubscribe as Unsubscribe,
        Wait as Wait,
        WorkerExited as WorkerExited,
        WorkerHung as WorkerHung,
        WorkerReady as WorkerReady,
        WorkerRestarting as WorkerRestarting,
        WorkerStarted as WorkerStarted,
        WorkerStopped as WorkerStopped,
    )
    from supervise.notifying import notify as notify
    from supervise.recording import (
        ErrorHandler as ErrorHandler,
        get_error_handler as get_error_handler,
        record as record,
    )
    from supervise.restarts import RestartPolicy as RestartPolicy
    from supervise.result import (
        ProcessFailure as ProcessFailure,
        RankEnd as RankEnd,
        RankRestart as RankRestart,
        RunProcsResult as RunProcsResult,
    )
    from supervise.roles import Role as Role
    from supervise.stacks import (
        RankStacks as RankStacks,
        StackFrame as StackFrame,
        ThreadStack as ThreadStack,
        group_stacks as group_stacks,
    )
    from supervise.trees import (
        ChildDown as ChildDown,
        ChildRestarting as ChildRestarting,
        ChildSpec as ChildSpec,
        ChildStarted as ChildStarted,
        ChildStatus as ChildStatus,
        Down as Down,
        RestartChild as RestartChild,
        StartChild as StartChild,
        TerminateChild as TerminateChild,
        TreeFinished as TreeFinished,
        TreeStatus as TreeStatus,
    )
    from supervise.watchdog import Watchdog as Watchdog

_HOMES = {
    "_gang.supervisor": ("Supervisor", "SupervisorRef"),
    "_api.base": ("PContext",),
    "_api.run": ("run",),
    "_torch.contexts": ("MultiprocessContext", "SubprocessContext"),
    "_torch.start": ("start_processes",),
    "_torch.subprocess_handler": ("SubprocessHandler", "get_subprocess_handler"),
    "_api.tail_log": ("TailLog", "tail_logfile"),
    "_process.launch.numa": ("AffinityMode", "NumaOptions"),
    "_process.launch.stack_signal": ("enable_stacks",),
    "_tree.lives": ("TreeRef",),
    "_tree.monitor": ("monitor",),
    "_tree.supervisor": ("ActorSupervisor",),
    "_torch.redirects": ("get_std_cm", "redirect", "redirect_stderr", "redirect_stdout"),
    "destinations": ("LogsDest",),
    "errors": (
        "ChildFailedError",
        "GangFailed",
        "RestartLimitExceeded",
        "SignalException",
        "SpawnError",
        "SpecError",
        "SuperviseError",
        "SupervisorCrashed",
        "UnkillableError",
    ),
    "logs": ("DefaultLogsSpecs", "LogsSpecs", "Std", "to_map"),
    "messages": (
        "Close",
        "GangFinished",
        "GangRestarting",
        "GangStarted",
        "GangStatus",
        "Pids",
        "Poll",
        "RankStatus",
        "Reload",
        "RestartRanks",
        "Signal",
        "Stacks",
        "Start",
        "Status",
        "Subscribe",
        "TerminateRanks",
        "Unsubscribe",
        "Wait",
        "WorkerExited",
        "WorkerHung",
        "WorkerReady",
        "WorkerRestarting",
        "WorkerStarted",
        "WorkerStopped",
    ),
    "notifying": ("notify",),
    "recording": ("ErrorHandler", "get_error_handler", "record"),
    "restarts": ("RestartPolicy",),
    "result": ("ProcessFailure", "RankEnd", "RankRestart", "RunProcsResult"),
    "roles": ("Role",),
    "stacks": ("RankStacks", "StackFrame", "ThreadStack", "group_stacks"),
    "trees": (
        "ChildDown",
        "ChildRestarting",
        "ChildSpec",
        "ChildStarted",
        "ChildStatus",
        "Down",
        "RestartChild",
        "StartChild",
        "TerminateChild",
        "TreeFinished",
        "TreeStatus",
    ),
    "watchdog": ("Watchdog",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605 - a test compares it with the imports above


def __getattr__(name: str) -> Any:
    """Load a public name, or ``__version__``, at its first use."""
    from supervise._runtime import fork_hooks  # noqa: F401, I001 - first: a forked child forgets the imports below
    import importlib

    if name == "__version__":
        from importlib import metadata

        return metadata.version("supervise-gang")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    except OSError as error:
        from supervise._platform import why_refused

        if not error.errno:
            raise
        raise OSError(error.errno, why_refused(error.errno, str(error.strerror)), error.filename) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
