"""The files of a run directory that `run` writes: ``run.json``, ``events.jsonl`` and ``result.json``."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from supervise._append import open_to_append
from supervise._views import run_host
from supervise.cli import whole_file
from supervise.result import RunProcsResult

if TYPE_CHECKING:
    from supervise.cli.options import Options
    from supervise.result import ProcessFailure

RESULT_SCHEMA_VERSION = 1
INFO_SCHEMA_VERSION = 1
EVENTS_LOST = "supervise.events.lost"
"""The event about ``events.jsonl`` itself: its line says how many events before that line could not be written."""


class EventFile:
    """The file ``events.jsonl``: one JSON object per line, written without buffering.

    If the run directory was removed, and a restart of ranks has made it again, this file and ``run.json`` are made
    again as well: without them, no command accepts the directory as a run.
    """

    def __init__(self, directory: str | None) -> None:
        """Open the file to append; create it with mode 0600.

        Args:
            directory: The run directory; None: write no file.

        Raises:
            OSError: The file cannot be created.
        """
        self._fd = -1
        self.locked: bool = False
        """Whether this process holds the lock by which readers see that it runs."""
        self.lost: int = 0
        """The number of events that are missing in the file."""
        self.error: OSError | None = None
        """The error at the last event that could not be written."""
        self._untold = 0
        self._written = 0
        self._info: dict[str, Any] | None = None
        self._directory = directory
        if directory is not None:
            self._open(directory)

    def _open(self, directory: str) -> None:
        self._fd = open_to_append(os.path.join(directory, "events.jsonl"))
        self.locked = run_host.lock(self._fd)

    def write_info(self, options: Options, *, run_id: str) -> None:
        """Write ``run.json``: what was started, when and where.

        Raises:
            OSError: It cannot be written.
        """
        assert self._directory is not None  # noqa: S101 - the file is open
        self._info = _info(options, run_id=run_id, locked=self.locked)
        _write(self._directory, "run.json", self._info)

    def write(self, event: dict[str, Any]) -> None:
        """Append an event; count it as lost if the write fails, for instance on a full disk.

        A line about lost events precedes the next event that can be written.
        """
        if self._fd < 0:
            return
        try:
            if not os.fstat(self._fd).st_nlink:
                self._open_again()
            if self._untold:
                now = datetime.now(UTC).isoformat()
                self._append({"event": EVENTS_LOST, "timestamp": now, "count": self._untold}, b"\n")  # ends a torn line
                self._untold = 0
            self._append(event)
            self._written += 1
        except OSError as error:
            self.lost, self._untold, self.error = self.lost + 1, self._untold + 1, error

    def _open_again(self) -> None:
        """Replace a file that was removed; its events are lost.

        Raises:
            OSError: The directory is gone, or a file cannot be made.
        """
        assert self._directory is not None  # noqa: S101 - the file is open
        removed = self._fd
        self._open(self._directory)
        os.close(removed)
        self.lost, self._untold = self.lost + self._written, self._untold + self._written
        self._written = 0
        self.error = FileNotFoundError(errno.ENOENT, "it was removed", os.path.join(self._directory, "events.jsonl"))
        if self._info is not None:
            _write(self._directory, "run.json", self._info)

    def _append(self, event: dict[str, Any], before: bytes = b"") -> None:
        data = before + json.dumps(event, default=str).encode() + b"\n"
        while data:
            data = data[os.write(self._fd, data) :]

    def close(self) -> None:
        """Close the file; later events are dropped."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def write_result(
    directory: str,
    options: Options,
    *,
    run_id: str,
    exit_code: int,
    attempts: int,
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
        result: The result of the gang; None if there is none.
        error: Why there is no result.
        report: The lines of the report on the failure, or the message; empty after a success.

    Raises:
        OSError: It cannot be written; an existing file is unchanged.
    """
    found = result if result is not None else RunProcsResult(outcome="failed")
    whole = {
        "schema_version": RESULT_SCHEMA_VERSION,
        "timestamp": datetime.now(UTC).isoformat(),
        "run_id": run_id,
        "role": options.role,
        "program": list(options.words),
        "world_size": options.nproc,
        "host_name": os.uname().nodename,
        "exit_code": exit_code,
        "attempts": attempts,
        "outcome": found.outcome,
        "root_cause": found.root_cause,
        "error": error,
        "report": report,
        "ends": {rank: asdict(end) for rank, end in found.ends.items()},
        "failures": {rank: _failure(failure) for rank, failure in found.failures.items()},
        "stdouts": found.stdouts,
        "stderrs": found.stderrs,
    }
    _write(directory, "result.json", whole)


def _write(directory: str, name: str, whole: dict[str, Any]) -> None:
    data = json.dumps(whole, indent=2, default=str).encode() + b"\n"
    whole_file.write(os.path.join(directory, name), data)


def _info(options: Options, *, run_id: str, locked: bool) -> dict[str, Any]:
    """Return the content of ``run.json``.

    Args:
        options: The validated options.
        run_id: The run ID.
        locked: Whether this process holds a lock on ``events.jsonl``.
    """
    return {
        "schema_version": INFO_SCHEMA_VERSION,
        "started": datetime.now(UTC).isoformat(),
        "run_id": run_id,
        "role": options.role,
        "program": list(options.words),
        "world_size": options.nproc,
        "roles": [{"name": part.role, "count": part.count, "program": list(part.words)} for part in options.parts],
        "engine": options.engine,
        "node_rank": options.hosts.number,
        "nnodes": max(options.nnodes, options.hosts.count),
        "cwd": os.getcwd(),
        **run_host.identity(locked=locked),
    }


def _failure(failure: ProcessFailure) -> dict[str, Any]:
    return {
        "pid": failure.pid,
        "exitcode": failure.exitcode,
        "message": failure.message,
        "error_file": failure.error_file,
        "timestamp_ns": failure.timestamp_ns,
    }
