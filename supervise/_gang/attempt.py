"""One attempt of a gang: its files, environments and launchers, and the destinations that show its logs."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast

from supervise._gang import validation
from supervise._gang.spec import GangSettings, GangSpec
from supervise._logs import sinks
from supervise._logs.files import move_aside
from supervise._printable import as_prefix
from supervise._process.containment import escapees
from supervise._process.launch import function, interpreter
from supervise._process.launch.function import FunctionLauncher
from supervise._process.launch.launch_spec import LaunchSpec, Streams
from supervise._process.launch.program_launcher import ProgramLauncher
from supervise._process.lifeline.lifeline import Lifeline
from supervise.logs import DefaultLogsSpecs, validate_full_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from supervise._gang.worker import Launcher
    from supervise._process.containment.escapees import Contained
    from supervise._process.launch.function import Pickled, StartMethod
    from supervise.destinations import LogsDest

_SERVER_WINDOW = 32
"""Launch window of a fork server."""
_ATTEMPT = "TORCHELASTIC_RESTART_COUNT"
_MOST = "TORCHELASTIC_MAX_RESTARTS"
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_FIELDS = {"grace": "grace_s", "timeout": "timeout_s"}
"""Argument to field of `GangSpec`, where the names differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file that a rank writes, and the prefix of its lines."""

    local_rank: int
    path: str
    prefix: bytes


@dataclass(slots=True, kw_only=True)
class TailSpec:
    """One destination and the files that it shows."""

    name: str
    sink: sinks.Sink
    sources: list[Source]
    line_filter: Callable[[bytes], bool] | None = None


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt of a gang, ready to be started. Every mapping is keyed by local rank."""

    spec: GangSpec
    envs: dict[int, dict[str, str]] = field(repr=False)
    """Variables that each rank gets in addition to the host's environment."""
    dest: LogsDest
    line: Lifeline = field(default_factory=Lifeline)
    contained: Contained | None = None
    """None only in tests without processes."""
    launchers: list[Launcher] = field(default_factory=list, repr=False)
    tails: list[TailSpec] = field(default_factory=list)
    window: int = 1
    """Largest number of pending launches."""
    pid: int = field(default_factory=os.getpid)
    """The host's pid: a forked child must not remove the log folders."""

    @property
    def nprocs(self) -> int:
        """Number of ranks."""
        return len(self.spec.args)

    def again(self, number: int) -> Attempt:
        """Return a later attempt of the same gang; see `make_attempt`."""
        return make_attempt(self.spec, number)

    def close(self) -> None:
        """Release the lifeline, the destinations of logs, the control groups, and empty log folders."""
        self.line.cut()
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
        SpecError: A setting is not valid, or a call cannot be pickled; names the rank.
        OSError: The log folder cannot be used, or a helper process of multiprocessing cannot be started.
        TypeError: A keyword is not the name of a setting.
    """
    spec = _prepared(settings)
    try:
        attempt = make_attempt(spec, 0)
    except BaseException:
        if spec.remove_folders is not None:
            spec.remove_folders()
        raise
    given = settings.get("envs") or {}
    for rank, env in attempt.envs.items():
        own = given.get(rank)
        if _ERROR_FILE in env and isinstance(own, MutableMapping):
            own[_ERROR_FILE] = env[_ERROR_FILE]
    return attempt


def _prepared(settings: GangSettings) -> GangSpec:
    """Return the checked settings, with the pickled calls of functions."""
    if unknown := settings.keys() - GangSettings.__annotations__:
        raise TypeError(f"a gang has no argument {min(unknown)!r}")
    given: dict[str, Any] = {_FIELDS.get(key, key): value for key, value in settings.items()}
    numa_options = given.pop("numa_options", None)
    spec = GangSpec(**given)
    changes = validation.checked(spec)
    if numa_options is not None:
        from supervise._process.launch import numa

        changes["cpus"] = numa.cpus_of_ranks(changes["args"], numa_options)
    interpreter.check(spec.start_method if spec.travels else None)
    if spec.travels:
        changes["pickled"] = _pickled(spec, changes["args"], changes.get("cpus", {}))
    if spec.logs_specs is None:
        changes["logs_specs"] = default = DefaultLogsSpecs()
        changes["remove_folders"] = default._remove_empty  # noqa: SLF001 - not part of the public API
    for name, value in changes.items():
        object.__setattr__(spec, name, value)  # not shared yet; `replace` would cost as much as all checks
    return spec


def _pickled(
    spec: GangSpec, args: Mapping[int, tuple[Any, ...]], cpus: Mapping[int, frozenset[int]]
) -> dict[int, Pickled]:
    validation.check_main(spec.entrypoint, args)
    fn, method = cast("Callable[..., Any]", spec.entrypoint), cast("StartMethod", spec.start_method)
    calls = {rank: (fn, given) for rank, given in args.items()}
    if cpus and method == "forkserver":  # the server forks the ranks, and it is not bound
        from supervise._process.launch import numa

        calls |= {rank: (numa.OnCpus(fn, near), args[rank]) for rank, near in cpus.items()}
    return function.pickle_calls(calls, method)


def make_attempt(spec: GangSpec, number: int) -> Attempt:
    """Make the folders, the launchers and the destinations of an attempt; 0 is the first.

    Raises:
        SpecError: `logs_specs` returned paths that do not match the ranks.
        OSError: The log folder cannot be used.
    """
    assert spec.envs is not None  # noqa: S101 - checked, as is the next
    assert spec.logs_specs is not None  # noqa: S101
    envs = {rank: _env(spec, env, number) for rank, env in spec.envs.items()}
    dest = spec.logs_specs.reify(envs)
    validate_full_rank(dest.stdouts, len(spec.args), "stdouts")
    validate_full_rank(dest.stderrs, len(spec.args), "stderrs")
    forked = spec.start_method in ("fork", "forkserver")
    attempt = Attempt(
        spec=spec,
        envs=envs,
        dest=dest,
        contained=escapees.make(spec.containment, spec.name, forked=forked),
        window=_SERVER_WINDOW if spec.start_method == "forkserver" else 1,
    )
    try:
        attempt.launchers = list(_launchers(attempt))
        _add_tails(attempt)
    except BaseException:
        attempt.close()
        raise
    return attempt


def _env(spec: GangSpec, env: Mapping[str, str], number: int) -> dict[str, str]:
    if spec.restart_policy is None:
        return dict(env)
    first = env.get(_ATTEMPT, "0")
    attempt = (int(first) if first.isdigit() else 0) + number
    return {_MOST: str(spec.restart_policy.max_restarts), **env, _ATTEMPT: str(attempt)}


def _launchers(attempt: Attempt) -> Iterator[Launcher]:
    spec, contained, dest = attempt.spec, attempt.contained, attempt.dest
    assert contained is not None  # noqa: S101 - made with the attempt
    binary = isinstance(spec.entrypoint, str)
    environ: Mapping[Any, Any] = _encoded(spec.environ) if binary else spec.environ
    take = spec.pickled.get if spec.restart_policy else spec.pickled.pop  # the last launch closes copied descriptors
    for rank, args in spec.args.items():
        own: Mapping[Any, Any] = {**attempt.envs[rank], **contained.env(rank)}
        how = LaunchSpec(
            env={**environ, **(_encoded(own) if binary else own)},
            cwd=spec.cwd,
            streams=Streams(stdout=dest.stdouts[rank], stderr=dest.stderrs[rank]),
            line=attempt.line,
            reset=spec.reset,
            enter=contained.enter(rank),
            gate=spec.gate and binary,
        )
        launcher: Launcher
        if isinstance(spec.entrypoint, str):
            launcher = ProgramLauncher(argv=validation.argv_of(spec.entrypoint, args, rank), how=how)
        else:
            launcher = FunctionLauncher(
                local_rank=rank,
                method=cast("StartMethod", spec.start_method),
                fn=spec.entrypoint,
                args=args,
                how=how,
                pickled=take(rank, None),
                plain=spec.plain,
            )
        yield _bound(launcher, spec.cpus[rank]) if rank in spec.cpus else launcher


def _bound(launcher: Launcher, cpus: frozenset[int]) -> Launcher:
    from supervise._process.launch import numa

    return numa.BoundLauncher(launcher.launch, cpus)


def _encoded(env: Mapping[str, str]) -> dict[bytes, bytes]:
    """Encode an environment as the kernel takes it, once for all ranks instead of at each launch."""
    return {os.fsencode(key): os.fsencode(value) for key, value in env.items()}


def _add_tails(attempt: Attempt) -> None:
    """Add the Tails one by one, so that a failed attempt can close the sinks that are open."""
    spec, dest, tails = attempt.spec, attempt.dest, attempt.tails
    prefixes = spec.log_line_prefixes or {}

    def sources(paths: Mapping[int, str]) -> list[Source]:
        return [
            Source(local_rank=rank, path=path, prefix=as_prefix(prefixes.get(rank, f"[{spec.name}{rank}]:")).encode())
            for rank, path in sorted(paths.items())
            if path and path != os.devnull
        ]

    outs, errs = sources(dest.tee_stdouts), sources(dest.tee_stderrs)
    for name, stream, found in (("stdout", spec.consoles[0], outs), ("stderr", spec.consoles[1], errs)):
        sink = sinks.console(stream) if found else None
        if sink is None:
            continue
        if tails and sinks.same_destination(tails[0].sink, sink):  # two writers would mix their lines
            sink.close()
            tails[0].name = "console"
            tails[0].sources += found
        else:
            tails.append(TailSpec(name=name, sink=sink, sources=found))
    for name, path, filters, found in (
        ("filtered_stdout", dest.filtered_stdout, spec.duplicate_stdout_filters, outs),
        ("filtered_stderr", dest.filtered_stderr, spec.duplicate_stderr_filters, errs),
    ):
        if filters and path and not path.startswith(os.devnull):
            move_aside(path)
            needles = [needle.encode() for needle in filters]
            keep = partial(_holds_any, needles)
            tails.append(TailSpec(name=name, sink=sinks.file_sink(path), sources=found, line_filter=keep))


def _holds_any(needles: list[bytes], line: bytes) -> bool:
    return any(needle in line for needle in needles)
