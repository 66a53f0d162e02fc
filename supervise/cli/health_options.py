"""The options of ``supervise run`` about the health of a rank: readiness and the watchdog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise.cli import option_values
from supervise.cli.option_values import add_option

if TYPE_CHECKING:
    import argparse

    from supervise.watchdog import Watchdog


def check(parser: argparse.ArgumentParser, found: argparse.Namespace) -> None:
    """Refuse options that need others.

    Raises:
        SystemExit: With code 2 after an error message.
    """
    if found.ready_timeout is not None and found.ready != "notify":
        parser.error("--ready-timeout needs --ready notify; a rank is otherwise ready when its process runs")


def watchdog(parser: argparse.ArgumentParser, found: argparse.Namespace) -> Watchdog | None:
    """Return the watchdog that the options describe; None without a timeout.

    Raises:
        SystemExit: With code 2 after an error message.
    """
    from supervise.watchdog import Watchdog

    if found.heartbeat_timeout is None and found.output_timeout is None:
        if found.on_hang is not None:
            parser.error("--on-hang needs --heartbeat-timeout or --output-timeout, such as --heartbeat-timeout 60")
        return None
    return Watchdog(found.heartbeat_timeout, found.output_timeout, found.on_hang or "report")


def add_options(group: argparse._ArgumentGroup) -> None:
    """Add the options."""
    add_option(
        group,
        "--ready",
        metavar="WHEN",
        choices=("exec", "notify"),
        default="exec",
        help="a rank is ready: exec: when its process runs; notify: when it says so by supervise.notify, systemd-notify"
        " or another sender of READY=1 (exec)",
    )
    add_option(
        group,
        "--ready-timeout",
        metavar="DUR",
        type=option_values.span_s,
        help="time from the launch of a rank until it must be ready (60)",
    )
    add_option(
        group,
        "--heartbeat-timeout",
        metavar="DUR",
        type=option_values.span_s,
        help="a rank hangs if it sends no heartbeat or higher step for DUR, once it is ready or has sent one",
    )
    add_option(
        group,
        "--output-timeout",
        metavar="DUR",
        type=option_values.span_s,
        help="a rank hangs if it writes nothing for DUR, once it is ready or has written something",
    )
    add_option(
        group,
        "--on-hang",
        metavar="WHAT",
        choices=("report", "fail"),
        help="what follows a hang: report: a message and the stacks of all ranks; fail: also the failure of the rank"
        " (report)",
    )
