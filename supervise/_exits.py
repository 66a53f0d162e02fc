"""What the exit code of a process says, in words."""

from __future__ import annotations

from signal import Signals

LOST_CODE = 255
"""The exit code in results of a rank whose exit status is unknown."""
OUT_OF_MEMORY = "out of memory suspected"
"""What is known of a process that was killed while the cgroup of the rank counted an OOM kill."""


def signal_name(number: int) -> str:
    """Return the name of a signal; ``signal 99`` if the signal has no name."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def ending(exitcode: int | None, *, core_dumped: bool = False, oom_kill: bool = False) -> str:
    """Format the end of a process: ``exit code 3``, ``SIGKILL``, ``SIGKILL, out of memory suspected``."""
    if exitcode is None:
        how = "exit status lost"
    else:
        how = f"exit code {exitcode}" if exitcode >= 0 else signal_name(-exitcode)
    return f"{how}{', core dumped' * core_dumped}{f', {OUT_OF_MEMORY}' * oom_kill}"
