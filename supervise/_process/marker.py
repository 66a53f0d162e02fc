"""What the descendants of a rank inherit, wherever they go; `descent` knows them again by it.

One environment variable names the gang (by a random token) and the rank. /proc shows the environment
that a process had at its exec, so that everything a rank executes carries it. Of a process that was
forked off the host or a fork server it shows theirs: such a rank also holds a file with that name,
which its own forked children inherit.
"""

from __future__ import annotations

import os

from supervise._process.memory import anonymous_file

VARIABLE = "SUPERVISE_WORKER"
FILE = "supervise-worker-"


def new_token() -> str:
    """Return the name of a gang that no other has."""
    return os.urandom(8).hex()


def value(token: str, rank: int) -> str:
    """Return the variable's value for a rank. In a gang within a gang, the outer one's stands before it."""
    return f"{os.environ.get(VARIABLE, '')} {token}:{rank}".lstrip()


def carry() -> None:
    """Hold the marker as a file, too. In a rank that was forked, which has its environment already."""
    mine = os.environ.get(VARIABLE, "").rpartition(" ")[2]
    if mine:
        anonymous_file(FILE + mine)  # open for as long as the process lives
