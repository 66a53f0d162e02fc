"""The destinations of each rank's output: which streams are written or shown, and the files."""

# A worker imports this module: no pathlib.

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from enum import IntFlag

from supervise._files import (
    accessible,
    closing,
    is_own,
    make_folders,
    make_new_folder,
    make_private,
    not_a_folder,
    open_folder,
    temporary_folder,
)
from supervise.errors import SpecError

TYPE_CHECKING = False  # instead of importing typing into every worker
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, ClassVar

    from supervise.destinations import LogsDest

__all__ = ["DefaultLogsSpecs", "LogsSpecs", "Std", "to_map", "validate_full_rank"]

_VALUE_REGEX = r"^[0123]$"
_MAPPING_REGEX = r"^(\d+:[0123],)*(\d+:[0123])$"
_TEMP_PREFIX = "torchelastic_"


class Std(IntFlag):
    """A set of output streams."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR

    @classmethod
    def from_str(cls, vm: str) -> Std | dict[int, Std]:
        """Parse a choice for all ranks (``"3"``) or one per rank (``"0:3,10:1"``: rank 0 both, rank 10 stdout).

        Args:
            vm: One of 0 (none), 1 (stdout), 2 (stderr), 3 (both), or a list of ``RANK:VALUE``.

        Returns:
            The choice, or local rank to choice for the ranks in `vm`.

        Raises:
            ValueError: `vm` has another form; the text has the accepted forms.
        """
        import re

        if re.match(_VALUE_REGEX, vm):
            return cls(int(vm))
        if re.match(_MAPPING_REGEX, vm, re.ASCII):
            pairs = (item.split(":") for item in vm.split(","))
            return {int(rank): cls(int(value)) for rank, value in pairs}
        raise ValueError(f"{vm} does not match: <{_VALUE_REGEX}> or <{_MAPPING_REGEX}>")


_OUT, _ERR = int(Std.OUT), int(Std.ERR)


def to_map(val_or_map: Std | Mapping[int, Std], local_world_size: int) -> dict[int, Std]:
    """Return local rank to choice for every rank of ``range(local_world_size)``.

    Args:
        val_or_map: One choice for all ranks, or local rank to choice; a missing rank gets `Std.NONE`.
        local_world_size: Number of ranks.
    """
    if isinstance(val_or_map, IntFlag):  # also a `Std` of PyTorch
        return dict.fromkeys(range(local_world_size), Std(int(val_or_map)))
    return {rank: Std(int(val_or_map.get(rank, Std.NONE))) for rank in range(local_world_size)}


def validate_full_rank(d: Mapping[int, Any], nprocs: int, what: str) -> None:
    """Raise unless the keys of `d` are exactly ``range(nprocs)``.

    Raises:
        SpecError: A rank is missing or unknown; the text begins with `what`.
    """
    actual, expected = set(d), set(range(nprocs))
    if actual != expected or not all(hasattr(kind, "__index__") for kind in set(map(type, actual))):  # 0.0 equals 0
        raise SpecError(f"{what}, local rank mapping mismatch, expected: {expected}, actual: {actual}")


def check_streams(what: str, choice: object) -> None:
    """Raise unless `choice` is a `Std`, also that of PyTorch, or a mapping of local rank to `Std`.

    Raises:
        SpecError: `choice` is not valid; the text names the setting, the rank and the value.
    """
    from collections.abc import Mapping

    if isinstance(choice, IntFlag) and 0 <= choice <= Std.ALL:
        return
    if not isinstance(choice, Mapping):
        raise SpecError(
            f"{what} is {choice!r}; give a Std, such as Std.ALL, or a mapping of local rank to Std; see Std.from_str"
        )
    for rank, std in choice.items():
        if not _is_number(rank):
            raise SpecError(f"{what} has {rank!r} in place of a local rank; give a number, such as 0")
        if not (_is_number(std) and 0 <= std <= Std.ALL):
            raise SpecError(f"rank {rank}: its {what} is {std!r}; give a Std, such as Std.ALL")


def check_filter(ranks: object) -> None:
    """Raise unless `ranks` is a set of ranks or None, as `local_ranks_filter` must be.

    Raises:
        SpecError: `ranks` is not valid; the text has the value.
    """
    from collections.abc import Collection

    if ranks is None:
        return
    if not isinstance(ranks, Collection) or not all(_is_number(rank) for rank in ranks):
        raise SpecError(f"local_ranks_filter is {ranks!r}; give a set of local ranks, such as {{0}}, or None for all")


def _check_shown(ranks: set[int] | None, nprocs: int) -> None:
    """Raise if `local_ranks_filter` names a rank that does not exist.

    Maps of `redirects` and `tee` may name such ranks, as in PyTorch: one map serves hosts of any size.
    """
    if unknown := sorted(set(ranks or ()) - set(range(nprocs))):
        there = f"the local ranks are 0 to {nprocs - 1}" if nprocs else "there are no ranks"
        raise SpecError(f"local_ranks_filter names ranks {unknown}, which do not exist; {there}")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class LogsSpecs(ABC):
    """The base class of log layouts. A subclass decides where each rank's output goes.

    Args:
        log_dir: Root folder of the logs.
        redirects: Streams to write to files: one choice, or local rank to choice.
        tee: Streams to write to files and to show.
        local_ranks_filter: Ranks whose output is shown; None or empty: all.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @abstractmethod
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the file paths of one attempt.

        Args:
            envs: Local rank to the environment that the rank will get.
        """

    @property
    @abstractmethod
    def root_log_dir(self) -> str:
        """The root folder of the logs."""


class DefaultLogsSpecs(LogsSpecs):
    """PyTorch's log layout. New folders are private (0700). No file is deleted; a log that exists is renamed.

    ::

        <log_dir>/<run_id>_<random>/attempt_<n>/<rank>/{stdout.log,stderr.log,error.json}
        <log_dir>/<run_id>_<random>/attempt_<n>/{filtered_stdout.log,filtered_stderr.log}

    Args:
        log_dir: Root folder, created if missing. None: a new temporary folder; `os.devnull`: no files.
        redirects: Streams to write to files: one choice, or local rank to choice.
        tee: Streams to write to files and to show.
        local_ranks_filter: Ranks whose output is shown; None or empty: all.

    Raises:
        SpecError: `redirects`, `tee` or `local_ranks_filter` is not valid; the text names it and its value.
        NotADirectoryError: `log_dir` is a file.
        PermissionError: `log_dir` cannot be written to.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        check_streams("redirects", redirects)
        check_streams("tee", tee)
        check_filter(local_ranks_filter)
        log_dir = new_temp_dir(_TEMP_PREFIX) if not log_dir else os.fspath(log_dir)
        if log_dir != os.devnull:
            _check_log_dir(log_dir)
        super().__init__(log_dir, redirects, tee, local_ranks_filter)
        self._run_log_dir: str | None = None
        self._made: dict[str, tuple[int, int]] = {}

    @property
    def root_log_dir(self) -> str:
        """The root folder of the logs, as given."""
        return str(self._root_log_dir)

    def _make_log_dir(self, log_dir: str | None, rdzv_run_id: str) -> str:
        """Create the folder of this run and return its absolute path."""
        base = log_dir or new_temp_dir(_TEMP_PREFIX)
        _check_log_dir(base)
        path = os.path.abspath(base)
        try:
            at = open_folder(path)
        except OSError:  # the caller's path has a link of another user: resolve the path once
            path = os.path.realpath(path)
            at = open_folder(path)
        with closing(at):
            return os.path.join(path, make_new_folder(f"{_one_name(rdzv_run_id)}_", at, base))

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the file paths of one attempt and create their folders. Equal attempts give equal paths.

        The run ID is ``TORCHELASTIC_RUN_ID`` of ``envs[0]``, the attempt ``TORCHELASTIC_RESTART_COUNT``.

        Args:
            envs: Local rank to environment; this method sets ``TORCHELASTIC_ERROR_FILE`` in each.

        Raises:
            SpecError: The keys of `envs` are not ``0 .. len(envs) - 1``, or `local_ranks_filter`
                names another rank; no folder was created.
            OSError: A folder cannot be created; ``filename`` is its path.
        """
        return self._reified(envs, envs)

    def _make_folder_of(self, error_file: str) -> None:
        """Create the folder of the rank with this error file, if it is missing.

        Raises:
            OSError: It cannot be created; ``filename`` is its path.
        """
        attempt_dir, name = os.path.split(os.path.dirname(error_file))
        if name:
            make_folders(attempt_dir, [name], self._made)

    def _reified(self, envs: dict[int, dict[str, str]], made: Iterable[int]) -> LogsDest:
        """Do what `reify` does, and create only the folders of the ranks in `made`.

        A subclass that replaces `reify` may need all folders.
        """
        nprocs = len(envs)
        validate_full_rank(envs, nprocs, "envs")
        _check_shown(self._local_ranks_filter, nprocs)
        if self._root_log_dir == os.devnull:
            return _no_files(envs)
        first = envs.get(0, {})
        attempt_dir = self._attempt_dir(
            first.get("TORCHELASTIC_RUN_ID", "test_run_id"), first.get("TORCHELASTIC_RESTART_COUNT", "0")
        )
        from supervise.destinations import LogsDest

        dest = LogsDest(
            filtered_stdout=os.path.join(attempt_dir, "filtered_stdout.log"),
            filtered_stderr=os.path.join(attempt_dir, "filtered_stderr.log"),
        )
        redirects, tees = to_map(self._redirects, nprocs), to_map(self._tee, nprocs)
        folders = {rank: self._folder_of(rank, envs[rank]) for rank in sorted(envs)}
        make_folders(attempt_dir, [folders[rank] for rank in made], self._made)
        for rank, env in sorted(envs.items()):
            rank_dir = f"{attempt_dir}/{folders[rank]}"  # `os.path.join` takes ten calls
            # A Tail reads shown output from the file, so tee implies redirect. Integers: flag operations are slow
            tee = int(tees[rank])
            to_file = tee | int(redirects[rank])
            shown = not self._local_ranks_filter or rank in self._local_ranks_filter
            elsewhere = "" if shown else os.devnull
            out, err = f"{rank_dir}/stdout.log", f"{rank_dir}/stderr.log"
            dest.stdouts[rank] = out if to_file & _OUT else elsewhere
            dest.stderrs[rank] = err if to_file & _ERR else elsewhere
            if shown and tee & _OUT:
                dest.tee_stdouts[rank] = out
            if shown and tee & _ERR:
                dest.tee_stderrs[rank] = err
            dest.error_files[rank] = env["TORCHELASTIC_ERROR_FILE"] = f"{rank_dir}/error.json"
        return dest

    def _folder_of(self, rank: int, _env: Mapping[str, str]) -> str:
        """Return the name of a rank's folder."""
        return str(rank)

    def _attempt_dir(self, run_id: str, restart_count: str) -> str:
        """Create the folder of one attempt and return its path."""
        if not self._run_log_dir:
            self._run_log_dir = self._make_log_dir(self._root_log_dir, run_id)
        _make_private_dirs(self._run_log_dir)
        name = f"attempt_{_one_name(restart_count)}"
        make_folders(self._run_log_dir, [name], self._made)
        return os.path.join(self._run_log_dir, name)

    def _remove_empty(self) -> None:
        """Remove the created folders that are empty. For a gang that was given no `logs_specs`."""
        for path in (*sorted(self._made, key=len, reverse=True), self._run_log_dir, self._root_log_dir):
            try:
                os.rmdir(path or "")
            except OSError:  # not empty
                continue

    def __repr__(self) -> str:
        """Return the same text as PyTorch."""
        return (
            f"DefaultLogsSpecs(root_log_dir={self._root_log_dir}, redirects={self._redirects}, "
            f"tee={self._tee}, local_ranks_filter={self._local_ranks_filter})"
        )

    def __eq__(self, other: object) -> bool:
        """Return whether both have equal arguments; the folder of the run is not compared."""
        return isinstance(other, DefaultLogsSpecs) and self._asked() == other._asked()

    __hash__: ClassVar[None]  # type: ignore[assignment]  # mutable

    def _asked(self) -> tuple[object, ...]:
        """Return the arguments of the constructor."""
        return self._root_log_dir, self._redirects, self._tee, self._local_ranks_filter


