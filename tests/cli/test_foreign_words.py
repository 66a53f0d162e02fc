"""What users of other tools type: each gets the command, the option or the key that does it here."""

import os
import stat
import sys
from pathlib import Path

import pytest

from supervise.cli.options import suggestions
from supervise.cli.options.parts import role_settings
from tests.cli.command import Command
from tests.patience import PATIENCE_S

COMMANDS = {
    "kill job": "stop job",
    "kill -9 job": "stop job",
    "kill -s HUP job": "signal job HUP",
    "down": "stop",
    "ps": "ls",
    "ps -a": "ls",
    "ps job": "status job",
    "list": "ls",
    "tail job": "logs -f job",
    "tail -f job": "logs -f job",
    "log job": "logs job",
    "up": "run --file gang.toml",
    "up -d": "run --file gang.toml",
    "start": "run --file gang.toml",
    "start web": "run --file gang.toml",
    "start train.py": "run train.py",
    "exec train.py -x": "run train.py -x",
    "version": "--version",
    "gang.toml": "run --file gang.toml",
    "Procfile": "run --file Procfile",
    "start Procfile": "run --file Procfile",
    "true x": "run true x",
    "./missing": "run ./missing",
    "statos job": "status job",
    "scale web=3": "run --file gang.toml web=3",
    "clena job": "clean job",
    **dict.fromkeys(("shutdown", "quit", "exit", "halt"), "stop"),
    "validate gang.toml": "check gang.toml",
    "lint gang.toml": "check gang.toml",
    "delete job": "clean job",
    "describe job": "show job",
    "monit": "top",
    "--verison": "--version",
}
"""Words after ``supervise`` to those that do it."""


@pytest.mark.parametrize(("typed", "meant"), COMMANDS.items(), ids=COMMANDS)
def test_a_command_of_another_tool(supervise: Command, typed: str, meant: str):
    """Also if a program has this name."""
    for name in ("train.py", "gang.toml", "Procfile"):
        (supervise.tmp_path / name).touch()
    done = supervise.refused(*typed.split())
    first = typed.split(maxsplit=1)[0]
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"supervise: {first!r} is not a command; did you mean: supervise {meant}\n"


@pytest.mark.parametrize(
    "typed",
    ["port", "export", "options", "pause", "reboot", "reboot now", "poweroff", "true", "exec job sh", "clone job"],
)
def test_a_word_that_no_command_resembles_gets_the_list_of_commands(supervise: Command, typed: str):
    """It may be a program in PATH. ``clone`` is not ``clean``, which removes runs."""
    first = typed.split(maxsplit=1)[0]
    assert supervise.refused(*typed.split()).stderr.startswith(
        f"supervise: {first!r} is not a command; the commands are check, clean, completion, logs, "
    )


@pytest.mark.parametrize("word", ["-d", "--detach"])
def test_a_run_in_the_background_is_the_shells(supervise: Command, word: str):
    """Unless the word after it is a folder, as in honcho."""
    assert "end the line with & to go on meanwhile" in supervise.refused("run", word, "true").stderr
    (supervise.tmp_path / "app").mkdir()
    assert "-d; did you mean --cwd?" in supervise.refused("run", "-d", "app", "true").stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("logs", "-n", "10", "job"), "-n is not an option of logs; it has -f/--follow, --rank, "),
        (("logs", "--tail=10", "job"), "--tail is not an option of logs; it has "),
        (("logs", "--folow", "job"), "--folow is not an option of logs; did you mean --follow?"),
        (("stop", "--time", "3", "job"), "--time is not an option of stop; did you mean --timeout?"),
        (("ls", "--runing"), "--runing is not an option of ls; did you mean --running?"),
        (("ls", "-a"), "-a is not an option of ls; it has --running, --json"),
        (("clean", "--older", "1d"), "--older is not an option of clean; did you mean --older-than?"),
        (("signal", "job", "-9"), "-9 is not an option of signal; give KILL"),
        (("signal", "job", "-HUP"), "-HUP is not an option of signal; give HUP"),
        (("run", "--count", "2", "true"), "--count; did you mean -n?"),
        (("run", "--procfile", "F"), "--procfile; did you mean --file?"),
        (("run", "gangfile"), "gangfile is not a program; for its roles, give: supervise run --file gangfile"),
    ],
)
def test_an_option_that_a_command_does_not_have(supervise: Command, words: tuple[str, ...], told: str):
    """Its value is not taken for the name of a run."""
    (supervise.tmp_path / "gangfile").write_text("[roles.a]\ncommand = 'true'\n")
    done = supervise.refused(*words)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_file_of_roles_as_the_program(supervise: Command):
    """It is not to be made executable; one that is executable is a program."""
    file = supervise.tmp_path / "g.toml"
    assert "g.toml is not in PATH; a file of roles is given by --file g.toml\n" in supervise.run("g.toml").stderr
    file.write_text("[roles.a]\ncommand = 'echo hi'\n")
    for name in ("g.toml", "./g.toml"):
        done = supervise.refused("run", name)
        assert done.returncode == 2
        assert f"{name} is not a program; for its roles, give: supervise run --file {name}\n" in done.stderr
    file.write_text("#!/bin/sh\necho run\n")
    file.chmod(stat.S_IRWXU)
    assert supervise.run("./g.toml").stdout == "[default0]:run\n"


