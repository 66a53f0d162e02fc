"""The command ``supervise``."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from supervise.cli import streams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["main"]

_INTERRUPTED = 130
_COMMANDS = {
    **{each: each for each in ("check", "show", "logs", "report", "clean", "completion", "top")},
    "ls": "show",
    **dict.fromkeys(("status", "stop", "restart", "reload", "signal", "wait", "stacks"), "steering"),
}
"""The commands besides `run`: name to the module in which it is a function of this name."""

_BRIEF = """\
supervise run -n 4 train.py       start 4 ranks of a program
supervise run --file gang.toml    start the roles of a file
supervise ls                      list the runs, the newest first
supervise logs -f RUN             follow the output of the ranks of a run
supervise show RUN                tell what a run did, and why it failed
supervise status RUN              show the state of each rank
supervise top RUN                 show a live table of the ranks
supervise restart RUN web         restart a role, or ranks such as 2
supervise stop RUN                stop a run

Also: check, report, clean, reload, signal, wait, stacks, completion.
All commands: supervise --help. Options of a command: supervise run -h
"""
_USAGE = """\
usage: supervise run [OPTIONS] [--] PROGRAM [ARGS...]
       supervise run [OPTIONS] --file FILE [ROLE[=N]...]
       supervise check FILE
       supervise ls | show [RUN] | logs [RUN] [ROLE...] | report [RUN]
       supervise clean [RUN...]
       supervise status [RUN] | stop [RUN] [ROLE...] | restart [RUN] ROLE...
       supervise reload [RUN] [ROLE...] | signal [RUN] SIG [ROLE...]
       supervise stacks [RUN] [ROLE...]
       supervise wait [RUN] | top [RUN]
       supervise completion SHELL
       supervise --version

RUN may be left out if only one run is running; ROLE is a role, such as web, or
a rank, such as web.2 or 5.

Start a gang of processes, know which one failed first and why, and leave no
process behind.

commands:
  run         run PROGRAM as several ranks (see: supervise run --help)
  check       check a file for "supervise run --file", and print its ranks
  ls          list the runs, the newest first
  show        tell what a run did, from its files
  logs        show the output of the ranks of a run
  report      write a page about a run, and a trace
  clean       remove the directories of runs that are over
  status      show the state of a running gang and of each rank
  stop        stop a run, or ranks of it
  restart     restart ranks of a run
  reload      let ranks of a run read their configuration again
  signal      send a signal to ranks of a run
  wait        wait for the end of a run, and exit with its exit code
  stacks      show where the ranks of a run are in their code
  top         show a live table of the ranks of a run, and steer it by keys
  completion  print the completion script of bash, zsh or fish

options:
  -h          show examples
  --help      show this text
  --version   show the version
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code. Only ranks, help and version write to stdout.

    Args:
        argv: Arguments after the command's name. None: the arguments of this process; then the command also ignores
            signals at its end, so that a late Ctrl-C changes no exit code and shows no traceback.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        streams.open_closed()
        if words[:1] != ["run"]:
            streams.print_any_text()
    try:
        code = _dispatch(words, own_process=argv is None)
    except SystemExit as end:  # argparse raises it for --help and wrong usage
        code = end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:  # before the signal handlers were installed
        code = _INTERRUPTED
    except OSError as error:  # a sandbox refuses a system call
        from supervise._platform import refused

        if not refused(functions=False, failed=True):
            raise
        code = streams.failed(_command(words), error)
    finally:
        if argv is None:
            gc.enable()  # a program may have called this command by `runpy`
            gc.freeze()  # otherwise, the exit searches all objects for garbage: a tenth of the time of a short run
    return streams.flushed(_command(words), code)


def _command(words: list[str]) -> str:
    """Return the command for a message; "" if the first word is not one."""
    return words[0] if words and words[0] in ("run", *_COMMANDS) else ""


def _dispatch(words: list[str], *, own_process: bool) -> int:
    if words[:1] == ["help"] and words[1:]:
        words = [words[1], "--help"] if words[1] in ("run", *_COMMANDS) else words[1:]
    if words[:1] == ["run"]:
        return _run(words[1:], own_process=own_process)
    try:
        return _print(words, own_process=own_process)
    except OSError as error:  # stdout takes no output, or the folder of the runs cannot be read
        return streams.failed(_command(words), error)


def _run(words: list[str], *, own_process: bool) -> int:
    from supervise.cli.options import groups

    plain = sys.stdout
    if own_process:
        streams.print_any_text()
    try:
        given = groups.read(words)  # first, because --help needs no more
    except OSError as error:  # stdout takes no help, or the path of a gang file is relative to a deleted directory
        return streams.failed("run", error, of_stdout=not isinstance(error, FileNotFoundError))
    from supervise.cli.options.options import validated
    from supervise.cli.run.run import run

    options = validated(*given)
    if own_process:
        _collect_garbage()
    if own_process and not options.dry_run:  # ranks write their own bytes; to a closed stdout, they write nothing
        sys.stdout = plain if sys.__stdout__ is not None else None
    return run(options, own_process=own_process)


def _print(words: list[str], *, own_process: bool) -> int:
    """Run a command that writes to stdout; return its exit code."""
    command = words[0] if words else None
    if command in _COMMANDS:
        from importlib import import_module

        run: Callable[[list[str]], int] = getattr(
            import_module(f"supervise.cli.commands.{_COMMANDS[command]}"), command
        )
        if own_process:
            import signal

            _collect_garbage()
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                signal.signal(signal.SIGINT, signal.default_int_handler)  # its end flushes what the command has printed
            signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the starter of this process may have blocked signals
        return run(words[1:])
    if command in ("-h", "--help", "help"):
        print(_BRIEF if command == "-h" else _USAGE, end="")
        return 0
    if command in ("--version", "-V"):
        print(f"supervise {version()}")
        return 0
    print(_USAGE if command is None else _unknown(words), end="", file=sys.stderr)
    return 2


def _collect_garbage() -> None:
    """Enable the garbage collection that `supervise.__main__` has disabled, but not of what the imports have made."""
    gc.freeze()
    gc.enable()


def _unknown(words: list[str]) -> str:
    """Return the message about a command that does not exist: the line that is probably meant, or all commands."""
    import shlex

    from supervise._printable import one_line
    from supervise.cli.options import suggestions

    known = sorted(("run", *_COMMANDS))
    meant = one_line(shlex.join(suggestions.command(words, known)))
    hint = f"did you mean: supervise {meant}" if meant else f"the commands are {', '.join(known)}"
    return f"supervise: {words[0]!r} is not a command; {hint}\n"


def version() -> str:
    """Return the version of the installed package."""
    from importlib import metadata

    try:
        return metadata.version("supervise-gang")
    except metadata.PackageNotFoundError:
        return "(not installed: run from its source)"
