"""One attempt of a gang: its files, environments and launchers, and the destinations that show its logs."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO, TypeGuard, Unpack, cast

from supervise._files import make_ready, move_aside
from supervise._gang import later_modules, validation
from supervise._gang.notify_protocol import new_address, variables, without_host_variables
from supervise._gang.rank_spec import RankSpec, naming
from supervise._gang.spec import GangSpec
from supervise._printable import as_prefix
from supervise._process.containment.escapees import Contained
from supervise._process.launch import limits, posix_spawn
from supervise._process.launch.program import Launcher, LaunchSpec, Streams, launch_program
from supervise._process.lifeline import Lifeline
from supervise._record import NamedTuple, field, record
from supervise._settings import Containment, StartMethod, shown
from supervise.destinations import LogsDest
from supervise.errors import SpecError, SuperviseError
from supervise.logs import DefaultLogsSpecs, validate_full_rank
from supervise.recording import repr_of, text_of

if TYPE_CHECKING:
    from supervise._gang.spec import GangSettings
    from supervise._logs.screen import Screen
    from supervise._logs.sinks import Sink
    from supervise._process.launch.forks import Row
    from supervise._process.launch.function import Pickled


# Parts of a `LogsDest`: the log paths of some ranks


_BY_RANK = ("stdouts", "stderrs", "tee_stdouts", "tee_stderrs", "error_files")


def of_ranks(dest: LogsDest, ranks: Collection[int]) -> LogsDest:
    """Return a `LogsDest` with the paths of only these ranks."""
    own = LogsDest()
    for name in _BY_RANK:
        getattr(own, name).update({rank: path for rank, path in getattr(dest, name).items() if rank in ranks})
    return own


def replace(dest: LogsDest, rank: int, own: LogsDest) -> None:
    """Replace the paths of a rank by its paths in `own`."""
    for name in _BY_RANK:
        getattr(dest, name).pop(rank, None)
        getattr(dest, name).update(getattr(own, name))


def keep(dest: LogsDest, past: LogsDest, ranks: Collection[int]) -> None:
    """Give these ranks the paths of their past lives, whose logs are not shown any more."""
    for rank in ranks:
        old = of_ranks(past, (rank,))
        old.tee_stdouts, old.tee_stderrs = {}, {}
        replace(dest, rank, old)
    for name in _BY_RANK:
        setattr(dest, name, dict(sorted(getattr(dest, name).items())))


# The destinations of a gang's shown output, and the files that each shows


class Source(NamedTuple):
    """A file that a rank writes, and the prefix of its lines."""

    local_rank: int
    path: str
    prefix: bytes
    prompts: bool = False
    """Whether the beginning of a line is shown soon, for a person who answers it on a terminal."""


@record(frozen=False, eq=False)
class TailSpec:
    """One destination and the files that it shows."""

    name: str
    sink: Sink
    sources: list[Source]
    streams: tuple[str, ...]
    """The streams of the ranks that are shown: ``stdout``, ``stderr``."""
    line_filter: Callable[[bytes], bool] | None = None
    screen: Screen | None = None
    """How the destination shows unfinished lines; None: it shows the states of a rewritten line as lines."""


def sources_of(spec: GangSpec, paths: Mapping[int, str]) -> Iterator[Source]:
    """Yield the files of ranks that are shown."""
    prefixes = spec.log_line_prefixes or {}
    for rank, path in sorted(paths.items()):
        if path and path != os.devnull:
            prefix = as_prefix(prefixes.get(rank, spec.default_prefix(rank)))
            prompts = rank in spec.stdin and os.isatty(spec.stdin[rank].fd)
            yield Source(local_rank=rank, path=path, prefix=prefix.encode(), prompts=prompts)


def add_tails(tails: list[TailSpec], spec: GangSpec, dest: LogsDest) -> None:
    """Add the Tails one by one, so that a failed attempt can close the sinks that are already open."""
    outs, errs = list(sources_of(spec, dest.tee_stdouts)), list(sources_of(spec, dest.tee_stderrs))
    if not (outs or errs or spec.duplicate_stdout_filters or spec.duplicate_stderr_filters):
        return
    from supervise._logs import sinks  # lazy: most gangs have no Tail

    for name, stream, found in (("stdout", spec.consoles[0], outs), ("stderr", spec.consoles[1], errs)):
        sink = sinks.console(stream) if found else None
        if sink is None:
            continue
        if tails and sinks.same_destination(tails[0].sink, sink):  # because two writers would mix their lines
            sink.close()
            tails[0].name, tails[0].streams = "console", ("stdout", "stderr")
            tails[0].sources = [*outs, *errs]  # not in place: a Tail of filtered lines shows one of the lists
        else:
            screen = spec.screen or _notebook_screen(stream)
            tails.append(TailSpec(name=name, sink=sink, sources=found, streams=(name,), screen=screen))
    for name, path, filters, found in (
        ("filtered_stdout", dest.filtered_stdout, spec.duplicate_stdout_filters, outs),
        ("filtered_stderr", dest.filtered_stderr, spec.duplicate_stderr_filters, errs),
    ):
        if filters and path and not path.startswith(os.devnull):
            move_aside(path)
            needles = [needle.encode() for needle in filters]
            keep = partial(_holds_any, needles)
            streams = (name.removeprefix("filtered_"),)
            tails.append(
                TailSpec(name=name, sink=sinks.file_sink(path), sources=found, streams=streams, line_filter=keep)
            )


def _notebook_screen(stream: TextIO | Sink) -> Screen | None:
    """Return the row of a notebook's stream; None for any other destination."""
    if not any(base.__module__.startswith("ipykernel.") for base in type(stream).__mro__):
        return None
    from supervise._logs.screen import NotebookScreen  # lazy: most gangs are not in a notebook

    return NotebookScreen()


