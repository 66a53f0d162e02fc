"""A run as its directory describes it, during the run and afterwards."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import struct
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from supervise._files import closing, open_regular, read_regular
from supervise._printable import one_line
from supervise._process.containment.procfs import look, started
from supervise._story.wording import counted, spans
from supervise._views.run_state import MOST_RANKS, parsed_time
from supervise._views.samples import SAMPLES, STREAMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime, timedelta


# Whether the supervise of a run still runs: determined from its process, or from a lock on ``events.jsonl``
#
# Both are needed. A file system may have no locks, or only locks that are valid on one host. A process ID has no
# meaning in another PID namespace.


_FLOCK = "hhqqi0q"
"""C's ``struct flock``: type, whence, start, length, pid."""


def lock(fd: int) -> bool:
    """Lock a file until the last descriptor of this open is closed; return whether its file system has locks.

    The lock is an open-file-description lock, which readers can query. With `flock`, a reader would have to take the
    lock, and a run that starts meanwhile would not get the lock.
    """
    return _flock(fd, "F_OFD_SETLK") is not None


def _flock(fd: int, name: str) -> bytes | None:
    """Call the command of this name with a write lock; return the kernel's answer, or None if there is no such lock."""
    command = getattr(fcntl, name, None)  # Linux 3.15
    try:
        lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        return None if command is None else fcntl.fcntl(fd, command, lock)
    except OSError:
        return None


def identity(*, locked: bool) -> dict[str, Any]:
    """Return the keys and values of ``run.json`` about this process. `still_runs` reads them.

    Args:
        locked: Whether `lock` has succeeded.
    """
    return {
        "host_name": os.uname().nodename,
        "boot_id": _boot_id(),
        "pid_namespace": _pid_namespace(),
        "pid": os.getpid(),
        "started_ticks": started(os.getpid()),
        "locked": locked,
    }


def still_runs(info: dict[str, Any], fd: int | None) -> bool | None:
    """Return whether the supervise of a run still runs; None if this host cannot know.

    Args:
        info: The return value of `identity` in that process. A value that is missing or wrong counts as unknown.
        fd: A descriptor of the file that the supervise of the run locks; None if there is no such file.
    """
    found = None if fd is None else _flock(fd, "F_OFD_GETLK")
    if found is not None and struct.unpack(_FLOCK, found)[0] != fcntl.F_UNLCK:
        return True
    boot_id = _boot_id()
    same_name = info.get("host_name") == os.uname().nodename
    same_kernel = info.get("boot_id") == boot_id if boot_id else same_name
    pid = info.get("pid")
    if same_kernel and info.get("pid_namespace") == _pid_namespace() and isinstance(pid, int) and pid > 0:
        return _is_process(pid, info.get("started_ticks"))
    if same_kernel and info.get("locked") is True and fd is not None:
        return False
    return False if same_name and not same_kernel else None  # this host has been booted since the start of the run


