"""The environment of each rank, the settings, the log files and the start of a run's gang, here or on Ray."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING, Any, cast

from supervise._files import accessible, closing, make_new_folder, not_a_folder, open_folder
from supervise._gang import rank_variables
from supervise._settings import GANG
from supervise.cli.options import values
from supervise.cli.run import program
from supervise.cli.runs_folder import make_runs_dir
from supervise.errors import SpecError
from supervise.logs import DefaultLogsSpecs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pykka

    from supervise._gang.spec import GangSettings
    from supervise._gang.supervisor import Supervisor
    from supervise.cli.options.options import Options
    from supervise.cli.options.parts import Hosts, Part
    from supervise.cli.run.console import Console
    from supervise.cli.run.rank_stdin import RankStdin
    from supervise.destinations import LogsDest


# The environment of each rank


_STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")
"""The folder of the `sitecustomize` that records uncaught exceptions in ranks."""


def choose_master(hosts: Hosts) -> rank_variables.Master:
    """Return address and port: those of the options or of the environment; by default 127.0.0.1 and a free port."""
    given = rank_variables.without_outer(os.environ)
    return rank_variables.choose_master(
        hosts.address or given.get("MASTER_ADDR"), hosts.port or given.get("MASTER_PORT")
    )


def environments(options: Options, *, run_id: str, master: rank_variables.Master) -> dict[int, dict[str, str]]:
    """Return the variables to add to each rank's environment: torchrun's, two defaults, and those of the user.

    The log specs add ``TORCHELASTIC_ERROR_FILE``. If a rank runs under this Python and is to record exceptions, two
    more variables are added. The rank removes these two before any user code runs.

    Raises:
        SpecError: A rank has no GPU, with ``--virtual-local-rank``.
    """
    hosts = options.hosts
    common = rank_variables.of_all(
        options.nproc,
        master,
        run_id=run_id,
        max_restarts=options.restarts.max_restarts if options.restarts else 0,
        host=hosts.number,
        hosts=hosts.count,
    )
    of_parts = {part.role: _of_part(part, options) for part in options.parts}
    return {
        rank: of_parts[role] | common | _of_rank(rank, role_rank, options)
        for rank, (role, role_rank) in enumerate(options.titles)
    }


def _of_part(part: Part, options: Options) -> dict[str, str]:
    """Return the variables that the ranks of a role have in common."""
    given = {**os.environ, **part.env}
    found = part.env | {"ROLE_NAME": part.role, "ROLE_WORLD_SIZE": str(part.count * options.hosts.count)}
    if "PYTHONUNBUFFERED" not in given:
        found["PYTHONUNBUFFERED"] = "1"
    if options.record and part.runs_python and os.pathsep not in _STARTUP:
        path = given.get("PYTHONPATH")
        found["PYTHONPATH"] = f"{_STARTUP}{os.pathsep}{path}" if path else _STARTUP
        found["SUPERVISE_RECORD"] = f"{os.getpid()} {int(path is not None)}"
    if "OMP_NUM_THREADS" not in given and (threads := _threads(options)) is not None:
        found["OMP_NUM_THREADS"] = str(threads)
    return found


def _threads(options: Options) -> int | None:
    """Return the threads of each rank: 1 if there are several; of one, those that a quota leaves; None for no limit."""
    if options.nproc > 1:
        return 1
    usable = values.usable_cpus()
    return usable if usable < values.allowed_cpus() else None


def _of_rank(local_rank: int, role_rank: int, options: Options) -> dict[str, str]:
    """Return the variables that differ between the ranks of a role."""
    hosts = options.hosts
    part = options.part_of(local_rank)
    first, first_of_role = hosts.number * options.nproc, hosts.number * part.count
    found = rank_variables.of_rank(local_rank, role_rank, first=first, first_of_role=first_of_role)
    if part.port is not None:
        found["PORT"] = str(part.port + role_rank)
    if options.virtual_local_rank:  # as torchrun does
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = [str(each) for each in range(options.nproc)] if visible is None else visible.split(",")
        if local_rank >= len(devices):
            raise SpecError(
                f"--virtual-local-rank: CUDA_VISIBLE_DEVICES={visible!r} has no GPU for local rank {local_rank};"
                f" give -n {len(devices)} or name more GPUs"
            )
        found |= {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": devices[local_rank].strip()}
    return found


def limited_threads(options: Options) -> int | None:
    """Return the value of ``OMP_NUM_THREADS`` that ranks get because the user has set none; None if no rank gets it."""
    given = all("OMP_NUM_THREADS" in {**os.environ, **part.env} for part in options.parts)
    return None if given else _threads(options)


_USES_THREADS = rb"/(?:numpy|torch)/|/lib(?:gomp|iomp5|omp|(?:scipy_)?openblas|mkl_rt|torch)"


def uses_threads(pid: int) -> bool:
    """Return whether a process has loaded numpy, torch or another library that reads ``OMP_NUM_THREADS``."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            return re.search(_USES_THREADS, file.read()) is not None
    except OSError:  # it has ended
        return False