def _holds_any(needles: list[bytes], line: bytes) -> bool:
    return any(needle in line for needle in needles)


# The calls of a gang's functions. They are pickled in the caller's thread, before any process starts


def pickled_calls(
    parts: Iterable[RankSpec], args: Mapping[int, tuple[Any, ...]], cpus: Mapping[int, frozenset[int]]
) -> dict[int, Pickled]:
    """Return local rank to pickled call, for those ranks in `args` whose calls must be pickled."""
    pickled: dict[int, Pickled] = {}
    for part in parts:
        if part.travels:
            own = {part.role_rank(rank): args[rank] for rank in part.ranks if rank in args}
            near = {part.role_rank(rank): cpus[rank] for rank in part.ranks if rank in cpus}
            with naming(part.name):  # so that an error names the role and the role rank
                made = _calls_of_role(part, own, near)
            pickled |= {part.ranks[role_rank]: call for role_rank, call in made.items()}
    return pickled


def _calls_of_role(
    part: RankSpec, args: Mapping[int, tuple[Any, ...]], cpus: Mapping[int, frozenset[int]]
) -> dict[int, Pickled]:
    own_main = validation.has_own_main(part.entrypoint, args)
    fn, method = cast("Callable[..., Any]", part.entrypoint), cast("StartMethod", part.start_method)
    calls = {rank: (fn, given) for rank, given in args.items()}
    if cpus and method == "forkserver":  # the server, which is not bound, forks the ranks
        from supervise._process.launch import numa

        calls |= {rank: (numa.OnCpus(fn, near), args[rank]) for rank, near in cpus.items() if rank in args}
    from supervise._process.launch.function import pickle_calls  # a gang of programs does not need it

    return pickle_calls(calls, method, own_main=own_main)


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


