"""The names of ``torch.distributed.elastic.multiprocessing.errors``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervise._lazy import names

if TYPE_CHECKING:
    from logging import Logger

    from supervise.errors import ChildFailedError
    from supervise.recording import ErrorHandler, get_error_handler, record
    from supervise.result import ProcessFailure

    logger: Logger

__all__ = ["ChildFailedError", "ErrorHandler", "ProcessFailure", "get_error_handler", "record"]

JSON = dict[str, Any]
GlobalRank = int

_HOMES = {
    "ChildFailedError": "errors",
    "ErrorHandler": "recording",
    "ProcessFailure": "result",
    "_NOT_AVAILABLE": "result",
    "error_handler": "",
    "get_error_handler": "recording",
    "handlers": "",
    "logger": "events:log",
    "record": "recording",
}

if not TYPE_CHECKING:  # for a type checker, only the names above exist
    __getattr__, __dir__ = names(__name__, globals(), _HOMES)