@pytest.mark.parametrize("words", [("--file", "docker-compose.yml"), ("docker-compose.yml",)])
def test_a_file_of_docker_compose_gets_a_table_of_keys(supervise: Command, words: tuple[str, ...]):
    """Those that supervise has, by the names here."""
    (supervise.tmp_path / "docker-compose.yml").write_text("services: {}\n")
    done = supervise.refused("run", *words)
    assert done.returncode == 2
    assert "is a table [roles.NAME] with a command; its other keys are here: replicas: count, " in done.stderr
    for pair in ("environment: env", "working_dir: cwd", "healthcheck: ready"):
        assert pair in done.stderr


AT_THE_TOP = "belongs at the top of the file, above the first [roles.NAME]"
KEYS = {
    **dict.fromkeys(("n", "replicas", "deploy", "scale", "numprocs", "autostart"), "did you mean 'count'?"),
    **dict.fromkeys(("cmd", "entrypoint", "ExecStart"), "did you mean 'command'?"),
    **dict.fromkeys(("stdin_open", "tty"), "did you mean 'stdin'?"),
    **dict.fromkeys(("stop_grace_period", "TimeoutStopSec"), "did you mean 'shutdown-timeout'?"),
    **dict.fromkeys(("start_period", "TimeoutStartSec"), "did you mean 'ready-timeout'?"),
    "startsecs": "did you mean 'ready'?",
    "priority": "did you mean 'needs'?",
    "interval": "did you mean 'alive-interval'?",
    "retries": "did you mean 'alive-failures'?",
    "KillMode": "did you mean 'kill-mode'?",
    "WorkingDirectory": "did you mean 'cwd'?",
    "environment": "did you mean 'env'?",
    "working_dir": "did you mean 'cwd'?",
    "readiness_probe": "did you mean 'ready'?",
    "autorestart": "did you mean 'restart'?",
    **dict.fromkeys(("RestartSec", "backoff_seconds"), f"did you mean 'backoff'? It {AT_THE_TOP}"),
    **dict.fromkeys(("exitcodes", "SuccessExitStatus"), f"did you mean 'success-exit-codes'? It {AT_THE_TOP}"),
    "redirect_stderr": f"did you mean 'merge'? It {AT_THE_TOP}",
    "stdout_logfile": f"did you mean 'log-dir'? It {AT_THE_TOP}",
    "logging": f"did you mean 'log-max-bytes'? It {AT_THE_TOP}",
    **dict.fromkeys(("image", "build", "volumes"), "ranks are programs, not containers; give a command"),
    **dict.fromkeys(("max-restarts", "max_restarts"), f"it {AT_THE_TOP}"),
    "zork": "roles.web: 'zork' is not a key; the keys are command, count, ",
}
"""Key of a role to a part of the message."""


@pytest.mark.parametrize(("key", "told"), KEYS.items(), ids=KEYS)
def test_a_key_of_another_file(supervise: Command, key: str, told: str):
    """Each gets the key of the same meaning."""
    (supervise.tmp_path / "gang.toml").write_text(f"[roles.web]\ncommand = 'true'\n{key} = 2\n")
    done = supervise.refused("check", "gang.toml")
    assert done.returncode == 2
    assert told in done.stderr


def test_each_foreign_key_means_keys_that_are_checked_by_name():
    """A suggestion that is not a key here is left out; a key that exists is never suggested for itself."""
    keys = ("command", "count", "module", "python", "run-path", "env", "cwd", *role_settings())
    for word, meant in suggestions.KEYS_OF_OTHERS.items():
        assert word not in keys
        assert suggestions.keys(word, keys) == [key for key in meant if key in keys]


