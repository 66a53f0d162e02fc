"""``supervise run --file`` and ``supervise check``: roles of a gang.toml, processes of a Procfile."""

import fcntl
import json
import os
import re
import signal
import subprocess
import termios
from pathlib import Path

import psutil
import pytest

from tests.cli.command import SUPERVISE, Command, environment
from tests.cli.test_run_commands import until
from tests.patience import PATIENCE_S

RUN = ("run", "--no-prefix", "-q")

SHOW = 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $ROLE_NAME $ROLE_RANK $ROLE_WORLD_SIZE"'
GANG = f"""
strategy = "one_for_one"
max_restarts = 2
backoff = 0
env = {{ COLOR = "red", SIZE = 1 }}

[roles.store]
command = "sh -c 'echo store $COLOR $SIZE; exec sleep 1000'"
service = true
ready = "log:store"

[roles.trainer]
command = ["sh", "-c", '{SHOW}']
count = 2
"""


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "gang.toml"
    path.write_text(GANG)
    return path


def test_roles_of_a_file(supervise: Command, toml: Path):
    """Ranks are numbered through; the service is stopped when the trainers have ended."""
    done = supervise.run("-q", "--file", str(toml))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [
        "[store0]:store red 1",
        "[trainer0]:1 1 3 trainer 0 2",
        "[trainer1]:2 2 3 trainer 1 2",
    ]


def test_roles_on_two_hosts(supervise: Command, toml: Path):
    """Role ranks go on where those of the first host end."""
    words = ("--nnodes", "2", "--node-rank", "1", "--master-addr", "a", "--file", str(toml), "--no-prefix")
    assert sorted(supervise.run(*words).stdout.splitlines()) == [
        "4 1 6 trainer 2 4",
        "5 2 6 trainer 3 4",
        "store red 1",
    ]


def test_options_of_the_line_take_precedence(supervise: Command, toml: Path):
    """Over those of the file; variables of the line are common to all roles."""
    toml.write_text(GANG.replace("max_restarts = 2", 'timeout = "1d"\nmax_restarts = 2'))
    words = ("--file", str(toml), "--env", "COLOR=blue", "--timeout", "100", "--no-prefix", "--local-ranks-filter", "0")
    assert supervise.run(*words).stdout == "store blue 1\n"


def test_a_failure_names_the_role(supervise: Command, toml: Path):
    """The report says which rank of which role it was."""
    toml.write_text(GANG.replace(SHOW, "exit 3").replace("max_restarts = 2", "").replace("backoff = 0", ""))
    done = supervise.run("--file", str(toml))
    assert done.returncode == 3
    assert re.search(r"rank [12] of 3 failed: exit code 3 \(host \S+, trainer [01], pid \d+", done.stderr), done.stderr


def test_readiness_of_a_role(supervise: Command, tmp_path: Path):
    """The trainer is launched when the store has said that it is ready."""
    (tmp_path / "store.py").write_text(
        "import time, supervise\ntime.sleep(0.1)\nopen('made', 'w').close()\n"
        "supervise.notify(ready=True)\ntime.sleep(1000)\n"
    )
    (tmp_path / "gang.toml").write_text(
        'strategy = "one_for_one"\nmax-restarts = 1\n'
        "[roles.store]\ncommand = 'store.py'\nready = 'notify'\nready-timeout = '90s'\nservice = true\n"
        "restart = 'permanent'\n"
        "[roles.trainer]\ncommand = ['sh', '-c', 'test -e made && echo after']\n"
    )
    done = supervise.run("-q", "--file", "gang.toml")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[trainer0]:after\n", "")
    told = supervise.supervise("check", "gang.toml").stdout
    assert "  store: 1 rank, ready notify, ready-timeout 1 min 30 s, restart permanent, service, in " in told


def test_a_procfile(supervise: Command, tmp_path: Path):
    """Each process is one rank of a shell, in the folder of the file."""
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "Procfile").write_text("# an app\nweb: echo web $PORT; pwd\n\nworker-1: exit 4\n")
    done = supervise.run("--file", "app/Procfile", "--keep-going", "--env", "PORT=80")
    assert done.returncode == 4
    assert sorted(done.stdout.splitlines()) == [f"[web0]:{folder.resolve()}", "[web0]:web 80"]
    assert "worker-1 0, pid" in done.stderr


@pytest.mark.parametrize(("given", "web", "code"), [((), "exit 4", 4), (("--stdin", "none"), "exec sleep 1000", 5)])
def test_watchers_of_a_procfile_have_no_end_of_stdin(supervise: Command, given: tuple[str, ...], web: str, code: int):
    """With honcho they have its terminal. Here, the watcher ends only if its stdin does."""
    (supervise.tmp_path / "Procfile").write_text(f"watch: cat; touch ended; exit 5\nweb: {web}\n")
    assert supervise.run("--file", "Procfile", *given).returncode == code
    assert (supervise.tmp_path / "ended").exists() == bool(given)


