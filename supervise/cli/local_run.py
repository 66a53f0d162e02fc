"""A run on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervise.cli import gang_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pykka

    from supervise._gang.supervisor import Supervisor
    from supervise.cli.console import Console
    from supervise.cli.options import Options
    from supervise.cli.rank_stdin import RankStdin


def start(
    options: Options,
    *,
    run_id: str,  # noqa: ARG001 - the variables of the ranks have it; `ray_run.start` has the same arguments
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
    from supervise.cli import log_specs

    specs = log_specs.of(options)
    settings = gang_settings.settings(options, envs)
    settings["logs_specs"] = specs
    settings["log_line_prefixes"] = prefixes
    settings["event_sink"] = sink
    settings["screen"] = console.screen
    settings["stdin"] = stdin.of_ranks()
    attempt = first_attempt(**settings)
    return Supervisor.start_attempt(attempt), specs._run_log_dir  # noqa: SLF001 - no public name, as in PyTorch