@pytest.mark.parametrize("table", ["role", "services", "programs"])
@pytest.mark.parametrize("more", ["", "[roles.other]\ncommand = 'true'\n"])
def test_roles_below_another_word(supervise: Command, table: str, more: str):
    """The message has the line as it should be."""
    (supervise.tmp_path / "gang.toml").write_text(f"[{table}.web]\ncommand = 'true'\n{more}")
    told = supervise.refused("check", "gang.toml").stderr
    assert f"; did you mean [roles.web] in place of [{table}.web]?\n" in told


OF_ROLES = {
    "command": "it",
    "count": "it",
    "n": "did you mean 'count'? It",
    "nproc": "did you mean 'count'? It",
    "healthcheck": "did you mean 'ready' or 'alive'? It",
    "neds": "did you mean 'needs'? It",
    "comand": "did you mean 'command'? It",
}
"""Key above the roles to the beginning of the hint."""


@pytest.mark.parametrize(("key", "hint"), OF_ROLES.items(), ids=OF_ROLES)
def test_a_key_of_a_role_above_the_roles(supervise: Command, key: str, hint: str):
    """The message says where it belongs."""
    (supervise.tmp_path / "gang.toml").write_text(f"{key} = 'true'\n[roles.web]\ncommand = 'true'\n")
    told = supervise.refused("check", "gang.toml").stderr
    assert f"{key!r} is not a key; {hint} belongs to a role: write it below a line such as [roles.trainer]\n" in told


OF_GANGS = {
    "cwdd": "did you mean 'cwd'?",
    "envs": "did you mean 'env'?",
    "redirect_stderr": "did you mean 'merge'?",
    "RestartSec": "did you mean 'backoff'?",
}
"""Key above the roles to a hint."""


@pytest.mark.parametrize(("key", "hint"), OF_GANGS.items(), ids=OF_GANGS)
def test_a_mistyped_key_of_the_whole_gang(supervise: Command, key: str, hint: str):
    """`cwd` and `env` are keys, too, although no option of a file has their form."""
    (supervise.tmp_path / "gang.toml").write_text(f"{key} = 'x'\n[roles.web]\ncommand = 'true'\n")
    assert f"{key.replace('_', '-')!r} is not a key; {hint}\n" in supervise.refused("check", "gang.toml").stderr


def test_a_key_that_resembles_no_other(supervise: Command):
    """The message says where the keys are."""
    (supervise.tmp_path / "gang.toml").write_text("watch = 1\n[roles.web]\ncommand = 'true'\n")
    told = supervise.refused("check", "gang.toml").stderr
    assert "'watch' is not a key; the keys above [roles.NAME] are the options of supervise run --help" in told


KINDS = {"always": "permanent", "unless-stopped": "permanent", "on-failure": "transient", "no": "temporary"}


@pytest.mark.parametrize(("kind", "meant"), KINDS.items(), ids=KINDS)
def test_a_kind_of_restart_of_another_tool(supervise: Command, kind: str, meant: str):
    """As an option and in a file."""
    (supervise.tmp_path / "gang.toml").write_text(f"[roles.web]\ncommand = 'true'\nrestart = '{kind}'\n")
    for words in (("run", "--restart", kind, "true"), ("check", "gang.toml")):
        done = supervise.refused(*words)
        assert done.returncode == 2
        assert f"{kind!r}" in done.stderr
        assert f"; did you mean {meant}?\n" in done.stderr


@pytest.mark.parametrize("value", ["sleep 1", '"sleep 1', "5m"])
def test_a_text_without_its_quotes(supervise: Command, value: str):
    (supervise.tmp_path / "gang.toml").write_text(f"[roles.web]\ncommand = {value}\n")
    told = supervise.refused("check", "gang.toml").stderr
    assert "(at line 2, " in told
    assert '; a text is between two quotes, such as command = "sleep 1"\n' in told


def test_a_program_as_the_file_of_roles(supervise: Command):
    (supervise.tmp_path / "train.py").write_text("import os\n")
    told = supervise.refused("run", "--file", "train.py").stderr
    assert "'import os' is not NAME: COMMAND; to run it as a program: supervise run train.py\n" in told