@record(frozen=False, eq=False)
class Attempt:
    """One attempt of a gang that is ready to be started. Every mapping is keyed by local rank."""

    spec: GangSpec
    envs: dict[int, dict[str, str]]
    """Variables that each rank gets in addition to the host's environment."""
    dest: LogsDest
    line: Lifeline = field(default_factory=Lifeline)
    contained: dict[Containment, Contained] = field(default_factory=dict)
    """The containment of the roles, one for all roles of one kind. Empty only in tests without processes."""
    launchers: list[Launcher] = field(default_factory=list)
    addresses: dict[int, str] = field(default_factory=dict)
    """The addresses of the notify sockets of the present lives; empty if the ranks have none."""
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
        envs, found = self._paths_of(life)
        own = of_ranks(found, (rank,))
        if _has_own_layout(spec.logs_specs):
            spec.logs_specs._make_folder_of(own.error_files[rank])  # noqa: SLF001 - a class of supervise
        make_ready(own)
        if spec.of(rank).travels and rank not in spec.pickled:
            spec.pickled.update(pickled_calls([spec.of(rank)], {rank: spec.args[rank]}, spec.cpus))
        self.contained[spec.of(rank).containment].begin_life(rank, life)
        self.envs[rank] = envs[rank]
        replace(dest, rank, own)
        part = spec.of(rank)
        self.launchers[rank] = _launcher(self, part, rank, environ_of(spec, part), cwd=spec.cwd_of(part))

    def _paths_of(self, life: int) -> tuple[dict[int, dict[str, str]], LogsDest]:
        """Return the environments and the log paths for all ranks' lives with this number, from one call of `reify`.

        Few of these lives may ever begin, so the folders of a layout of supervise are yet to be made.
        """
        if life not in self.lives:
            made = _reified(self.spec, life, folders=False)
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

    def close(self) -> None:
        """Release what `release` does, and the descriptors that ranks inherit, because no attempt follows."""
        self.release()
        self.spec.close_inherited()

    def release(self) -> None:
        """Release the lifeline, the master port, destinations of logs, control groups, and empty log folders."""
        self.line.cut()
        self.spec.release_port()
        for tail in self.tails:
            tail.sink.close()
        self.remove_groups()
        if self.spec.remove_folders is not None and self.pid == os.getpid():
            self.spec.remove_folders()

    def remove_groups(self) -> None:
        """Remove the control groups in which no process is. Idempotent."""
        for contained in self.contained.values():
            contained.close()


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
        if any(part.listen or part.stdin != "null" for part in spec.parts):
            from supervise._gang.inherited import inherited_by  # lazy: most gangs inherit nothing

            inherited, stdin = inherited_by(spec.parts, spec.stdin)
            spec = spec.replace(inherited=inherited, stdin=stdin)
        attempt = make_attempt(spec, 0)
    except BaseException:
        if spec.remove_folders is not None:
            spec.remove_folders()
        spec.release_port()
        spec.close_inherited()
        raise
    given = settings.get("envs") or {}
    for rank, env in attempt.envs.items():
        own = given.get(rank)
        if _ERROR_FILE in env and isinstance(own, (dict, MutableMapping)):
            own[_ERROR_FILE] = env[_ERROR_FILE]
    return attempt


def prepared(settings: GangSettings) -> GangSpec:
    """Return the checked settings, with the pickled calls of functions.

    Raises:
        SpecError: A setting is not valid, or a call cannot be pickled. The text names the rank.
        TypeError: A keyword is not the name of a setting.
    """
    found = validation.checked(settings)
    numa_options = found.pop("numa_options")
    if numa_options is not None:
        from supervise._process.launch import numa

        found["cpus"] = numa.cpus_of_ranks(found["args"], numa_options)
    parts: tuple[RankSpec, ...] = found["parts"]
    for method in {part.start_method if part.travels else None: None for part in parts}:
        if method is not None or getattr(sys, "frozen", False):
            from supervise._process.launch import function  # lazy: a gang of programs does not need it

            function.check(method)
    found["pickled"] = pickled_calls(parts, found["args"], found.get("cpus", {}))
    if found["logs_specs"] is None:
        found["logs_specs"] = default = DefaultLogsSpecs()
        found["remove_folders"] = default._remove_empty  # noqa: SLF001 - not part of the public API
    found["environ"] = environ = without_host_variables(os.environ)
    if found["rank_variables"]:
        from supervise._gang import rank_variables

        policy = found["restart_policy"]
        found["master"] = master = rank_variables.master_of_environment(environ)
        found["envs"] = rank_variables.with_variables(
            parts,
            found["envs"],
            master,
            name=found["name"],
            max_restarts=policy.max_restarts if policy is not None else 0,
        )
    spec = GangSpec(**found)
    for part in parts:
        with naming(part.name):
            _check_probes(spec, part)
    limits.check_arguments(
        [
            (
                rank,
                () if program is None else validation.argv_of(program, found["args"][rank], rank),
                found["envs"][rank],
            )
            for part in parts
            for program in [part.entrypoint if isinstance(part.entrypoint, str) else None]
            for rank in part.ranks
            if part.start_method in (None, "spawn")
        ],
        environ,
    )
    return spec


