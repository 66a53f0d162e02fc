"""The names of ``torch.distributed.elastic.multiprocessing.api``."""

from __future__ import annotations

from supervise._lazy import names

TYPE_CHECKING = False  # instead of importing typing into every worker
if TYPE_CHECKING:
    from logging import Logger

    from supervise import logs
    from supervise._api import signals
    from supervise._api.base import PContext
    from supervise._api.tail_log import TailLog as TailLog
    from supervise._process.launch.numa import NumaOptions as NumaOptions
    from supervise._torch.contexts import MultiprocessContext, SubprocessContext
    from supervise._torch.redirects import (
        IS_MACOS as IS_MACOS,
        IS_WINDOWS as IS_WINDOWS,
        _wrap as _wrap,
        get_std_cm,
        redirect_stderr as redirect_stderr,
        redirect_stdout as redirect_stdout,
    )
    from supervise._torch.subprocess_handler import (
        SubprocessHandler as SubprocessHandler,
        get_subprocess_handler as get_subprocess_handler,
    )
    from supervise.destinations import LogsDest
    from supervise.errors import SignalException
    from supervise.logs import DefaultLogsSpecs, LogsSpecs, Std, to_map
    from supervise.recording import record as record
    from supervise.result import ProcessFailure as ProcessFailure, RunProcsResult

    # Type checkers treat an import under another name as private
    _get_default_signal = signals.default_signal
    _get_kill_signal = signals.kill_signal
    _terminate_process_handler = signals.raise_or_record
    _validate_full_rank = logs.validate_full_rank
    logger: Logger

__all__ = [
    "DefaultLogsSpecs",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "PContext",
    "RunProcsResult",
    "SignalException",
    "Std",
    "SubprocessContext",
    "get_std_cm",
    "to_map",
]

_HOMES = {
    "DefaultLogsSpecs": "logs",
    "IS_MACOS": "_torch.redirects",
    "IS_WINDOWS": "_torch.redirects",
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
    "SubprocessHandler": "_torch.subprocess_handler",
    "TailLog": "_api.tail_log",
    "_MAPPING_REGEX": "logs",
    "_VALUE_REGEX": "logs",
    "_get_default_signal": "_api.signals:default_signal",
    "_get_kill_signal": "_api.signals:kill_signal",
    "_terminate_process_handler": "_api.signals:raise_or_record",
    "_validate_full_rank": "logs:validate_full_rank",
    "_wrap": "_torch.redirects",
    "get_std_cm": "_torch.redirects",
    "logger": "events:log",
    "get_subprocess_handler": "_torch.subprocess_handler",
    "record": "recording",
    "redirect_stderr": "_torch.redirects",
    "redirect_stdout": "_torch.redirects",
    "to_map": "logs",
}

if not TYPE_CHECKING:  # for a type checker, only the names above exist
    __getattr__, __dir__ = names(__name__, globals(), _HOMES)
