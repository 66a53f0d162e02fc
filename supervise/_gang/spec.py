"""What a gang is to be: checked and pickled in the caller's thread, before any process starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO, cast

from supervise._gang import validation
from supervise._gang.attempt import Attempt, add_tails
from supervise._process.containment import escapees as containing
from supervise._process.launch import dispositions, function, interpreter, limits
from supervise._process.launch import program as launch
from supervise._process.launch.function import FunctionLauncher, StartMethod
from supervise._process.launch.program_launcher import ProgramLauncher
from supervise._process.lifeline.lifeline import Lifeline
from supervise.errors import SpecError
from supervise.logs import DefaultLogsSpecs, LogsSpecs, validate_full_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from supervise._gang.worker import Launcher
    from supervise._process.launch.function import Pickled
    from supervise._process.launch.settings import Plain
    from supervise.restarts import RestartPolicy

_SERVER_WINDOW = 32
"""How many children a fork server is asked for at once."""
_ATTEMPT = "TORCHELASTIC_RESTART_COUNT"
_MOST = "TORCHELASTIC_MAX_RESTARTS"


@dataclass(slots=True, kw_only=True)
class Recipe:
    """What all attempts of a gang have in common. Every mapping is keyed by local rank."""

    name: str
    entrypoint: Callable[..., Any] | str
    args: Mapping[int, tuple[Any, ...]]
    envs: Mapping[int, Mapping[str, str]] = field(repr=False)
    """What each rank gets beside the host's environment, in the first attempt."""
    specs: LogsSpecs
    prefixes: Mapping[int, str]
    filters: tuple[Sequence[str] | None, Sequence[str] | None]
    """What lines of stdout, and of stderr, must hold to be duplicated."""
    consoles: tuple[TextIO, TextIO]
    start_method: StartMethod | None
    cwd: str | None
    cpus: Mapping[int, frozenset[int]]
    plain: Plain | None
    policy: RestartPolicy | None
    containment: str
    gate: bool
    base: dict[str, str] = field(repr=False)
    """The host's environment."""
    reset: frozenset[int]
    sys_path: list[str]
    prepared: bytes = field(repr=False)
    pickled: dict[int, Pickled] = field(repr=False)
    """Empty for binaries and fork."""
    remove_folders: Callable[[], object] | None
    """See `Attempt.remove_folders`."""

    def plan(self, attempt: int) -> Attempt:
        """Return the plan of an attempt; 0 is the first.

        Raises:
            SpecError: The log folders' specification and the ranks do not agree.
            OSError: The log folder cannot be used.
        """
        envs = {rank: self._env(rank, attempt) for rank in self.envs}
        dest = self.specs.reify(envs)
        validate_full_rank(dest.stdouts, len(self.args), "stdouts")
        validate_full_rank(dest.stderrs, len(self.args), "stderrs")
        entrypoint = self.entrypoint
        binary = isinstance(entrypoint, str)
        plan = Attempt(
            name=self.name,
            kind="binary" if binary else "function",
            what=entrypoint if isinstance(entrypoint, str) else getattr(entrypoint, "__qualname__", repr(entrypoint)),
            start_method=self.start_method,
            args=self.args,
            envs=envs,
            dest=dest,
            contained=containing.make(self.containment, self.name, forked=self.start_method in ("fork", "forkserver")),
            line=Lifeline(),
            window=_SERVER_WINDOW if self.start_method == "forkserver" else 1,
            policy=self.policy,
            again=None if self.policy is None else self.plan,
            remove_folders=self.remove_folders,
        )
        try:
            plan.launchers = list(self._launchers(plan))
            if self.cpus:
                _bind(plan.launchers, self.cpus)
            add_tails(plan, self.consoles, self.prefixes, *self.filters)
        except BaseException:
            plan.close()
            raise
        return plan

    def _env(self, rank: int, attempt: int) -> dict[str, str]:
        env = dict(self.envs[rank])
        if self.policy is None:
            return env
        first = env.get(_ATTEMPT, "0")
        env[_ATTEMPT] = str((int(first) if first.isdigit() else 0) + attempt)
        return {_MOST: str(self.policy.max_restarts), **env}

    def _launchers(self, plan: Attempt) -> Iterator[Launcher]:
        base_coded, contained = _encoded(self.base), plan.contained
        assert contained is not None  # noqa: S101 - made with the plan
        for rank, args in self.args.items():
            own = {**plan.envs[rank], **contained.env(rank)}
            streams = launch.Streams(stdout=plan.dest.stdouts[rank], stderr=plan.dest.stderrs[rank])
            if isinstance(self.entrypoint, str):
                yield ProgramLauncher(
                    argv=argv_of(self.entrypoint, args, rank),
                    env={**base_coded, **_encoded(own)},
                    cwd=self.cwd,
                    streams=streams,
                    line=plan.line,
                    reset=self.reset,
                    enter=contained.enter(rank),
                    gated=self.gate,
                )
            elif self.start_method is not None:
                yield FunctionLauncher(
                    local_rank=rank,
                    method=self.start_method,
                    fn=self.entrypoint,
                    args=args,
                    env={**self.base, **own},
                    cwd=self.cwd,
                    streams=streams,
                    line=plan.line,
                    reset=self.reset,
                    enter=contained.enter(rank),
                    pickled=self.pickled.get(rank),
                    sys_path=self.sys_path,
                    prepared=self.prepared,
                    plain=self.plain,
                )