@pytest.mark.parametrize("head", ["[program:web]", "[Service]", "[watcher:web]"])
def test_a_file_of_another_process_manager(supervise: Command, head: str):
    (supervise.tmp_path / "web.conf").write_text(f"{head}\ncmd = true\n")
    told = supervise.refused("run", "--file", "web.conf").stderr
    assert f"line 1: '{head}' is not NAME: COMMAND; the tables of other tools are [roles.NAME] with a command" in told


def test_words_for_roles_in_the_wrong_place(supervise: Command):
    """A role before the file, and a number of ranks by the option of docker compose."""
    (supervise.tmp_path / "gang.toml").write_text("[roles.web]\ncommand = 'true'\n")
    done = supervise.run("web", "--file", "gang.toml")
    assert done.returncode == 127
    assert "; options are before PROGRAM, and roles after the file, such as: --file gang.toml web\n" in done.stderr
    told = supervise.refused("run", "--file", "gang.toml", "--scale", "web=3").stderr
    assert "--scale; did you mean --file gang.toml web=3?\n" in told


SURE = ["a | b", "a || b", "a && b", "a > out", "a >> out", "a 2>&1", "a < in", "a ; b", "a &"]
MAYBE = [
    "echo $(date)",
    "echo `date`",
    "wc *.csv",
    "echo $HOME",
    "echo ${HOME}",
    "cd x; a",
    "a >out",
    "a>>out",
    "a 2>out",
    "a <in",
    "a b&",
]
NO = [
    "echo 'a | b'",
    'echo "|"',
    "grep -E a|b",
    r"find . -exec ls {} \;",
    "awk '{print $1}'",
    r"echo \*",
    "a '*.csv'",
    "a b->c",
    "a --b=>c",
    "a 'b>c'",
    "a ?b=1&c=2",
]


@pytest.mark.parametrize("command", [*SURE, *MAYBE, *NO])
def test_words_of_a_shell_in_a_command(supervise: Command, command: str):
    """An operator that stands alone is refused; what may be meant as it is gets a note; a quoted word gets neither."""
    text = command.replace("\\", "\\\\").replace('"', '\\"')
    (supervise.tmp_path / "gang.toml").write_text(f'[roles.web]\ncommand = "{text}"\n')
    done = supervise.refused("check", "gang.toml")
    with_shell = f'for a shell, give command = ["sh", "-c", "{text}"]'
    assert ("there is no shell here" in done.stderr) == (command not in NO)
    assert (with_shell in done.stderr) == (command not in NO)
    assert ("would be an argument" in done.stderr) == (command in SURE)
    if command in MAYBE:
        assert "cannot start" in done.stderr or done.returncode == 0


def test_the_note_about_a_shell_comes_with_the_run_and_with_its_check(supervise: Command):
    """The suggested command is a valid one, and has no note."""
    file = supervise.tmp_path / "gang.toml"
    file.write_text("[roles.web]\ncommand = 'echo *'\n")
    run = supervise.run("--file", "gang.toml")
    assert run.stdout == "[web0]:*\n"
    note = "gang.toml: roles.web: there is no shell here, so * is passed as it is; for a shell, give command = "
    assert f"supervise: {note}" in run.stderr
    check = supervise.supervise("check", "gang.toml")
    assert check.returncode == 0
    assert f"supervise check: {note}" in check.stderr
    file.write_text(f"[roles.web]\ncommand = {run.stderr.partition('give command = ')[2].partition(', or quote')[0]}\n")
    run = supervise.run("--file", "gang.toml")
    assert run.stdout == "[web0]:gang.toml runs\n"
    assert "no shell" not in run.stderr
    file.write_text("[roles.web]\ncommand = 'nope *'\n")
    assert f"supervise: {note}" in supervise.run("--file", "gang.toml").stderr, "also if the program is not found"


def test_a_command_line_in_one_word(supervise: Command):
    """It is not the name of a program."""
    done = supervise.run("echo a | cat")
    assert done.returncode == 127
    assert "its words are separate arguments; for a shell: sh -c 'echo a | cat'\n" in done.stderr


@pytest.mark.parametrize(("code", "hinted"), [(0, True), (3, False)])
def test_a_server_that_goes_into_the_background(supervise: Command, code: int, hinted: bool):
    """It has ended before it was ready, and with success."""
    done = supervise.run("--ready", "file:never", "--", "sh", "-c", f"exit {code}")
    assert done.returncode == (code or 1)
    assert f"rank 0 ended before it was ready: exit code {code}" in done.stderr
    assert ("goes into the background has ended for supervise: keep it in the foreground\n" in done.stderr) == hinted


