"""One attempt of a gang: its files, environments and launchers, and the destinations that show its logs."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack, cast

from supervise._gang import rank_paths, validation
from supervise._gang.notify_protocol import address_of, variables
from supervise._gang.pickled_calls import pickled_calls
from supervise._gang.spec import GangSettings, GangSpec
from supervise._gang.tail_specs import add_tails, sources_of
from supervise._gang.texts import argv_of
from supervise._logs.files import make_ready
from supervise._process.containment import escapees
from supervise._process.launch import interpreter
from supervise._process.launch.environment import ProgramEnvironment, SharedEnvironment
from supervise._process.launch.launch_spec import LaunchSpec, Streams
from supervise._process.launch.program_launcher import ProgramLauncher
from supervise._process.lifeline.lifeline import Lifeline
from supervise.errors import SpecError, SuperviseError
from supervise.logs import DefaultLogsSpecs, validate_full_rank
from supervise.recording import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from supervise._gang.rank_spec import RankSpec
    from supervise._gang.tail_specs import Source, TailSpec
    from supervise._process.containment.escapees import Contained
    from supervise._process.launch.forks import Row
    from supervise._process.launch.function import StartMethod
    from supervise._process.launch.launched import Launcher
    from supervise._process.launch.posix_spawn import FoundPrograms
    from supervise.destinations import LogsDest

_WINDOWS: Mapping[frozenset[StartMethod | None], int] = {frozenset({"forkserver"}): 32, frozenset({"fork"}): 8}
"""Start methods of a gang to its launch window, if the window is not 1.

A fork server forks beside the host, so several launches can be pending. After a fork, the host copies each page to
which it writes. Consecutive forks, followed by the messages about them, copy fewer pages.
"""
_ATTEMPT = "TORCHELASTIC_RESTART_COUNT"
_MOST = "TORCHELASTIC_MAX_RESTARTS"
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_KEPT_LIVES = 8
"""Limit on the lives whose paths are kept, so that endless restarts of a rank do not use more and more memory."""
_FIELDS = {"grace": "grace_s", "timeout": "timeout_s"}
"""Argument to field of `GangSpec`, for arguments whose field has another name."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Attempt:
    """One attempt of a gang that is ready to be started. Every mapping is keyed by local rank."""

    spec: GangSpec
    envs: dict[int, dict[str, str]]
    """Variables that each rank gets in addition to the host's environment."""
    dest: LogsDest
    line: Lifeline = field(default_factory=Lifeline)
    contained: Contained | None = None
    """The containment. None only in tests without processes."""
    launchers: list[Launcher] = field(default_factory=list)
    tails: list[TailSpec] = field(default_factory=list)
    window: int = 1
    """Largest number of pending launches."""
    row: Row | None = None
    """The forks that are made next; None if no rank is forked."""
    lives: dict[int, tuple[dict[int, dict[str, str]], LogsDest]] = field(default_factory=dict)
    """Number of a later life to environments and log paths of all ranks. Only the newest `_KEPT_LIVES` are kept."""
    number: int = 0
    """Number of the attempt. The first is 0."""
    left_out: frozenset[int] = frozenset()
    """The ranks that stay down since an earlier attempt.

    They keep the log paths of that attempt, and their logs are not shown.
    """
    pid: int = field(default_factory=os.getpid)
    """The host's pid, because a forked child must not remove the log folders."""

    @property
    def nprocs(self) -> int:
        """Number of ranks."""
        return len(self.spec.args)

    def renew(self, rank: int, life: int) -> None:
        """Replace the environment, the log paths and the launcher of a rank by those of a later life.

        Raises:
            SpecError: `logs_specs` returned paths that do not match the ranks, a call cannot be pickled, or the control
                group cannot be made.
            OSError: A log file cannot be made. After either error, the rank keeps environment, log paths and launcher
                of its present life.
        """
        spec, dest = self.spec, self.dest
        assert self.contained is not None  # noqa: S101 - made with the attempt
        envs, found = self._paths_of(life)
        own = rank_paths.of_ranks(found, (rank,))
        make_ready(own)
        if spec.of(rank).travels and rank not in spec.pickled:
            spec.pickled.update(pickled_calls([spec.of(rank)], {rank: spec.args[rank]}, spec.cpus))
        self.contained.begin_life(rank, life)
        self.envs[rank] = envs[rank]
        rank_paths.replace(dest, rank, own)
        self.launchers[rank] = _launcher(self, rank, life, environ_of(spec, spec.of(rank)))

    def _paths_of(self, life: int) -> tuple[dict[int, dict[str, str]], LogsDest]:
        """Return the environments and the log paths for all ranks' lives with this number, from one call of `reify`."""
        if life not in self.lives:
            made = _reified(self.spec, life)
            if len(self.lives) >= _KEPT_LIVES:  # a rank whose life comes late gets paths of another call of `reify`
                del self.lives[min(self.lives)]
            self.lives[life] = made
        return self.lives[life]

    def sources(self, rank: int) -> dict[str, list[Source]]:
        """Return the shown files that the present life of a rank writes: stream to its sources."""
        shown = {"stdout": self.dest.tee_stdouts, "stderr": self.dest.tee_stderrs}
        return {
            name: list(sources_of(self.spec, {rank: paths[rank]})) for name, paths in shown.items() if rank in paths
        }

    def again(self, number: int, left_out: frozenset[int]) -> Attempt:
        """Return a later attempt of the same gang, without the ranks in `left_out`; see `make_attempt`."""
        return make_attempt(self.spec, number, left_out, self.dest)

    def new_files(self) -> LogsDest:
        """Return the log paths of the ranks that this attempt starts."""
        return rank_paths.of_ranks(self.dest, set(range(self.nprocs)) - self.left_out)

    def close(self) -> None:
        """Release the lifeline, the master port, destinations of logs, control groups, and empty log folders."""
        self.line.cut()
        self.spec.release_port()
        for tail in self.tails:
            tail.sink.close()
        if self.contained is not None:
            self.contained.close()
        if self.spec.remove_folders is not None and self.pid == os.getpid():
            self.spec.remove_folders()


