"""A run as its directory describes it, during the run and afterwards."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from supervise._opening import open_regular, read_regular
from supervise._printable import one_line
from supervise._views import run_host
from supervise._views.samples import SAMPLES, STREAMS

if TYPE_CHECKING:
    from collections.abc import Iterator

_LARGEST_BYTES = 64 << 20
"""The largest file that is read whole."""
_LONGEST_LINE = 1 << 20
_ATTEMPT = re.compile(r"attempt_(\d{1,9})")
SOCKET = "control.sock"


class RecordedRun:
    """The files of a run directory. Ranks may have replaced them; a file that cannot be read counts as missing."""

    def __init__(self, path: str) -> None:
        """Describe a directory; nothing is read yet."""
        self.path = path
        self.name: str = os.path.basename(path)

    @cached_property
    def info(self) -> dict[str, Any]:
        """``run.json``: the program, the time and the host of the run; empty if there is no such file."""
        return self._json("run.json")

    @cached_property
    def result(self) -> dict[str, Any]:
        """``result.json``; empty if there is no such file."""
        return self._json("result.json")

    def _json(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads(read_regular(os.path.join(self.path, name), _LARGEST_BYTES)[0])
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def is_run(self) -> bool:
        """Return whether the directory is one of `supervise run`."""
        return bool(self.info) and isinstance(self.info.get("program"), list)

    def is_running(self) -> bool:
        """Return whether supervise still runs, as far as this host knows."""
        return self._still_runs() is True

    def _still_runs(self) -> bool | None:
        try:
            fd = open_regular(os.path.join(self.path, "events.jsonl"))
        except OSError:
            return run_host.still_runs(self.info, None)
        try:
            return run_host.still_runs(self.info, fd)
        finally:
            os.close(fd)

    @cached_property
    def state(self) -> str:
        """The state of the run.

        - ``running``;
        - the outcome of the result;
        - ``killed``: supervise ended without a result;
        - ``unknown``: supervise ran on another host and has written no result, so it may still run.
        """
        still_runs = self._still_runs()
        if still_runs:
            return "running"
        outcome = self.result.get("outcome")
        if isinstance(outcome, str):
            return outcome
        return "unknown" if still_runs is None else "killed"

    @property
    def started(self) -> datetime | None:
        """When the run was started."""
        return _time(self.info.get("started"))

    @property
    def duration(self) -> timedelta | None:
        """How long it ran, or has run; None if the end is not known."""
        end = datetime.now(UTC) if self.state == "running" else _time(self.result.get("timestamp"))
        return None if end is None or self.started is None else max(end - self.started, timedelta())

    @property
    def place(self) -> str:
        """Where the ranks run, such as ``host node7``."""
        host = one_line(str(self.info.get("host_name")))
        count = self.info.get("nnodes")
        several = self._has_all_hosts() and isinstance(count, int) and count > 1
        return f"{count} hosts, supervised on host {host}" if several else f"host {host}"

    def _has_all_hosts(self) -> bool:
        """Return whether this directory has the ranks of all hosts, as under Ray.

        The ranks are then numbered by global rank.
        """
        return self.info.get("engine") == "ray"

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events of ``events.jsonl``; a line that is not valid, such as a torn last one, is skipped.

        If the directory has the ranks of all hosts, `local_rank` of each event is replaced by its global rank.
        """
        found = (event for event in self._objects("events.jsonl") if isinstance(event.get("event"), str))
        if not self._has_all_hosts():
            return found
        return (event | {"local_rank": event["rank"]} if "rank" in event else event for event in found)

    def samples(self) -> Iterator[dict[str, Any]]:
        """Yield the samples of ``samples.jsonl``; a line that is not valid is skipped."""
        return (sample for sample in self._objects(SAMPLES) if isinstance(sample.get("ranks"), dict))

    def _objects(self, name: str) -> Iterator[dict[str, Any]]:
        try:
            fd = open_regular(os.path.join(self.path, name))
        except OSError:
            return
        with open(fd, "rb") as file:
            while line := file.readline(_LONGEST_LINE):
                try:
                    found = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(found, dict):
                    yield found

    def logs(self) -> dict[int, list[str]]:
        """Return the paths of each rank's logs in its newest attempt, stdout first: rank to paths.

        The rank is local, or global if the directory has all hosts.
        """
        found: dict[int, tuple[int, list[str]]] = {}
        for attempt, folder in self._attempts():
            for entry in os.scandir(folder):
                if not (entry.name.isascii() and entry.name.isdigit()) or not entry.is_dir(follow_symlinks=False):
                    continue
                rank = int(entry.name)
                paths = [os.path.join(entry.path, name) for name in STREAMS]
                paths = [path for path in paths if os.path.lexists(path)]
                if paths and attempt >= found.get(rank, (-1, []))[0]:
                    found[rank] = attempt, paths
        return {rank: paths for rank, (_, paths) in sorted(found.items())}

    def _attempts(self) -> list[tuple[int, str]]:
        with os.scandir(self.path) as entries:
            named = [(_ATTEMPT.fullmatch(entry.name), entry) for entry in entries]
        return [(int(name[1]), entry.path) for name, entry in named if name and entry.is_dir(follow_symlinks=False)]

    def title(self, local_rank: int) -> tuple[str, int]:
        """Return the role and the role rank of a rank."""
        for role in self.info.get("roles") or []:
            if isinstance(role, dict) and isinstance(role.get("count"), int):
                if local_rank < role["count"]:
                    return str(role.get("name")), local_rank
                local_rank -= role["count"]
        return "default", local_rank


def _time(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def runs_in(folder: str) -> list[RecordedRun]:
    """Return the runs of a folder, the newest first.

    Raises:
        OSError: The path cannot be read, or is not a folder.
    """
    try:
        with os.scandir(folder) as entries:
            paths = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    found = [run for path in paths if (run := RecordedRun(path)).is_run()]
    return sorted(found, key=lambda run: (run.started or datetime.fromtimestamp(0, UTC), run.name), reverse=True)