def make_plan(
    *,
    name: str,
    entrypoint: Callable[..., Any] | str,
    args: Mapping[int, Any],
    envs: Mapping[int, dict[str, Any]] | None,
    logs_specs: LogsSpecs | None,
    log_line_prefixes: Mapping[int, str] | None,
    start_method: str,
    duplicate_stdout_filters: Sequence[str] | None,
    duplicate_stderr_filters: Sequence[str] | None,
    cwd: str | os.PathLike[str] | None,
    numa_options: Any = None,
    plain: Plain | None = None,
    restart_policy: RestartPolicy | None = None,
    containment: str = "group",
    gate: bool = False,
) -> Attempt:
    """Check everything and pickle what has to travel; return the plan of the first attempt.

    Raises:
        SpecError: Something asked for makes no sense, or cannot be pickled; names the rank.
        OSError: The log folder cannot be used.
    """
    validation.check_entrypoint(entrypoint, start_method)
    validation.check_policy(restart_policy)
    validation.check_gate(gate)
    method = None if isinstance(entrypoint, str) else cast("StartMethod", start_method)
    travels = method in ("spawn", "forkserver")
    working_dir = validation.folder(cwd)
    if isinstance(args, Mapping):  # before anything is made for each of a number that may be mistaken
        limits.check_host(len(args), None if travels else working_dir)  # what travels tells where this process is
        limits.check_open_files(len(args), each=limits.held_by_rank(method), shown=0)
    tuples = validation.arguments(args)
    clean = validation.environments(envs, len(tuples))
    validation.check_logs(logs_specs, log_line_prefixes)
    validation.check_filters("duplicate_stdout_filters", duplicate_stdout_filters)
    validation.check_filters("duplicate_stderr_filters", duplicate_stderr_filters)
    cpus = {} if numa_options is None else _cpus_of_ranks(tuples, numa_options)
    interpreter.check(method if travels else None)
    if travels:
        validation.check_main(entrypoint, tuples)
    sys_path, prepared = function.preparation(cast("StartMethod", method)) if travels else ([], b"")
    pickled = _pickled(entrypoint, tuples, cpus, cast("StartMethod", method)) if travels else {}
    ours = None
    if logs_specs is None:
        logs_specs = ours = DefaultLogsSpecs()
    recipe = Recipe(
        name=name,
        entrypoint=entrypoint,
        args=tuples,
        envs=clean,
        specs=logs_specs,
        prefixes=log_line_prefixes or {},
        filters=(duplicate_stdout_filters, duplicate_stderr_filters),
        consoles=(sys.stdout, sys.stderr),
        start_method=method,
        cwd=working_dir,
        cpus=cpus,
        plain=plain,
        policy=restart_policy,
        containment=containment,
        gate=gate,
        base=dict(os.environ),
        reset=dispositions.to_reset(),
        sys_path=sys_path,
        prepared=prepared,
        pickled=pickled,
        remove_folders=None if ours is None else ours._remove_empty,  # noqa: SLF001 - it is no word for users
    )
    try:
        plan = recipe.plan(0)
    except BaseException:
        if ours is not None:
            ours._remove_empty()  # noqa: SLF001
        raise
    for rank, env in plan.envs.items():
        own = None if envs is None else envs[rank]
        if "TORCHELASTIC_ERROR_FILE" in env and isinstance(own, MutableMapping):  # shows where, as in PyTorch
            own["TORCHELASTIC_ERROR_FILE"] = env["TORCHELASTIC_ERROR_FILE"]
    return plan


def _pickled(
    entrypoint: Any, args: Mapping[int, tuple[Any, ...]], cpus: Mapping[int, frozenset[int]], method: StartMethod
) -> dict[int, Pickled]:
    """Pickle each rank's function and arguments: local rank to what travels."""
    found = {}
    for rank, given in args.items():
        bind = method == "forkserver" and rank in cpus  # the server starts it, unbound
        found[rank] = function.travel(_on_cpus(entrypoint, cpus[rank]) if bind else entrypoint, given, rank, method)
    return found


# Binding to CPUs, which few ask for


def _cpus_of_ranks(args: Mapping[int, tuple[Any, ...]], numa_options: Any) -> dict[int, frozenset[int]]:
    from supervise._process.launch import numa

    return numa.cpus_of_ranks(args, numa_options)


def _on_cpus(entrypoint: Callable[..., Any], cpus: frozenset[int]) -> Callable[..., Any]:
    from supervise._process.launch import numa

    return numa.OnCpus(entrypoint, cpus)


def _bind(launchers: list[Launcher], cpus: Mapping[int, frozenset[int]]) -> None:
    from supervise._process.launch import numa

    for rank, near in cpus.items():
        launchers[rank] = numa.BoundLauncher(launchers[rank].launch, near)


def _encoded(env: Mapping[str, str]) -> dict[bytes, bytes]:
    """Return an environment as the kernel takes it, which a launch would otherwise make of it again for each rank."""
    return {os.fsencode(key): os.fsencode(value) for key, value in env.items()}


def argv_of(program: str, args: tuple[Any, ...], rank: int) -> list[str]:
    """Return a program and its arguments as strings.

    Raises:
        SpecError: One holds a NUL character.
    """
    argv = [program, *(os.fsdecode(arg) if isinstance(arg, bytes) else str(arg) for arg in args)]
    for arg in argv:
        if "\0" in arg:
            msg = f"rank {rank}: the argument {arg!r} holds a NUL character, which no program can be given"
            raise SpecError(msg)
    return argv
