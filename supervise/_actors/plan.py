"""What a gang is to be: checked and made ready in the caller's thread, before any process starts."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from supervise._actors.tail import Source
from supervise._process import function, launch, numa
from supervise._process.function import FunctionLauncher, StartMethod
from supervise._process.lifeline import Lifeline
from supervise._process.program import ProgramLauncher
from supervise._streams import sinks
from supervise._streams.files import move_aside
from supervise.errors import SpecError
from supervise.logs import DefaultLogsSpecs, LogsDest, LogsSpecs, validate_full_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from supervise._actors.worker import Launcher
    from supervise._process.child import Plain

_METHODS = ("spawn", "fork", "forkserver")
_SERVER_WINDOW = 32
"""How many children a fork server is asked for at once."""


@dataclass(slots=True, kw_only=True)
class TailPlan:
    """One destination and what feeds it."""

    name: str
    sink: sinks.Sink
    sources: list[Source]
    line_filter: Callable[[bytes], bool] | None = None


@dataclass(slots=True, kw_only=True)
class Plan:
    """A gang, ready to be started. Every mapping is keyed by local rank."""

    name: str
    kind: Literal["function", "binary"]
    what: str
    """The program, or the function's name."""
    start_method: StartMethod | None
    """None for binaries."""
    args: Mapping[int, tuple[Any, ...]]
    envs: dict[int, dict[str, str]]
    """What each rank gets beside the host's environment."""
    dest: LogsDest
    line: Lifeline
    launchers: list[Launcher] = field(default_factory=list)
    tails: list[TailPlan] = field(default_factory=list)
    window: int = 1

    @property
    def nprocs(self) -> int:
        """How many ranks."""
        return len(self.args)

    def close(self) -> None:
        """Give back what a start would have used."""
        self.line.cut()
        for tail in self.tails:
            tail.sink.close()


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
) -> Plan:
    """Check everything and pickle what has to travel.

    Raises:
        SpecError: Something asked for makes no sense, or cannot be pickled; names the rank.
        OSError: The log folder cannot be used.
    """
    if not isinstance(entrypoint, str) and not callable(entrypoint):
        msg = f"entrypoint is {entrypoint!r}; give a function, or a program's name or path as a string"
        raise SpecError(msg)
    if start_method not in _METHODS:
        msg = f"start_method is {start_method!r}; it is one of {', '.join(_METHODS)}"
        raise SpecError(msg)
    validate_full_rank(args, len(args), "args")
    own = {rank: cast("dict[str, Any]", {}) for rank in args} if envs is None else envs
    validate_full_rank(own, len(args), "envs")
    clean = {rank: {str(key): str(value) for key, value in own[rank].items()} for rank in sorted(own)}
    _check_env(clean)
    tuples = {rank: as_tuple(rank, args[rank]) for rank in sorted(args)}
    cpus = numa.cpus_of_ranks(tuples, numa_options)
    dest = (logs_specs or DefaultLogsSpecs()).reify(clean)
    for rank, env in clean.items():
        if "TORCHELASTIC_ERROR_FILE" in env:  # the caller's mapping shows where, as in PyTorch
            own[rank]["TORCHELASTIC_ERROR_FILE"] = env["TORCHELASTIC_ERROR_FILE"]
    validate_full_rank(dest.stdouts, len(args), "stdouts")
    validate_full_rank(dest.stderrs, len(args), "stderrs")
    binary = isinstance(entrypoint, str)
    plan = Plan(
        name=name,
        kind="binary" if binary else "function",
        what=entrypoint if isinstance(entrypoint, str) else getattr(entrypoint, "__qualname__", repr(entrypoint)),
        start_method=None if binary else cast("StartMethod", start_method),
        args=tuples,
        envs=clean,
        dest=dest,
        line=Lifeline(),
        window=_SERVER_WINDOW if not binary and start_method == "forkserver" else 1,
    )
    try:
        plan.launchers = list(_launchers(plan, entrypoint, None if cwd is None else os.fspath(cwd), cpus, plain))
        for rank, near in cpus.items():
            plan.launchers[rank] = numa.BoundLauncher(plan.launchers[rank].launch, near)
        _add_tails(plan, log_line_prefixes or {}, duplicate_stdout_filters, duplicate_stderr_filters)
    except BaseException:
        plan.close()
        raise
    return plan


