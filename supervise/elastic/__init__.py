"""The names of ``torch.distributed.elastic.multiprocessing``: in an import, only the prefix of the module changes.

This package and its submodules have names only; the modules that define them have the documentation. No module
imports torch, and each name is loaded at its first use.
"""

from __future__ import annotations

from supervise._lazy import names

TYPE_CHECKING = False  # instead of importing typing into every worker
if TYPE_CHECKING:
    from supervise import logs
    from supervise._api.base import PContext
    from supervise._process.launch.numa import NumaOptions as NumaOptions
    from supervise._torch.contexts import MultiprocessContext, SubprocessContext
    from supervise._torch.start import start_processes
    from supervise.destinations import LogsDest
    from supervise.errors import SignalException
    from supervise.logs import DefaultLogsSpecs, LogsSpecs, Std, to_map
    from supervise.result import ProcessFailure, RunProcsResult

    _validate_full_rank = logs.validate_full_rank  # type checkers treat an import under another name as private

__all__ = [
    "DefaultLogsSpecs",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "PContext",
    "ProcessFailure",
    "RunProcsResult",
    "SignalException",
    "Std",
    "SubprocessContext",
    "start_processes",
    "to_map",
]

_HOMES = {
    "DefaultLogsSpecs": "logs",
    "LogsDest": "destinations",
    "LogsSpecs": "logs",
    "MultiprocessContext": "_torch.contexts",
    "NumaOptions": "_process.launch.numa",
    "PContext": "_api.base",
    "ProcessFailure": "result",
    "RunProcsResult": "result",
    "SignalException": "errors",
    "Std": "logs",
    "SubprocessContext": "_torch.contexts",
    "_validate_full_rank": "logs:validate_full_rank",
    "api": "",
    "errors": "",
    "redirects": "",
    "start_processes": "_torch.start_polled",
    "subprocess_handler": "",
    "tail_log": "",
    "to_map": "logs",
}

if not TYPE_CHECKING:  # for a type checker, only the names above exist
    __getattr__, __dir__ = names(__name__, globals(), _HOMES)
