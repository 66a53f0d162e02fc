"""The command ``supervise``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_INTERRUPTED = 130

_USAGE = """\
usage: supervise run [OPTIONS] [--] PROGRAM [ARGS...]
       supervise --version

Start a gang of processes, know which one failed first and why, and leave nothing behind.

commands:
  run        run PROGRAM on several ranks of this machine (see: supervise run --help)

options:
  -h, --help  show this text
  --version   show the version
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code. Only ranks, help and version write to stdout.

    Args:
        argv: Arguments after the command's name. None: the arguments of this process; then the command also ignores
            signals at its end, so that a late Ctrl-C changes no exit code and shows no traceback.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words, own_process=argv is None)
    except SystemExit as end:  # argparse raises it for --help and wrong usage
        return end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:  # before the signal handlers were installed
        return _INTERRUPTED


def _dispatch(words: list[str], *, own_process: bool) -> int:
    command = words[0] if words else None
    if command == "run":
        from supervise.cli.options import parse
        from supervise.cli.run import run

        return run(parse(words[1:]), own_process=own_process)
    if command == "help" and words[1:2] == ["run"]:
        return _dispatch(["run", "--help"], own_process=own_process)
    if command in ("-h", "--help", "help"):
        print(_USAGE, end="")
        return 0
    if command == "--version":
        print(f"supervise {_version()}")
        return 0
    if command is None:
        print(_USAGE, end="", file=sys.stderr)
    else:
        import shlex

        from supervise._printable import one_line

        line = one_line(shlex.join(["supervise", "run", *words]))
        print(f"supervise: {command!r} is not a command; did you mean: {line}", file=sys.stderr)
    return 2


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("supervise-gang")
    except metadata.PackageNotFoundError:
        return "(not installed: run from its source)"
