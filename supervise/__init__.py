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
    from supervise._api.tail_log import TailLog as TailLog
    from supervise._api.tail_log import tail_logfile as tail_logfile
    from supervise._gang.supervisor import Supervisor as Supervisor
    from supervise._gang.supervisor import SupervisorRef as SupervisorRef
    from supervise._process.launch.numa import AffinityMode as AffinityMode
    from supervise._process.launch.numa import NumaOptions as NumaOptions
    from supervise._process.launch.stack_signal import enable_stacks as enable_stacks
    from supervise._torch.contexts import MultiprocessContext as MultiprocessContext
    from supervise._torch.contexts import SubprocessContext as SubprocessContext
    from supervise._torch.redirects import get_std_cm as get_std_cm
    from supervise._torch.redirects import redirect as redirect
    from supervise._torch.redirects import redirect_stderr as redirect_stderr
    from supervise._torch.redirects import redirect_stdout as redirect_stdout
    from supervise._torch.start import start_processes as start_processes
    from supervise._torch.subprocess_handler import SubprocessHandler as SubprocessHandler
    from supervise._torch.subprocess_handler import get_subprocess_handler as get_subprocess_handler
    from supervise._tree.lives import TreeRef as TreeRef
    from supervise._tree.monitor import monitor as monitor
    from supervise._tree.supervisor import ActorSupervisor as ActorSupervisor
    from supervise.destinations import LogsDest as LogsDest
    from supervise.errors import ChildFailedError as ChildFailedError
    from supervise.errors import GangFailed as GangFailed
    from supervise.errors import RestartLimitExceeded as RestartLimitExceeded
    from supervise.errors import SignalException as SignalException
    from supervise.errors import SpawnError as SpawnError
    from supervise.errors import SpecError as SpecError
    from supervise.errors import SuperviseError as SuperviseError
    from supervise.errors import SupervisorCrashed as SupervisorCrashed
    from supervise.errors import UnkillableError as UnkillableError
    from supervise.logs import DefaultLogsSpecs as DefaultLogsSpecs
    from supervise.logs import LogsSpecs as LogsSpecs
    from supervise.logs import Std as Std
    from supervise.logs import to_map as to_map
    from supervise.messages import Close as Close
    from supervise.messages import GangFinished as GangFinished
    from supervise.messages import GangRestarting as GangRestarting
    from supervise.messages import GangStarted as GangStarted
    from supervise.messages import GangStatus as GangStatus
    from supervise.messages import Pids as Pids
    from supervise.messages import Poll as Poll
    from supervise.messages import RankStatus as RankStatus
    from supervise.messages import Reload as Reload
    from supervise.messages import RestartRanks as RestartRanks
    from supervise.messages import Signal as Signal
    from supervise.messages import Stacks as Stacks
    from supervise.messages import Start as Start
    from supervise.messages import Status as Status
    from supervise.messages import Subscribe as Subscribe
    from supervise.messages import TerminateRanks as TerminateRanks
    from supervise.messages import Unsubscribe as Unsubscribe
    from supervise.messages import Wait as Wait
    from supervise.messages import WorkerExited as WorkerExited
    from supervise.messages import WorkerHung as WorkerHung
    from supervise.messages import WorkerReady as WorkerReady
    from supervise.messages import WorkerRestarting as WorkerRestarting
    from supervise.messages import WorkerStarted as WorkerStarted
    from supervise.messages import WorkerStopped as WorkerStopped
    from supervise.notifying import notify as notify
    from supervise.recording import ErrorHandler as ErrorHandler
    from supervise.recording import get_error_handler as get_error_handler
    from supervise.recording import record as record
    from supervise.restarts import RestartPolicy as RestartPolicy
    from supervise.result import ProcessFailure as ProcessFailure
    from supervise.result import RankEnd as RankEnd
    from supervise.result import RankRestart as RankRestart
    from supervise.result import RunProcsResult as RunProcsResult
    from supervise.roles import Role as Role
    from supervise.stacks import RankStacks as RankStacks
    from supervise.stacks import StackFrame as StackFrame
    from supervise.stacks import ThreadStack as ThreadStack
    from supervise.stacks import group_stacks as group_stacks
    from supervise.trees import ChildDown as ChildDown
    from supervise.trees import ChildRestarting as ChildRestarting
    from supervise.trees import ChildSpec as ChildSpec
    from supervise.trees import ChildStarted as ChildStarted
    from supervise.trees import ChildStatus as ChildStatus
    from supervise.trees import Down as Down
    from supervise.trees import RestartChild as RestartChild
    from supervise.trees import StartChild as StartChild
    from supervise.trees import TerminateChild as TerminateChild
    from supervise.trees import TreeFinished as TreeFinished
    from supervise.trees import TreeStatus as TreeStatus
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
    import importlib

    if name == "__version__":
        from importlib import metadata

        return metadata.version("supervise-gang")
    if name not in _HOME_OF:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
