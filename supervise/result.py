"""The result of a gang: its failures, the end of each rank, and the outcome."""

# A worker imports this module: no pathlib.

from __future__ import annotations

import os
import stat
import time
from functools import cache
from typing import Any, Literal, Self

from supervise._files import is_mark, read_regular
from supervise._record import NamedTuple, field, record

Outcome = Literal["succeeded", "failed", "stopped", "timed_out"]
"""How a gang ended."""

Role = Literal["root_cause", "concurrent_failure", "bystander", "finished", "lost", "unkillable", "terminated"]
"""The role of a rank in the end of its gang."""

CauseOrder = Literal["clock", "receipt"]
"""How the failures of a gang are ordered."""

__all__ = ["ProcessFailure", "RankEnd", "RankRestart", "RunProcsResult"]

_NOT_AVAILABLE = "<N/A>"
_NO_TRACEBACK = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
_NS_PER_S = 1_000_000_000

LOST_SINCE = ": lost since "
"""The part of the message of a rank that was lost with its host, between the host and the time."""

LINGERED = "its function had returned, but its process did not exit: "
"""Beginning of the message of a rank that was stopped although its return value had arrived."""

FAULTS = ("hung: ", "was not ready within ")
"""Beginnings of the messages of ranks that failed while they ran."""

MOST_BYTES = 4 << 20
"""The largest error file that is read: it holds a message and a traceback of 1 MiB each."""
_MOST_VALUES = 10_000
_DEEPEST = 32
_TOO_DEEP = "it is nested too deeply"
_NO_ROOM = "no space was left on its disk, in the quota, or within the limit of file sizes (RLIMIT_FSIZE)"


class _ErrorFile(NamedTuple):
    """The content of an error file, or why it could not be read. Without a file, only the time of the failure."""

    mtime_ns: int
    data: dict[str, Any] | None = None
    message: str | dict[str, Any] = ""
    timestamp: int = 0
    problem: str = ""
    """Why `data` is None."""


def _read_error_file(path: str) -> _ErrorFile | None:
    """Return the error file at `path`; None if there is no file. Its content never causes an exception."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISLNK(found.st_mode):
        return None
    problem = "it is a symbolic link" if stat.S_ISLNK(found.st_mode) else _NO_ROOM if is_mark(found) else ""
    if problem:
        return _ErrorFile(found.st_mtime_ns, problem=problem)
    try:
        # Another process may have replaced the file: take the time of the file that was read.
        content, mtime_ns = read_regular(path, MOST_BYTES)
    except (OSError, ValueError) as e:
        return _ErrorFile(found.st_mtime_ns, problem=getattr(e, "strerror", None) or str(e))
    try:
        data, message, timestamp = _parse_record(content)
    except Exception as e:  # the rank wrote the file: it may hold anything
        return _ErrorFile(mtime_ns, problem=str(e) or type(e).__name__)
    return _ErrorFile(mtime_ns, data, message, timestamp)


def load_record(content: bytes) -> Any:
    """Return the JSON value of an error file, with a limit on its number of values and its depth.

    Raises:
        ValueError: The content is not JSON, or exceeds a limit.
    """
    import json

    try:
        data = json.loads(content)
    except RecursionError as e:
        raise ValueError(_TOO_DEEP) from e
    level, count = [data], 0
    for _ in range(_DEEPEST):
        level = [
            value
            for each in level
            if isinstance(each, (dict, list))
            for value in (each.values() if isinstance(each, dict) else each)
        ]
        count += len(level)
        if count > _MOST_VALUES:
            raise ValueError(f"it holds more than {_MOST_VALUES} values")
        if not level:
            return data
    raise ValueError(_TOO_DEEP)


def _parse_record(content: bytes) -> tuple[dict[str, Any], str | dict[str, Any], int]:
    """Return a record's data, message and timestamp (seconds since the epoch); raise ValueError if it is not valid."""
    if not content.strip():
        raise ValueError("the file is empty")
    data = load_record(content)
    message = data.get("message") if isinstance(data, dict) else None
    if isinstance(message, str):
        return data, message, _seconds(data.get("timestamp", 0))
    if not isinstance(message, dict):
        raise ValueError("no 'message' that is a string or an object")  # noqa: TRY004  the file is wrong, not the caller
    extra = message.get("extraInfo")
    if not isinstance(extra, dict) or "timestamp" not in extra:
        raise ValueError("no 'timestamp' in 'extraInfo'")
    return data, message, _seconds(extra["timestamp"])