def test_the_only_process_of_a_procfile_reads_stdin(supervise: Command):
    (supervise.tmp_path / "Procfile").write_text("count: wc -l\n")
    done = supervise.run("--file", "Procfile", "--no-prefix")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


@pytest.mark.parametrize(
    ("words", "env", "wanted"),
    [
        ((), {}, ["a 5100 beside", "b 5200 beside"]),
        ((), {"PORT": "8080"}, ["a 8180 beside", "b 8280 beside"]),
        (("--env", "PORT=80"), {}, ["a 80 beside", "b 80 beside"]),
        (("--env-file", "none"), {}, ["a 5100 ", "b 5200 "]),
        (("--env-file", "other.env"), {"PORT": "8080"}, ["a 7100 ", "b 7200 "]),
        (("--env-file", "other.env", "--env-file", "none"), {}, ["a 5100 ", "b 5200 "]),
    ],
)
def test_a_procfile_has_the_ports_and_variables_of_foreman(
    supervise: Command, tmp_path: Path, words: tuple[str, ...], env: dict[str, str], wanted: list[str]
):
    """`PORT` counts processes, not lines; `.env` is read, and said to be, unless an option gives another file."""
    folder = tmp_path / "app"
    folder.mkdir()
    show = "echo $ROLE_NAME $PORT \\\n   $WHERE"
    (folder / "Procfile").write_text(f"first: true\n\n# comment \\\na: {show}\nb: {show} # \\\\\n")
    (folder / ".env").write_text("WHERE=beside\n")
    (tmp_path / "other.env").write_text("PORT=7000\n")
    done = supervise.run(*words, "--no-prefix", "--file", "app/Procfile", **env)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [line.strip() for line in wanted]
    said = "the ranks get the variables of app/.env; --env-file none leaves them out"
    assert done.stderr.count(said) == ("beside" in wanted[0])


def test_a_port_or_a_dotenv_that_is_not_valid_is_refused(supervise: Command, tmp_path: Path):
    """With what leaves it out."""
    (tmp_path / "Procfile").write_text("a: true")
    done = supervise.refused("run", "--file", "Procfile", PORT="http")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        "supervise run: PORT of the environment: 'http' is not a port; give a number from 1 to 65535",
    )
    (tmp_path / ".env").write_text("PORT=http")
    assert "PORT in the env file: 'http' is not a port" in supervise.refused("check", "Procfile").stderr
    (tmp_path / ".env").unlink()
    (tmp_path / "Procfile").write_text("a: true\nb: true")
    done = supervise.refused("check", "Procfile", PORT="65500")
    assert (done.returncode, "Procfile: b: its PORT would be 65600, 100 above that" in done.stderr) == (2, True)
    (tmp_path / ".env").write_text("RANK=3")
    done = supervise.refused("check", "Procfile")
    assert "'.env': supervise sets RANK in each rank; omit it; --env-file none leaves the file out" in done.stderr
    (tmp_path / "g.toml").write_text("[roles.a]\ncommand = 'true'\nenv = { RANK = '1' }")
    done = supervise.refused("check", "--env-file", "none", "g.toml")
    assert "g.toml: role 'a': supervise sets RANK in each rank; omit it" in done.stderr
    (tmp_path / ".env").write_text("A B")
    done = supervise.refused("check", "Procfile")
    assert done.returncode == 2
    assert "'.env', line 1: 'A B' is not NAME=VALUE; --env-file none leaves the file out" in done.stderr


def test_the_name_of_a_gang_file_need_not_be_text(supervise: Command, tmp_path: Path):
    (tmp_path / "b\udcff.toml").write_text("[roles.a]\ncommand = ['echo', 'ran']")
    done = supervise.run("--file", "b\udcff.toml")
    assert (done.returncode, "ran" in done.stdout) == (0, True)


def test_files_of_variables_of_the_gang_and_of_a_role(supervise: Command, tmp_path: Path):
    """Later files win over earlier ones, `env` over files, and a role over the gang; paths are those of the file."""
    folder = tmp_path / "app"
    folder.mkdir()
    for name, content in {"1": "A=1\nB=1\nC=1\nD=1", "2": "B=2\nC=2\nD=2", "3": "C=3\nD=3", "4": "D=4"}.items():
        (folder / f"{name}.env").write_text(content)
    show = "command = ['sh', '-c', 'echo $ROLE_NAME $A $B $C $D']"
    (folder / "gang.toml").write_text(
        f"env-file = ['1.env', '2.env']\n[roles.a]\n{show}\nenv-file = ['3.env', '4.env']\nenv = {{ D = 5 }}\n"
        f"[roles.b]\n{show}\nenv_file = '4.env'\n[roles.c]\n{show}\nenv-file = 'none'\n"
    )
    done = supervise.run("-q", "--no-prefix", "--file", "app/gang.toml")
    assert sorted(done.stdout.splitlines()) == ["a 1 2 3 5", "b 1 2 2 4", "c 1 2 2 2"]


