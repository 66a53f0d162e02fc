"""The settings of a gang: checked and pickled once, in the caller's thread, before any process starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Required, TextIO, TypedDict, Unpack, cast

from supervise._gang import validation
from supervise._process.launch import dispositions, function, interpreter, limits
from supervise._seconds import GRACE_S
from supervise.logs import DefaultLogsSpecs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervise._process.containment.escapees import Containment
    from supervise._process.launch.function import Pickled, StartMethod
    from supervise._process.launch.settings import Plain
    from supervise.events import Sink
    from supervise.logs import LogsSpecs
    from supervise.restarts import RestartPolicy


class GangSettings(TypedDict, total=False):
    """The keyword arguments of a gang, as callers give them; `Supervisor` describes them."""

    name: Required[str]
    entrypoint: Required[Callable[..., Any] | str]
    args: Required[Mapping[int, Any]]
    envs: Mapping[int, dict[str, Any]] | None
    logs_specs: LogsSpecs | None
    log_line_prefixes: Mapping[int, str] | None
    start_method: str
    numa_options: Any
    duplicate_stdout_filters: Sequence[str] | None
    duplicate_stderr_filters: Sequence[str] | None
    grace: float
    cwd: str | os.PathLike[str] | None
    timeout: float | None
    event_sink: Sink | None
    restart_policy: RestartPolicy | None
    containment: str
    gate: bool
    stop_on_failure: bool
    plain: Plain | None


_FIELDS = {"grace": "grace_s", "timeout": "timeout_s"}
"""Arguments whose field has another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSpec:
    """What all attempts of a gang have in common. Every mapping is keyed by local rank."""

    name: str
    entrypoint: Callable[..., Any] | str
    args: Mapping[int, tuple[Any, ...]]
    envs: Mapping[int, Mapping[str, str]] | None = field(default=None, repr=False)
    """What each rank gets beside the host's environment, in the first attempt."""
    logs_specs: LogsSpecs | None = None
    log_line_prefixes: Mapping[int, str] | None = None
    start_method: StartMethod | None = "spawn"
    """None for programs."""
    duplicate_stdout_filters: Sequence[str] | None = None
    duplicate_stderr_filters: Sequence[str] | None = None
    grace_s: float = GRACE_S
    cwd: str | None = None
    timeout_s: float | None = None
    event_sink: Sink | None = None
    restart_policy: RestartPolicy | None = None
    containment: Containment = "group"
    gate: bool = False
    stop_on_failure: bool = True
    """Whether a rank that fails ends the others, too, until the caller says otherwise."""
    plain: Plain | None = None
    """None where the functions' return values are wanted."""

    cpus: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Of the ranks that are bound to some."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    """The host's environment."""
    reset: frozenset[int] = field(default_factory=dispositions.to_reset)
    """Signals that the host ignores and the ranks must not."""
    consoles: tuple[TextIO, TextIO] = field(default_factory=lambda: (sys.stdout, sys.stderr))
    pickled: dict[int, Pickled] = field(default_factory=dict, repr=False)
    """The calls of functions that travel, until the last attempt that may need them has taken them."""
    remove_folders: Callable[[], object] | None = None
    """Removes the log folders of a gang whose starter has asked for none, unless something was written into them."""

    @property
    def kind(self) -> Literal["function", "binary"]:
        """What each rank runs, in PyTorch's words."""
        return "binary" if isinstance(self.entrypoint, str) else "function"

    @property
    def what(self) -> str:
        """The program, or the function's name."""
        entrypoint = self.entrypoint
        return entrypoint if isinstance(entrypoint, str) else getattr(entrypoint, "__qualname__", repr(entrypoint))

    @classmethod
    def build(cls, **settings: Unpack[GangSettings]) -> GangSpec:
        """Check every setting and pickle what has to travel.

        Raises:
            SpecError: A setting makes no sense, or a call cannot be pickled; names the rank.
            OSError: A process that multiprocessing needs for the start method cannot be started.
            TypeError: There is no such setting.
        """
        if unknown := settings.keys() - GangSettings.__annotations__:
            msg = f"a gang has no argument {min(unknown)!r}"
            raise TypeError(msg)
        given: dict[str, Any] = {_FIELDS.get(key, key): value for key, value in settings.items()}
        numa_options = given.pop("numa_options", None)
        spec = _checked(cls(**given))
        cpus: dict[int, frozenset[int]] = {}
        if numa_options is not None:
            from supervise._process.launch import numa

            cpus = numa.cpus_of_ranks(spec.args, numa_options)
        travels = spec.start_method in ("spawn", "forkserver")
        interpreter.check(spec.start_method if travels else None)
        pickled = _pickled(spec, cpus) if travels else {}
        if spec.logs_specs is None:
            ours = DefaultLogsSpecs()
            return replace(spec, cpus=cpus, pickled=pickled, logs_specs=ours, remove_folders=ours._remove_empty)  # noqa: SLF001 - it is no word for users
        return replace(spec, cpus=cpus, pickled=pickled)


def _checked(spec: GangSpec) -> GangSpec:
    """Return `spec` with tuples of arguments, environments of text, and no start method for a program.

    Raises:
        SpecError: A setting makes no sense; names it, and the rank.
    """
    validation.check_times(spec.grace_s, spec.timeout_s, spec.event_sink)
    validation.check_entrypoint(spec.entrypoint, spec.start_method)
    validation.check_policy(spec.restart_policy)
    validation.check_gate(spec.gate)
    method = None if spec.kind == "binary" else spec.start_method
    cwd = validation.folder(spec.cwd)
    if isinstance(spec.args, Mapping):  # before anything is made for each of a number that may be mistaken
        travels = method in ("spawn", "forkserver")
        limits.check_host(len(spec.args), None if travels else cwd)  # what travels tells where this process is
        limits.check_open_files(len(spec.args), each=limits.held_by_rank(method), shown=0)
    args = validation.arguments(spec.args)
    envs = validation.environments(spec.envs, len(args))
    validation.check_logs(spec.logs_specs, spec.log_line_prefixes)
    validation.check_filters("duplicate_stdout_filters", spec.duplicate_stdout_filters)
    validation.check_filters("duplicate_stderr_filters", spec.duplicate_stderr_filters)
    return replace(spec, args=args, envs=envs, cwd=cwd, start_method=method)


def _pickled(spec: GangSpec, cpus: Mapping[int, frozenset[int]]) -> dict[int, Pickled]:
    """Pickle each rank's function and arguments: local rank to what travels."""
    validation.check_main(spec.entrypoint, spec.args)
    method = cast("StartMethod", spec.start_method)
    calls = {rank: (cast("Callable[..., Any]", spec.entrypoint), args) for rank, args in spec.args.items()}
    if method == "forkserver" and cpus:  # the server starts the ranks, unbound
        from supervise._process.launch import numa

        calls |= {rank: (numa.OnCpus(calls[rank][0], near), calls[rank][1]) for rank, near in cpus.items()}
    return function.pickle_calls(calls, method)
