"""The settings of a gang, as one record. All code below the public calls takes the whole record."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn, Required, TextIO, TypedDict

from supervise._gang.notify_protocol import without_host_variables
from supervise._settings import GANG, Containment, KillMode, Readiness, Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from signal import Signals

    from supervise._gang.inherited import Inherited
    from supervise._gang.rank_spec import RankSpec
    from supervise._gang.rank_variables import Master
    from supervise._logs import sinks
    from supervise._logs.screen import Screen
    from supervise._process.launch.function import Pickled
    from supervise._process.launch.program import Stdin
    from supervise._process.launch.settings import Plain
    from supervise.events import Sink
    from supervise.logs import LogsSpecs
    from supervise.restarts import RestartPolicy
    from supervise.roles import Role
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
        listen: Sequence[str]
        timeout: float | None
        event_sink: Sink | None
        restart_policy: RestartPolicy | None
        containment: Containment
        kill_mode: KillMode
        gate: bool
        strategy: Strategy
        success_exit_codes: Collection[int]
        ready: Readiness
        ready_timeout_s: float
        alive: str | None
        alive_interval_s: float
        alive_timeout_s: float
        alive_failures: int
        watchdog: Watchdog | None
        control: str | os.PathLike[str] | None
        rank_variables: bool
        hold_returned: bool

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
        reload_signal: Signals | None
        screen: Screen | None
        stdin: Mapping[int, Stdin]
        consoles: tuple[TextIO | sinks.Sink, TextIO | sinks.Sink]
        shows_failure: bool
        hears: bool


INTERNAL = ("stop_on_failure", "plain", "screen", "stdin", "consoles", "shows_failure", "hears")
"""The settings of `GangSettings` that no row of the table has: callers of supervise cannot set them."""


class GangSpec:
    """The settings of all attempts of a gang. Every mapping is keyed by local rank.

    The fields of the first part are rows of the table, which also has their defaults. The settings that may differ from
    role to role are in `parts`.
    """

    name: str
    entrypoint: Callable[..., Any] | str | None
    """The function or the program; None if the gang has roles.

    With roles, `of` returns the entrypoint, the start method and the folder of a rank.
    """
    args: Mapping[int, tuple[Any, ...]]
    envs: Mapping[int, Mapping[str, str]]
    """Variables that each rank gets in addition to the host's environment, in the first attempt."""
    logs_specs: LogsSpecs
    log_line_prefixes: Mapping[int, str] | None
    duplicate_stdout_filters: Sequence[str] | None
    duplicate_stderr_filters: Sequence[str] | None
    log_max_bytes: int | None
    """Number of bytes of each log that stay on the disk; None: all bytes."""
    grace_s: float
    timeout_s: float | None
    event_sink: Sink | None
    restart_policy: RestartPolicy | None
    gate: bool
    strategy: Strategy
    success_exit_codes: frozenset[int]
    watchdog: Watchdog | None
    roles: Sequence[Role] | None
    stop_signal: Signals
    """The first signal of each stop for which neither the caller nor the role gives one."""
    control: str | None
    """Path of the control socket; None for no socket."""
    hold_returned: bool
    """Whether the process of a function that has returned stays alive until all functions have returned."""

    stop_on_failure: bool = True
    """Whether the failure of a rank stops the others. The caller may change this later."""
    stdin: Mapping[int, Stdin]
    """Rank to stdin, for each rank whose stdin is not the null device.

    Only programs can have one, and only without `gate`.
    """
    plain: Plain | None = None
    """The settings for functions whose return values are ignored; None if the result has the return values."""
    hears: bool = False
    """Whether ranks get notify sockets, if possible, although no other setting needs them."""
    shows_failure: bool = True
    """Whether a failure is shown in one line if no listener gets it. False if the caller gets an exception."""
    consoles: tuple[TextIO | sinks.Sink, TextIO | sinks.Sink]
    screen: Screen | None = None
    """The screen on which the consoles of `supervise run` show unfinished lines; None for any other gang."""

    parts: tuple[RankSpec, ...] = ()
    """The settings for the ranks of each role, in the order of the roles."""
    role_of: tuple[int, ...] = ()
    """Local rank to the number of its role. Empty for a gang without roles."""
    needs: tuple[frozenset[int], ...] | None = None
    """Number of a role to the roles that it needs, directly or not; None: all roles before it."""
    notifies: bool = False
    """Whether the ranks have notify sockets."""
    cpus: Mapping[int, frozenset[int]]
    """Local rank to CPUs, for each rank that is bound."""
    environ: Mapping[str, str]
    """The host's environment, without the variables of systemd's notify protocol."""
    folder: str
    """The working directory of this process when the gang was made; "" if it was deleted."""
    pickled: dict[int, Pickled]
    """Calls of functions in new interpreters. Without restarts, each call is removed at its launch."""
    remove_folders: Callable[[], object] | None = None
    """Function that removes log folders that the caller did not request, unless they contain files."""
    master: Master | None = None
    """The address of rank 0; None without `rank_variables`."""
    inherited: Inherited | None = None
    """The descriptors that ranks inherit in all their lives; None if they inherit none."""

    def __init__(self, **fields: Any) -> None:
        """Take the fields that differ from their defaults. They are not checked."""
        own = vars(self)  # not by `setattr`, which is refused
        own.update({row.field: row.default for row in GANG.values()})
        own.update(stdin={}, cpus={}, pickled={}, consoles=(sys.stdout, sys.stderr))
        own.update(fields)
        if "environ" not in own:
            own["environ"] = without_host_variables(os.environ)
        if "folder" not in own:
            own["folder"] = _working_directory()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse a change: a restart makes the next attempt from the same settings."""
        raise AttributeError(f"the settings of a gang do not change: {name}")

    def replace(self, **fields: Any) -> GangSpec:
        """Return a copy with other values of these fields."""
        return GangSpec(**{**vars(self), **fields})

    def release_port(self) -> None:
        """Let other gangs choose the master port. Idempotent."""
        if self.master is not None:
            self.master.release()

    def close_inherited(self, *, stdin: bool = True) -> None:
        """Close the sockets of the roles and, with `stdin`, what ranks have as stdin. Idempotent."""
        if self.inherited is not None:
            (self.inherited.close if stdin else self.inherited.close_sockets)()

    def of(self, local_rank: int) -> RankSpec:
        """Return the settings of the role of a rank."""
        return self.parts[self.role_of[local_rank] if self.role_of else 0]

    def ranks_where(self, fits: Callable[[RankSpec], object]) -> frozenset[int]:
        """Return the ranks of the roles whose settings fit."""
        return frozenset(rank for part in self.parts if fits(part) for rank in part.ranks)

    @property
    def probes(self) -> tuple[str, ...]:
        """The probes of all roles."""
        return tuple(text for part in self.parts for text in part.probes)

    @property
    def watches(self) -> bool:
        """Whether a rank may be found to hang."""
        return self.watchdog is not None or any(part.alive for part in self.parts)

    @property
    def checks_health(self) -> bool:
        """Whether some rank reports its health, is probed, or must survive its reload signal."""
        return self.notifies or any(part.ready or part.alive or part.reload_signal for part in self.parts)

    def cwd_of(self, part: RankSpec) -> str | None:
        """Return the working directory of the ranks of a role; None for that of this process.

        If this process has changed its directory since the gang was made, later lives begin where the first ones did.
        """
        moved = self.folder not in ("", _working_directory())
        return os.path.join(self.folder, part.cwd or "") if moved else part.cwd

    def variables_of(self, local_rank: int, own: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a rank: its numbers, and its environment, with these variables of its own."""
        role_rank = str(self.of(local_rank).role_rank(local_rank))
        numbers = {"RANK": str(local_rank), "LOCAL_RANK": str(local_rank), "ROLE_RANK": role_rank}
        return {**numbers, **self.environ, **own}

    def in_core(self) -> dict[str, Any]:
        """Return the arguments of the core's `Gang` that concern roles; no arguments for a gang without roles."""
        kind = self.restart_policy.restart if self.restart_policy is not None else "transient"
        if not self.role_of:
            return {"kinds": [self.parts[0].restart] * len(self.args)} if self.parts[0].restart else {}
        each = [self.parts[number] for number in self.role_of]
        roles = dict(enumerate(self.roles or ()))
        return {
            "role_of": self.role_of,
            "needs": self.needs,
            "stop_signals": {
                number: self.parts[number].stop_signal for number, role in roles.items() if role.stop_signal
            },
            "graces_s": {number: role.grace for number, role in roles.items() if role.grace is not None},
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
        role = self.role_title(local_rank)
        return f"rank {local_rank}{role and f' ({role})'}"

    def role_title(self, local_rank: int) -> str:
        """Return the role and the role rank, such as ``trainer 1``; "" without roles."""
        part = self.of(local_rank)
        return f"{part.name} {part.role_rank(local_rank)}" if part.name else ""


def _working_directory() -> str:
    """Return the working directory of this process; "" if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""