# The settings of the gang that the options of ``supervise run`` describe


def settings_of(options: Options, envs: Mapping[int, dict[str, str]]) -> GangSettings:
    """Return the settings of a gang, except logs, prefixes of lines and the sink for events.

    Args:
        options: The validated options.
        envs: Local rank to the variables that supervise adds to its environment.

    Raises:
        OSError: A program does not exist or is not executable.
    """
    found = {
        **options.settings,
        "name": options.role,
        "envs": dict(envs),
        "numa_options": _numa(options),
        "restart_policy": options.restarts,
        "watchdog": options.watchdog,
    }
    if options.file is not None:
        from supervise.roles import Role

        for row in GANG.values():
            if row.role == "own":  # the roles have them
                found.pop(row.name, None)
        roles = [Role(name=part.role, **_work(part), **part.settings) for part in options.parts]
        return cast("GangSettings", {**found, "roles": roles})
    [part] = options.parts
    return cast("GangSettings", found | _work(part))


def _work(part: Part) -> dict[str, Any]:
    """Return the settings of a role that say what its ranks run, and where."""
    command = program.command(part)
    return {"entrypoint": command[0], "args": dict.fromkeys(range(part.count), command[1:]), "cwd": part.cwd}


def check_settings(options: Options, envs: Mapping[int, dict[str, str]]) -> None:
    """Check the settings of a gang, as its start does; make no file and start no process.

    Args:
        options: The validated options.
        envs: As for `settings`.

    Raises:
        SpecError: A setting is not valid.
        OSError: A program does not exist or is not executable.
    """
    from supervise._gang.attempt import prepared

    prepared({**settings_of(options, envs), "logs_specs": DefaultLogsSpecs(os.devnull)})


def _numa(options: Options) -> Any:
    """Return the CPU binding of the options; None for no binding."""
    if options.numa_binding is None:
        return None
    from supervise._process.launch.numa import AffinityMode, NumaOptions

    return NumaOptions(affinity_mode=AffinityMode(options.numa_binding))


# The log layout of `supervise run`


class RunLogs(DefaultLogsSpecs):
    """PyTorch's log layout. With `merged`, both streams of a rank go to the file of its stdout.

    With `run_dir`, it is that of one host of several: the name of a rank's folder is its global rank.
    """

    def __init__(self, *args: Any, merged: bool, run_dir: str | None = None) -> None:
        super().__init__(*args)
        self._merged = merged
        self._several_hosts = run_dir is not None
        self._run_log_dir = run_dir

    def _reified(self, envs: dict[int, dict[str, str]], made: Iterable[int]) -> LogsDest:
        dest = super()._reified(envs, made)
        if self._merged:
            dest.stderrs = dict(dest.stdouts)
            dest.tee_stderrs = {}
        return dest

    def _folder_of(self, rank: int, env: Mapping[str, str]) -> str:
        return env.get("RANK", str(rank)) if self._several_hosts else str(rank)


