"""The marker that all descendants of a rank inherit, by which `escapees` recognizes them.

The marker is an environment variable. It names the gang by a random token, and the rank and its life by a number. /proc
shows the environment that a process had at its exec, so every program that a rank executes has the marker. For a forked
process, /proc shows the environment of the host or the fork server instead. Therefore a forked rank also holds an open
file with the marker as its name, which its own forked children inherit.
"""

from __future__ import annotations

import os

from supervise._runtime.descriptors import anonymous_file

VARIABLE = "SUPERVISE_WORKER"
FILE = "supervise-worker-"


def of_gang(token: str) -> str:
    """Return the value of the variable for the ranks of a gang, which ``:`` and the number of a life complete.

    If the gang runs within another gang, the marker of the outer gang comes first.
    """
    return f"{os.environ.get(VARIABLE, '')} {token}".lstrip()


def carry() -> None:
    """Hold the marker as an open file. A forked rank calls this function after its environment is set."""
    mine = os.environ.get(VARIABLE, "").rpartition(" ")[2]
    if mine:
        anonymous_file(FILE + mine)  # open until the process exits


# The patterns match exactly what this module writes, because other programs may use similar names.

_NUMBER = rb"(\d{1,15})"
_IN_ENVIRONMENT = rb"(?:\A|\0)%b=(?:[^\0]* )?%b:" + _NUMBER + rb"(?=[ \0]|\Z)"
_FILE = rb"/memfd:%b%b:" + _NUMBER + rb" \(deleted\)"
"""How /proc shows the link of a file from `anonymous_file`."""


def number_in_environment(environment: bytes, token: str) -> int | None:
    """Return the number for a gang in the environment of a process; None if the environment names none."""
    if token.encode() not in environment:  # almost all processes: a pattern takes long to compile
        return None
    import re

    found = re.search(_IN_ENVIRONMENT % (VARIABLE.encode(), token.encode()), environment)
    return None if found is None else int(found[1])


def number_of_file(target: bytes, token: str) -> int | None:
    """Return the number for a gang in the name of an open file, given its link in /proc; None if it names none."""
    import re

    found = re.fullmatch(_FILE % (FILE.encode(), token.encode()), target)
    return None if found is None else int(found[1])
