"""``supervise completion``: the scripts are those of the present parser, and complete in real shells."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervise.cli.commands.completion import FOLDER, SHELLS
from tests.cli.command import Command, environment
from tests.cli.make_completions import scripts

BASH = """
supervise() { "$python" -m supervise "$@"; }
python=$0
eval "$("$0" -m supervise completion bash)"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_shtab_supervise supervise "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = """
set python $argv[1]
function supervise; "$python" -m supervise $argv; end
supervise completion fish | source
complete --do-complete "$argv[2]"
"""
UP = """command = ["sh", "-c", "echo up; exec sleep 1000"]\n"""
ROLES = f"[roles.web]\n{UP}count = 2\n[roles.worker]\n{UP}"


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


@pytest.fixture
def job(supervise: Command) -> Iterator[str]:
    """The only run that is running: roles web and worker; another one has ended."""
    supervise.supervise("run", "--run-id", "past", "true")
    (supervise.tmp_path / "gang.toml").write_text(ROLES)
    with supervise.started("--run-id", "job", "--file", "gang.toml") as run:
        run.hear(3)
        yield next(path.name for path in (supervise.tmp_path / "runs").glob("job_*"))
        run.signal(signal.SIGTERM)
        run.end()


SIGNALS = {sig.name.removeprefix("SIG") for sig in signal.Signals}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("stop ", {"JOB", "web", "worker"}),
        ("logs job ", {"web", "worker"}),
        ("restart job web wo", {"worker"}),
        ("reload web,wo", {"web,worker"}),
        ("stacks job --rank w", {"web", "worker"}),
        ("status ", {"JOB"}),
        ("signal job US", {"USR1", "USR2"}),
        ("signal job HUP ", {"web", "worker"}),
        ("signal HUP w", {"web", "worker"}),
        ("clean p", {"PAST"}),
        ("run --file gang.toml w", {"web", "worker"}),
        ("run --file gang.toml --exit-code-from ", {"root-cause", "web", "worker"}),
        ("run --file = gang.toml --stdin ", {"all", "none", "web", "worker"}),
        ("run --file gang.toml --local-ranks-filter web,", {"web,web", "web,worker"}),
        ("run gang", {"gang.toml"}),
        ("stop gang", {"gang.toml"}),
        ("run --file nothing.toml -q gang", {"gang.toml"}),
    ],
)
def test_names_of_runs_and_roles_are_completed(supervise: Command, python: str, job: str, line: str, found: set[str]):
    """Of the run that is named or the only one, or of the file of ``--file``; files if no name begins so."""
    past = next(path.name for path in (supervise.tmp_path / "runs").glob("past_*"))
    wanted = {{"JOB": job, "PAST": past}.get(name, name) for name in found}
    words = line.split(" ")
    done = _run(supervise, [_shell("bash"), "--norc", "-c", BASH, python, "supervise", *words])
    assert set(done.split()) == wanted
    if shutil.which("fish") is not None and "=" not in words:
        done = _run(supervise, ["fish", "--no-config", "-c", FISH, python, f"supervise {line}"])
        assert {each.split("\t")[0] for each in done.splitlines()} == wanted


def test_a_name_that_a_shell_would_expand_is_not_completed(supervise: Command, python: str):
    """``compgen`` expands its words, so a role of a file from somewhere could run a command."""
    (supervise.tmp_path / "gang.toml").write_text('[roles."$(touch owned)"]\ncommand = "true"\n' + ROLES)
    words = ["run", "--file", "gang.toml", ""]
    done = _run(supervise, [_shell("bash"), "--norc", "-c", BASH, python, "supervise", *words])
    assert set(done.split()) == {"web", "worker"}
    assert not (supervise.tmp_path / "owned").exists()


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
    done = subprocess.run(
        command, env=env, cwd=supervise.tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
