"""The names of ``torch.distributed.elastic.multiprocessing.api``."""

from __future__ import annotations

from supervise.elastic._lazy import names

TYPE_CHECKING = False  # instead of importing typing into every worker
if TYPE_CHECKING:
    from supervise._facade.base import PContext
    from supervise._facade.context import MultiprocessContext, SubprocessContext
    from supervise._facade.signals import default_signal as _get_default_signal
    from supervise._facade.signals import kill_signal as _get_kill_signal
    from supervise._facade.signals import raise_or_record as _terminate_process_handler
    from supervise._facade.subprocess_handler import SubprocessHandler as SubprocessHandler
    from supervise._facade.subprocess_handler import get_subprocess_handler as get_subprocess_handler
    from supervise._facade.tail_log import TailLog as TailLog
    from supervise._facade.wrap import _wrap
    from supervise._process.numa import NumaOptions as NumaOptions
    from supervise._streams.redirects import IS_MACOS as IS_MACOS
    from supervise._streams.redirects import IS_WINDOWS as IS_WINDOWS
    from supervise._streams.redirects import get_std_cm
    from supervise._streams.redirects import redirect_stderr as redirect_stderr
    from supervise._streams.redirects import redirect_stdout as redirect_stdout
    from supervise.destinations import LogsDest
    from supervise.elastic._logger import logger as logger
    from supervise.errors import SignalException
    from supervise.logs import DefaultLogsSpecs, LogsSpecs, Std, to_map
    from supervise.logs import validate_full_rank as _validate_full_rank
    from supervise.recording import record as record
    from supervise.result import ProcessFailure as ProcessFailure
    from supervise.result import RunProcsResult

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
    "IS_MACOS": "_streams.redirects",
    "IS_WINDOWS": "_streams.redirects",
    "LogsDest": "destinations",
    "LogsSpecs": "logs",
    "MultiprocessContext": "_facade.context",
    "NumaOptions": "_process.numa",
    "PContext": "_facade.base",
    "ProcessFailure": "result",
    "RunProcsResult": "result",
    "SignalException": "errors",
    "Std": "logs",
    "SubprocessContext": "_facade.context",
    "SubprocessHandler": "_facade.subprocess_handler",
    "TailLog": "_facade.tail_log",
    "_MAPPING_REGEX": "logs",
    "_VALUE_REGEX": "logs",
    "_get_default_signal": "_facade.signals:default_signal",
    "_get_kill_signal": "_facade.signals:kill_signal",
    "_terminate_process_handler": "_facade.signals:raise_or_record",
    "_validate_full_rank": "logs:validate_full_rank",
    "_wrap": "_facade.wrap",
    "get_std_cm": "_streams.redirects",
    "logger": "elastic._logger",
    "get_subprocess_handler": "_facade.subprocess_handler",
    "record": "recording",
    "redirect_stderr": "_streams.redirects",
    "redirect_stdout": "_streams.redirects",
    "to_map": "logs",
}

__getattr__ = names(__name__, globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