def test_a_variable_of_the_line_is_set_in_all_roles(supervise: Command, tmp_path: Path):
    """As with docker compose; one of the whole gang in the file is not."""
    show = "command = ['sh', '-c', 'echo $ROLE_NAME $A $B']"
    gang = f"env = {{ A = 1, B = 1 }}\n[roles.a]\n{show}\nenv = {{ A = 2, B = 2 }}\n[roles.b]\n{show}\n"
    (tmp_path / "gang.toml").write_text(gang)
    done = supervise.run("-q", "--no-prefix", "--env", "A=3", "--file", "gang.toml")
    assert sorted(done.stdout.splitlines()) == ["a 3 2", "b 3 1"]
    done = supervise.run("-q", "--no-prefix", "--file", "gang.toml")
    assert sorted(done.stdout.splitlines()) == ["a 2 2", "b 1 1"]


def test_values_of_variables_are_as_the_file_has_them(supervise: Command, tmp_path: Path):
    """A truth value is `true`, not Python's `True`; a version keeps its zero. So do numbers in a command."""
    show = "command = ['sh', '-c', 'echo $A $B $C $D $0 $1', 5, 1e-4]"
    (tmp_path / "gang.toml").write_text(
        f"env = {{ A = true, B = 3.10 }}\n[roles.a]\n{show}\nenv = {{ C = false, D = 7 }}\n"
    )
    done = supervise.run("-q", "--no-prefix", "--file", "gang.toml")
    assert done.stdout == "true 3.10 false 7 5 1e-4\n"


def test_check_and_a_dry_run_show_the_sockets(supervise: Command, tmp_path: Path):
    """They bind nothing."""
    (tmp_path / "gang.toml").write_text("[roles.a]\ncommand = 'true'\nlisten = ['tcp:1', 'unix:a,b']\nstdin = 'open'\n")
    done = supervise.refused("check", "gang.toml")
    assert f"  a: 1 rank, listen tcp:1,unix:a,b, stdin open, in {tmp_path}\n" in done.stdout
    lines = supervise.run("--dry-run", "--file", "gang.toml").stdout.splitlines()
    assert lines[1:3] == ["# a listens on tcp:1", "# a listens on unix:a,b"]
    assert "# default listens on tcp:2" in supervise.run("--dry-run", "--listen", "tcp:2", "true").stdout
    assert not (tmp_path / "a,b").exists()


def test_check_prints_what_would_run(supervise: Command, toml: Path):
    """Nothing is started or made."""
    before = sorted(toml.parent.iterdir())
    done = supervise.supervise("check", "gang.toml")
    assert (done.returncode, done.stderr) == (0, "")
    head, store, _, trainer, command, order = done.stdout.splitlines()
    assert order == "  they start in this order: 1. store; 2. trainer"
    assert head == "gang.toml: 2 roles, 3 ranks, one_for_one, max-restarts 2, backoff 0 ms"
    assert store == f"  store: 1 rank, ready log:store, service, in {toml.parent}"
    assert trainer == f"  trainer: 2 ranks, in {toml.parent}"
    assert command.startswith("    sh -c ")
    assert sorted(toml.parent.iterdir()) == before
    assert supervise.supervise("check", "--max-restarts", "5", "gang.toml").stdout.startswith(
        head.replace("restarts 2", "restarts 5")
    )


def test_check_and_a_dry_run_show_the_kill_mode(supervise: Command):
    """That of the gang, and those of roles that differ."""
    content = "kill-mode = 'mixed'\n[roles.a]\ncommand = 'true'\n[roles.b]\ncommand = 'true'\nkill-mode = 'group'\n"
    (supervise.tmp_path / "gang.toml").write_text(content)
    lines = supervise.supervise("check", "gang.toml").stdout.splitlines()
    assert lines[0] == "gang.toml: 2 roles, 2 ranks, one_for_all, no restarts, kill-mode mixed"
    assert [line.split(", ")[1] for line in (lines[1], lines[3])] == [f"in {supervise.tmp_path}", "kill-mode group"]
    assert "\n# kill-mode mixed: rank 0\n" in supervise.run("--dry-run", "--file", "gang.toml").stdout
    assert "kill-mode" not in supervise.run("--dry-run", "true").stdout