def as_tuple(rank: int, given: Any) -> tuple[Any, ...]:
    """Return a rank's arguments; a bare string is one.

    Raises:
        SpecError: They are no sequence.
    """
    if isinstance(given, (str, bytes)):
        return (given,)
    try:
        return tuple(given)
    except TypeError:
        msg = f"rank {rank}: its arguments are {given!r}; give a tuple, such as ({given!r},)"
        raise SpecError(msg) from None


def _encoded(env: Mapping[str, str]) -> dict[bytes, bytes]:
    """Return an environment as the kernel takes it, which a launch would otherwise make of it again for each rank."""
    return {os.fsencode(key): os.fsencode(value) for key, value in env.items()}


def _check_env(envs: Mapping[int, Mapping[str, str]]) -> None:
    for rank, env in envs.items():
        for key, value in env.items():
            if not key or "=" in key or "\0" in key or "\0" in value:
                msg = f"rank {rank}: {key!r} cannot be an environment variable; no '=' in its name and no NUL at all"
                raise SpecError(msg)


def _launchers(
    plan: Plan,
    entrypoint: Callable[..., Any] | str,
    cwd: str | None,
    cpus: Mapping[int, frozenset[int]],
    plain: Plain | None,
) -> Iterator[Launcher]:
    base, reset = dict(os.environ), launch.to_reset()
    method = plan.start_method
    sys_path, prepared = ([], b"") if method in (None, "fork") else function.preparation(method)
    base_coded = _encoded(base)
    for rank, args in plan.args.items():
        env = {**base, **plan.envs[rank]}
        streams = launch.Streams(stdout=plan.dest.stdouts[rank], stderr=plan.dest.stderrs[rank])
        if isinstance(entrypoint, str):
            argv = argv_of(entrypoint, args, rank)
            coded = {**base_coded, **_encoded(plan.envs[rank])}
            yield ProgramLauncher(argv=argv, env=coded, cwd=cwd, streams=streams, line=plan.line, reset=reset)
        elif method is not None:
            bind = method == "forkserver" and rank in cpus  # the server starts it, unbound
            fn = numa.OnCpus(entrypoint, cpus[rank]) if bind else entrypoint
            yield FunctionLauncher(
                local_rank=rank,
                method=method,
                fn=fn,
                args=args,
                env=env,
                cwd=cwd,
                streams=streams,
                line=plan.line,
                reset=reset,
                pickled=None if method == "fork" else function.travel(fn, args, rank, method),
                sys_path=sys_path,
                prepared=prepared,
                plain=plain,
            )


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


def _add_tails(
    plan: Plan,
    prefixes: Mapping[int, str],
    out_filters: Sequence[str] | None,
    err_filters: Sequence[str] | None,
) -> None:
    """Add the Tails one by one, so that a plan that fails half-way can give back what was opened."""
    dest, tails = plan.dest, plan.tails

    def sources(paths: Mapping[int, str]) -> list[Source]:
        return [
            Source(local_rank=rank, path=path, prefix=prefixes.get(rank, f"[{plan.name}{rank}]:").encode())
            for rank, path in sorted(paths.items())
            if path and path != os.devnull
        ]

    outs, errs = sources(dest.tee_stdouts), sources(dest.tee_stderrs)
    for name, stream, found in (("stdout", sys.stdout, outs), ("stderr", sys.stderr, errs)):
        sink = sinks.console(stream) if found else None
        if sink is None:
            continue
        if tails and sinks.same_destination(tails[0].sink, sink):  # one writer, or their lines would mix
            sink.close()
            tails[0].name = "console"
            tails[0].sources += found
        else:
            tails.append(TailPlan(name=name, sink=sink, sources=found))
    for name, path, filters, found in (
        ("filtered_stdout", dest.filtered_stdout, out_filters, outs),
        ("filtered_stderr", dest.filtered_stderr, err_filters, errs),
    ):
        if filters and path and not path.startswith(os.devnull):
            move_aside(path)
            needles = [needle.encode() for needle in filters]
            keep = partial(_holds_any, needles)
            tails.append(TailPlan(name=name, sink=sinks.file_sink(path), sources=found, line_filter=keep))


def _holds_any(needles: list[bytes], line: bytes) -> bool:
    return any(needle in line for needle in needles)
