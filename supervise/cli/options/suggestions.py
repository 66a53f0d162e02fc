"""The option or the command that a mistyped word probably means."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_CUTOFF = 0.8
_SHORTEST_PREFIX = 4
_OF_OTHERS = {
    "--np": "-n",
    "--n": "-n",
    "-c": "-n",
    "-j": "-n",
    "--ntasks": "-n",
    "--num-procs": "-n",
    "--nprocs": "-n",
    "--processes": "-n",
    "--workers": "-n",
    "-e": "--env",
    "-x": "--env",
    "--genv": "--env",
    "--export": "--env",
    "-w": "--cwd",
    "-C": "--cwd",
    "-d": "--cwd",
    "--wdir": "--cwd",
    "--workdir": "--cwd",
    "--chdir": "--cwd",
    "--grace": "--shutdown-timeout",
    "--grace-period": "--shutdown-timeout",
    "--stop-timeout": "--shutdown-timeout",
    "--stop-grace-period": "--shutdown-timeout",
    "--kill-after": "--shutdown-timeout",
    "--time-limit": "--timeout",
    "--retries": "--max-restarts",
    "--restarts": "--max-restarts",
    "--nodes": "--nnodes",
    "--num-nodes": "--nnodes",
    "--host-rank": "--node-rank",
    "--machine-rank": "--node-rank",
    "-o": "--log-dir",
    "--output": "--log-dir",
    "--output-dir": "--log-dir",
    "--logs": "--log-dir",
    "--no-color": "--color never",
    "--no-log-prefix": "--no-prefix",
    "--silent": "-q",
    "--debug": "-v",
}
"""Option of another launcher to the option of supervise."""
_COMMANDS_OF_OTHERS = {
    "up": "run",
    "exec": "run",
    "start": "run",
    "launch": "run",
    "ps": "ls",
    "list": "ls",
    "log": "logs",
    "tail": "logs",
    "prune": "clean",
    "rm": "clean",
    "inspect": "show",
    "down": "stop",
    "kill": "stop",
    "py-spy": "stacks",
}


def option(word: str, known: Iterable[str]) -> str:
    """Return the option that is probably meant, or ``""``.

    Args:
        word: An option as the user gave it, perhaps as ``--option=value``.
        known: The options.
    """
    name = word.partition("=")[0]
    if name in _OF_OTHERS:
        return _OF_OTHERS[name]
    return _close(name.replace("_", "-").lower(), [each for each in known if each.startswith("--")])


def command(word: str, known: Sequence[str]) -> str:
    """Return the command that is probably meant, or ``""``."""
    foreign = _COMMANDS_OF_OTHERS.get(word, "")
    if foreign in known:
        return foreign
    return _near(word, known)


def meant(word: str, known: Iterable[str]) -> str:
    """Return the question after a name that does not exist: ``; did you mean 'web'?``, or ``""``."""
    near = _near(word, known)
    return f"; did you mean {near!r}?" if near else ""


def _near(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word.lower(), list(known), 1, 0.6)
    return near[0] if near else ""


def _close(word: str, known: list[str]) -> str:
    """Return a known word close to `word`: with other hyphens, a longer end or a typing mistake; ``""`` if none is."""
    bare = {each.replace("-", ""): each for each in known}
    short = word.replace("-", "")
    if short in bare:
        return bare[short]
    begun = [each for each in known if each.startswith(word)]
    if len(begun) == 1 and len(short) >= _SHORTEST_PREFIX:
        return begun[0]
    near = difflib.get_close_matches(word, known, 1, _CUTOFF)
    return near[0] if near else ""