def test_check_names_the_files_of_variables_of_a_role(supervise: Command):
    """As the file gives them; the dry run shows the variables."""
    for name in "ab":
        (supervise.tmp_path / f"{name}.env").write_text(f"V{name}=1\n")
    files = ("'a.env'", "['a.env', 'b.env']", "'none'")
    roles = [f"[roles.r{at}]\ncommand = 'true'\nenv-file = {each}\n" for at, each in enumerate(files)]
    (supervise.tmp_path / "gang.toml").write_text("".join(roles))
    lines = supervise.supervise("check", "gang.toml").stdout.splitlines()[1:7:2]
    assert [line.split(", ")[1] for line in lines] == [
        "env-file a.env",
        "env-file a.env,b.env",
        f"in {supervise.tmp_path}",
    ]
    assert "Va=1 Vb=1 ROLE_NAME=r1 " in supervise.run("--dry-run", "--file", "gang.toml").stdout


def test_check_and_a_dry_run_show_the_containment(supervise: Command):
    """That of the gang, and those of roles that differ."""
    content = (
        "containment = 'sweep'\n[roles.a]\ncommand = 'true'\ncount = 2\n"
        "[roles.b]\ncommand = 'true'\ncontainment = 'group'\n[roles.c]\ncommand = 'true'\ncontainment = 'cgroup'\n"
    )
    (supervise.tmp_path / "gang.toml").write_text(content)
    lines = supervise.supervise("check", "gang.toml").stdout.splitlines()
    assert lines[0] == "gang.toml: 3 roles, 4 ranks, one_for_all, no restarts, containment sweep"
    facts = [line.split(", ")[1] for line in lines[1:7:2]]
    assert facts == [f"in {supervise.tmp_path}", "containment group", "containment cgroup"]
    shown = supervise.run("--dry-run", "--file", "gang.toml").stdout
    assert "\n# containment cgroup: rank 3\n# containment sweep: ranks 0-1\n" in shown
    assert "containment group" not in shown
    assert "containment" not in supervise.run("--dry-run", "true").stdout


def test_a_dry_run_shows_each_setting_of_the_ranks(supervise: Command):
    """With the ranks that have it; those of the gang and the options, too."""
    content = (
        "shutdown-timeout = '8s'\n[roles.edge]\ncommand = 'true'\nstop-signal = 'QUIT'\nreload-signal = 'HUP'\n"
        "[roles.job]\ncommand = 'true'\ncount = 2\nstdin = 'open'\nstop-signal = 'INT'\nrestart = 'temporary'\n"
        "[roles.db]\ncommand = 'true'\nshutdown-timeout = '1m'\nready-timeout = '2s'\nready = 'tcp:1'\nservice = true\n"
    )
    (supervise.tmp_path / "gang.toml").write_text(content)
    shown = supervise.run("--dry-run", "--file", "gang.toml", "--max-restarts", "1").stdout.splitlines()
    assert [line for line in shown if line.startswith("# ") and ("rank 3: " not in line)][1:] == [
        *("# shutdown-timeout 1 min 00 s: rank 3", "# shutdown-timeout 8 s: ranks 0-2"),
        *("# stop-signal SIGINT: ranks 1-2", "# stop-signal SIGQUIT: rank 0", "# reload-signal SIGHUP: rank 0"),
        *(
            "# ready-timeout 2 s: rank 3",
            "# restart temporary: ranks 1-2",
            "# service: rank 3",
            "# stdin open: ranks 1-2",
        ),
    ]
    assert "# stop-signal SIGINT: rank 0" in supervise.run("--dry-run", "--stop-signal", "INT", "true").stdout


@pytest.mark.parametrize(("top", "own"), [("group", "sweep"), ("sweep", "group")])
def test_s4_a_gang_file_has_the_containment_of_a_role(supervise: Command, top: str, own: str):
    """Only the daemons of roles that ask for it are ended; the others are reported."""
    tables = [f"containment = '{top}'", f"[roles.{top}]", f"[roles.{own}]", f"containment = '{own}'"]
    for number, name in ((3, own), (2, top)):
        leaves = f"setsid sh -c 'echo $$ > {name}; exec sleep 1000' & until [ -s {name} ]; do sleep 0.01; done"
        tables.insert(number, f"command = {json.dumps(['sh', '-c', leaves])}")
    (supervise.tmp_path / "gang.toml").write_text("\n".join(tables))
    run = supervise.run("--file", "gang.toml")
    pids = {name: int((supervise.tmp_path / name).read_text()) for name in (top, own)}
    try:
        lives = {name for name, pid in pids.items() if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE}
        assert lives == {"group"}
        assert f"(pid {pids['sweep']}): ended" in run.stderr
        alive = "still alive after the end of the rank; --containment sweep ends such processes"
        assert f"(pid {pids['group']}): {alive}" in run.stderr
    finally:
        os.kill(pids["group"], signal.SIGKILL)


