"""The settings of a gang: one record, which all code below the public calls takes whole."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Required, TextIO, TypedDict

from supervise._process.launch import dispositions
from supervise._seconds import GRACE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from supervise._process.containment.escapees import Containment
    from supervise._process.launch.function import Pickled, StartMethod
    from supervise._process.launch.settings import Plain
    from supervise.events import Sink
    from supervise.logs import LogsSpecs
    from supervise.restarts import RestartPolicy, Strategy


class GangSettings(TypedDict, total=False):
    """The keyword arguments of a gang as callers pass them; `Supervisor` describes them."""

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
    strategy: str
    success_exit_codes: Collection[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSpec:
    """The settings of all attempts of a gang. Every mapping is keyed by local rank."""

    name: str
    entrypoint: Callable[..., Any] | str
    args: Mapping[int, tuple[Any, ...]]
    envs: Mapping[int, Mapping[str, str]] | None = field(default=None, repr=False)
    """Variables that each rank gets in addition to the host's environment, in the first attempt."""
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
    strategy: Strategy = "one_for_all"
    success_exit_codes: frozenset[int] = frozenset({0})
    stop_on_failure: bool = True
    """Whether the failure of a rank stops the others, until the caller changes it."""
    plain: Plain | None = None
    """None if the result has the functions' return values."""

    cpus: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Local rank to CPUs, for ranks that are bound."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    """The host's environment."""
    reset: frozenset[int] = field(default_factory=dispositions.to_reset)
    """Signals that the host ignores and whose default action the ranks restore."""
    consoles: tuple[TextIO, TextIO] = field(default_factory=lambda: (sys.stdout, sys.stderr))
    pickled: dict[int, Pickled] = field(default_factory=dict, repr=False)
    """Calls of functions in new interpreters. Without restarts, the launch removes each from here."""
    remove_folders: Callable[[], object] | None = None
    """Removes log folders that the caller did not request, unless they hold files."""

    @property
    def kind(self) -> Literal["function", "binary"]:
        """What each rank runs, in PyTorch's terms."""
        return "binary" if isinstance(self.entrypoint, str) else "function"

    @property
    def travels(self) -> bool:
        """Whether each rank's call is pickled."""
        return self.kind == "function" and self.start_method in ("spawn", "forkserver")

    @property
    def what(self) -> str:
        """The program or the function's name."""
        entrypoint = self.entrypoint
        return entrypoint if isinstance(entrypoint, str) else getattr(entrypoint, "__qualname__", repr(entrypoint))
