"""The options of ``supervise run`` about the failure of a rank: strategy, restarts, exit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise.cli import option_values
from supervise.cli.option_values import add_option

if TYPE_CHECKING:
    import argparse

    from supervise.restarts import RestartPolicy


def policy(parser: argparse.ArgumentParser, found: argparse.Namespace) -> RestartPolicy | None:
    """Return the restart policy that the options describe; None without ``--max-restarts``."""
    from supervise.errors import SpecError
    from supervise.restarts import RestartPolicy, check_disjoint

    given = {
        "within_s": ("--restart-window", found.restart_window),
        "backoff": ("--backoff", found.backoff),
        "restart": ("--restart", found.restart),
        "uncounted_exit_codes": ("--uncounted-exit-codes", found.uncounted_exit_codes),
        "never_restart_exit_codes": ("--never-restart-exit-codes", found.never_restart_exit_codes),
    }
    if found.keep_going and (found.strategy or found.max_restarts is not None):
        other = "--strategy" if found.strategy else "--max-restarts"
        parser.error(f"--keep-going is --strategy one_for_one without restarts; omit it or {other}")
    if found.max_restarts is None:
        for option, value in given.values():
            if value is not None:
                parser.error(f"{option} needs --max-restarts, such as --max-restarts 3")
        return None
    settings = {name: value for name, (_, value) in given.items() if value is not None}
    try:
        made = RestartPolicy(max_restarts=found.max_restarts, **settings)
        check_disjoint(
            success_exit_codes=found.success_exit_codes,
            uncounted_exit_codes=made.uncounted_exit_codes,
            never_restart_exit_codes=made.never_restart_exit_codes,
        )
    except SpecError as error:
        parser.error(str(error))
    return made


def add_options(group: argparse._ArgumentGroup) -> None:
    """Add the options."""
    add_option(
        group,
        "--strategy",
        metavar="S",
        choices=("one_for_all", "one_for_one", "rest_for_one"),
        help="which ranks the failure of a rank stops or restarts: one_for_all (all ranks), one_for_one (only the"
        " failed rank), rest_for_one (it and the ranks above it)",
    )
    add_option(
        group,
        "--keep-going",
        action="store_true",
        help="the failure of a rank stops no other rank",
    )
    add_option(
        group,
        "--max-restarts",
        metavar="N",
        type=option_values.restart_count,
        help="when a rank fails, restart the ranks that --strategy names, up to N times (0)",
    )
    add_option(
        group,
        "--restart",
        metavar="KIND",
        choices=("transient", "permanent", "temporary"),
        help="restart a rank after: transient: a failure; permanent: every end; temporary: no end (transient)",
    )
    add_option(
        group,
        "--restart-window",
        metavar="DUR",
        type=option_values.span_s,
        help="count only the restarts of the last DUR (all)",
    )
    add_option(
        group,
        "--backoff",
        metavar="DUR",
        type=option_values.seconds,
        help="delay before the first restart (1); it doubles with each restart in a row, up to a minute; a longer DUR"
        " stays constant",
    )
    add_option(
        group,
        "--success-exit-codes",
        metavar="LIST",
        type=option_values.exit_codes,
        default=frozenset({0}),
        help="exit codes that are a success, such as 0,3 (0)",
    )
    add_option(
        group,
        "--uncounted-exit-codes",
        metavar="LIST",
        type=option_values.exit_codes,
        help="exit codes after which a rank restarts without a count toward --max-restarts, such as 75",
    )
    add_option(
        group,
        "--never-restart-exit-codes",
        metavar="LIST",
        type=option_values.exit_codes,
        help="exit codes after which the run ends at once",
    )
