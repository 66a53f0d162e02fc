"""The checked settings of a gang over several hosts, and the orders for its hosts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from supervise._gang import rank_variables
from supervise._gang.validation import check_policy, checked
from supervise._settings import GANG, check_seconds
from supervise.errors import SpecError
from supervise.logs import DefaultLogsSpecs, LogsSpecs, Std

if TYPE_CHECKING:
    from supervise.events import Sink
    from supervise.messages import GangStatus
    from supervise.restarts import RestartPolicy
    from supervise.result import RunProcsResult


# The messages between the driver and a host


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOrder:
    """The order for one host in one attempt. Mappings are keyed by local rank. Driver -> host."""

    number: int
    """Number of the host, from 0."""
    epoch: int
    """Number of the attempt."""
    lease_s: float
    settings: dict[str, Any]
    """The settings of the host's Supervisor."""
    sends_events: bool = False
    """Whether the driver has a listener for the host's events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAddress:
    """The place where a host runs. Host -> driver."""

    host_name: str
    node_id: str
    """The engine's name for the node."""
    ip: str
    port: int
    """A port that was free a moment ago, for the ranks' own rendezvous."""
    pid: int
    """Pid of the process that supervises the ranks."""
    keeper_port: int = 0
    """The port at which the keeper of the lease reports that it has killed the host and its ranks. 0: none."""


NewsKind = Literal["logs", "event", "stdout", "stderr", "worker", "ended"]
LogPaths = tuple[dict[int, str], dict[int, str]]
"""Local rank to the path of its stdout, and to that of its stderr; "" for none."""


@dataclass(frozen=True, slots=True)
class News:
    """One item of a host's news. Host -> driver, in order."""

    number: int
    kind: NewsKind
    what: Any
    """The content, which depends on the kind.

    ``logs``: `LogPaths`, before the ranks are started. ``event``: the fields of the event. ``stdout``, ``stderr``:
    bytes to show. ``worker``: a message to subscribers about a rank, such as `WorkerExited`. ``ended``: a `HostEnd`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEnd:
    """The end of a host's ranks, of which nothing is left. Host -> driver.

    Exactly one of `result` and `error` is None.
    """

    result: RunProcsResult | None = None
    error: BaseException | None = None
    status: GangStatus | None = None
    """The last state of the ranks."""


_MOST_HOSTS = 100_000
LEAST_LEASE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsPlan:
    """The settings of all attempts.

    Mappings are keyed by global rank: host number times number of ranks per host, plus local rank.
    """

    name: str
    entrypoint: Callable[..., Any] | str
    nnodes: int
    nproc_per_node: int
    args: Mapping[int, tuple[Any, ...]]
    envs: Mapping[int, Mapping[str, str]] = field(repr=False)
    logs_specs: LogsSpecs | None = None
    log_line_prefixes: Mapping[int, str] | None = None
    lease_s: float = 10.0
    restart_policy: RestartPolicy | None = None
    timeout_s: float | None = None
    event_sink: Sink | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of each host's Supervisor, such as ``grace``."""

    @property
    def world_size(self) -> int:
        """Number of ranks of all hosts."""
        return self.nnodes * self.nproc_per_node

    def rank(self, host: int, local_rank: int) -> int:
        """Return the global rank of a local rank."""
        return host * self.nproc_per_node + local_rank

    def orders(self, epoch: int, *, entrypoint: Any = None, sends_events: bool = False) -> list[HostOrder]:
        """Return the order for each host.

        Args:
            epoch: Number of the attempt.
            entrypoint: The object to send in place of the entrypoint; None: the entrypoint itself.
            sends_events: Whether hosts send their events.
        """
        return [
            HostOrder(
                number=number,
                epoch=epoch,
                lease_s=self.lease_s,
                settings={
                    **self.settings,
                    "name": self.name,
                    "entrypoint": entrypoint or self.entrypoint,
                    "args": self._of(number, self.args),
                    "envs": {rank: dict(env) for rank, env in self._of(number, self.envs).items()},
                    "logs_specs": self.logs_specs,
                    "log_line_prefixes": self._prefixes(number),
                },
                sends_events=sends_events,
            )
            for number in range(self.nnodes)
        ]

    def _prefixes(self, host: int) -> dict[int, str]:
        given = self.log_line_prefixes or {}
        ranks = {local: self.rank(host, local) for local in range(self.nproc_per_node)}
        return {local: given.get(rank, f"[{self.name}{rank}]:") for local, rank in ranks.items()}

    def _of(self, host: int, mapping: Mapping[int, Any]) -> dict[int, Any]:
        return {local: mapping[self.rank(host, local)] for local in range(self.nproc_per_node)}

    def environments(self, host: int, epoch: int, master: HostAddress, run_id: str) -> dict[int, dict[str, str]]:
        """Return the variables for the ranks of one host: local rank to variables.

        These are the variables of torchrun and the epoch. The caller's own `envs` take precedence.
        """
        common = rank_variables.of_all(
            self.nproc_per_node,
            rank_variables.Master(master.ip, str(master.port)),
            run_id=run_id,
            max_restarts=self.restart_policy.max_restarts if self.restart_policy else 0,
            host=host,
            hosts=self.nnodes,
        )
        common |= {
            "ROLE_NAME": self.name,
            "ROLE_WORLD_SIZE": str(self.world_size),
            "TORCHELASTIC_RESTART_COUNT": str(epoch),
            "SUPERVISE_EPOCH": str(epoch),
        }
        first = self.rank(host, 0)
        return {
            local: {**common, **rank_variables.of_rank(local, local, first=first, first_of_role=first)}
            for local in range(self.nproc_per_node)
        }