WRONG = {
    "": "it has no roles; give at least one table, such as [roles.trainer] with a command",
    "roles = 3": "gang.toml: roles is 3; give tables, such as [roles.trainer] with a command",
    "[[roles]]\ncommand = 'true'": "roles is [{command = 'true'}]; give tables",
    "[Roles.web]\ncommand = 'true'": "it has no roles; did you mean [roles.web] in place of [Roles.web]?",
    "env = { 'A=B' = 'x' }\n[roles.a]\ncommand = 'true'": "gang.toml: env: 'A=B' is not the name of a variable; give",
    "[roles.a]\ncommand = 'true'\nenv = { 'A=B' = 'x' }": "gang.toml: roles.a: env: 'A=B' is not the name of a",
    '[roles."a\\nb"]\ncommand = "true"': "gang.toml: roles.'a\\nb': 'a\\nb' is not a valid name in paths and lines",
    "x": "Expected '=' after a key",
    "stratgy = 'x'\n[roles.a]\ncommand = 'true'": "'stratgy' is not a key; did you mean 'strategy'?",
    "nproc-per-node = 3\n[roles.a]\ncommand = 'true'": "'nproc-per-node' is not a key",
    "max_restarts = {}\n[roles.a]\ncommand = 'true'": "max-restarts is {}; give a text or a number",
    "max_restarts = true\n[roles.a]\ncommand = 'true'": "gang.toml: max-restarts is true; give a text or a number",
    "max_restarts = -1\n[roles.a]\ncommand = 'true'": "gang.toml: max-restarts: '-1' is not a valid number of restarts",
    "keep-going = 'yes'\n[roles.a]\ncommand = 'true'": "gang.toml: keep-going is 'yes'; give true or false",
    "tee = 9\n[roles.a]\ncommand = 'true'": "gang.toml: tee: '9' is not a valid choice of streams",
    "[web]\ncommand = 'true'": "it has no roles; did you mean [roles.web] in place of [web]?",
    "[web]\ncommand = 'true'\n[roles.a]\ncommand = 'true'": "'web' is not a key; did you mean [roles.web] in place",
    "env = 3\n[roles.a]\ncommand = 'true'": "env is 3; give a table",
    "env = { RANK = 1 }\n[roles.a]\ncommand = 'true'": "supervise sets RANK in each rank; omit it",
    "[roles.a]": "roles.a: command is missing; give a text or a list",
    "[roles]\na = 3": "roles.a is 3; give a table with a command",
    '[roles.a]\ncommand = "sh \'x"': '"sh \'x": No closing quotation; close each quotation, and double',
    "[roles.a]\ncommand = []": "roles.a: command is []; give a text or a list",
    "[roles.a]\ncommand = 'true'\nconut = 2": "roles.a: 'conut' is not a key; did you mean 'count'?",
    "[roles.a]\ncommand = 'true'\ncount = -1": "roles.a: count: '-1' is not a valid number of ranks; give 0 or more,",
    "[roles.a]\ncommand = 'true'\nalive = 'exec:true || exit 1'": "roles.a: alive is 'exec:true || exit 1'; there is no"
    " shell here, so '||' would be an argument; give exec:sh -c 'true || exit 1'",
    "[roles.a]\ncommand = 'true'\nalive = 'exec:nope'": "'exec:nope'; No such file or directory; give a program that",
    "[roles.a]\ncommand = 'true'\ncount = 0": "every role is switched off by a count of 0; give at least one role",
    "[roles.a]\ncommand = 'true'\nready = 'soon'": "roles.a: ready is 'soon'; it is one of exec, notify",
    "[roles.a]\ncommand = 'true'\nready = 'tcp://x:1'": "ready is 'tcp://x:1'; '//x' is not a host; give tcp:HOST:PORT",
    "[roles.a]\ncommand = 'true'\nready-timeout = 'x'": "roles.a: ready-timeout: 'x' is not a valid duration",
    "[roles.a]\ncommand = 'true'\nrestart = 'often'": "roles.a: restart is 'often'; give ",
    "[roles.a]\ncommand = 'true'\nkill-mode = 'all'": "roles.a: kill-mode is 'all'; give group, mixed",
    "[roles.a]\ncommand = 'true'\ncontainment = 'none'": "roles.a: containment is 'none'; give group, cgroup, sweep",
    "kill-mode = 'all'\n[roles.a]\ncommand = 'true'": "gang.toml: kill-mode: invalid choice: 'all' (choose from ",
    "[roles.a]\ncommand = 'true'\ncount = true": "roles.a: count: 'true' is not a valid number of ranks",
    "[roles.a]\ncommand = 'true'\nready = true": "roles.a: ready is true; give a text",
    "[roles.a]\ncommand = 'true'\nservice = 1": "roles.a: service is 1; give true or false",
    "[roles.a]\ncommand = 'true'\ncwd = 'nowhere'": "nowhere' does not exist; create it",
    "[roles.a]\ncommand = 'true'\ncwd = 3": "roles.a: cwd is 3; give a path",
    "[roles.a]\ncommand = 'true'\ncwd = ''": "roles.a: cwd is ''; give a path",
    "log-dir = ''\n[roles.a]\ncommand = 'true'": "gang.toml: log-dir is ''; give a path, or omit the key",
    "[roles.a]\ncommand = 'true'\nenv = { 'A B' = 'x' }": "roles.a: env: 'A B' is not the name of a variable",
    "[roles.a]\ncommand = 'true'\nenv = { LOCAL_RANK = 1 }": "supervise sets LOCAL_RANK in each rank",
    "[roles.'a/b']\ncommand = 'true'": "'a/b' is not a valid name in paths",
    "[roles.a]\ncommand = 'true'\nservice = true": "every role is a service; add a role that is not",
    "[roles.a]\ncommand = 'true'\nrestart = 'permanent'": "the gang has no restart_policy; give it one, such as "
    "RestartPolicy(max_restarts=3), or max-restarts = 3 at the top of the file of the roles\n",
    "[roles.a]\ncommand = 'true'\nlisten = ['8000']": "roles.a: listen: '8000' is not an address; give tcp:HOST:PORT",
    "[roles.a]\ncommand = 'true'\nlisten = 'unix:'": "roles.a: listen: 'unix:' is not an address; give ",
    "[roles.a]\ncommand = 'true'\nlisten = 'unix:${ROLE_RANK}'": "'unix:${ROLE_RANK}' is not an address; it has no",
    "listen = ['tcp:1']\n[roles.a]\ncommand = 'true'\n[roles.b]\ncommand = 'true'": "role 'b': listen: 'tcp:1' is an "
    "address of role 'a', too; give each address to one role, in a file below its [roles.NAME]\n",
    "[roles.a]\ncommand = 'true'\nstdin = 'all'": "roles.a: stdin is 'all'; give null, open, inherit",
    "[roles.a]\ncommand = 'true'\nstdin = 'inherit'\ncount = 2": "role 'a': stdin is 'inherit', which is for one rank",
    "[roles.a]\ncommand = 'true'\nstdin = 'inherit'\n[roles.b]\ncommand = 'true'\nstdin = 'inherit'": "role 'a' has it",
    "stdin = 0\n[roles.a]\ncommand = 'true'\nstdin = 'inherit'": "stdin and stdin = 'inherit' of role 'a' exclude",
    "stdin = 'a'\n[roles.b]\ncommand = 'true'\n[roles.a]\ncommand = 'true'\nstdin = 'open'": " = 'open' of role 'a'",
    "stdin = 'all'\n[roles.a]\ncommand = 'true'\nstdin = 'open'": "stdin and stdin = 'open' of role 'a' exclude",
    "gate = true\n[roles.a]\ncommand = 'true'\nstdin = 'open'": "programs wait on their stdin at the start; omit one",
    "[roles.a]\ncommand = 'true'\nenv-file = 3": "roles.a: env-file is 3; give a path, or a list of paths",
    "[roles.a]\ncommand = 'true'\nenv-file = ['no.env']": "no.env': No such file or directory",
    "env-file = ['no.env']\n[roles.a]\ncommand = 'true'": "no.env': No such file or directory",
    "[roles.a]\ncommand = 'true'\nenv = { A = 'x', B = 1979-05-27 }": "env is {B = 1979-05-27}; ",
    "[roles.a]\ncommand = 'true'\nalive-interval = 3": "roles.a: alive-interval needs alive, such as tcp:8000",
    "alive = 'tcp:1'\n[roles.a]\ncommand = 'true'\nready_timeout = 3": "roles.a: ready-timeout needs ready, such",
    "[roles.a]\ncommand = 'true'\nalive-timeout = 3\nready = 'notify'": "roles.a: alive-timeout needs alive",
    "[roles.a]\ncommand = 'true'\nalive = 'tcp:1'\nready = 'exit'": "roles.a: alive needs ready other than exit",
    "alive = 'tcp:1'\nready = 'exit'\n[roles.a]\ncommand = 'true'": "gang.toml: alive needs ready other than exit",
    "[roles.a]\ncommand = 'true'\nalive-failures = 3\nready = 'tcp:1'": "roles.a: alive-failures needs alive",
    "alive-interval = 3\n[roles.a]\ncommand = 'true'": "gang.toml: alive-interval needs alive, such as",
    "[roles.a]\ncommand = 'true'\nalive = 'udp:1'": "exec:COMMAND, or for ready log:REGEX\n",
    "[roles.a]\ncommand = 'x'\nmodule = true\nrun-path = true": "roles.a: module = true and run-path = true exclude",
    "[roles.a]\ncommand = 'x'\nmodule = true\npython = false": "roles.a: module = true and python = false exclude",
    "[roles.'a.1']\ncommand = 'true'\n[roles.a]\ncommand = 'true'\ncount = 2": "roles.a.1: it has the name of rank 1",
    "[roles.a]\ncommand = 'nope'": "gang.toml: roles.a: cannot start rank 0: nope is not in PATH",
}
"""Content of a gang.toml to a part of the message."""


