"""The options of ``supervise run`` about what runs: the number of ranks, the program, its environment and folder."""

from __future__ import annotations

import argparse
from functools import cache
from typing import TYPE_CHECKING

from supervise.cli import option_values
from supervise.cli.option_values import add_option

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervise.cli.gang_file import GangFile
    from supervise.cli.parts import Part

ROLE = "default"
"""The default name of the ranks."""
_OF_SUPERVISE = {
    "MASTER_ADDR": "--master-addr",
    "MASTER_PORT": "--master-port",
    "ROLE_NAME": "--role",
    "TORCHELASTIC_RUN_ID": "--run-id",
    "TORCHELASTIC_MAX_RESTARTS": "--max-restarts",
} | dict.fromkeys(
    (
        "RANK",
        "LOCAL_RANK",
        "ROLE_RANK",
        "GROUP_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_ERROR_FILE",
    )
)
"""Variable that supervise sets in each rank to the option that chooses its value, or None."""


def parts(parser: argparse.ArgumentParser, found: argparse.Namespace) -> tuple[Part, ...]:
    """Return the parts of the run: PROGRAM, or the roles of a file.

    Raises:
        SystemExit: With code 2 after an error message.
    """
    from supervise.cli.parts import Part

    _check(parser, found)
    env = _environment(parser, found)
    timeout_s = 60.0 if found.ready_timeout is None else found.ready_timeout
    if found.file is not None:
        try:
            made: tuple[Part, ...] = found.file.parts(env, found.ready, timeout_s)
        except argparse.ArgumentTypeError as error:
            parser.error(str(error))
        for part in made:
            _check_names(parser, part.env)
        return made
    command = found.command[1:] if found.command[:1] == ["--"] else found.command
    if not command:
        parser.error("PROGRAM is missing; for example: supervise run -n 4 train.py")
    if not command[0]:
        parser.error("PROGRAM is empty; is a variable in your script unset?")
    part = Part(
        role=found.role or ROLE,
        count=found.nproc_per_node or 1,
        program=command[0],
        args=tuple(command[1:]),
        module=found.module,
        python=not found.no_python,
        run_path=found.run_path,
        env=env,
        cwd=found.cwd,
        ready=found.ready,
        ready_timeout_s=timeout_s,
    )
    return (part,)


def _check(parser: argparse.ArgumentParser, found: argparse.Namespace) -> None:
    """Refuse options that contradict each other."""
    if found.file is not None:
        if found.command:
            parser.error(f"PROGRAM and --file exclude each other; omit {found.command[0]!r} or --file")
        for name, value in (
            ("-n", found.nproc_per_node),
            ("-m", found.module),
            ("--no-python", found.no_python),
            ("--run-path", found.run_path),
            ("--cwd", found.cwd),
        ):
            if value:
                parser.error(f"{name} and --file exclude each other; {found.file.path} says it for each role")
    ways = [name for name in ("module", "no_python", "run_path") if getattr(found, name)]
    if ways[:2] == ["module", "no_python"]:
        parser.error("-m runs a module under Python, and --no-python does not use Python; omit one of them")
    if len(ways) > 1:
        parser.error(f"--run-path runs a file under Python; omit it or {'-m' if found.module else '--no-python'}")


def _environment(parser: argparse.ArgumentParser, found: argparse.Namespace) -> dict[str, str]:
    """Return the variables of ``--env-file`` and ``--env``: name to value. Those of ``--env`` take precedence."""
    given: dict[str, str] = {}
    for variables in found.env_file:
        given |= variables
    given |= dict(found.env)
    _check_names(parser, given)
    return given


def _check_names(parser: argparse.ArgumentParser, given: Iterable[str]) -> None:
    """Refuse variables that supervise sets itself."""
    for name in given:
        if name in _OF_SUPERVISE:
            option = _OF_SUPERVISE[name]
            parser.error(f"supervise sets {name} in each rank; {f'give {option}' if option else 'omit it'}")


def add_options(group: argparse._ArgumentGroup) -> None:
    """Add the options."""
    add_option(
        group,
        "-n",
        "--nproc-per-node",
        type=option_values.worker_count,
        metavar="N",
        help="number of ranks (1); cpu or gpu: one per CPU or GPU; auto: one per GPU, or per CPU if there is no GPU",
    )
    add_option(group, "-m", "--module", action="store_true", help="PROGRAM is a module, as in python -m")
    add_option(group, "--no-python", action="store_true", help="execute PROGRAM directly, even if it ends in .py")
    add_option(
        group, "--run-path", action="store_true", help="run PROGRAM under this Python, whatever its name ends in"
    )
    add_option(
        group,
        "--env",
        action="append",
        default=[],
        metavar="K=V",
        type=option_values.variable,
        help="set an environment variable in each rank; may be repeated",
    )
    add_option(
        group,
        "--env-file",
        action="append",
        default=[],
        metavar="F",
        type=cache(_env_file),
        help="read variables from a file of lines K=V; --env takes precedence",
    )
    add_option(
        group,
        "--cwd",
        metavar="DIR",
        type=option_values.existing_folder,
        help="working directory of the ranks; a relative path of PROGRAM is relative to it",
    )
    add_option(
        group,
        "--no-record",
        action="store_true",
        help="do not record uncaught exceptions of a Python PROGRAM",
    )
    add_option(
        group,
        "--run-id",
        metavar="ID",
        type=option_values.name,
        help="name of this run (the program's name and a random part)",
    )
    add_option(
        group,
        "--role",
        metavar="NAME",
        type=option_values.name,
        help=f'name of the ranks in prefixes and ROLE_NAME ("{ROLE}")',
    )
    add_option(
        group,
        "--file",
        metavar="FILE",
        type=cache(_gang_file),
        help="run the roles of a file: gang.toml, or a Procfile",
    )
    add_option(
        group,
        "--numa-binding",
        choices=("node", "socket", "exclusive", "core-complex"),
        help="bind each rank to the CPUs near its GPU",
    )
    add_option(
        group,
        "--virtual-local-rank",
        action="store_true",
        help="each rank has LOCAL_RANK=0 and sees only its own GPU, as device 0",
    )


def _gang_file(path: str) -> GangFile:
    from supervise.cli.gang_file import GangFile  # lazy: it imports a parser of TOML

    return GangFile(path)


def _env_file(path: str) -> dict[str, str]:
    from supervise.cli import env_files

    return env_files.read(path)
