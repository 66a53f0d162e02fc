"""Everything that happens, as structured events. Silent until logging is configured, but for a gang that has failed.

Events go through structlog: the application's own configuration where it has one, otherwise one that
ends in the standard library's logger ``supervise``. While nobody listens no event is built and
structlog is not imported. Nothing here configures anything. Environments are never logged.

Events are delivered on the gang's own thread, at once and in order, so that all have arrived when a wait
is answered. A listener must not block, therefore: one that writes to a pipe or a terminal that nobody
reads holds up its gang. Where that can be, put a `logging.handlers.QueueHandler` before the handler that
writes.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import logging
import os
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

    Sink = Callable[[dict[str, Any]], object]

SCHEMA_VERSION = 1

_NUMBERS = {name.lower(): number for name, number in logging.getLevelNamesMapping().items()}
_logger = logging.getLogger("supervise")
_silence = logging.NullHandler()
_logger.addHandler(_silence)

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
    """Rename fields to OpenTelemetry's attribute names: a structlog processor, for the application's chain."""
    return {_OTEL.get(key, key): value for key, value in event.items()}


class EventLog:
    """Where one gang's events are emitted. Used on the gang's loop; `seq` has no holes."""

    def __init__(self, common: Mapping[str, Any], *, sink: Sink | None = None) -> None:
        """Make it; the caller's context variables (structlog's among them) go with every event.

        Args:
            common: Fields of every event: ``run_id``, ``gang``, ``role``.
            sink: Called with each event as a flat dictionary, whatever the logging configuration.
        """
        self._common = dict(common)
        self._sink = sink
        self._seq = itertools.count()
        self._context = contextvars.copy_context()

    def emit(self, event: str, level: str = "info", **fields: Any) -> None:
        """Emit `event` at `level`, if anybody listens. A listener's failure is the listener's."""
        chain = self._listener(level)
        if chain is None and self._sink is None:
            return
        from datetime import UTC, datetime  # a tenth of our import, and most gangs have no listener

        whole = {
            "event": event,
            "level": level,
            "schema_version": SCHEMA_VERSION,
            "timestamp": datetime.now(UTC).isoformat(),
            "monotonic_ns": time.monotonic_ns(),
            **self._common,
            "attempt": int(self._common.get("attempt", 0)),
            "host_name": os.uname().nodename,
            **fields,
            "seq": next(self._seq),
        }
        for deliver in (self._sink, chain):
            if deliver is not None:
                try:
                    self._context.run(deliver, dict(whole))
                except BaseException:
                    with contextlib.suppress(BaseException):  # a handler of logging may be what has raised
                        _logger.debug("a listener of events raised", exc_info=True)

    def renew(self, **common: Any) -> None:
        """Change fields of every event from now on."""
        self._common.update(common)

    def listens(self, level: str = "info") -> bool:
        """Whether anybody would get an event of `level`; asked before one is put together."""
        return self._sink is not None or self._listener(level) is not None

    def show_at_last(self, text: str) -> None:
        """Show one line at ERROR by logging's last resort, unless the application has configured anything."""
        if not self.listens("error") and not _is_configured():
            say_at_last(text, logging.ERROR)

    def _listener(self, level: str) -> Sink | None:
        try:
            if "structlog" in sys.modules:
                import structlog  # waits for a thread that is importing it just now

                if structlog.is_configured():
                    return _through(structlog.get_logger("supervise"))
            if not _logger.isEnabledFor(_NUMBERS[level]) or not _has_listener():
                return None
            return _through(_standard())
        except (ImportError, OSError):  # no descriptor left to import it with: an event is not worth a gang
            return None


def say_at_last(text: str, level: int) -> None:
    """Show one line on stderr by logging's last resort, which an application may replace or take away.

    A stderr that takes nothing now costs the line: no thread of a gang may block.
    """
    handler = logging.lastResort
    if handler is None or not _logger.isEnabledFor(level) or not _takes_a_line(sys.stderr):
        return
    record = _logger.makeRecord(_logger.name, level, __file__, 0, text, (), None)
    if _logger.filter(record):
        handler.handle(record)


def _has_listener() -> bool:
    """Whether the application has put a handler on our logger or above it."""
    found: logging.Logger | None = _logger
    while found is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in found.handlers):
            return True
        found = found.parent if found.propagate else None
    return False


def _is_configured() -> bool:
    """Whether the application has said that it wants no errors of ours: by a level, a handler, no propagation."""
    if not _logger.isEnabledFor(logging.ERROR) or not _logger.propagate:
        return True
    found: logging.Logger | None = _logger
    while found is not None:
        if any(handler is not _silence for handler in found.handlers):
            return True
        found = found.parent
    return False


def _takes_a_line(stream: Any) -> bool:
    """Whether a write to `stream` does not block, as far as the kernel can tell."""
    import select

    if stream is None:
        return False
    try:
        fd = stream.fileno()
    except (AttributeError, OSError, ValueError):  # no file: a notebook's, for example
        return True
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return any(flags & select.POLLOUT for _, flags in poll.poll(0))


def _standard() -> Any:
    """Return structlog over the standard library's logger, without touching structlog's configuration."""
    import structlog

    return structlog.wrap_logger(
        _logger,
        processors=[structlog.contextvars.merge_contextvars, _as_record],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _as_record(_logger: object, _method: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """Render for logging: a readable message, and the event itself as the record's attribute ``supervise``."""
    shown = {k: v for k, v in event.items() if k not in _NOT_IN_MESSAGE and v is not None}
    fields = " ".join(f"{key}={value!r}" for key, value in shown.items())
    return (f"{event['event']} {fields}",), {"extra": {"supervise": dict(event)}}


_NOT_IN_MESSAGE = {"event", "level", "schema_version", "timestamp", "monotonic_ns", "host_name", "seq"}


def _through(logger: Any) -> Sink:
    def deliver(event: dict[str, Any]) -> None:
        name, level = event.pop("event"), event.pop("level")
        getattr(logger, level)(name, **event)

    return deliver