@pytest.mark.parametrize(("words", "hinted"), [(("true",), True), (("sleep", "1000"), True), (("false",), False)])
def test_a_program_that_never_says_that_it_is_ready(supervise: Command, words: tuple[str, ...], hinted: bool):
    """The message says what to call; a program that has failed has another problem."""
    timeout = "1" if hinted else str(PATIENCE_S)
    done = supervise.run("--ready", "notify", "--ready-timeout", timeout, "--", *words)
    assert done.returncode != 0
    hint = "call supervise.notify(ready=True) in it, or systemd-notify --ready, or leave out --ready"
    assert (hint in done.stderr) == hinted


# Python programs that cannot import


@pytest.fixture
def environment_of_another_python(tmp_path: Path) -> Path:
    """An environment that is active, and whose Python runs nothing."""
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/python").symlink_to(sys.executable)
    return tmp_path / "env"


def test_a_missing_module_names_the_python_and_the_active_environment(
    supervise: Command, environment_of_another_python: Path
):
    """For a file, a module, and a Python that is given as the program."""
    active = environment_of_another_python
    (supervise.tmp_path / "train.py").write_text("import no_such_module\n")
    for words in (
        *(("train.py",), ("-m", "train"), ("-n", "2", "train.py"), ("--no-record", "-n", "2", "train.py")),
        *(("-m", "no_such_module"), ("-m", "no_such.module")),
    ):
        done = supervise.run(*words, VIRTUAL_ENV=str(active))
        [note] = [line for line in done.stderr.splitlines() if line.startswith("  note: ")]
        rank = note.partition("rank ")[2][0]
        what = " ".join(words[words.index("-m") :]) if "-m" in words else "train.py"
        command = f"{active}/bin/python {what}"
        assert note == f"  note: rank {rank} ran {sys.executable}, and VIRTUAL_ENV is {active}; for that one: {command}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = supervise.run("python", "train.py", VIRTUAL_ENV=str(active), PATH=path)
    assert f"rank 0 ran {Path(sys.executable).parent}/python, and VIRTUAL_ENV is {active}" in done.stderr


def test_an_active_environment_that_is_gone_is_no_advice(supervise: Command):
    """The shell still names it after it was removed."""
    done = supervise.run("-m", "no_such_module", VIRTUAL_ENV=f"{supervise.tmp_path}/gone")
    note = f"rank 0 ran {sys.executable}, and VIRTUAL_ENV is {supervise.tmp_path}/gone, which has no bin/python\n"
    assert f"  note: {note}" in done.stderr


@pytest.mark.parametrize("case", ["same", "none", "other error", "no Python"])
def test_no_note_where_the_environment_is_not_the_reason(
    supervise: Command, environment_of_another_python: Path, case: str
):
    """The same environment, none, another exception, or a program that only prints the words."""
    active = sys.prefix if case == "same" else "" if case == "none" else str(environment_of_another_python)
    (supervise.tmp_path / "train.py").write_text("1 / 0\n" if case == "other error" else "import no_such_module\n")
    said = "echo \"ModuleNotFoundError: No module named 'x'\" >&2; exit 3"
    words = ("sh", "-c", said) if case == "no Python" else ("train.py",)
    done = supervise.run(*words, VIRTUAL_ENV=active)
    assert done.returncode != 0
    assert "  note: " not in done.stderr


def test_a_relative_import_in_a_file_names_the_module(supervise: Command):
    """Which then works."""
    package = supervise.tmp_path / "pkg"
    package.mkdir()
    (package / "data.py").write_text("x = 5\n")
    (package / "mod.py").write_text("from .data import x\nprint(x)\n")
    done = supervise.run("-n", "2", "pkg/mod.py")
    note = "  note: a file that is run by its path is in no package; run it as a module: -m pkg.mod\n"
    assert note in done.stderr
    assert supervise.run("-m", "pkg.mod").stdout == "[default0]:5\n"
    done = Command(package).run("--no-prefix", "mod.py")
    assert f"{note[:-11]}--cwd .. -m pkg.mod\n" in done.stderr
    assert Command(package).run("--no-prefix", "--cwd", "..", "-m", "pkg.mod").stdout == "5\n"
    (package / "gang.toml").write_text("[roles.a]\ncommand = 'mod.py'\n")
    assert "run it as a module" not in Command(package).run("--file", "gang.toml").stderr