def first_attempt(**settings: Unpack[GangSettings]) -> Attempt:
    """Check the settings of a gang and prepare its first attempt.

    As in PyTorch, this adds the path of each rank's error file to the caller's `envs`.

    Raises:
        SpecError: A setting is not valid, or a call cannot be pickled. The text names the rank.
        OSError: The log folder cannot be used, or a helper process of multiprocessing cannot be started.
        TypeError: A keyword is not the name of a setting.
    """
    spec = prepared(settings)
    try:
        attempt = make_attempt(spec, 0)
    except BaseException:
        if spec.remove_folders is not None:
            spec.remove_folders()
        spec.release_port()
        raise
    given = settings.get("envs") or {}
    for rank, env in attempt.envs.items():
        own = given.get(rank)
        if _ERROR_FILE in env and isinstance(own, MutableMapping):
            own[_ERROR_FILE] = env[_ERROR_FILE]
    return attempt


def prepared(settings: GangSettings) -> GangSpec:
    """Return the checked settings, with the pickled calls of functions.

    Raises:
        SpecError: A setting is not valid, or a call cannot be pickled. The text names the rank.
        TypeError: A keyword is not the name of a setting.
    """
    if unknown := settings.keys() - GangSettings.__required_keys__ - GangSettings.__optional_keys__:
        raise TypeError(f"a gang has no argument {min(unknown)!r}")
    given: dict[str, Any] = {_FIELDS.get(key, key): value for key, value in settings.items()}
    numa_options = given.pop("numa_options", None)
    spec = GangSpec(**given)
    changes = validation.checked(spec)
    if numa_options is not None:
        from supervise._process.launch import numa

        changes["cpus"] = numa.cpus_of_ranks(changes["args"], numa_options)
    for method in {part.start_method if part.travels else None: None for part in changes["parts"]}:
        interpreter.check(method)
    changes["pickled"] = pickled_calls(changes["parts"], changes["args"], changes.get("cpus", {}))
    if spec.logs_specs is None:
        changes["logs_specs"] = default = DefaultLogsSpecs()
        changes["remove_folders"] = default._remove_empty  # noqa: SLF001 - not part of the public API
    if spec.rank_variables:
        from supervise._gang import rank_variables

        most = spec.restart_policy.max_restarts if spec.restart_policy is not None else 0
        changes["master"] = master = rank_variables.master_of_environment(spec.environ)
        changes["envs"] = rank_variables.with_variables(
            changes["parts"], changes["envs"], master, name=spec.name, max_restarts=most
        )
    for name, value in changes.items():
        object.__setattr__(spec, name, value)  # not shared yet; `replace` would cost as much as all checks
    return spec


def make_attempt(
    spec: GangSpec, number: int, left_out: frozenset[int] = frozenset(), past: LogsDest | None = None
) -> Attempt:
    """Make the folders, the launchers and the destinations of an attempt.

    Args:
        spec: The settings of the gang.
        number: The number of the attempt; 0 for the first.
        left_out: The ranks that stay down since an earlier attempt.
        past: The log paths of the attempt before this one; None for the first.

    Raises:
        SpecError: `logs_specs` returned paths that do not match the ranks.
        OSError: The log folder cannot be used.
    """
    if spec.master is not None:
        spec.master.hold()
    envs, dest = _reified(spec, number)
    if past is not None:
        rank_paths.keep(dest, past, left_out)
    methods = {part.start_method for part in spec.parts}
    attempt = Attempt(
        spec=spec,
        envs=envs,
        dest=dest,
        number=number,
        left_out=left_out,
        contained=escapees.make(spec.containment, spec.name, forked=not methods.isdisjoint(("fork", "forkserver"))),
        window=_WINDOWS.get(frozenset(methods), 1),
    )
    try:
        attempt.launchers = list(_launchers(attempt))
        add_tails(attempt.tails, spec, dest)
    except BaseException:
        attempt.close()
        raise
    return attempt


