"""Exceptions. Every class here keeps its attributes when pickled.

```text
Exception
├── SuperviseError               base class of the exceptions that only supervise has
│   ├── SpecError                a setting or message is not valid; no process was started (also a RuntimeError)
│   ├── SpawnError               a rank did not start, or hung or ended before all ranks were ready
│   ├── UnkillableError          a process outlived SIGKILL
│   ├── SupervisorCrashed        a handler inside supervise raised; the ranks were killed
│   ├── GangFailed               a gang did not succeed, with its result; `supervise.run` raises it
│   └── RestartLimitExceeded     a tree has given up, and has stopped its children
├── ChildFailedError             as in PyTorch: the failures of a gang, with the block of text that torchrun prints
└── SignalException              as in PyTorch: the host received a termination signal
```
An `OSError` that a start raises keeps its own class, errno and file name.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # instead of importing typing into every worker
if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping
    from typing import Any

    from supervise.result import ProcessFailure, RunProcsResult

__all__ = [
    "ChildFailedError",
    "GangFailed",
    "RestartLimitExceeded",
    "SignalException",
    "SpawnError",
    "SpecError",
    "SuperviseError",
    "SupervisorCrashed",
    "UnkillableError",
]

_MAX_RULE_WIDTH = 60
_NOT_AVAILABLE = "<N/A>"


def _restore(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """Make an exception without a call of `__init__`. The arguments of `__init__` differ from those of `Exception`."""
    return cls.__new__(cls, *args)


def _encodable(text: str) -> str:
    """Return `text` with escapes for the characters that ``sys.stdout`` cannot encode."""
    try:
        return text.encode(sys.stdout.encoding, "backslashreplace").decode(sys.stdout.encoding)
    except (AttributeError, LookupError, TypeError, ValueError):  # no usual text stream
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


class _Portable(Exception):  # noqa: N818  a mixin, never raised
    """A mixin of exceptions that are pickled and printed without errors.

    An exception is pickled by class, `args` and attributes, independent of the arguments of `__init__`. Characters of
    its text that ``sys.stdout`` cannot encode, such as lone surrogates, are escaped.
    """

    def __str__(self) -> str:
        return _encodable(super().__str__())

    def __repr__(self) -> str:
        return _encodable(super().__repr__())

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args), self.__dict__


class SuperviseError(_Portable):
    """The base class of the exceptions that only supervise has."""


class SpecError(SuperviseError, RuntimeError):
    """A setting or message is not valid, such as a missing rank or a negative grace. No process was started."""


class PhaseError(SpecError):
    """A message is valid, but not in the present phase of the gang."""


_UNGUARDED = "the program starts a gang while a rank imports it"


def unguarded(start_method: str) -> SpecError:
    """Return the error about a program that starts a gang at its import, which a rank repeats."""
    return SpecError(
        f"{_UNGUARDED}; start the gang under `if __name__ == '__main__':`, or use start_method='fork' instead of"
        f" {start_method!r}"
    )


def is_unguarded(text: str) -> bool:
    """Return whether a text, which may begin with the name of the class, is that of the error `unguarded`."""
    return text.removeprefix("SpecError: ").startswith(_UNGUARDED)


class SpawnError(SuperviseError):
    """The start failed because of a rank, for a reason other than an `OSError`. All other ranks are already reaped.

    If the rank ended before it was ready and has recorded a traceback, ``__cause__`` has that traceback. Notes have the
    end of its output and the folder of its logs.

    Args:
        msg: What happened; shown after `what`.
        local_rank: The rank because of which the start failed; after a close, the first that was not ready.
        exitcode: Its exit code, negative for a signal, if it ran and ended before it was ready; else None.
        what: What the rank did, such as ``hung before all ranks were ready``; shown after the rank.
        role: Its role and role rank, such as ``trainer 1``; "" in a gang without roles.
    """

    local_rank: int
    """The rank because of which the start failed."""
    exitcode: int | None
    """Its exit code, negative for a signal, if it ran and ended before it was ready; else None."""
    what: str
    """What the rank did."""
    role: str
    """Its role and role rank, such as ``trainer 1``; "" in a gang without roles."""

    def __init__(
        self, msg: str, *, local_rank: int, exitcode: int | None = None, what: str = "did not start", role: str = ""
    ) -> None:
        super().__init__(f"rank {local_rank}{role and f' ({role})'} {what}: {msg}")
        self.local_rank = local_rank
        self.exitcode = exitcode
        self.what = what
        self.role = role


class UnkillableError(SuperviseError):
    """Processes did not exit within the deadline after SIGKILL: a tracer holds them, or they block in the kernel.

    Args:
        pids: Local rank to pid of the processes that remain.
        states: Local rank to process state as in /proc (such as ``D``), where it is known. If this user may not signal
            the process, the text says so.
    """

    pids: dict[int, int]
    """Local rank to pid."""
    states: dict[int, str]
    """Local rank to process state as in /proc; a rank may be missing."""

    def __init__(self, pids: Mapping[int, int], states: Mapping[int, str]) -> None:
        self.pids = dict(pids)
        self.states = dict(states)
        who = ", ".join(
            f"rank {rank} (pid {pid}, state {self.states.get(rank, 'unknown')})" for rank, pid in self.pids.items()
        )
        super().__init__(f"not gone after SIGKILL: {who}")


class SupervisorCrashed(SuperviseError):  # noqa: N818  named like pykka's exceptions
    """A handler inside supervise raised, and supervise killed the ranks; ``__cause__`` is the exception."""


class GangFailed(SuperviseError):  # noqa: N818  named like pykka's exceptions
    """A gang did not succeed. The text is the report that ``supervise run`` prints; it fits on one screen.

    The report names the rank that failed first, with the reason and the time. The ends of the other ranks and the
    folder of the logs follow. If the rank that failed first has recorded a traceback, ``__cause__`` is an exception
    with the traceback as its text.

    Args:
        result: The result of the gang.
        timeout_s: The timeout of the gang in seconds, for the text of an outcome ``timed_out``; None if unknown.
    """

    result: RunProcsResult
    """The result of the gang."""
    rank_traceback: str
    """The traceback of the rank that failed first, as Python prints it in the rank; ``""`` if none was recorded."""

    def __init__(self, result: RunProcsResult, *, timeout_s: float | None = None) -> None:
        from supervise._story import failure_report

        self.result = result
        root = result.root_cause
        self.rank_traceback = failure_report.traceback_of(result.failures[root]) if root in result.failures else ""
        rows = failure_report.lines(result, failure_report.of_result(result, timeout_s=timeout_s))
        super().__init__("\n".join(rows).removeprefix("supervise: "))
        self.__cause__ = rank_cause(self.rank_traceback)

    def __setstate__(self, state: dict[str, Any] | None) -> None:
        """Restore the attributes and the cause, which pickle drops."""
        self.__dict__.update(state or {})
        self.__cause__ = rank_cause(self.rank_traceback)

    def _render_traceback_(self) -> list[str]:
        """Return the lines of the report, which IPython shows in place of a traceback."""
        return f"supervise: {self}".split("\n")


class _RankTraceback(_Portable):
    """The traceback of a rank, as text."""


def rank_cause(traceback: str) -> BaseException | None:
    """Return the traceback of a rank as the cause of an error; None if it is empty."""
    return _RankTraceback(f'\n"""\n{traceback}\n"""') if traceback else None


class RestartLimitExceeded(SuperviseError):  # noqa: N818  says what happened, as SupervisorCrashed does
    """A tree has given up and stopped its children; ``__cause__`` is the failure that exceeded the limit.

    If the child that failed is itself a tree that gave up, ``__cause__`` has a ``__cause__``, and so on down to the
    first failure.

    Args:
        msg: What happened.
        child_id: The child whose failure ended the tree.
    """

    child_id: str
    """The child whose failure ended the tree."""

    def __init__(self, msg: str, *, child_id: str) -> None:
        super().__init__(msg)
        self.child_id = child_id


class SignalException(_Portable):
    """The host received a termination signal while it waited for its ranks.

    Args:
        msg: The text of the exception.
        sigval: The signal. The caller should pass it on: ``context.close(e.sigval)``.
    """

    sigval: signal.Signals
    """The signal that was received."""

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        super().__init__(msg)
        self.sigval = sigval

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows in place of a traceback."""
        return [f"supervise: interrupted by {getattr(self.sigval, 'name', self.sigval)}"]


