"""The settings of the gang that the options of ``supervise run`` describe."""

from __future__ import annotations

import os
from signal import SIGTERM
from typing import TYPE_CHECKING, Any

from supervise.cli import program

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervise._gang.spec import GangSettings
    from supervise.cli.options import Options


def settings(options: Options, envs: Mapping[int, dict[str, str]]) -> GangSettings:
    """Return the settings of a gang, except logs, prefixes of lines and the sink for events.

    Args:
        options: The validated options.
        envs: Local rank to the variables that supervise adds to its environment.

    Raises:
        OSError: A program does not exist or is not executable.
    """
    found: GangSettings = {
        "name": options.role,
        "envs": dict(envs),
        "numa_options": _numa(options),
        "stop_signal": options.stop_signal or SIGTERM,
        "grace": options.grace_s,
        "timeout": options.timeout_s,
        "restart_policy": options.restarts,
        "containment": options.containment,
        "gate": options.gate,
        "strategy": options.strategy,
        "success_exit_codes": options.success_exit_codes,
        "watchdog": options.watchdog,
        "duplicate_stdout_filters": options.output.stdout_filters,
        "duplicate_stderr_filters": options.output.stderr_filters,
        "log_max_bytes": options.output.log_max_bytes,
    }
    if options.file is not None:
        found["roles"] = _roles(options)
        return found
    [part] = options.parts
    command = program.command(part)
    found["entrypoint"] = command[0]
    found["args"] = dict.fromkeys(range(part.count), command[1:])
    found["cwd"] = part.cwd
    found["ready"], found["ready_timeout_s"] = part.ready, part.ready_timeout_s
    return found


def check(options: Options, envs: Mapping[int, dict[str, str]]) -> None:
    """Check the settings of a gang, as its start does; make no file and start no process.

    Args:
        options: The validated options.
        envs: As for `settings`.

    Raises:
        SpecError: A setting is not valid.
        OSError: A program does not exist or is not executable.
    """
    from supervise._gang.attempt import prepared
    from supervise.logs import DefaultLogsSpecs

    prepared({**settings(options, envs), "logs_specs": DefaultLogsSpecs(os.devnull)})


def _roles(options: Options) -> list[Any]:
    from supervise.roles import Role

    roles = []
    for part in options.parts:
        command = program.command(part)
        roles.append(
            Role(
                name=part.role,
                entrypoint=command[0],
                args=dict.fromkeys(range(part.count), command[1:]),
                cwd=part.cwd,
                ready=part.ready,
                ready_timeout_s=part.ready_timeout_s,
                restart=part.restart,
                service=part.service,
            )
        )
    return roles


def _numa(options: Options) -> Any:
    """Return the CPU binding of the options; None for no binding."""
    if options.numa_binding is None:
        return None
    from supervise._process.launch.numa import AffinityMode, NumaOptions

    return NumaOptions(affinity_mode=AffinityMode(options.numa_binding))
