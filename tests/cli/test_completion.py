"""``supervise completion``: the scripts are those of the present parser, and complete in real shells."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervise.cli.commands.completion import FOLDER, SHELLS
from tests.cli.command import Command, environment
from tests.cli.make_completions import scripts

BASH = """
eval "$("$0" -m supervise completion bash)"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_shtab_supervise supervise "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = '"$argv[1]" -m supervise completion fish | source; complete --do-complete "$argv[2]"'


@pytest.mark.parametrize("shell", SHELLS)
def test_the_scripts_are_of_the_present_parser(supervise: Command, shell: str):
    """After a change of options: ``python -m tests.cli.make_completions``."""
    text = Path(FOLDER, shell).read_text()
    assert text == scripts()[shell]
    assert supervise.supervise("completion", shell).stdout == text


def _shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} here")
    return found


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["ru"], {"run"}),
        (["run", "--max"], {"--max-restarts"}),
        (["run", "--strategy", ""], {"one_for_all", "one_for_one", "rest_for_one"}),
        (["run", "--role", "x", "--tim"], {"--timeout"}),
        (["completion", ""], set(SHELLS)),
    ],
)
def test_bash_completes(supervise: Command, python: str, words: list[str], found: set[str]):
    """Commands, options and their values."""
    done = _run(supervise, [_shell("bash"), "--norc", "-c", BASH, python, "supervise", *words])
    assert set(done.split()) == found


def test_fish_completes(supervise: Command, python: str):
    """Options and their values."""
    done = _run(supervise, [_shell("fish"), "--no-config", "-c", FISH, python, "supervise run --strategy "])
    assert {"one_for_all", "one_for_one", "rest_for_one"} <= {line.split("\t")[0] for line in done.splitlines()}


def test_zsh_reads_its_script(supervise: Command):
    """Completion in zsh needs a terminal; the syntax is checked."""
    _run(supervise, [_shell("zsh"), "-f", "-n", str(Path(FOLDER, "zsh"))])


def test_an_unknown_shell(supervise: Command):
    """The usage has the line that each shell needs."""
    done = supervise.supervise("completion", "tcsh")
    assert (done.returncode, done.stdout) == (2, "")
    assert 'eval "$(supervise completion bash)"' in done.stderr
    usage = supervise.supervise("completion", "--help").stdout
    assert done.stderr == f"{usage}\nsupervise completion: give one of bash, zsh, fish\n"


@pytest.fixture
def python() -> str:
    return sys.executable


def _run(supervise: Command, command: list[str]) -> str:
    env = environment(supervise.tmp_path)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
