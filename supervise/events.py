"""Structured events. Silent until the application configures logging, except for a gang that has failed.

If the application has configured structlog, events go through structlog; otherwise they go to the standard library's
logger ``supervise``. Without a listener, this module builds no event. This module does not import structlog, and
changes no logging configuration. Environments are never logged.

Events are delivered on the gang's thread, at once and in order. So all events have arrived when a wait is answered. A
listener must not block: a handler that writes to a full pipe or a stopped terminal delays its gang. Put a
`logging.handlers.QueueHandler` before such a handler.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import logging
import os
import select
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from supervise._record import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

    Sink = Callable[[dict[str, Any]], object]

SCHEMA_VERSION = 1


class Event(NamedTuple):
    """One event, before it is emitted."""

    name: str
    level: str
    fields: dict[str, Any]


_NUMBERS = {name.lower(): number for name, number in logging.getLevelNamesMapping().items()}
log: logging.Logger = logging.getLogger("supervise")
"""The logger of this library."""
_silence = logging.NullHandler()
log.addHandler(_silence)

_OTEL = {
    "pid": "process.pid",
    "exit_code": "process.exit.code",
    "executable_name": "process.executable.name",
    "command_args": "process.command_args",
    "host_name": "host.name",
    "exception_type": "exception.type",
    "exception_message": "exception.message",
    "exception_stacktrace": "exception.stacktrace",
    "log_iostream": "log.iostream",
}


def otel_names(_logger: object, _method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    """Rename fields to OpenTelemetry's attribute names. A structlog processor for the application's chain."""
    return {_OTEL.get(key, key): value for key, value in event.items()}


def timestamp() -> str:
    """Return the current time in UTC, in ISO 8601 with microseconds. datetime would slow the first gang."""
    now_s, now_ns = divmod(time.time_ns(), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now_s))}.{now_ns // 1000:06d}+00:00"


def _end_child() -> NoReturn:
    """End a child that a listener of events has forked, and that has returned from it: the gang is its parent's."""
    with contextlib.suppress(OSError):
        os.write(2, b"supervise: a child that a listener of events has forked ends, because it has returned from it\n")
    os._exit(1)


class EventLog:
    """The emitter of one gang's events. Used on the gang's loop; `seq` has no gaps."""

    def __init__(self, common: Mapping[str, Any], *, sink: Sink | None = None) -> None:
        """Create the emitter with a copy of the caller's context variables, which structlog merges into every event.

        Args:
            common: Fields of every event: ``run_id``, ``gang``, ``role``.
            sink: Called with each event as a flat dictionary, independent of the logging configuration.
        """
        self._common = dict(common)
        self._sink = sink
        self._seq = itertools.count()
        self._context = contextvars.copy_context()

    def emit(self, event: str, level: str = "info", **fields: Any) -> None:
        """Emit `event` at `level` if there is a listener. Exceptions of listeners are suppressed."""
        chain = self._listener(level)
        if chain is None and self._sink is None:
            return
        whole = {
            "event": event,
            "level": level,
            "schema_version": SCHEMA_VERSION,
            "timestamp": timestamp(),
            "monotonic_ns": time.monotonic_ns(),
            **self._common,
            "attempt": int(self._common.get("attempt", 0)),
            "host_name": os.uname().nodename,
            **fields,
            "seq": next(self._seq),
        }
        pid = os.getpid()
        for deliver in (self._sink, chain):
            if deliver is not None:
                try:
                    self._context.run(deliver, dict(whole))
                except BaseException:
                    with contextlib.suppress(BaseException):  # the listener that raised may be a logging handler
                        log.debug("a listener of events raised", exc_info=True)
                if os.getpid() != pid:
                    _end_child()

    def renew(self, **common: Any) -> None:
        """Change the common fields of all further events."""
        self._common.update(common)

    def listens(self, level: str = "info") -> bool:
        """Return whether an event of `level` has a listener; called before building the event."""
        return self._sink is not None or self._listener(level) is not None

    def show_at_last(self, text: str) -> None:
        """Show one line at ERROR through `logging.lastResort`, unless the application has configured logging."""
        heard = self._sink is not None or (self._listener("error") is not None and not _goes_to_logging())
        if not heard and not _is_configured():
            say_at_last(text, logging.ERROR)

    def _listener(self, level: str) -> Sink | None:
        structlog = sys.modules.get("structlog")  # not imported here: see `_gang.later_modules`
        if structlog is not None and getattr(structlog, "is_configured", bool)():  # it lacks the name during its import
            return _through(structlog.get_logger("supervise"))
        found: logging.Logger | None = log
        while found is not None:
            for handler in found.handlers:  # faster than `any`, at each event
                if not isinstance(handler, logging.NullHandler):  # a handler of the application
                    return _log if log.isEnabledFor(_NUMBERS[level]) else None
            found = found.parent if found.propagate else None
        return None


