"""``supervise completion SHELL``: the completion script of a shell, which shtab made from the parser."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "completions")
SHELLS = ("bash", "zsh", "fish")
_USAGE = """\
usage: supervise completion bash|zsh|fish

Print a completion script. To use it:
  bash   eval "$(supervise completion bash)"                in ~/.bashrc
  zsh    supervise completion zsh > ~/.zfunc/_supervise      with ~/.zfunc in fpath, before compinit
  fish   supervise completion fish > ~/.config/fish/completions/supervise.fish
"""


def completion(words: Sequence[str]) -> int:
    """Print a script to stdout; return the exit code."""
    if list(words) in (["-h"], ["--help"]):
        print(_USAGE, end="")
        return 0
    if len(words) != 1 or words[0] not in SHELLS:
        print(f"{_USAGE}\nsupervise completion: give one of {', '.join(SHELLS)}", file=sys.stderr)
        return 2
    with open(os.path.join(FOLDER, words[0]), encoding="utf-8") as file:
        print(file.read(), end="")
    return 0