def _reified(spec: GangSpec, number: int) -> tuple[dict[int, dict[str, str]], LogsDest]:
    """Return the environments and the log paths for all ranks' lives with this number.

    Raises:
        Exception: The exception of `logs_specs`. For a later life, it becomes a `SpecError`, unless it is an `OSError`
            or an error of supervise.
    """
    assert spec.envs is not None  # noqa: S101 - checked, as is the next
    assert spec.logs_specs is not None  # noqa: S101
    envs = {rank: _env(spec, env, number) for rank, env in spec.envs.items()}
    try:
        dest = spec.logs_specs.reify(envs)
        validate_full_rank(dest.stdouts, len(spec.args), "stdouts")
        validate_full_rank(dest.stderrs, len(spec.args), "stderrs")
    except Exception as error:
        if not number or isinstance(error, (OSError, SuperviseError)):  # the caller of the start gets it unchanged
            raise
        what = f"{type(error).__name__}: {text_of(error)}"
        raise SpecError(f"{type(spec.logs_specs).__name__}.reify raised {what}") from error
    return envs, dest


def _env(spec: GangSpec, env: Mapping[str, str], number: int) -> dict[str, str]:
    if spec.restart_policy is None and not number:
        return dict(env)
    most = 0 if spec.restart_policy is None else spec.restart_policy.max_restarts
    first = env.get(_ATTEMPT, "0")
    attempt = (int(first) if first.isdigit() else 0) + number
    return {_MOST: str(most), **env, _ATTEMPT: str(attempt)}


def _launchers(attempt: Attempt) -> Iterator[Launcher]:
    found: FoundPrograms = {}  # for the first lives only, because a program may be replaced before a later one
    for part in attempt.spec.parts:
        environ = environ_of(attempt.spec, part)
        for rank in part.ranks:
            yield _launcher(attempt, rank, attempt.number, environ, found)


def environ_of(spec: GangSpec, part: RankSpec) -> SharedEnvironment | Mapping[str, str]:
    """Return the host's environment in the form in which the launch of a rank of this role takes it."""
    return SharedEnvironment(spec.environ) if part.kind == "binary" else spec.environ


def _launcher(
    attempt: Attempt,
    rank: int,
    life: int,
    environ: SharedEnvironment | Mapping[str, str],
    found: FoundPrograms | None = None,
) -> Launcher:
    spec, contained, dest = attempt.spec, attempt.contained, attempt.dest
    part = spec.of(rank)
    assert contained is not None  # noqa: S101 - made with the attempt
    binary = part.kind == "binary"
    take = spec.pickled.get if spec.restart_policy else spec.pickled.pop  # the last launch closes copied descriptors
    notify = variables(address_of(spec.notify_token, rank, life), spec.heartbeat_timeout_s) if spec.notify_token else {}
    own = {**attempt.envs[rank], **contained.env(rank), **notify}
    how = LaunchSpec(
        env=ProgramEnvironment(environ, own) if isinstance(environ, SharedEnvironment) else {**environ, **own},
        cwd=part.cwd,
        streams=Streams(stdout=dest.stdouts[rank], stderr=dest.stderrs[rank]),
        stdin=spec.stdin.get(rank),
        line=attempt.line,
        enter=contained.enter(rank),
        gate=spec.gate and binary,
        found=found,
    )
    launcher: Launcher
    if isinstance(part.entrypoint, str):
        launcher = ProgramLauncher(argv=argv_of(part.entrypoint, spec.args[rank], rank), how=how)
    elif part.start_method == "fork":
        from supervise._process.launch.forks import ForkLauncher, Row

        attempt.row = row = attempt.row or Row()
        launcher = ForkLauncher(
            local_rank=rank, fn=part.entrypoint, args=spec.args[rank], how=how, row=row, plain=spec.plain
        )
    else:
        from supervise._process.launch.function import FunctionLauncher

        launcher = FunctionLauncher(
            local_rank=rank,
            method=cast("StartMethod", part.start_method),
            fn=part.entrypoint,
            args=spec.args[rank],
            how=how,
            pickled=take(rank, None),
            plain=spec.plain,
        )
    return _bound(launcher, spec.cpus[rank]) if rank in spec.cpus else launcher


def _bound(launcher: Launcher, cpus: frozenset[int]) -> Launcher:
    from supervise._process.launch import numa

    return numa.BoundLauncher(launcher.launch, cpus)