def _seconds(value: Any) -> int:
    """Return whole seconds of an int, a float or a numeric string."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        return int(float(value))
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"'timestamp' is not a number: {value!r:.80}") from None


@record(kw_only=False, frozen=False)
class ProcessFailure:
    """The failure of one rank, with the content of its error file. That content never causes an exception.

    If the file is truncated, empty or in another format, `message` says why it could not be read.

    Args:
        local_rank: The rank that failed.
        pid: Process ID of the rank.
        exitcode: As in `subprocess`: ``-N`` means killed by signal N.
        error_file: Path of the rank's error file; it need not exist.
    """

    local_rank: int
    """The rank that failed."""
    pid: int
    """Process ID of the rank."""
    exitcode: int
    """Exit code; ``-N`` means killed by signal N."""
    error_file: str
    """Path of the error file, or ``<N/A>`` if there is none."""
    error_file_data: dict[str, Any] = field(init=False)
    """Content of the error file; ``{"message": "<NONE>"}`` if there is no record."""
    message: Any = field(init=False)
    """The recorded ``message``: in records of supervise and PyTorch a dictionary with the keys ``message`` and
    ``extraInfo``, in others perhaps a string. Without a record, a text derived from the exit code."""
    timestamp: int = field(init=False)
    """Seconds since the epoch: as recorded, else the file's modification time, else the time of the failure."""
    timestamp_ns: int = field(init=False, compare=False, repr=False)
    """Nanoseconds since the epoch: the error file's modification time, else the time of the failure."""

    def __post_init__(self) -> None:
        self._fill(message="", timestamp_ns=None)

    @classmethod
    def of(
        cls, local_rank: int, pid: int, exitcode: int, error_file: str, *, message: str, timestamp_ns: int | None = None
    ) -> ProcessFailure:
        """Return a failure with its own message and time. A record in the error file takes precedence.

        Args:
            local_rank: The rank that failed.
            pid: Process ID of the rank.
            exitcode: Exit code; ``-N`` means killed by signal N.
            error_file: Path of the rank's error file; it need not exist.
            message: Used if the file holds no message. ``""`` selects the default text.
            timestamp_ns: Nanoseconds since the epoch, used if there is no file. None is now.
        """
        failure = cls.__new__(cls)  # the constructor would read the file as well
        failure.local_rank, failure.pid, failure.exitcode = local_rank, pid, exitcode
        failure.error_file = error_file
        failure._fill(message=message, timestamp_ns=timestamp_ns)  # noqa: SLF001 - of this class
        return failure

    def _fill(self, *, message: str, timestamp_ns: int | None) -> None:
        """Set the fields that are not arguments of the constructor."""
        found = _read_error_file(self.error_file) if self.error_file else None
        if found is None:
            self.error_file = _NOT_AVAILABLE
            found = _ErrorFile(time.time_ns() if timestamp_ns is None else timestamp_ns)
        self.timestamp_ns = found.mtime_ns
        self.timestamp = found.mtime_ns // _NS_PER_S if found.data is None else found.timestamp
        self.error_file_data = {"message": "<NONE>"} if found.data is None else found.data
        self.message = found.message
        if self.message:
            return
        if self.exitcode >= 0:
            self.error_file_data["errorTraits"] = {"category": "system_terminated_error", "retryability": "False"}
        self.message = message or self._signal_text() or _NO_TRACEBACK
        if found.problem:
            done = "written" if found.problem is _NO_ROOM else "read"
            torn = f"error file {self.error_file} could not be {done}: {found.problem}"
            known = self._signal_text() or f"exit code {self.exitcode}"
            self.message = f"{message}; {torn}" if message else f"{torn}; {known}"

    def _signal_text(self) -> str:
        """Return a sentence that names the signal that killed the process; empty if none did."""
        if self.exitcode >= 0:
            return ""
        return f"Signal {-self.exitcode} ({_name_of(-self.exitcode)}) received by PID {self.pid}"

    def signal_name(self) -> str:
        """Return the name of the signal that killed the process (``SIGSEGV``), ``<N/A>`` if none did."""
        return _name_of(-self.exitcode)

    def timestamp_isoformat(self) -> str:
        """Return `timestamp` in local time as ``YYYY-MM-DD_HH:MM:SS``, ``<N/A>`` if it is out of range."""
        from datetime import datetime

        try:
            return datetime.fromtimestamp(self.timestamp).isoformat(sep="_")  # noqa: DTZ006  local time, as torchrun
        except (OverflowError, OSError, ValueError):
            return _NOT_AVAILABLE