def check_logs(options: Options) -> None:
    """Check that the log directory can be used or made, and make nothing.

    Raises:
        OSError: It cannot.
    """
    if not (path := options.log_dir) or path == os.devnull:
        return
    nearest = os.path.abspath(path)
    while not os.path.lexists(nearest):
        nearest = os.path.dirname(nearest)
    if not os.path.isdir(nearest):
        raise not_a_folder(nearest)
    if not accessible(nearest, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "log_dir cannot be written to", path)


# A run on this host


def start_locally(
    options: Options,
    *,
    run_id: str,  # noqa: ARG001 - the variables of the ranks have it; `start_on_ray` has the same arguments
    envs: dict[int, dict[str, str]],
    prefixes: Mapping[int, str],
    sink: Callable[[dict[str, Any]], object],
    console: Console,
    stdin: RankStdin,
) -> tuple[pykka.ActorRef[Supervisor], str | None]:
    """Create the run directory and the Supervisor; return the actor and the directory. No rank is started yet.

    Args:
        options: The validated options.
        run_id: The run ID.
        envs: Local rank to variables.
        prefixes: Local rank to the prefix of its shown lines.
        sink: Gets each event, on the gang's thread.
        console: Where output is shown.
        stdin: The stdin of the ranks.

    Raises:
        SpecError: A setting is not valid.
        OSError: The run directory cannot be made, or a program does not exist.
    """
    from supervise._gang.attempt import first_attempt
    from supervise._gang.supervisor import Supervisor

    shown = set(options.ranks_shown) or None
    log_dir = options.log_dir or make_runs_dir()
    specs = RunLogs(log_dir, options.redirects, options.tee, shown, merged=options.merge)
    settings = settings_of(options, envs)
    settings.update(
        {
            "logs_specs": specs,
            "log_line_prefixes": prefixes,
            "event_sink": sink,
            "screen": console.screen,
            "stdin": stdin.of_ranks(),
            "hears": True,
        }
    )
    return Supervisor.start_attempt(first_attempt(**settings)), specs._run_log_dir  # noqa: SLF001 - no public name, as in PyTorch


# A run on a Ray cluster. Run directory, events and report are as on one host, but by global rank


_OF_ENGINE = frozenset(
    {
        *("RANK", "LOCAL_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
    }
)
"""Variables that the driver sets, since they depend on the placement."""


def make_run_dir(options: Options, run_id: str) -> str:
    """Create the run directory on this host; the hosts use the same path.

    Raises:
        OSError: It cannot be created.
    """
    base = os.path.abspath(options.log_dir or make_runs_dir())
    os.makedirs(base, 0o700, exist_ok=True)
    with closing(open_folder(base)) as at:
        return os.path.join(base, make_new_folder(f"{run_id.replace(os.sep, '_')}_", at, base))


def start_on_ray(
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

    No host is placed yet. The arguments are those of `start_locally`, by global rank.

    Raises:
        SpecError: A setting is not valid on several hosts.
        ImportError: Ray is not installed.
        OSError: There is no cluster, or the run directory cannot be made, or a program does not exist.
    """
    from supervise._hosts.supervisor import StreamsShown
    from supervise.ray import RaySupervisor

    found: dict[str, Any] = dict(settings_of(options, {}))
    each = options.nproc // options.nnodes
    ranks = range(each)
    run_dir = make_run_dir(options, run_id) if options.log_dir != os.devnull else None
    logs: DefaultLogsSpecs = DefaultLogsSpecs(os.devnull)
    if run_dir is not None:
        redirects, tee = ({rank: each[rank] for rank in ranks} for each in (options.redirects, options.tee))
        shown = {rank for rank in ranks if rank in options.ranks_shown} or None
        logs = RunLogs(os.path.dirname(run_dir), redirects, tee, shown, merged=options.merge, run_dir=run_dir)
    settings = {name: value for name, value in found.items() if GANG[name].each_host}
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
        timeout=options.settings["timeout"],
        event_sink=sink,
        shown=StreamsShown(),
        **settings,
    )
    return ref, run_dir
