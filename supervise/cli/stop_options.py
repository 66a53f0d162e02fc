"""The options of ``supervise run`` about the end of a run: limits, signals, and processes that ranks leave behind."""

from __future__ import annotations

from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM
from typing import TYPE_CHECKING

from supervise._seconds import GRACE_S
from supervise.cli import option_values
from supervise.cli.option_values import add_option

if TYPE_CHECKING:
    import argparse


def add_options(group: argparse._ArgumentGroup) -> None:
    """Add the options."""
    add_option(
        group,
        "--shutdown-timeout",
        metavar="DUR",
        type=option_values.seconds,
        default=GRACE_S,
        help=f"time from the first signal to SIGKILL, for every kind of stop ({GRACE_S:g})",
    )
    add_option(
        group,
        "--timeout",
        metavar="DUR",
        type=option_values.time_limit,
        help="stop the run after this time; the exit code is then 124",
    )
    add_option(
        group,
        "--stop-signal",
        metavar="SIG",
        type=option_values.signal_number,
        help="the first signal of every stop (SIGTERM; if a signal stops supervise, that signal)",
    )
    add_option(
        group,
        "--signals-to-handle",
        metavar="LIST",
        type=option_values.signal_list,
        default=(SIGINT, SIGTERM, SIGHUP, SIGQUIT),
        help="signals that stop the run (SIGTERM,SIGINT,SIGHUP,SIGQUIT)",
    )
    add_option(
        group,
        "--containment",
        choices=("group", "sweep", "cgroup"),
        default="group",
        help="processes that leave the process group of their rank: group reports them, sweep finds and ends them,"
        " cgroup keeps them in a control group and ends them (needs cgroup v2)",
    )
    add_option(
        group,
        "--gate",
        action="store_true",
        help="hold each program until its lifeline is armed, so that the program ends even if supervise is killed"
        " during the start",
    )