@cache
def _name_of(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return _NOT_AVAILABLE


def lost_with(failure: ProcessFailure) -> str | None:
    """Return how a rank was lost with its host, such as ``lost with host 1, node-b``; None if it was not."""
    host, lost, _ = str(failure.message).partition("\n")[0].partition(LOST_SINCE)
    if not lost or not host.startswith("host ") or isinstance(failure.message, dict):
        return None
    number, _, where = host.partition(" (")
    return f"lost with {number}, {where.partition(',')[0]}" if where else f"lost with {number}"


@record
class RankEnd:
    """The end of one rank, whether it failed or not."""

    local_rank: int
    """The rank."""
    pid: int | None
    """Process ID; None if no process was started."""
    exitcode: int | None
    """Exit code, ``-N`` for signal N; None if the exit status was lost."""
    role: Role
    """Its role in the end of the gang, or of its life. A ``bystander`` was stopped by supervise, a
    ``terminated`` rank at the request of the caller. A ``lost`` rank was lost with its host, and an ``unkillable`` one
    survived SIGKILL."""
    started_ns: int
    """Time at which the launch of the process began, monotonic nanoseconds."""
    ended_ns: int
    """Time of the exit, monotonic nanoseconds."""
    core_dumped: bool = False
    """Whether the kernel wrote a core dump."""
    max_rss_bytes: int | None = None
    """Largest resident set; None if unknown. The kernel starts the count of a program at the peak of its host, so the
    value is unknown unless it exceeds that peak. The value of a process of the fork server is also unknown."""
    cpu_time_s: float | None = None
    """User and system CPU time; None if unknown, as of a process of the fork server."""
    stderr_tail: str = ""
    """The last lines of stderr; ``""`` if it is not redirected."""
    oom_kill: bool = False
    """Whether an out-of-memory kill is likely: a SIGKILL that supervise did not send ended the rank, and its cgroup
    counted such a kill."""
    stdout_log: str = ""
    """Path of its stdout; ``""`` if it is not redirected."""
    stderr_log: str = ""
    """Path of its stderr; ``""`` if it is not redirected."""
    step: int | None = None
    """The last step that it has reported by `supervise.notify`; None if it has reported none."""
    status: str | None = None
    """The last status text that it has reported; None if it has reported none."""
    host: str = ""
    """Name of its host in a gang across several hosts, else ``""``. Then `local_rank` is the rank on that host, and the
    times, the pid and the paths are those of that host: times of different hosts are not comparable. If the rank was
    lost with its host, they are times of this process: that of the start of the host's ranks, and that of the loss, or
    of the report of its end."""


@record(kw_only=False)
class RankRestart:
    """One replaced life of a rank."""

    local_rank: int
    """The rank."""
    attempt: int
    """Number of the replaced life; the first is 0."""
    end: RankEnd
    """The end of that life."""
    at_ns: int
    """Time of the next launch, monotonic nanoseconds."""
    counted: bool
    """Whether this end caused the restart, and the restart counts toward the limit."""


class Causes(dict[int, ProcessFailure]):
    """Rank to failure, the root cause first. The times of two failures may be in another order."""

    by_blame = True


@record(kw_only=False, frozen=False)
class RunProcsResult:
    """The result of a gang. Every mapping is keyed by local rank.

    Results are equal if PyTorch's four fields are equal; `outcome` and `ends` are not compared.
    """

    return_values: dict[int, Any] = field(default_factory=dict)
    """Return values of functions; None for each rank of a program."""
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    """The causes. If the gang was closed early: the failures of all ranks that did not exit with code 0."""
    stdouts: dict[int, str] = field(default_factory=dict)
    """Path of each rank's stdout; ``""`` if it is not redirected."""
    stderrs: dict[int, str] = field(default_factory=dict)
    """Path of each rank's stderr; ``""`` if it is not redirected."""
    outcome: Outcome = field(default="succeeded", compare=False)
    """The outcome of the gang."""
    ends: dict[int, RankEnd] = field(default_factory=dict, compare=False, repr=False)
    """The end of the last life of each rank that was started."""
    restarts: list[RankRestart] = field(default_factory=list, compare=False, repr=False)
    """The replaced lives in order, at most the newest 1 000."""
    restarts_total: int = field(default=0, compare=False, repr=False)
    """Number of all replaced lives."""
    cause_order: CauseOrder = field(default="clock", compare=False, repr=False)
    """How the root cause was found. ``clock``: by the clock of one host. ``receipt``, with several hosts: the driver
    takes the host whose failure it learned of first; the root cause is the first failure of that host."""

    def is_failed(self) -> bool:
        """Return whether any rank is in `failures`."""
        return bool(self.failures)

    def raise_if_failed(self) -> Self:
        """Return this result if the gang has succeeded.

        Raises:
            GangFailed: The gang failed, was stopped or timed out; its text is the report of `supervise run`.
        """
        if self.outcome == "succeeded" and not self.failures:
            return self
        import supervise

        raise supervise.GangFailed(self)

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the outcome, and a bar for each rank."""
        import supervise
        from supervise._story import small_timeline

        good = self.outcome == "succeeded" and not self.failures
        return small_timeline.of_result(self, "" if good else str(supervise.GangFailed(self)))

    @property
    def root_cause(self) -> int | None:
        """The local rank that failed first; None if no rank failed by itself."""
        for rank, end in self.ends.items():
            if end.role == "root_cause":
                return rank
        blamed = {
            rank: failure
            for rank, failure in self.failures.items()
            if rank not in self.ends or self.ends[rank].role != "bystander"
        }
        return min(blamed, key=lambda rank: blamed[rank].timestamp_ns, default=None)
