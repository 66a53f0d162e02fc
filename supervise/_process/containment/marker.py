"""What the descendants of a rank inherit, wherever they go; `ancestry` knows them again by it.

One environment variable names the gang (by a random token) and the rank. /proc shows the environment
that a process had at its exec, so that everything a rank executes carries it. Of a process that was
forked off the host or a fork server it shows theirs: such a rank also holds a file with that name,
which its own forked children inherit.
"""

from __future__ import annotations

import os

from supervise._process.files import anonymous_file

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


# Others can name their files and variables as they like: what is not exactly of our making is no marker.

_RANK = rb"(\d{1,7})"
_IN_ENVIRONMENT = rb"(?:\A|\0)%b=(?:[^\0]* )?%b:" + _RANK + rb"(?=[ \0]|\Z)"
_FILE = rb"/memfd:%b%b:" + _RANK + rb" \(deleted\)"
"""As `anonymous_file` names it."""


def rank_in_environment(environment: bytes, token: str) -> int | None:
    """Return the rank that the environment of a process names for a gang; None where it names none."""
    import re

    found = re.search(_IN_ENVIRONMENT % (VARIABLE.encode(), token.encode()), environment)
    return None if found is None else int(found[1])


def rank_of_file(target: bytes, token: str) -> int | None:
    """Return the rank that an open file, by its link in /proc, names for a gang; None where it names none."""
    import re

    found = re.fullmatch(_FILE % (FILE.encode(), token.encode()), target)
    return None if found is None else int(found[1])