def _check_probes(spec: GangSpec, part: RankSpec) -> None:
    """Check the probes of each rank of a role with the variables of the rank.

    Raises:
        SpecError: A variable is unknown, a probe with its variables is not valid, or a command is not found.
    """
    for text, rank in itertools.product(part.probes, part.ranks):
        from supervise._probes import parse  # lazy: most gangs have no probe

        variables = spec.variables_of(rank, spec.envs[rank])
        try:
            probe = parse(text, variables)
            if probe.kind == "exec":
                posix_spawn.find(probe.target[0], variables, part.cwd)
        except (ValueError, OSError) as error:
            name = "alive" if text == part.alive else "ready"
            why = f"{error.strerror}; give a program that exists" if isinstance(error, OSError) else error
            raise SpecError(f"rank {part.role_rank(rank)}: {name} is {shown(text)}; {why}") from None


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
        SpecError: `logs_specs` returned paths that do not match the ranks, or a probe needs the log of a rank without
            one.
        OSError: The log folder cannot be used.
    """
    if spec.master is not None:
        spec.master.hold()
    envs, dest = _reified(spec, number)
    if past is not None:
        keep(dest, past, left_out)
    methods = {part.start_method for part in spec.parts}
    attempt = Attempt(
        spec=spec,
        envs=envs,
        dest=dest,
        number=number,
        left_out=left_out,
        contained=_containments(spec, forked=not methods.isdisjoint(("fork", "forkserver"))),
        window=_WINDOWS.get(frozenset(methods), 1),
    )
    try:
        found: posix_spawn.FoundPrograms = {}  # for the first lives only: a program may be replaced before a later one
        for part in spec.parts:
            environ, cwd = environ_of(spec, part), spec.cwd_of(part)
            attempt.launchers += [_launcher(attempt, part, rank, environ, cwd=cwd, found=found) for rank in part.ranks]
        add_tails(attempt.tails, spec, dest)
        later_modules.load(spec, tails=bool(attempt.tails))
    except BaseException:
        attempt.close()
        raise
    return attempt


def _containments(spec: GangSpec, *, forked: bool) -> dict[Containment, Contained]:
    """Return the containment of each kind that a role has; see `Contained`."""
    found: dict[Containment, Contained] = {}
    for part in spec.parts:
        if part.containment not in found:
            with naming(part.name):
                found[part.containment] = Contained(part.containment, spec.name, forked=forked)
    return found


def _has_own_layout(specs: object) -> TypeGuard[DefaultLogsSpecs]:
    """Return whether the log paths are those of supervise. A subclass that replaces `reify` may have other paths."""
    return isinstance(specs, DefaultLogsSpecs) and type(specs).reify is DefaultLogsSpecs.reify


def _reified(spec: GangSpec, number: int, *, folders: bool = True) -> tuple[dict[int, dict[str, str]], LogsDest]:
    """Return the environments and the log paths for all ranks' lives with this number.

    Args:
        spec: The gang.
        number: The number of the lives.
        folders: Whether to make the folders of the ranks, if the layout is that of supervise; another layout decides.

    Raises:
        Exception: The exception of `logs_specs`. For a later life, it becomes a `SpecError`, unless it is an `OSError`
            or an error of supervise.
    """
    envs = {rank: _env(spec, env, number) for rank, env in spec.envs.items()}
    try:
        specs = spec.logs_specs
        dest = specs._reified(envs, ()) if not folders and _has_own_layout(specs) else specs.reify(envs)  # noqa: SLF001
        _check_paths(dest, spec.logs_specs)
        validate_full_rank(dest.stdouts, len(spec.args), "stdouts")
        validate_full_rank(dest.stderrs, len(spec.args), "stderrs")
    except Exception as error:
        if not number or isinstance(error, (OSError, SuperviseError)):  # the caller of the start gets it unchanged
            raise
        what = f"{type(error).__name__}: {text_of(error)}"
        raise SpecError(f"{type(spec.logs_specs).__name__}.reify raised {what}") from error
    return envs, dest


def _check_paths(dest: LogsDest, specs: object) -> None:
    """Replace each path that is not a text, such as a `pathlib.Path`, by its text.

    Raises:
        SpecError: A value is not a path, or `specs` has returned no paths.
    """
    if not hasattr(dest, "stdouts"):
        raise SpecError(f"{type(specs).__name__}.reify returned {repr_of(dest)}; return a LogsDest")
    for name in _BY_RANK:
        paths: dict[int, Any] = getattr(dest, name)
        for rank, path in paths.items():
            if type(path) is not str:
                try:
                    paths[rank] = os.fsdecode(path)
                except TypeError:
                    raise SpecError(f"{name} of rank {rank} is {shown(path)}; give a path") from None


def _env(spec: GangSpec, env: Mapping[str, str], number: int) -> dict[str, str]:
    if spec.restart_policy is None and not number:
        return dict(env)
    most = 0 if spec.restart_policy is None else spec.restart_policy.max_restarts
    first = env.get(_ATTEMPT, "0")
    attempt = (int(first) if first.isdigit() else 0) + number
    return {_MOST: str(most), **env, _ATTEMPT: str(attempt)}


def environ_of(spec: GangSpec, part: RankSpec) -> Mapping[Any, Any]:
    """Return the host's environment in the form in which the launch of a rank of this role takes it."""
    return posix_spawn.encoded(spec.environ) if part.kind == "binary" else spec.environ