_LONGEST_LINE = 1000
"""The most characters of a line on stderr: with up to 4 bytes each, a pipe that polls as writable has room for it."""


def say_at_last(text: str, level: int) -> None:
    """Show one line on stderr through `logging.lastResort`, which an application may replace or remove.

    A long line is cut. If stderr would block, the line is dropped: no thread of a gang may block.
    """
    if len(text) > _LONGEST_LINE:
        text = f"{text[: _LONGEST_LINE - 4]} ..."
    handler = logging.lastResort
    if handler is None or not log.isEnabledFor(level) or not _takes_a_line(sys.stderr):
        return
    record = log.makeRecord(log.name, level, __file__, 0, text, (), None)
    with contextlib.suppress(Exception):  # a filter or a handler of the application, or `sys.stderr` is closed
        if log.filter(record):
            handler.handle(record)


def _goes_to_logging() -> bool:
    """Return whether the application's structlog passes its events on to the standard library."""
    stdlib = sys.modules.get("structlog.stdlib")
    factory = sys.modules["structlog"].get_config()["logger_factory"] if stdlib is not None else None
    return stdlib is not None and isinstance(factory, stdlib.LoggerFactory)


def _is_configured() -> bool:
    """Return whether the application has configured the logger: by a level above ERROR, a handler or no propagation."""
    handlers = (*log.handlers, *logging.root.handlers)  # the logger has no other parent than the root
    changed = not log.isEnabledFor(logging.ERROR) or not log.propagate
    return changed or any(handler is not _silence for handler in handlers)


def _takes_a_line(stream: Any) -> bool:
    """Return whether a write to `stream` will not block, as far as the kernel can tell."""
    if stream is None:
        return False
    poll = select.poll()
    try:
        poll.register(stream.fileno(), select.POLLOUT)
    except Exception:  # no descriptor: a notebook's stream, for example
        return True
    return any(flags & select.POLLOUT for _, flags in poll.poll(0))


def _log(event: dict[str, Any]) -> None:
    """Log an event by the standard library: a readable message, and the event as the record's attribute ``supervise``.

    If the application uses structlog, the event has its context variables.
    """
    level = event.pop("level")
    merge = getattr(sys.modules.get("structlog.contextvars"), "merge_contextvars", None)
    whole = dict(event if merge is None else merge(None, level, event))
    shown = {k: v for k, v in whole.items() if k not in _NOT_IN_MESSAGE and v is not None}
    fields = " ".join(f"{key}={value!r}" for key, value in shown.items())
    getattr(log, level)(f"{whole['event']} {fields}", extra={"supervise": whole})


_NOT_IN_MESSAGE = {"event", "level", "schema_version", "timestamp", "monotonic_ns", "host_name", "seq"}


def _through(logger: Any) -> Sink:
    def deliver(event: dict[str, Any]) -> None:
        name, level = event.pop("event"), event.pop("level")
        getattr(logger, level)(name, **event)

    return deliver