def _is_process(pid: int, started_ticks: object) -> bool:
    """Return whether a process exists and, if `started_ticks` is known, was started at that time."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    seen = None if started_ticks is None else look(pid)
    return seen is None or (not seen.dead and seen.started == started_ticks)  # None: where there is no procfs


def _boot_id() -> str | None:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return None


def _pid_namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


_LARGEST_BYTES = 64 << 20
"""The largest file that is read whole."""
_LONGEST_LINE = 1 << 20
_COUNTS = frozenset({"world_size", "nnodes", "node_rank"})
_MOST = 1 << 22
_LONGEST_S = 1e9
_ATTEMPT = r"attempt_(\d{1,9})"
SOCKET = "control.sock"


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=lambda _: None)
"""Numbers that are not finite are missing ones: no JSON has them, so that no command could print them again."""


def _loaded(text: bytes) -> Any:
    return _DECODER.decode(text.decode("utf-8", "surrogatepass"))


def objects(path: str, place: int = 0, most_bytes: int | None = None) -> Iterator[tuple[dict[str, Any] | None, int]]:
    """Yield the object of each line of a file, and the place after the line; None for a line that has none.

    A last line that is torn, or that its writer has not finished, is left to the next call.

    Args:
        path: The file. If it cannot be read, nothing is yielded.
        place: Where to begin.
        most_bytes: If more follows `place`, only so many bytes at the end of the file are read; None: all are.
    """
    try:
        fd = open_regular(path)
    except OSError:
        return
    with open(fd, "rb") as file:
        file.seek(place if most_bytes is None else max(place, os.fstat(fd).st_size - most_bytes))
        while line := file.readline(_LONGEST_LINE):
            if line.startswith(b"\0"):  # a hole, which may have terabytes
                try:
                    file.seek(file.tell(), os.SEEK_DATA)
                except OSError:  # up to the end
                    return
            try:
                found = _loaded(line.lstrip(b"\0"))
            except (ValueError, RecursionError):
                if not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
                    return
                found = None
            yield found if isinstance(found, dict) else None, file.tell()


class RecordedRun:
    """The files of a run directory. Ranks may have replaced them; a file that cannot be read counts as missing."""

    def __init__(self, path: str) -> None:
        """Describe a directory; nothing is read yet."""
        self.path = path
        self.name: str = os.path.basename(path)

    @cached_property
    def info(self) -> dict[str, Any]:
        """``run.json``: the program, the time and the host of the run; empty if there is no such file.

        A number of ranks or hosts, or a list of roles, that is not valid is left out; the number of ranks is then 1.
        """
        found = self._json("run.json")
        for key in _COUNTS & found.keys():
            if type(found[key]) is not int or not 0 <= found[key] <= _MOST:
                del found[key]
        roles = found.get("roles")
        roles = [each for each in roles if isinstance(each, dict)] if isinstance(roles, list) else []
        found["roles"] = [each for each in roles if type(each.get("count")) is int and 0 <= each["count"] <= _MOST]
        return {"world_size": 1, **found} if len(found) > 1 else {}

    @cached_property
    def result(self) -> dict[str, Any]:
        """``result.json``; empty if there is no such file."""
        return self._json("result.json")

    def _json(self, name: str) -> dict[str, Any]:
        try:
            found = _loaded(read_regular(os.path.join(self.path, name), _LARGEST_BYTES)[0])
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
            return still_runs(self.info, None)
        with closing(fd):
            return still_runs(self.info, fd)

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
    def shown_state(self) -> str:
        """The state on one line, after a success with the restarts before it: ``succeeded after 2 restarts``."""
        count = self.result.get("restarts") if self.state == "succeeded" else None
        after = f" after {counted(count, 'restart')}" if isinstance(count, int) and count > 0 else ""
        return f"{one_line(self.state)}{after}"

    @property
    def started(self) -> datetime | None:
        """When the run was started."""
        return parsed_time(self.info.get("started"))

    @property
    def duration(self) -> timedelta | None:
        """How long it ran, or has run; None if the end is not known."""
        from datetime import UTC, datetime, timedelta

        known_s = self.result.get("duration_s")  # right even if the clock was set during the run
        if isinstance(known_s, (int, float)) and 0 <= known_s <= _LONGEST_S:
            return timedelta(seconds=known_s)
        end = datetime.now(UTC) if self.state == "running" else parsed_time(self.result.get("timestamp"))
        return None if end is None or self.started is None else max(end - self.started, timedelta())

    @property
    def place(self) -> str:
        """Where the ranks run, such as ``host node7``."""
        host = one_line(str(self.info.get("host_name")))
        count = self.info.get("nnodes", 1)
        several = count > 1 and not self.is_of_one_host_of_several
        return f"{count} hosts, supervised on host {host}" if several else f"host {host}"

    @property
    def is_of_one_host_of_several(self) -> bool:
        """Whether its ranks are the local ranks of one of several hosts, each of which has a run of its own."""
        return bool(self.info.get("nnodes", 1) > 1) and self.info.get("engine") != "ray"

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events of ``events.jsonl``; a line without an event, such as a torn last one, is skipped."""
        return (event for event in self._objects("events.jsonl") if isinstance(event.get("event"), str))

    def samples(self) -> Iterator[dict[str, Any]]:
        """Yield the samples of ``samples.jsonl``; a line that is not valid is skipped."""
        return (sample for sample in self._objects(SAMPLES) if isinstance(sample.get("ranks"), dict))

    def _objects(self, name: str) -> Iterator[dict[str, Any]]:
        return (found for found, _ in objects(os.path.join(self.path, name)) if found is not None)

    def logs(self) -> dict[int, list[str]]:
        """Return the paths of each rank's logs in its newest attempt, stdout first: rank to paths.

        The rank is local, or global if the directory has all hosts.
        """
        return {rank: lives[max(lives)] for rank, lives in self.lives().items()}

    def lives(self) -> dict[int, dict[int, list[str]]]:
        """Return the paths of each rank's logs in all attempts, as `logs` does: rank to attempt to paths."""
        found: dict[int, dict[int, list[str]]] = {}
        for folder in _folders(self.path):
            if (attempt := re.fullmatch(_ATTEMPT, folder.name)) is None:
                continue
            for entry in _folders(folder.path):
                paths = [path for name in STREAMS if os.path.lexists(path := os.path.join(entry.path, name))]
                if paths and entry.name.isascii() and entry.name.isdigit():
                    found.setdefault(int(entry.name), {})[int(attempt[1])] = paths
        return dict(sorted(found.items()))

    @cached_property
    def roles(self) -> list[tuple[str, int]]:
        """Name and number of ranks of each role, in the order of the ranks."""
        found = [(str(role.get("name")), role["count"]) for role in self.info.get("roles", ())]
        return found or [("default", self.info.get("world_size", 1))]

    @cached_property
    def titles(self) -> list[str]:
        """Role and role rank of each rank, as `titles_of` returns them."""
        return titles_of(self.roles)

    def spans(self, ranks: Iterable[int]) -> str:
        """Return local ranks as text with their roles, such as ``rank 3 (web 1)``.

        On one host of several, it is ``local rank 3``.
        """
        return spans(ranks, self.titles, local=self.is_of_one_host_of_several)

    @property
    def counts(self) -> str:
        """Number of ranks of each role, such as ``2 web, 1 db``, of a run with several roles; otherwise empty."""
        return ", ".join(f"{count} {one_line(role)}" for role, count in self.roles) if len(self.roles) > 1 else ""

    def title(self, local_rank: int) -> tuple[str, int]:
        """Return the role and the role rank of a rank."""
        for role, count in self.roles:
            if local_rank < count:
                return role, local_rank
            local_rank -= count
        return "default", local_rank

    def label(self, local_rank: int) -> str:
        """Return the role and the role rank as one short word, such as ``trainer3``."""
        role, number = self.title(local_rank)
        return f"{one_line(role)[:40]}{number}"


