"""Write the completion scripts that the package ships: ``python -m tests.cli.make_completions``.

shtab makes them from the parser of ``supervise run``. A test compares them with those in the package.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import shtab

from supervise import _settings
from supervise.cli.commands.completion import FOLDER, SHELLS
from supervise.cli.commands.runs import RunParser
from supervise.cli.options.groups import run_parser

_OF_A_RUNNING_RUN = {
    "status": "show the state of a running gang",
    "stop": "stop a run",
    "restart": "restart ranks of a run",
    "reload": "let ranks of a run read their configuration again",
    "signal": "send a signal to ranks of a run",
    "wait": "wait for the end of a run",
    "stacks": "show where the ranks of a run are in their code",
    "top": "show a live table of the ranks of a run",
}
_OF_THE_PAST = {
    "ls": "list the runs",
    "show": "tell what a run did",
    "logs": "show the output of the ranks of a run",
    "report": "write a page about a run, and a trace",
    "clean": "remove the directories of runs that are over",
}
_FOLDERS = ("--log-dir", *(row.option for row in _settings.with_options() if row.kind is _settings.FOLDER))
_FILES = ("--env-file", "--file", "--metrics")
_OF_ROLES = ("--stdin", "--local-ranks-filter", "--exit-code-from", "--rank")
_PLACES = ("command", "run", "runs", "target", "sig", "ranks")
_NAMES = {
    "bash": "_supervise_names_or_files",
    "zsh": "_supervise_names_or_files",
    "fish": "(_supervise_names_or_files)",
    "preamble": {
        "bash": """
_supervise_names_or_files() {
  local IFS=$'\\n'
  compgen -W "$("${COMP_WORDS[0]}" completion names "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" ||
    compgen -f -- "$1"
}""",
        "zsh": """
_supervise_names_or_files() {
  local -a line=(${(Qz)LBUFFER}) names
  [[ $LBUFFER == *[[:space:]] ]] && line+=('')
  names=(${(f)"$(supervise completion names "${(@)line[line[(i)*supervise]+1,-1]}" 2>/dev/null)"})
  (( $#names )) && compadd -a names || _files
}""",
        "fish": """
function _supervise_names_or_files
  set -l words (commandline -opc) (commandline -ct)
  set -l names (supervise completion names $words[2..] 2>/dev/null)
  if set -q names[1]
    printf '%s\\n' $names
  else
    __fish_complete_path (commandline -ct)
  end
end""",
    },
}
"""The names of runs and roles, as shtab describes functions of shells; or files, if no name begins with the word."""


def _complete_names(commands: Iterable[argparse.ArgumentParser]) -> None:
    for action in (action for command in commands for action in command._actions):
        if set(action.option_strings) & set(_OF_ROLES) or action.dest in _PLACES:
            action.complete = _NAMES  # type: ignore[attr-defined]


def scripts() -> dict[str, str]:
    """Return the name of each shell to its script."""
    root = argparse.ArgumentParser(prog="supervise", description="Start and supervise gangs of processes.")
    root.add_argument("--version", action="store_true", help="show the version")
    commands = root.add_subparsers(dest="command")
    run = run_parser()
    for action in run._actions:
        if set(action.option_strings) & set(_FOLDERS):
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif set(action.option_strings) & set(_FILES):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        if action.dest == "command":
            action.help = "program and its arguments"
    commands.add_parser("run", help="run PROGRAM on several ranks of this machine")
    commands.choices["run"] = run
    check = commands.add_parser("check", help='check a file for "supervise run --file"')
    check.add_argument("file").complete = shtab.FILE  # type: ignore[attr-defined]
    for name, text in (_OF_THE_PAST | _OF_A_RUNNING_RUN).items():
        commands.add_parser(name, help=text)
        commands.choices[name] = RunParser(name)
        for action in commands.choices[name]._actions:
            if action.dest in ("output", "trace"):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    _complete_names(commands.choices.values())
    completion = commands.add_parser("completion", help="print the completion script of a shell")
    completion.add_argument("shell", choices=SHELLS)
    return {shell: shtab.complete(root, shell=shell) for shell in SHELLS}


if __name__ == "__main__":
    for shell, text in scripts().items():
        Path(FOLDER, shell).write_text(text, encoding="utf-8")
