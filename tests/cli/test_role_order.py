"""Roles of a gang file: their order in ``check`` and ``--dry-run``, their signals, and ``supervise reload``."""

import json
import re
import signal
import sys

import pytest

from tests.cli.command import Command
from tests.cli.test_run_commands import until

NEEDS = """
[roles.web]
command = "true"
needs = ["store", "migrate"]
[roles.worker]
command = "true"
needs = ["store"]
stop-signal = "INT"
shutdown-timeout = "90s"
[roles.store]
command = "true"
[roles.migrate]
command = "true"
needs = ["store"]
reload-signal = "HUP"
"""
ORDER = "start in this order: 1. store; 2. worker, migrate; 3. web"
LOOPS = "while :; do sleep 0.05; done"


def write(supervise: Command, text: str) -> None:
    (supervise.tmp_path / "gang.toml").write_text(text)


def test_check_and_a_dry_run_print_the_order_as_levels(supervise: Command):
    write(supervise, NEEDS)
    done = supervise.supervise("check", "gang.toml")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[-1] == f"  they {ORDER}"
    assert "needs store,migrate" in lines[1]
    assert "shutdown-timeout 1 min 30 s, stop-signal SIGINT, needs store" in lines[3]
    assert "reload-signal SIGHUP" in lines[7]
    dry = supervise.run("--dry-run", "--file", "gang.toml")
    assert dry.stdout.startswith("# 4 ranks; this run would start them in this order: 1. store; 2. worker, migrate;")
    write(supervise, re.sub("needs = .*", "", NEEDS))
    assert supervise.supervise("check", "gang.toml").stdout.endswith(
        "start in this order: 1. web; 2. worker; 3. store; 4. migrate\n"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('needs = ["stor"]', "role 'web': needs names 'stor', which is not a role; did you mean 'store'?"),
        ('needs = ["web"]', "roles wait for each other: 'web' needs 'web'; remove one of these needs"),
        ('needs = "store"', "roles.web: needs is 'store'; give a list of roles, such as [\"store\"], or [] for none"),
        ('stop-signal = "KILL"', "roles.web: stop-signal: no process can handle SIGKILL"),
        ('shutdown-timeout = "x"', "roles.web: shutdown-timeout: 'x' is not a valid duration"),
    ],
)
def test_what_a_role_cannot_have_is_refused_before_any_start(supervise: Command, text: str, why: str):
    write(supervise, f'[roles.web]\ncommand = "true"\n{text}\n[roles.store]\ncommand = "true"\n')
    for words in (("check", "gang.toml"), ("run", "--file", "gang.toml")):
        done = supervise.supervise(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert why in done.stderr
    assert not list(supervise.tmp_path.glob("runs/*"))


def takes(role: str) -> str:
    """Return the command of a role that says which of two signals it gets."""
    traps = "".join(f"trap 'echo {name}; exit 0' {name}; " for name in ("INT", "TERM"))
    return f"command = ['sh', '-c', \"{traps}echo {role}; {LOOPS}\"]"


def test_a_signal_that_stops_supervise_goes_to_roles_without_their_own(supervise: Command):
    roles = f"[roles.web]\n{takes('web')}\nstop-signal = 'INT'\n[roles.worker]\n{takes('worker')}\n"
    write(supervise, roles)
    with supervise.started("--file", "gang.toml") as run:
        assert run.hear(2) == ["[web0]:web\n", "[worker0]:worker\n"]
        run.signal(signal.SIGTERM)
        assert run.hear(2) == ["[web0]:INT\n", "[worker0]:TERM\n"]
        run.end()


RELOADS = f"""
[roles.web]
command = ['sh', '-c', "trap 'echo reloads' HUP; echo web; {LOOPS}"]
reload-signal = 'HUP'
[roles.worker]
command = ['sh', '-c', "echo worker; {LOOPS}"]
count = 2
"""


def test_reload_signals_and_else_rolls_a_restart(supervise: Command):
    write(supervise, RELOADS)
    with supervise.started("--file", "gang.toml", "--run-id", "job") as run:
        assert run.hear(3) == ["[web0]:web\n", "[worker0]:worker\n", "[worker1]:worker\n"]
        done = supervise.supervise("reload", "job")
        assert (done.returncode, done.stderr) == (0, "")
        assert re.fullmatch(
            r"(job_\w+): rank 0 \(web 0\) reloaded\n"
            r"\1: rank 1 \(worker 0\) was restarted, pid \d+\n\1: rank 2 \(worker 1\) was restarted, pid \d+\n",
            done.stdout,
        )
        assert run.hear(3) == ["[web0]:reloads\n", "[worker0]:worker\n", "[worker1]:worker\n"]
        only = json.loads(supervise.supervise("reload", "job", "web", "worker.1", "--json").stdout)
        assert (only["reloaded"], list(only["restarted"])) == ([0], ["2"])
        assert run.hear(2) == ["[web0]:reloads\n", "[worker1]:worker\n"]
        refused = supervise.supervise("reload", "job", "--rank", "9")
        assert (refused.returncode, "rank 9 does not exist" in refused.stderr) == (2, True)
        run.signal(signal.SIGTERM)
        run.end()


@pytest.mark.parametrize("ready", ["notify", "log:up", "exec"])
def test_a_reload_that_ends_its_rank_says_how(supervise: Command, ready: str):
    """The program does not handle the signal. The name of the run is the only one in the message."""
    up = "import signal, supervise; supervise.notify(ready=True); print('up', flush=True); signal.pause()"
    command = json.dumps([sys.executable, "-c", up])
    write(supervise, f"[roles.web]\ncommand = {command}\nready = '{ready}'\nreload-signal = 'HUP'\n")
    with supervise.started("--run-id", "job", "--file", "gang.toml") as run:
        assert run.hear() == ["[web0]:up\n"]
        until(lambda: " ready " in supervise.supervise("status", "job").stdout)
        done = supervise.supervise("reload", "job")
        assert done.returncode == 1
        assert re.fullmatch(
            r"supervise reload: job_\w+: rank 0 \(web 0\) ended \(SIGHUP\) while it reloaded\n", done.stderr
        )


def test_a_reload_without_a_rank_that_is_ready_is_refused(supervise: Command):
    with supervise.started("--run-id", "job", "--ready", "notify", "sh", "-c", f"echo up; {LOOPS}") as run:
        assert run.hear() == ["[default0]:up\n"]
        done = supervise.supervise("reload", "job")
        assert (done.returncode, "no rank runs and is ready" in done.stderr) == (1, True)
        run.signal(signal.SIGTERM)
        run.end()


def test_the_report_names_the_signal_that_was_sent(supervise: Command):
    deaf = f"trap '' INT TERM; : > deaf; {LOOPS}"
    write(
        supervise,
        f"[roles.web]\ncommand = ['sh', '-c', \"{deaf}\"]\nstop-signal = 'INT'\nshutdown-timeout = 0.2\n"
        "[roles.worker]\ncommand = ['sh', '-c', 'until [ -e deaf ]; do sleep 0.05; done; exit 3']\n",
    )
    done = supervise.run("--file", "gang.toml")
    assert done.returncode == 3
    assert re.search(r"killed by SIGKILL \(sent by supervise, [\d.]+ m?s after SIGINT\)", done.stderr), done.stderr