def _no_files(envs: dict[int, dict[str, str]]) -> LogsDest:
    """Return the destinations of a run without files, as PyTorch does for ``log_dir=os.devnull``."""
    from supervise.destinations import LogsDest

    for env in envs.values():
        env["TORCHELASTIC_ERROR_FILE"] = ""
    ranks = range(len(envs))
    return LogsDest(
        stdouts=dict.fromkeys(ranks, ""),
        stderrs=dict.fromkeys(ranks, ""),
        tee_stdouts=dict.fromkeys(ranks, os.devnull),
        tee_stderrs=dict.fromkeys(ranks, os.devnull),
        error_files=dict.fromkeys(ranks, os.devnull),
        filtered_stdout=os.path.join(os.devnull, "filtered_stdout.log"),
        filtered_stderr=os.path.join(os.devnull, "filtered_stderr.log"),
    )


def _check_log_dir(path: str) -> None:
    """Create the folder if it is missing; raise if it is not writable."""
    if os.path.exists(path) and not os.path.isdir(path):
        what = "a file" if os.path.isfile(path) else "not a directory"
        raise NotADirectoryError(f"log_dir: {path} is {what}")
    _make_private_dirs(path)
    if not accessible(path, os.W_OK | os.X_OK):
        import errno

        raise PermissionError(errno.EACCES, "log_dir cannot be written to", path)
    owner = os.stat(path).st_uid
    if not is_own(owner):
        import logging

        logging.getLogger("supervise").warning(
            "log_dir %s belongs to another user (number %d), who can replace the logs; give a folder of your own",
            path,
            owner,
        )


def _make_private_dirs(path: str) -> None:
    """Create a folder and its missing parents, with mode 0700."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path.rstrip(os.sep))
    if parent and parent != path:
        _make_private_dirs(parent)
    try:
        make_private(path)
    except FileExistsError as e:
        if not os.path.isdir(path):  # another process did not create it meanwhile
            raise not_a_folder(path) from e


def new_temp_dir(prefix: str) -> str:
    """Create a private folder in the system's temporary folder and return its path.

    Raises:
        OSError: The folder cannot be created.
    """
    if "tempfile" not in sys.modules and not os.environ.keys() & {"TEMP", "TMP"}:
        parent = os.path.abspath(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - a private folder below
        path = os.path.join(parent, f"{prefix}{os.urandom(8).hex()}")
        try:
            make_private(path)
        except OSError:  # another folder may be usable
            pass
        else:
            return path
    import tempfile  # lazy, as in `temporary_folder`

    os.close(os.open(os.devnull, os.O_RDONLY))  # if no descriptor is left, this error says so, and that of mkdtemp not
    return tempfile.mkdtemp(prefix=prefix, dir=temporary_folder())


def _one_name(text: str) -> str:
    """Return `text` as a folder name, with path separators replaced."""
    return str(text).replace(os.sep, "_")
