"""``supervise completion SHELL``: the completion script of a shell, which shtab made from the parser.

The scripts ask ``supervise completion names`` for the names of runs and roles.
"""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentTypeError
from contextlib import suppress
from signal import Signals
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "completions")
SHELLS = ("bash", "zsh", "fish")
_WITH_ROLES = ("logs", "stop", "restart", "reload", "signal", "stacks")
_OTHER_VALUES = {"--stdin": ("all", "none"), "--exit-code-from": ("root-cause",)}
"""Option of ``run`` to the values besides roles."""
_PLAIN = re.compile(r"[\w.@%+,-]+")
"""A name that no shell expands."""
_USAGE = """\
usage: supervise completion bash|zsh|fish

Print a completion script. To use it:
  bash   eval "$(supervise completion bash)", in ~/.bashrc
  zsh    supervise completion zsh > ~/.zfunc/_supervise
         fpath=(~/.zfunc $fpath), before compinit in ~/.zshrc
  fish   supervise completion fish > ~/.config/fish/completions/supervise.fish
"""


def completion(words: Sequence[str]) -> int:
    """Print a script to stdout, or the names for one; return the exit code."""
    if words[:1] == ["names"] and words[2:]:
        with suppress(ArgumentTypeError, OSError):
            _print_names(words[1], words[2:-1], words[-1])
        return 0
    if list(words) in (["-h"], ["--help"]):
        print(_USAGE, end="")
        return 0
    if len(words) != 1 or words[0] not in SHELLS:
        print(f"{_USAGE}\nsupervise completion: give one of {', '.join(SHELLS)}", file=sys.stderr)
        return 2
    with open(os.path.join(FOLDER, words[0]), encoding="utf-8") as file:
        print(file.read(), end="")
    return 0


def _print_names(command: str, before: Sequence[str], last: str) -> None:
    """Print the names that may be in the place of a word, a line each.

    Args:
        command: The command.
        before: The words between the command and the word.
        last: The beginning of the word.
    """
    list_of, comma, _ = last.rpartition(",")
    for name in _of_file(before) if command == "run" else _of_runs(command, before):
        whole = f"{list_of}{comma}{name}"
        if whole.startswith(last) and _PLAIN.fullmatch(whole) and (comma or "," not in name):
            print(whole)


def _of_file(before: Sequence[str]) -> Iterable[str]:
    """Return the roles of the file of ``--file``, and the other values of the option before the word."""
    from supervise.cli.options.gang_file import GangFile

    words = [part for word in before for part in word.split("=", 1) if part]  # bash passes --file=F as three words
    file = words[words.index("--file") + 1 :][:1] if "--file" in words else []
    return [
        *_OTHER_VALUES.get("".join(before[-1:]), ()),
        *(role for path in file for role in GangFile(os.path.expanduser(path)).roles),
    ]


def _of_runs(command: str, before: Sequence[str]) -> Iterable[str]:
    """Return the names of runs if no run is given yet, and the roles of the given or the usual run; signals for SIG."""
    from supervise.cli.commands.runs import NoSuchRunError, default_run, recorded_runs
    from supervise.cli.commands.steering import SteeringParser

    past, names, given = command in ("show", "logs", "report", "clean"), list[str](), dict[str, Any]()
    for word in before:
        with suppress(NoSuchRunError):
            given.setdefault("run", SteeringParser("status").find(word))
    if not given or command == "clean":
        names = [run.name for run in recorded_runs()[1] if past or run.state == "running"]
        with suppress(NoSuchRunError):
            given.setdefault("run", default_run(newest=past)[0])
    signals = [sig.name.removeprefix("SIG") for sig in Signals]
    if command == "signal" and not any(
        word.isdigit() or word.upper().removeprefix("SIG") in signals for word in before
    ):
        return [*names, *signals]
    return [*names, *(role for run in given.values() if command in _WITH_ROLES for role, _ in run.roles)]
