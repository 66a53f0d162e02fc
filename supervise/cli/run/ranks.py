"""The environment of each rank."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from supervise._gang import rank_variables
from supervise.cli.options import values
from supervise.errors import SpecError

if TYPE_CHECKING:
    from supervise._gang.rank_variables import Master
    from supervise.cli.options.options import Options
    from supervise.cli.options.parts import Hosts, Part


_STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")
"""The folder of the `sitecustomize` that records uncaught exceptions in ranks."""


def choose_master(hosts: Hosts) -> Master:
    """Return address and port: those of the options or of the environment; by default 127.0.0.1 and a free port."""
    return rank_variables.choose_master(
        hosts.address or os.environ.get("MASTER_ADDR"), hosts.port or os.environ.get("MASTER_PORT")
    )


def environments(options: Options, *, run_id: str, master: Master) -> dict[int, dict[str, str]]:
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