class ChildFailedError(_Portable):
    """Ranks failed; the text lists each failure, the root cause last.

    If the exception leaves a function under ``@record``, the error file of the root cause is copied to the error file
    of this process. So a launcher above this process shows the traceback of the rank, not the traceback of this
    process.

    Args:
        name: Name of the gang, for the title (``<name> FAILED``).
        failures: Rank to failure; at least one.

    Raises:
        AssertionError: `failures` is empty.
    """

    name: str
    """Name of the gang."""
    failures: dict[int, ProcessFailure]
    """Rank (the global rank with several hosts) to failure."""

    def __init__(self, name: str, failures: dict[int, ProcessFailure]) -> None:
        self.name = name
        self.failures = failures
        if not failures:
            raise AssertionError("ChildFailedError needs at least one failure")
        super().__init__(self.format_msg())

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Return the root cause of the failures of a `RunProcsResult`: rank and failure.

        Of other failures, return the one with the smallest `timestamp`; on a tie, that of the first key.
        """
        if getattr(self.failures, "by_blame", False):
            return next(iter(self.failures.items()))
        return min(self.failures.items(), key=lambda item: item[1].timestamp)

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """Return the block of text that torchrun prints: all other failures, then the root cause.

        Args:
            boarder_delim: Character of the first and the last line.
            section_delim: Character of the lines between sections.
        """
        import socket

        from supervise._printable import one_line

        title = one_line(f"{self.name} FAILED")
        host = socket.getfqdn()
        blocks = {
            rank: _failure_block(index, rank, failure, host)
            for index, (rank, failure) in enumerate(self.failures.items())
        }
        longest = max(len(line) for text in (title, *blocks.values()) for line in text.split("\n"))
        width = min(longest, _MAX_RULE_WIDTH)
        border, section = boarder_delim * width, section_delim * width
        root = blocks.pop(self.get_first_failure()[0])
        lines = [
            "",
            border,
            title,
            section,
            "Failures:",
            *(blocks.values() or ["  <NO_OTHER_FAILURES>"]),
            section,
            "Root Cause (first observed failure):",
            root,
            border,
        ]
        return "\n".join(lines)


def _failure_block(index: int, rank: int, failure: ProcessFailure, host: str) -> str:
    """Return one failure as torchrun prints it, with the traceback of an error file indented."""
    signal_name = failure.signal_name()
    signal_text = "" if signal_name == _NOT_AVAILABLE else f" ({signal_name})"
    traceback = failure_text(failure.message)
    if not isinstance(failure.message, str):  # PyTorch leaves a text as it is
        traceback = traceback.replace("\n", "\n  ")
    return "\n".join(
        [
            f"[{index}]:",
            f"  time      : {failure.timestamp_isoformat()}",
            f"  host      : {host}",
            f"  rank      : {rank} (local_rank: {failure.local_rank})",
            f"  exitcode  : {failure.exitcode} (pid: {failure.pid}) {signal_text}",
            f"  error_file: {failure.error_file}",
            f"  traceback : {traceback}",
        ]
    )


def failure_text(message: str | dict[str, Any]) -> str:
    """Return the text of a failure: its traceback, else its message, else ``<N/A>``."""
    from supervise._printable import printable

    if isinstance(message, str):
        return printable(message)
    extra = message.get("extraInfo")
    fallback = message.get("message", _NOT_AVAILABLE)
    return printable(str(extra.get("py_callstack", fallback) if isinstance(extra, dict) else fallback))
