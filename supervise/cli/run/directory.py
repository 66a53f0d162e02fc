"""The files of a run directory that `run` writes, each in one step or line by line."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
import time
from typing import TYPE_CHECKING, Any

from supervise import messages as say
from supervise._files import MOST_LINKS, closing, is_own, open_folder, open_to_append
from supervise._printable import ending
from supervise._record import as_dict
from supervise._runtime.descriptors import write_all
from supervise._runtime.wakeup import OwnedFd
from supervise._story.wording import columns, size
from supervise._views import recorded_run
from supervise._views.samples import SampleFile
from supervise.cli import streams
from supervise.events import timestamp
from supervise.result import ProcessFailure, RankEnd, RunProcsResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervise._runtime.future import Reply
    from supervise.cli.options.options import Options


def write_output(path: str, data: bytes, *, mode: int) -> None:
    """Write to a path that the user has given for the output of a command.

    A regular file is replaced; a symbolic link to a file stays, and its target is replaced. A character device, a named
    pipe, and ``/dev/stdout`` are written into. Replacing a device would break other programs.

    Args:
        path: The path.
        data: The whole output.
        mode: Mode of a new file; the umask applies.

    Raises:
        OSError: The output cannot be written, the path is a block device, or a link belongs to another user; an
            existing file is unchanged. ``filename`` is the path.
    """
    try:
        target, is_stream = _target(path)
        if is_stream:
            _write_into(target, data)
            return
    except OSError as e:
        raise OSError(e.errno, e.strerror, path) from e
    write(target, data, mode=mode, suffix=f".{os.getpid()}.new")


def _target(path: str) -> tuple[str, bool]:
    """Return the path behind symbolic links, and whether to write into it instead of replacing it.

    Raises:
        OSError: There are too many links, one belongs to another user, or the path is a block device.
    """
    for _ in range(MOST_LINKS):
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return path, False
        if not stat.S_ISLNK(found.st_mode):
            if stat.S_ISBLK(found.st_mode):
                raise OSError(errno.EINVAL, "is a block device, which is not overwritten")
            return path, not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode)
        if not is_own(found.st_uid):
            raise OSError(errno.ELOOP, "is a symbolic link of another user, which is not followed")
        folder, leads_to = os.path.dirname(path), os.readlink(path)
        if f"{os.path.realpath(folder)}/".startswith("/proc/"):  # a descriptor, as behind /dev/stdout or /dev/fd/63
            return path, True
        path = os.path.join(folder, leads_to)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _write_into(path: str, data: bytes) -> None:
    folder, name = os.path.split(path)
    if os.path.realpath(folder) == os.path.realpath("/proc/self/fd") and stat.S_ISREG(os.stat(path).st_mode):
        with closing(os.dup(int(name))) as fd:  # the next writer of stdout goes on after this output
            write_all(fd, data)
        return
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except OSError as e:
        if e.errno == errno.ENXIO and stat.S_ISFIFO(os.stat(path).st_mode):
            raise OSError(e.errno, "no process reads this pipe") from e
        raise
    with open(fd, "wb", buffering=0) as file:
        os.set_blocking(fd, True)
        write_all(file.fileno(), data)


def write(path: str, data: bytes, *, mode: int = 0o600, suffix: str = ".new") -> None:
    """Write a file, and replace an existing one.

    Args:
        path: The path.
        data: The whole content.
        mode: Mode of the file; the umask applies.
        suffix: Appended to the name of the new file until this file replaces the existing one.

    Raises:
        OSError: The file cannot be written; an existing file is unchanged. ``filename`` is the path.
    """
    folder, name = os.path.split(path)
    new = f"{name}{suffix}"
    with closing(open_folder(folder)) as at:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new, dir_fd=at)
            with open(os.open(new, flags, mode, dir_fd=at), "wb") as file:
                file.write(data)
            os.replace(new, name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException as e:
            with contextlib.suppress(OSError):
                os.unlink(new, dir_fd=at)
            if isinstance(e, OSError):
                raise OSError(e.errno, e.strerror, path) from e
            raise


# The files of a run directory that `run` writes: ``run.json``, ``events.jsonl`` and ``result.json``


RESULT_SCHEMA_VERSION = 1
INFO_SCHEMA_VERSION = 1
EVENTS_LOST = "supervise.events.lost"
"""The event about ``events.jsonl`` itself: its line says how many events before that line could not be written."""


class EventFile(OwnedFd):
    """The file ``events.jsonl``: one JSON object per line, written without buffering.

    Events before `open` and after `close` are dropped.
    """

    def __init__(self) -> None:
        """Begin without a file."""
        super().__init__()
        self.lost: int = 0
        """The number of events that are missing in the file."""
        self.error: OSError | None = None
        """The error at the last event that could not be written."""
        self._untold = 0
        self._info: dict[str, Any] | None = None
        """The content of ``run.json``, until it is written."""
        self._directory = ""

    def open(self, directory: str) -> None:
        """Open the file to append; create it with mode 0600.

        Args:
            directory: The run directory.

        Raises:
            OSError: The file cannot be created. Then only `write_info` has an effect.
        """
        self._directory = directory
        self.fd: int = open_to_append(os.path.join(directory, "events.jsonl"))

    def write_info(self, options: Options, *, run_id: str) -> None:
        """Write ``run.json``: what was started, when and where. For a file that has a directory.

        First lock ``events.jsonl``, if it is open: the lock shows readers that this process runs.

        Raises:
            OSError: It cannot be written now; `write_pending` can try again.
        """
        locked = self.fd >= 0 and recorded_run.lock(self.fd)
        self._info = {
            "schema_version": INFO_SCHEMA_VERSION,
            "started": timestamp(),
            "run_id": run_id,
            "role": options.role,
            "program": list(options.words),
            "world_size": options.nproc,
            "roles": [{"name": part.role, "count": part.count, "program": list(part.words)} for part in options.parts],
            "engine": options.engine,
            "node_rank": options.hosts.number,
            "nnodes": max(options.nnodes, options.hosts.count),
            "cwd": streams.cwd(),
            **recorded_run.identity(locked=locked),
        }
        self.write_pending()

    def write_pending(self) -> None:
        """Write ``run.json`` if that has failed before. Without the file, no command finds the run.

        Raises:
            OSError: It cannot be written now, either.
        """
        if self._info is not None:
            _write(self._directory, "run.json", self._info)
            self._info = None

    def write(self, event: dict[str, Any]) -> None:
        """Append an event; count it as lost if the write fails, for instance on a full disk.

        A line about lost events precedes the next event that can be written.
        """
        if self.fd < 0:
            return
        try:
            if not os.fstat(self.fd).st_nlink:
                path = os.path.join(self._directory, "events.jsonl")
                raise FileNotFoundError(errno.ENOENT, "it was removed", path)
            if self._untold:
                now = timestamp()
                self._append({"event": EVENTS_LOST, "timestamp": now, "count": self._untold}, b"\n")  # ends a torn line
                self._untold = 0
            self._append(event)
        except OSError as error:
            self.lost, self._untold, self.error = self.lost + 1, self._untold + 1, error

    def _append(self, event: dict[str, Any], before: bytes = b"") -> None:
        write_all(self.fd, before + json.dumps(event, default=str).encode() + b"\n")


def write_result(
    directory: str,
    options: Options,
    *,
    run_id: str,
    exit_code: int,
    attempts: int,
    restarts: int,
    duration_s: float,
    result: RunProcsResult | None,
    error: str | None,
    report: list[str],
) -> None:
    """Write ``result.json`` in one step.

    Args:
        directory: The run directory.
        options: The validated options.
        run_id: The run ID.
        exit_code: Exit code of `run`.
        attempts: Number of attempts that were started.
        restarts: Number of restarts, of all ranks or of single ranks.
        duration_s: Seconds from the start of the run to its end.
        result: The result of the gang; None if there is none.
        error: Why there is no result.
        report: The lines of the report on the failure, or the message; empty after a success.

    Raises:
        OSError: It cannot be written; an existing file is unchanged.
    """
    found = result if result is not None else RunProcsResult(outcome="failed")
    whole = {
        "schema_version": RESULT_SCHEMA_VERSION,
        "timestamp": timestamp(),
        "run_id": run_id,
        "role": options.role,
        "program": list(options.words),
        "world_size": options.nproc,
        "host_name": os.uname().nodename,
        "exit_code": exit_code,
        "attempts": attempts,
        "restarts": restarts,
        "duration_s": round(duration_s, 3),
        "outcome": found.outcome,
        "root_cause": found.root_cause,
        "error": error,
        "report": report,
        "ends": {rank: as_dict(end) for rank, end in found.ends.items()},
        "failures": {rank: _failure(failure) for rank, failure in found.failures.items()},
        "stdouts": found.stdouts,
        "stderrs": found.stderrs,
    }
    _write(directory, "result.json", whole)


def _write(directory: str, name: str, whole: dict[str, Any]) -> None:
    write(os.path.join(directory, name), json.dumps(whole, indent=2, default=str).encode() + b"\n")


def _failure(failure: ProcessFailure) -> dict[str, Any]:
    return {
        "pid": failure.pid,
        "exitcode": failure.exitcode,
        "message": failure.message,
        "error_file": failure.error_file,
        "timestamp_ns": failure.timestamp_ns,
    }


# The recording of ``samples.jsonl`` during a run, on the main thread while it waits


_MOST_LOOKS = 10


class Sampling(SampleFile):
    """The file of samples of a gang. The class asks the gang for its state when a sample is due. No method waits."""

    def __init__(
        self, directory: str, ranks: int, ask: Callable[[object], Any], on_pids: Callable[[list[int]], object]
    ) -> None:
        """Plan the first sample.

        Args:
            directory: The run directory.
            ranks: Number of ranks.
            ask: Sends a message to the gang, and returns the reply. When the reply is set, the main thread wakes up.
            on_pids: Called with the process IDs of the ranks at the first samples.
        """
        super().__init__(directory, ranks)
        self._ask = ask
        self._on_pids = on_pids
        self._looks = 0
        self._reply: Reply[say.GangStatus] | None = None

    def wait_s(self) -> float | None:
        """Return the seconds until a sample is due; None while a reply is pending, and after the end of the gang."""
        waits = self._reply is None and self.due_s < math.inf
        return max(self.due_s - time.monotonic(), 0.0) if waits else None

    def look(self) -> None:
        """Ask for the state of the gang if a sample is due; write the sample if the reply has arrived."""
        status = None
        try:
            if self._reply is None and time.monotonic() >= self.due_s:
                self._reply = self._ask(say.Status())
            elif self._reply is not None and self._reply.done():
                reply, self._reply = self._reply, None
                status = reply.get(timeout=0)
        except Exception:  # the gang has ended
            self.due_s: float = math.inf
        if status is not None:
            running = {rank: row for rank, row in status.ranks.items() if rank in status.running}
            self.write(running)
            self._looks += 1
            if self._looks <= _MOST_LOOKS:
                self._on_pids([row.pid for row in running.values() if row.pid is not None])


# The numbers of a run at its end: a table for people, and a file for Prometheus


def table(result: RunProcsResult, titles: Sequence[str] = ()) -> list[str]:
    """Return a table with a line for each rank: how it ended, its time, CPU time and peak memory.

    Args:
        result: The result of the gang.
        titles: Role and role rank of each rank; empty if all have the same role.
    """
    rows = [("rank", "role", "pid", "end", "time", "cpu", "memory")]
    for rank, end in sorted(result.ends.items()):
        how = "not started" if end.pid is None else ending(end.exitcode, core_dumped=end.core_dumped)
        cpu = "-" if end.cpu_time_s is None else f"{end.cpu_time_s:.2f} s"
        role = titles[rank] if titles else ""
        rows.append((str(rank), role, str(end.pid or "-"), how, f"{_time_s(end):.2f} s", cpu, size(end.max_rss_bytes)))
    if titles:
        return columns(rows, right={0, 2, 4, 5, 6})
    return columns([(row[0], *row[2:]) for row in rows], right={0, 1, 3, 4, 5})


def _time_s(end: RankEnd) -> float:
    return 0.0 if end.pid is None else (end.ended_ns - end.started_ns) / 1e9


def write_metrics(
    path: str, result: RunProcsResult | None, *, run_id: str, exit_code: int, restarts: int, duration_s: float
) -> None:
    """Write the numbers in the text format of Prometheus. node_exporter's textfile collector needs a write in one step.

    Args:
        path: The file, as for `directory.write_output`.
        result: The result of the gang; None if there is none.
        run_id: The run ID, a label of each number.
        exit_code: Exit code of `run`.
        restarts: Number of restarts, of all ranks or of single ranks.
        duration_s: Seconds from the start of `run`.

    Raises:
        OSError: The file cannot be written.
    """
    run = f'run_id="{_escaped(run_id)}"'
    lines = [
        *_family("run_exit_code", "Exit code of supervise run.", [(run, exit_code)]),
        *_family("run_restarts_total", "Restarts of all ranks or of single ranks.", [(run, restarts)], "counter"),
        *_family("run_duration_seconds", "Time from the start to the end of the run.", [(run, round(duration_s, 6))]),
    ]
    ends = [(f'{run},local_rank="{rank}"', end) for rank, end in sorted(result.ends.items())] if result else []
    for name, text, kind, value in _OF_RANKS:
        lines += _family(name, text, [(who, found) for who, end in ends if (found := value(end)) is not None], kind)
    write_output(path, ("\n".join(lines) + "\n").encode(), mode=0o666)


_OF_RANKS: tuple[tuple[str, str, str, Callable[[RankEnd], float | None]], ...] = (
    ("rank_exit_code", "Exit code of a rank, -N for signal N.", "gauge", lambda end: end.exitcode),
    ("rank_duration_seconds", "Time that a rank ran.", "gauge", lambda end: round(_time_s(end), 6)),
    ("rank_max_rss_bytes", "Peak memory of a rank.", "gauge", lambda end: end.max_rss_bytes),
    (
        "rank_cpu_seconds_total",
        "CPU time of a rank.",
        "counter",
        lambda end: None if end.cpu_time_s is None else round(end.cpu_time_s, 6),
    ),
)
"""Name of a number of each rank, its description, its kind, and the number; None if it is not known."""


def _family(name: str, text: str, values: list[tuple[str, float]], kind: str = "gauge") -> list[str]:
    name = f"supervise_{name}"
    head = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    return head + [f"{name}{{{labels}}} {value}" for labels, value in values] if values else []


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