def _launcher(
    attempt: Attempt,
    part: RankSpec,
    rank: int,
    environ: Mapping[Any, Any],
    *,
    cwd: str | None,
    found: posix_spawn.FoundPrograms | None = None,
) -> Launcher:
    spec, dest = attempt.spec, attempt.dest
    contained = attempt.contained[part.containment]
    if (
        part.ready
        and {dest.stdouts[rank], dest.stderrs[rank]} <= {"", os.devnull}
        and any(text[:4] == "log:" for text in part.ready)
    ):
        raise SpecError(
            f"{spec.title(rank)}: ready has a probe of its log, and its output is not written to a"
            " file; redirect it or tee it"
        )
    binary = isinstance(part.entrypoint, str)
    policy = spec.restart_policy
    again = policy is not None and (part.restart or policy.restart) != "temporary"
    take = spec.pickled.get if again else spec.pickled.pop  # the last launch closes copied descriptors
    own = {**attempt.envs[rank], **contained.env(rank)}
    if spec.notifies:
        attempt.addresses[rank] = address = new_address()
        own |= variables(address, None if spec.watchdog is None else spec.watchdog.heartbeat_timeout_s)
    sockets = spec.inherited.sockets.get(part.name, {}) if spec.inherited is not None else {}
    if sockets:  # LISTEN_PID is known only in the process
        own |= {"LISTEN_FDS": str(len(sockets)), "LISTEN_FDNAMES": ":".join(sockets.values())}
    enter: str | None = None
    if contained.kind == "cgroup":  # otherwise nothing can fail, and `naming` would cost six calls for each rank
        with naming(part.name):
            enter = contained.enter(rank)
    how = LaunchSpec(
        env={**environ, **(posix_spawn.encoded(own) if binary else own)},
        cwd=cwd,
        streams=Streams(stdout=dest.stdouts[rank], stderr=dest.stderrs[rank]),
        stdin=spec.stdin.get(rank),
        listen=tuple(sockets),
        line=attempt.line,
        enter=enter,
        holds=spec.hold_returned and not binary,
        gate=spec.gate and binary,
        found=found,
    )
    launcher: Launcher
    if isinstance(part.entrypoint, str):
        launcher = partial(launch_program, validation.argv_of(part.entrypoint, spec.args[rank], rank), how)
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
            how=how,
            pickled=take(rank, None),
            plain=spec.plain,
        )
    if rank in spec.cpus:
        from supervise._process.launch import numa

        launcher = partial(numa.launch_bound, launcher, spec.cpus[rank])
    return launcher
