"""A run on a Ray cluster. Run directory, events and report are as on one host, but by global rank."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from supervise._folders import make_new_folder, open_folder
from supervise._hosts.show import StreamsShown
from supervise.cli import gang_settings
from supervise.cli.log_specs import MergedLogsSpecs
from supervise.cli.runs_dir import make_runs_dir
from supervise.logs import DefaultLogsSpecs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pykka

    from supervise.cli.console import Console
    from supervise.cli.options import Options
    from supervise.cli.rank_stdin import RankStdin

_OF_ENGINE = frozenset(
    {
        *("RANK", "LOCAL_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
    }
)
"""Variables that the driver sets, since they depend on the placement."""
_NOT_OF_HOSTS = frozenset({"name", "entrypoint", "args", "envs", "numa_options", "timeout", "restart_policy", "gate"})


class _OfNode(DefaultLogsSpecs):
    """The log layout of one host. The name of a rank's folder, in the folder of the run, is its global rank."""

    def __init__(self, run_dir: str, *args: Any) -> None:
        super().__init__(os.path.dirname(run_dir), *args)
        self._run_log_dir = run_dir

    def _folder_of(self, rank: int, env: Mapping[str, str]) -> str:
        return env.get("RANK", str(rank))


class _MergedOfNode(MergedLogsSpecs, _OfNode):
    """The log layout of one host, with both streams of each rank in one file."""


def make_run_dir(options: Options, run_id: str) -> str:
    """Create the run directory on this host; the hosts use the same path.

    Raises:
        OSError: It cannot be created.
    """
    base = os.path.abspath(options.log_dir or make_runs_dir())
    os.makedirs(base, 0o700, exist_ok=True)
    at = open_folder(base)
    try:
        return os.path.join(base, make_new_folder(f"{run_id.replace(os.sep, '_')}_", at, base))
    finally:
        os.close(at)


def start(
    options: Options,
    *,
    run_id: str,
    envs: Mapping[int, Mapping[str, str]],
    prefixes: Mapping[int, str],
    sink: Callable[[dict[str, Any]], object],
    console: Console,  # noqa: ARG001 - rows of unfinished lines are those of one host
    stdin: RankStdin,  # noqa: ARG001 - the ranks of other hosts have none
) -> tuple[pykka.ActorRef[Any], str | None]:
    """Create the run directory and the actor that supervises the ranks of all hosts; return both.

    No host is placed yet. The arguments are those of `local_run.start`, by global rank.

    Raises:
        SpecError: A setting is not valid on several hosts.
        ImportError: Ray is not installed.
        OSError: There is no cluster, or the run directory cannot be made, or a program does not exist.
    """
    from supervise.ray import RaySupervisor

    found: dict[str, Any] = dict(gang_settings.settings(options, {}))
    each = options.nproc // options.nnodes
    ranks = range(each)
    run_dir = make_run_dir(options, run_id) if options.log_dir != os.devnull else None
    logs: DefaultLogsSpecs = DefaultLogsSpecs(os.devnull)
    if run_dir is not None:
        layout = _MergedOfNode if options.output.merge else _OfNode
        shown = {rank for rank in ranks if rank in options.ranks_shown} or None
        logs = layout(run_dir, {r: options.redirects[r] for r in ranks}, {r: options.tee[r] for r in ranks}, shown)
    settings = {name: value for name, value in found.items() if name not in _NOT_OF_HOSTS}
    settings["cwd"] = found.get("cwd") or os.getcwd()
    kept = _OF_ENGINE if options.hosts.port is not None else _OF_ENGINE | {"MASTER_PORT"}
    ref = RaySupervisor.start(
        name=found["name"],
        entrypoint=found["entrypoint"],
        nnodes=options.nnodes,
        nproc_per_node=each,
        args={rank: tuple(given) for rank, given in found["args"].items()},
        envs={rank: {key: env[key] for key in env.keys() - kept} for rank, env in envs.items()},
        logs_specs=logs,
        log_line_prefixes=dict(prefixes),
        restart_policy=options.restarts,
        timeout=options.timeout_s,
        event_sink=sink,
        shown=StreamsShown(),
        **settings,
    )
    return ref, run_dir