def _folders(path: str | int) -> list[os.DirEntry[str]]:
    """Return the folders in a folder, without links. It is given by its path, or by a descriptor."""
    with os.scandir(path) as entries:
        return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]


def titles_of(roles: Sequence[tuple[str, int]]) -> list[str]:
    """Return role and role rank of each rank, such as ``web 1``, of a gang with several roles; otherwise no titles."""
    each = (f"{one_line(role)} {number}" for role, count in roles for number in range(count))
    return list(islice(each, MOST_RANKS)) if len(roles) > 1 else []


def _owner(name: str, at: int) -> int:
    """Return the user ID of the owner of a folder; -1 if it was removed."""
    try:
        return os.stat(name, dir_fd=at, follow_symlinks=False).st_uid
    except OSError:
        return -1


def runs_in(folder: str, at: int) -> list[RecordedRun]:
    """Return the runs of a folder, the newest first, without those of users that have no right to the folder.

    Args:
        folder: Its path.
        at: A descriptor of the folder.

    Raises:
        OSError: The folder cannot be read.
    """
    owners = {0, os.geteuid(), os.fstat(at).st_uid}
    paths = [os.path.join(folder, entry.name) for entry in _folders(at) if _owner(entry.name, at) in owners]
    found = [run for path in paths if (run := RecordedRun(path)).is_run()]
    return sorted(found, key=lambda run: (run.started.timestamp() if run.started else 0.0, run.name), reverse=True)