def make_plan(
    *,
    name: str,
    entrypoint: Callable[..., Any] | str,
    nnodes: int,
    nproc_per_node: int,
    args: tuple[Any, ...] | Mapping[int, tuple[Any, ...]] = (),
    envs: Mapping[int, Mapping[str, str]] | None = None,
    logs_specs: LogsSpecs | None = None,
    log_line_prefixes: Mapping[int, str] | None = None,
    lease_s: float = 10.0,
    restart_policy: RestartPolicy | None = None,
    timeout: float | None = None,
    event_sink: Sink | None = None,
    settings: Mapping[str, Any] | None = None,
) -> HostsPlan:
    """Check the settings of a gang over several hosts.

    Raises:
        SpecError: A setting is not valid; the text names it, the value or the rank, and the remedy.
    """
    _check_count("nnodes", nnodes, "hosts")
    _check_count("nproc_per_node", nproc_per_node, "ranks on each host")
    world = nnodes * nproc_per_node
    check_seconds("lease_s", lease_s, above_zero=True)
    if lease_s < LEAST_LEASE_S:
        raise SpecError(
            f"lease_s is {lease_s!r}; give at least {LEAST_LEASE_S:g} s, or short delays would end the gang"
        )
    GANG["timeout"].checked(timeout)
    GANG["event_sink"].checked(event_sink)
    GANG["log_line_prefixes"].checked(log_line_prefixes)
    check_policy(restart_policy)
    if restart_policy is not None and restart_policy.restart != "transient":
        raise SpecError(
            f"restart_policy has restart={restart_policy.restart!r}; a gang over several hosts restarts as a whole"
            " after a failure, so give restart='transient'"
        )
    _check_settings(settings or {})
    plan = HostsPlan(
        name=name,
        entrypoint=entrypoint,
        nnodes=nnodes,
        nproc_per_node=nproc_per_node,
        args=_arguments(args, world),
        envs=_environments(envs or {}, world),
        logs_specs=DefaultLogsSpecs(tee=Std.ALL) if logs_specs is None else logs_specs,
        log_line_prefixes=log_line_prefixes,
        lease_s=float(lease_s),
        restart_policy=restart_policy,
        timeout_s=timeout,
        event_sink=event_sink,
        settings=dict(settings or {}),
    )
    _check_as_hosts(plan)
    return plan


def _check_count(name: str, value: object, what: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MOST_HOSTS:
        raise SpecError(f"{name} is {value!r}; give the number of {what}, from 1 to {_MOST_HOSTS}")


def _check_settings(settings: Mapping[str, Any]) -> None:
    of_each_host = {name for name, row in GANG.items() if row.each_host}  # the others concern one machine only
    if unknown := settings.keys() - of_each_host:
        raise SpecError(
            f"unknown setting: {min(unknown)}; a gang over several hosts has {', '.join(sorted(of_each_host))}"
        )
    usual = GANG["strategy"].default
    if (strategy := settings.get("strategy", usual)) != usual:
        raise SpecError(f"strategy is {strategy!r}; a gang over several hosts is all or nothing: give {usual}")


def _arguments(args: object, world: int) -> dict[int, tuple[Any, ...]]:
    if isinstance(args, tuple):
        return dict.fromkeys(range(world), args)
    if not isinstance(args, Mapping):
        raise SpecError(f"args is {args!r}; give a tuple for all ranks, or a mapping of global rank to a tuple")
    _check_ranks("args", args, world)
    if missing := sorted(set(range(world)) - set(args)):
        raise SpecError(f"args has nothing for rank {missing[0]}; give a tuple for each of the {world} ranks")
    return {rank: cast("Any", args[rank]) for rank in range(world)}


def _environments(envs: object, world: int) -> dict[int, Mapping[str, str]]:
    if not isinstance(envs, Mapping):
        raise SpecError(f"envs is {envs!r}; give a mapping of global rank to variables")
    _check_ranks("envs", envs, world)
    return {rank: envs.get(rank, {}) for rank in range(world)}


def _check_ranks(what: str, mapping: Mapping[Any, Any], world: int) -> None:
    for rank in mapping:
        if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < world:
            raise SpecError(f"{what} has the rank {rank!r}; the global ranks are 0 to {world - 1}")


def _check_as_hosts(plan: HostsPlan) -> None:
    """Check the other settings, in the same way as the Supervisor of each host does.

    Raises:
        SpecError: A setting is not valid; the text also names the host.
    """
    for order in plan.orders(0):
        settings = order.settings | {"log_line_prefixes": None}
        if isinstance(settings.get("cwd"), (str, os.PathLike)):
            del settings["cwd"]  # a folder on the hosts, which each host checks at its launch
        try:
            checked(settings)
        except SpecError as error:
            if plan.nnodes == 1:
                raise
            raise SpecError(
                f"host {order.number} (its rank 0 is the global rank {plan.rank(order.number, 0)}): {error}"
            ) from None
