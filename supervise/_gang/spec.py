"""The settings of a gang, as one record. All code below the public calls takes the whole record."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from signal import SIGTERM, Signals
from typing import TYPE_CHECKING, Any, Required, TextIO, TypedDict, cast

from supervise._gang.notify_protocol import without_host_variables
from supervise._seconds import GRACE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from supervise._gang.rank_spec import RankSpec
    from supervise._gang.rank_variables import Master
    from supervise._logs.screen import Screen
    from supervise._process.containment.escapees import Containment
    from supervise._process.launch.function import Pickled, StartMethod
    from supervise._process.launch.launch_spec import Stdin
    from supervise._process.launch.settings import Plain
    from supervise.events import Sink
    from supervise.logs import LogsSpecs
    from supervise.restarts import RestartPolicy, Strategy
    from supervise.roles import Readiness, Role
    from supervise.watchdog import Watchdog


class SharedSettings(TypedDict, total=False):
    """The keyword arguments that `Supervisor` and `run` have in common. `Supervisor` describes them."""

    logs_specs: LogsSpecs | None
    log_line_prefixes: Mapping[int, str] | None
    start_method: str
    duplicate_stdout_filters: Sequence[str] | None
    duplicate_stderr_filters: Sequence[str] | None
    log_max_bytes: int | None
    grace: float
    cwd: str | os.PathLike[str] | None
    timeout: float | None
    event_sink: Sink | None
    restart_policy: RestartPolicy | None
    containment: Containment
    gate: bool
    strategy: Strategy
    success_exit_codes: Collection[int]
    ready: str
    ready_timeout_s: float
    watchdog: Watchdog | None
    control: str | os.PathLike[str] | None
    rank_variables: bool


class SupervisorSettings(SharedSettings, total=False):
    """The keyword arguments of `Supervisor`."""

    name: Required[str]
    entrypoint: Callable[..., Any] | str | None
    args: Mapping[int, Any] | None
    envs: Mapping[int, dict[str, Any]] | None
    roles: Sequence[Role] | None


class GangSettings(SupervisorSettings, total=False):
    """The settings of a gang, as the calls of supervise pass them: those of `Supervisor`, and internal ones."""

    numa_options: Any
    stop_on_failure: bool
    plain: Plain | None
    stop_signal: Signals
    screen: Screen | None
    stdin: Mapping[int, Stdin]
    consoles: tuple[TextIO, TextIO]
    shows_failure: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GangSpec:
    """The settings of all attempts of a gang. Every mapping is keyed by local rank."""

    name: str
    entrypoint: Callable[..., Any] | str | None = None
    """The function or the program; None if the gang has roles.

    With roles, `of` returns the entrypoint, the start method and the folder of a rank.
    """
    args: Mapping[int, tuple[Any, ...]] = cast("Any", None)
    """Rank to its arguments. In a gang with roles, None until the settings are checked."""
    envs: Mapping[int, Mapping[str, str]] | None = None
    """Variables that each rank gets in addition to the host's environment, in the first attempt."""
    logs_specs: LogsSpecs | None = None
    log_line_prefixes: Mapping[int, str] | None = None
    start_method: StartMethod | None = "spawn"
    """The start method; None for programs."""
    duplicate_stdout_filters: Sequence[str] | None = None
    duplicate_stderr_filters: Sequence[str] | None = None
    log_max_bytes: int | None = None
    """Number of bytes of each log that stay on the disk; None: all bytes."""
    grace_s: float = GRACE_S
    cwd: str | None = None
    timeout_s: float | None = None
    event_sink: Sink | None = None
    restart_policy: RestartPolicy | None = None
    containment: Containment = "group"
    gate: bool = False
    strategy: Strategy = "one_for_all"
    success_exit_codes: frozenset[int] = frozenset({0})
    ready: Readiness = "exec"
    ready_timeout_s: float = 60.0
    """Time that a rank has from its launch until it must be ready, if `ready` is ``notify``."""
    watchdog: Watchdog | None = None
    notify_token: str = ""
    """A part of the address of each notify socket; "" if the ranks have no notify sockets."""
    stop_on_failure: bool = True
    """Whether the failure of a rank stops the others. The caller may change this later."""
    roles: Sequence[Role] | None = None
    stop_signal: Signals = SIGTERM
    """The first signal of each stop for which the caller does not give one."""
    stdin: Mapping[int, Stdin] = field(default_factory=dict)
    """Rank to stdin, for each rank whose stdin is not the null device.

    Only programs can have one, and only without `gate`.
    """
    control: str | os.PathLike[str] | None = None
    """Path of the control socket; None for no socket. It is text once the settings are checked."""
    plain: Plain | None = None
    """The settings for functions whose return values are ignored; None if the result has the return values."""
    rank_variables: bool = False
    """Whether each rank gets the variables of `_gang.rank_variables`."""
    shows_failure: bool = True
    """Whether a failure is shown in one line if no listener gets it. False if the caller gets an exception."""

    parts: tuple[RankSpec, ...] = ()
    """The settings for the ranks of each role, in the order of the roles."""
    role_of: tuple[int, ...] = ()
    """Local rank to the number of its role. Empty for a gang without roles."""
    cpus: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Local rank to CPUs, for each rank that is bound."""
    environ: Mapping[str, str] = field(default_factory=lambda: without_host_variables(os.environ))
    """The host's environment, without the variables of systemd's notify protocol."""
    consoles: tuple[TextIO, TextIO] = field(default_factory=lambda: (sys.stdout, sys.stderr))
    screen: Screen | None = None
    """The screen on which the consoles of `supervise run` show unfinished lines; None for any other gang."""
    pickled: dict[int, Pickled] = field(default_factory=dict)
    """Calls of functions in new interpreters. Without restarts, each call is removed at its launch."""
    remove_folders: Callable[[], object] | None = None
    """Function that removes log folders that the caller did not request, unless they contain files."""
    master: Master | None = None
    """The address of rank 0; None without `rank_variables`."""

    def release_port(self) -> None:
        """Let other gangs choose the master port. Idempotent."""
        if self.master is not None:
            self.master.release()

    @property
    def heartbeat_timeout_s(self) -> float | None:
        """Seconds within which each rank must send a heartbeat; None if it need not."""
        return self.watchdog.heartbeat_timeout_s if self.watchdog is not None else None

    def of(self, local_rank: int) -> RankSpec:
        """Return the settings of the role of a rank."""
        return self.parts[self.role_of[local_rank] if self.role_of else 0]

    @property
    def awaited(self) -> frozenset[int]:
        """The ranks that report when they are ready."""
        return frozenset(rank for part in self.parts if part.ready == "notify" for rank in part.ranks)

    def in_core(self) -> dict[str, Any]:
        """Return the arguments of the core's `Gang` that concern roles; no arguments for a gang without roles."""
        if not self.role_of:
            return {}
        kind = self.restart_policy.restart if self.restart_policy is not None else "transient"
        each = [self.parts[number] for number in self.role_of]
        return {
            "role_of": self.role_of,
            "services": frozenset(rank for rank, part in enumerate(each) if part.service),
            "kinds": [part.restart or kind for part in each],
        }

    def default_prefix(self, local_rank: int) -> str:
        """Return the prefix of a rank's shown lines.

        It has the name of the role and the role rank; without roles, the name of the gang and the rank.
        """
        part = self.of(local_rank)
        return f"[{part.name or self.name}{part.role_rank(local_rank)}]:"

    def title(self, local_rank: int) -> str:
        """Return ``rank 3``. In a gang with roles, return ``rank 3 (trainer 1)``, with the role and the role rank."""
        part = self.of(local_rank)
        return f"rank {local_rank} ({part.name} {part.role_rank(local_rank)})" if part.name else f"rank {local_rank}"

    def role_of_error(self, local_rank: int) -> str:
        """Return the role and the role rank as the beginning of an error, such as ``trainer 1: ``; "" without roles."""
        part = self.of(local_rank)
        return f"{part.name} {part.role_rank(local_rank)}: " if part.name else ""