@pytest.mark.parametrize(("content", "told"), WRONG.items(), ids=range(len(WRONG)))
def test_a_file_that_is_not_valid(supervise: Command, content: str, told: str):
    """The message names the file or the role, the key and what to do; `check` and `run` refuse it alike."""
    (supervise.tmp_path / "gang.toml").write_text(content)
    done = supervise.refused("check", "gang.toml")
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("on-hang = 'fail'", "on-hang needs heartbeat-timeout, output-timeout or alive, such as heartbeat-timeout 60"),
        ("exit-code-from = 'db'", "exit-code-from: 'db' is not a rank or a role; the ranks are 0 only, the roles a"),
        (
            "max-restarts = 1\nuncounted-exit-codes = [3]\nnever-restart-exit-codes = [3]",
            "exit code 3 is in uncounted-exit-codes and in never-restart-exit-codes; it can be in one of them",
        ),
        ("keep-going = true\nmax-restarts = 1", "keep-going is strategy one_for_one without restarts; omit it or max-"),
        ("exit-code-from = 'my--db'", "exit-code-from: 'my--db' is not a rank or a role"),
    ],
    ids=["a-hang", "codes-from", "codes", "keep-going", "value"],
)
def test_an_error_about_several_keys_names_the_file_and_the_keys(supervise: Command, keys: str, told: str):
    """By their names in the file; those of the command line have theirs."""
    role = "[roles.a]\ncommand = 'true'\n"
    (supervise.tmp_path / "gang.toml").write_text(f"{keys}\n{role}")
    for command in ("check", "run"):
        done = supervise.refused(command, "--file", "gang.toml")
        assert (done.returncode, f"supervise {command}: gang.toml: {told}" in done.stderr) == (2, True), done.stderr
    (supervise.tmp_path / "gang.toml").write_text(role)
    done = supervise.refused("check", "--file", "gang.toml", "--on-hang", "fail")
    assert done.stderr.startswith("supervise check: --on-hang needs --heartbeat-timeout, ")
    (supervise.tmp_path / "gang.toml").write_text(f"exit-code-from = 'a'\n{role}")
    done = supervise.refused("check", "--file", "gang.toml", "--exit-code-from", "bad")
    assert done.stderr.startswith("supervise check: argument --exit-code-from: 'bad' is not a rank")


def test_settings_without_effect_in_some_roles_are_accepted(supervise: Command, tmp_path: Path):
    """A value for all roles is shown where it has an effect; the timeout of probes is also that of `ready`."""
    (tmp_path / "gang.toml").write_text(
        "listen = ['tcp:1', 'unix:s']\nalive-interval = 3\n"
        "[roles.a]\ncommand = 'true'\nready = 'file:x'\nalive-timeout = 3\n"
        "[roles.'b.x']\ncommand = 'true'\nalive = 'tcp:1'\nmodule = false\npython = true\n"
        "listen = []\n"
    )
    done = supervise.refused("check", "gang.toml")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  a: 1 rank, listen tcp:1,unix:s, ready file:x, alive-timeout 3 s, in " in done.stdout
    assert "  b.x: 1 rank, alive tcp:1, alive-interval 3 s, in " in done.stdout


@pytest.mark.parametrize("words", [("gang.toml", "web=2"), ("--file", "gang.toml", "web=2"), ("gang.toml", "worker=0")])
def test_check_selects_roles_as_run_does(supervise: Command, words: tuple[str, ...]):
    """By the words after FILE."""
    (supervise.tmp_path / "gang.toml").write_text(
        "[roles.web]\ncommand = 'true'\ncount = 2\n[roles.worker]\ncommand = 'true'\nneeds = []\n"
    )
    done = supervise.refused("check", *words)
    assert done.stdout.splitlines()[:2] == [
        "gang.toml: 1 role, 2 ranks, one_for_all, no restarts",
        f"  web: 2 ranks, needs nothing, in {supervise.tmp_path}",
    ]
    unknown = supervise.refused("check", "gang.toml", "wep")
    assert unknown.returncode == 2
    assert "gang.toml: it has no role 'wep'; its roles are web, worker" in unknown.stderr


@pytest.mark.parametrize("told", ["every role is a service", "the gang has no restart_policy"])
def test_a_dry_run_refuses_what_a_run_refuses(supervise: Command, told: str):
    """Also what the checks of the gang find, after those of the file."""
    [content] = [content for content, message in WRONG.items() if message.startswith(told)]
    (supervise.tmp_path / "gang.toml").write_text(content)
    run, dry = supervise.run("--file", "gang.toml"), supervise.run("--dry-run", "--file", "gang.toml")
    assert (dry.returncode, dry.stdout, dry.stderr) == (run.returncode, "", run.stderr)
    assert told in dry.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--file", "gang.toml", "true"],
            "it has no role 'true'",
        ),
        (["--file", "gang.toml", "-n", "2"], "-n and --file exclude each other; set it for each role in gang.toml"),
        (["--file", "gang.toml", "--role", "a"], "--role and --file exclude each other; give roles after the options"),
        (["--file", "none.toml"], "none.toml: No such file or directory"),
        (["--file", "/dev/zero"], "/dev/zero: it is larger than 1 MiB"),
    ],
)
@pytest.mark.usefixtures("toml")
def test_options_that_do_not_go_with_a_file(supervise: Command, words: list[str], told: str):
    """Two sources for one thing are refused."""
    done = supervise.run(*words)
    assert done.returncode == 2
    assert told in done.stderr


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("web", "line 1: 'web' is not NAME"),
        ("a: b\na: c", "line 2: there are two"),
        ("# none", "it has no roles; give at least one line NAME: COMMAND\n"),
    ],
)
def test_a_procfile_that_is_not_valid(supervise: Command, content: str, told: str):
    """The message has the number of the line, or says what a line is like."""
    (supervise.tmp_path / "Procfile").write_text(content)
    assert told in supervise.refused("run", "--file", "Procfile").stderr


@pytest.mark.parametrize("words", [("run", "--file", "pipe"), ("check", "pipe"), ("run", "--env-file", "pipe", "true")])
def test_a_pipe_without_a_writer_is_refused(supervise: Command, words: tuple[str, ...]):
    """At once, without a wait for one."""
    os.mkfifo(supervise.tmp_path / "pipe")
    done = supervise.supervise(*words)
    assert done.returncode == 2
    assert "the pipe is empty, and no process writes to it" in done.stderr


def test_a_script_that_is_a_pipe_does_not_block_the_start(supervise: Command):
    """Only its rank waits for a writer."""
    os.mkfifo(supervise.tmp_path / "pipe.py")
    with supervise.started("-v", "pipe.py") as run:
        run.hear_error("process.started")
        run.signal(signal.SIGTERM)
        assert run.end()[0] == 128 + signal.SIGTERM


def test_a_file_from_a_pipe_of_the_shell(supervise: Command):
    """``--file <(command)`` and ``--env-file <(command)``."""
    script = "\"$@\" --file <(echo 'a: echo $A; pwd') --env-file <(echo A=5)"
    done = supervise.supervise(*RUN, before=("bash", "-c", script, "bash"))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"5\n{supervise.tmp_path}\n", "")


def test_a_gang_file_from_a_pipe_of_the_shell_is_known_by_its_content(supervise: Command):
    """A pipe has no name that ends in ``.toml``."""
    content = """echo 'timeout = 60'; echo '[roles.a]'; echo 'command = "pwd"'"""
    script = f'"$@" --file <({content})'
    done = supervise.supervise(*RUN, before=("bash", "-c", script, "bash"))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{supervise.tmp_path}\n", "")


def test_a_pipe_is_read_to_its_end(supervise: Command):
    """Also if its content comes in parts: the second is written when the first has been read."""
    read, write = os.pipe()
    command = [*SUPERVISE, *RUN, "--file", f"/dev/fd/{read}"]
    with subprocess.Popen(
        command, env=environment(supervise.tmp_path), pass_fds=[read], stdout=subprocess.PIPE, text=True
    ) as process:
        os.write(write, b"a: echo ")
        until(lambda: not fcntl.ioctl(read, termios.FIONREAD, bytes(4)).strip(b"\0"))
        os.close(read)
        os.write(write, b"5\n")
        os.close(write)
        assert process.communicate(timeout=PATIENCE_S)[0] == "5\n"


def test_the_help_of_check(supervise: Command):
    """On stdout if it is asked for, else wrong usage."""
    assert supervise.supervise("check", "--help").stdout.startswith("usage: supervise check")
    done = supervise.supervise("check")
    assert (done.returncode, done.stdout) == (2, "")
