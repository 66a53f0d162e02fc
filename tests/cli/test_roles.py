"""Roles in words: where commands and options name ranks, and where a screen names them; which roles of a file run."""

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from supervise.cli.options.options import parse
from tests.cli.command import Command, Started
from tests.cli.test_run_commands import until

UP = 'trap "echo usr1 $ROLE_NAME $ROLE_RANK" USR1; echo up; while :; do sleep 1000 & wait $!; done'


def gang_file(supervise: Command, *heads: str, **scripts: str) -> None:
    """Write gang.toml: a role with two ranks for each script."""
    roles = [f"[roles.{name}]\ncommand = ['sh', '-c', '''{script}''']\ncount = 2" for name, script in scripts.items()]
    (supervise.tmp_path / "gang.toml").write_text("\n".join([*heads, *roles]))


@contextmanager
def running(supervise: Command, *words: str, run_id: str = "job") -> Iterator[Started]:
    """Start a run of the roles db and web, with two ranks each; yield it when all are up, and end it."""
    gang_file(supervise, db=UP, web=UP)
    with supervise.started("--no-prefix", "--run-id", run_id, "--file", "gang.toml", *words) as run:
        run.hear(4)
        yield run
        if run.process.poll() is None:
            run.signal(signal.SIGTERM)
            run.end()


def told(supervise: Command, *words: str, note: str = "") -> str:
    """Return what a command prints, which must succeed; `note` is a part of its stderr."""
    done = supervise.supervise(*words)
    assert done.returncode == 0, done.stderr
    assert note in done.stderr if note else not done.stderr
    return done.stdout


def refused(supervise: Command, *words: str) -> str:
    """Return the error message of a command that refuses its words."""
    done = supervise.supervise(*words)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_commands_take_roles_where_they_take_ranks(supervise: Command):
    """All ranks of a role, one by its role rank, and ranks by number; the answers name both."""
    with running(supervise) as run:
        name = supervise.directory().name
        assert told(supervise, "signal", "job", "USR1", "web") == f"{name}: SIGUSR1 was sent to ranks 2-3 (web 0-1)\n"
        assert run.hear(2) == ["usr1 web 0\n", "usr1 web 1\n"]
        told(supervise, "signal", "job", "USR1", "db.1,3")
        assert run.hear(2) == ["usr1 db 1\n", "usr1 web 1\n"]
        told(supervise, "signal", "job", "USR1", "--rank", "web.0", "0-1")
        assert run.hear(3) == ["usr1 db 0\n", "usr1 db 1\n", "usr1 web 0\n"]
        assert re.fullmatch(
            rf"{name}: rank 1 \(db 1\) was restarted, pid \d+\n", told(supervise, "restart", "job", "db.1")
        )
        assert run.hear() == ["up\n"]
        assert "  rank 1 (db 1) was stopped (SIGTERM); restart 1 of this rank\n" in told(supervise, "show", "job")
        assert "rank 3 (web 1), pid" in told(supervise, "stacks", "job", "web.1")
        rows = [row.split()[:3] for row in told(supervise, "status", "job").splitlines()[1:]]
        assert rows == [
            *(["RANK", "ROLE", "STATE"], ["0", "db.0", "ready"], ["1", "db.1", "ready"]),
            *(["2", "web.0", "ready"], ["3", "web.1", "ready"]),
        ]
        row = json.loads(told(supervise, "status", "job", "--json"))["ranks"]["3"]
        assert (row["role"], row["role_rank"]) == ("web", 1)


def programs(supervise: Command) -> list[str]:
    """Return what the processes of the ranks that were started run by now."""
    texts = [path.read_text() for path in supervise.tmp_path.glob("runs/job_*/events.jsonl")]
    events = [json.loads(line) for text in texts for line in text.rpartition("\n")[0].splitlines()]
    pids = [event["pid"] for event in events if event["event"] == "supervise.process.started"]
    return [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids]


def test_the_stacks_of_a_hang_name_the_roles(supervise: Command):
    """On the console, and on the page."""
    gang_file(supervise, "strategy = 'one_for_one'", db="exec sleep 1000", web="exec sleep 1000")
    with (supervise.tmp_path / "gang.toml").open("a") as file:
        file.write("\nready = 'exec:true'\nalive = 'exec:test ! -e hang'\nalive-interval = '50ms'\n")
    with supervise.started("--run-id", "job", "--file", "gang.toml", **supervise.patient_stacks()) as run:
        until(lambda: programs(supervise) == ["sleep"] * 4)  # so that all have the same place in the kernel
        (supervise.tmp_path / "hang").touch()
        line = run.hear_error("no Python frames")
        run.hear_error("stacks of all ranks")
        page = told(supervise, "report", "job", "-o", "-")
        run.signal(signal.SIGTERM)
        run.end()
    assert line.startswith("supervise: ranks 0-3 (db 0-1, web 0-1): no Python frames; the kernel:")
    assert "ranks 0-3 (db 0-1, web 0-1): no Python frames" in page


def test_a_name_that_no_role_has(supervise: Command):
    """The message has the names that exist, and the one that is probably meant."""
    with running(supervise):
        text = refused(supervise, "restart", "job", "wbe")
        assert "'wbe' is not a rank or a role; the ranks are 0 to 3, the roles db, web; did you mean 'web'?\n" in text
        for spelling in ("web1", "web 1"):
            assert "; did you mean 'web.1'?\n" in refused(supervise, "restart", "job", spelling), "not all of its ranks"
        assert "'web.2' does not exist; the role ranks of web are 0 to 1\n" in refused(
            supervise, "stop", "job", "web.2"
        )
        assert "rank 4 does not exist; the ranks are 0 to 3\n" in refused(supervise, "signal", "job", "HUP", "0-4")
        assert "'' names no rank and no role" in refused(supervise, "stop", "job", "")
        told = refused(supervise, "signal", "TERM", "job")
        assert "supervise signal: RUN is before SIG, as in supervise signal job TERM: 'job' is not a rank" in told
        assert re.search(
            r"'web'; see: supervise ls; it is a role of (job_\w+), so: supervise show \1\n",
            refused(supervise, "show", "web"),
        )
        assert "name the ranks or roles" in refused(supervise, "restart", "job")


def test_a_stop_of_a_role_leaves_the_others(supervise: Command):
    """The ranks stay down until a restart; the end of the last one ends the run."""
    with running(supervise) as run:
        name = supervise.directory().name
        assert told(supervise, "stop", "job", "web") == f"{name}: ranks 2-3 (web 0-1) stopped\n"
        assert [row.split()[2] for row in told(supervise, "status", "job").splitlines()[2:]] == [
            *("ready", "ready", "terminated", "terminated")
        ]
        assert "\n  ranks 2-3 (web 0-1): terminated, SIGTERM\n" in told(supervise, "show", "job")
        assert "for a stop of the whole run" in refused(supervise, "stop", "job", "db", "--timeout", "1")
        told(supervise, "restart", "job", "web.0")
        assert run.hear() == ["up\n"]
        told(supervise, "stop", "job", "db", "web.0", "--json")
        code, _, err = run.end()
        assert code == 128 + signal.SIGTERM
        assert "supervise: stopped by requests to stop its ranks\n" in err
    assert "has ended" in supervise.supervise("stop", "job", "web").stderr


def test_run_may_be_left_out(supervise: Command):
    """If one run only is running; the command says which it took. A role may be in the place of RUN."""
    supervise.run("-q", "--run-id", "old", "true")
    with running(supervise) as run:
        [path] = supervise.tmp_path.glob("runs/job_*")
        note = f"{path.name}, the only run that is running\n"
        assert told(supervise, "status", note=f"supervise status: {note}").startswith("running: job_")
        assert told(supervise, "show", note=note).startswith(f"{path.name}: running\n")
        told(supervise, "signal", "USR1", "web.1", note=note)
        assert run.hear() == ["usr1 web 1\n"]
        assert "rank 3 (web 1) was restarted" in told(supervise, "restart", "web.1", note=note)
        (supervise.tmp_path / "db").mkdir()  # a folder that is not that of a run
        assert "rank 0 (db 0) was restarted" in told(supervise, "restart", "db", note=note)
        assert told(supervise, "logs", "web.0", note=note) == "up\n"
        text = refused(supervise, "restart", "wbe")
        assert f"is named 'wbe'; see: supervise ls; and in {path.name}, the only run that is running: " in text
        assert "did you mean 'web'?" in text
        assert "'USR' is not a signal" in refused(supervise, "signal", "USR", "web")
        assert "is named 'web'; see: supervise ls; it is a role of " in refused(supervise, "status", "web")
        with running(supervise, run_id="web") as other:
            assert "the ranks" in refused(supervise, "restart", "web")  # RUN, not the role of a run
            assert re.search(r"it is missing, and 2 runs are running: \w+, \w+; give one", refused(supervise, "status"))
            told(supervise, "stop", "web")
            assert other.end()[0] == 128 + signal.SIGTERM
        assert "stopped" in told(supervise, "stop", note=note)
        run.end()
    assert "argument RUN: it is missing, and no run is running; see: supervise ls" in refused(supervise, "wait")
    assert told(supervise, "show", note=", the newest run\n").startswith("web_")
    for command in ("status", "top", "wait"):
        assert "it is a role of" not in refused(supervise, command, "db"), "of runs that have ended"
    assert "it is a role of " in refused(supervise, "show", "db")
    assert "usr1 web 1\n" not in told(supervise, "logs", "web.1", note=", the newest run\n")


def test_a_run_that_has_ended_hides_no_role_of_the_only_running_one(supervise: Command):
    """Its name begins with that of the role. By more of its name, or if no other run is running, it is found."""
    supervise.run("-q", "--run-id", "website", "sh", "-c", "echo yesterday")
    [old] = supervise.tmp_path.glob("runs/website_*")
    with running(supervise) as run:
        [path] = supervise.tmp_path.glob("runs/job_*")
        note = f"{path.name}, the only run that is running\n"
        assert "rank 3 (web 1) was restarted" in told(supervise, "restart", "web.1", note=note)
        assert told(supervise, "logs", "web.0", note=note) == "up\n"
        assert "ranks 2-3 (web 0-1) stopped" in told(supervise, "stop", "web", note=note)
        text = refused(supervise, "restart", "web", "wbe")
        assert f"argument RUN: 'web' is no more than the beginning of {old.name}; and in {path.name}, " in text
        assert "yesterday" in told(supervise, "logs", "webs")
        assert told(supervise, "show", "web").startswith(f"{old.name}: succeeded"), "it takes no role"
        run.signal(signal.SIGTERM)
        run.end()
    assert "yesterday" in told(supervise, "logs", "web")
    supervise.run("-q", "--run-id", "webs", "true")
    with running(supervise) as run:
        path = max(supervise.tmp_path.glob("runs/job_*"), key=lambda each: each.stat().st_ctime_ns)
        note = f"{path.name}, the only run that is running\n"
        assert "rank 2 (web 0) was restarted" in told(supervise, "restart", "web.0", note=note), "beside several"
        supervise.run("-q", "--run-id", "web", "true")
        for command in ("stop", "restart"):
            assert "web_" in supervise.supervise(command, "web").stderr, "its whole run ID is the name of a run"
            assert "has ended: succeeded" in supervise.supervise(command, "web").stderr
        run.signal(signal.SIGTERM)
        run.end()


def test_a_role_is_meant_rather_than_the_beginning_of_the_running_run(supervise: Command):
    """The default run ID is that of the file: `web-1f2e3d4c`."""
    with running(supervise, run_id="website") as run:
        [path] = supervise.tmp_path.glob("runs/website_*")
        note = f"{path.name}, the only run that is running\n"
        assert "ranks 2-3 (web 0-1) stopped" in told(supervise, "stop", "web", note=note)
        assert "rank 1" in told(supervise, "restart", "1", note=note)
        assert "stopped" in told(supervise, "stop", "webs")
        assert run.end()[0] == 128 + signal.SIGTERM


def test_a_role_in_the_place_of_run_if_none_or_several_are_running(supervise: Command):
    """The message says that RUN is missing."""
    missing = "is named 'web'; if 'web' is a role or a rank, RUN is missing, and"
    assert f"{missing} there are no runs in " in supervise.refused("logs", "web").stderr
    supervise.run("-q", "--run-id", "old", "true")
    assert f"{missing} no run is running; see: supervise ls\n" in supervise.refused("stop", "web").stderr
    with running(supervise) as run, running(supervise, run_id="other") as other:
        assert f"{missing} 2 runs are running: " in supervise.refused("stop", "web").stderr
        for each in (run, other):
            each.signal(signal.SIGTERM)
            each.end()


def test_options_take_roles(supervise: Command):
    """What is shown, whose exit code counts, and who reads stdin."""
    gang_file(supervise, "strategy = 'one_for_one'", db="exit 3", web="cat; echo of $ROLE_NAME $ROLE_RANK; exit 5")
    words = ("-q", "--file", "gang.toml", "--exit-code-from", "web.1", "--local-ranks-filter", "web.1,0")
    done = supervise.run(*words)
    assert (done.returncode, done.stdout) == (5, "[web1]:of web 1\n")
    options = parse(["--file", str(supervise.tmp_path / "gang.toml"), "--stdin", "db.1", "--local-ranks-filter", "web"])
    assert (options.stdin, options.ranks_shown) == (1, {2, 3})
    text = refused(supervise, "run", "--file", "gang.toml", "--exit-code-from", "web")
    assert "argument --exit-code-from: 'web' is more than one rank; give one, such as web.0\n" in text
    text = refused(supervise, "run", "--file", "gang.toml", "--stdin", "wb")
    assert "argument --stdin: 'wb' is not a rank or a role; " in text
    assert "; did you mean 'web'?" in text


def test_screens_name_roles(supervise: Command):
    """The report of a failure, the summary, the messages, and the commands about recorded runs."""
    gang_file(supervise, db="exec sleep 1000", web='[ "$ROLE_RANK" = 0 ] || exit 7; exec sleep 1000')
    done = supervise.run("--summary", "--run-id", "job", "--file", "gang.toml")
    assert re.search(r"rank 3 of 4 failed: exit code 7 \(host \S+, web 1, pid", done.stderr)
    assert "  ranks 0-2 (db 0-1, web 0): stopped by SIGTERM (sent by supervise)\n" in done.stderr
    assert re.search(r"^rank  role +pid +end", done.stderr, re.MULTILINE)
    assert re.search(r"^   3  web 1 +\d+  exit code 7", done.stderr, re.MULTILINE)
    shown = told(supervise, "show", "job")
    assert "  ranks:    4 (2 db, 2 web) on host " in shown
    assert "  ranks 0-2 (db 0-1, web 0): " in shown
    assert told(supervise, "ls").splitlines()[1].endswith("--file gang.toml (2 db, 2 web)")
    assert json.loads(told(supervise, "ls", "--json"))["roles"] == [
        {"name": "db", "count": 2},
        {"name": "web", "count": 2},
    ]
    page = told(supervise, "report", "job", "-o", "-")
    assert "4 (2 db, 2 web) on host" in page
    assert "rank 2 (web 0): " in page


def test_a_start_that_fails_names_its_role(supervise: Command):
    """Before a process was started."""
    (supervise.tmp_path / "gang.toml").write_text('[roles.db]\ncommand = "true"\n[roles.web]\ncommand = "nope"\n')
    done = supervise.run("--file", "gang.toml")
    assert done.stderr.startswith("supervise: cannot start rank 1 (web 0): nope is not in PATH")


def test_a_rank_that_is_not_ready_in_time_has_its_role(supervise: Command):
    """After its process was started."""
    path = supervise.tmp_path / "gang.toml"
    path.write_text('[roles.db]\ncommand = "sleep 1000"\nready = "file:up"\nready-timeout = "200ms"\n')
    done = supervise.run("--file", "gang.toml")
    assert "supervise: cannot start rank 0 (db 0): was not ready within 0.2 s: file:up was tried" in done.stderr


@pytest.mark.parametrize("restart", ["temporary", "transient"])
def test_a_role_that_stops_no_other_fails_no_start_of_another(supervise: Command, restart: str):
    """Unless it is to be restarted: the start of such a gang fails as a whole."""
    waits = "until [ -s pid ]; do sleep 0.05; done; while kill -0 $(cat pid) 2>&-; do sleep 0.05; done"
    (supervise.tmp_path / "gang.toml").write_text(
        "strategy = 'one_for_one'\nmax-restarts = 1\n"
        f"[roles.report]\ncommand = ['sh', '-c', 'echo $$ > pid; exit 3']\nrestart = '{restart}'\n"
        f"[roles.db]\nready = 'file:up'\ncommand = ['sh', '-c', '{waits}; touch up; sleep 2; touch done']\n"
    )
    done = supervise.run("--file", "gang.toml")
    assert done.returncode == 3, done
    assert (supervise.tmp_path / "done").exists() == (restart == "temporary")


def test_a_restart_names_its_role(supervise: Command):
    """At once on stderr, and later in the files."""
    fails = 'echo of $ROLE_RANK; [ "$TORCHELASTIC_RESTART_COUNT$ROLE_RANK" != 01 ] || exit 3'
    gang_file(supervise, "strategy = 'one_for_one'", "max-restarts = 1", "backoff = 0", db="true", web=fails)
    done = supervise.run("--run-id", "job", "--file", "gang.toml")
    assert "supervise: rank 3 (web 1) ended (exit code 3); restart 1 of this rank now\n" in done.stderr
    assert "  rank 3 (web 1) ended (exit code 3); restart 1 of this rank\n" in told(supervise, "show", "job")
    assert "--- rank 3 (web 1), life 1 ---\n" in told(supervise, "logs", "job", "web")
    assert told(supervise, "logs", "job", "web.0") == "of 0\n"
    assert set(told(supervise, "logs", "job", "web", "--life", "0").splitlines()) == {"[web0]:of 0", "[web1]:of 1"}


NEEDS = """
[roles.db]
command = "true"
service = true
[roles.web]
command = "true"
count = 2
[roles.worker]
command = "true"
[roles.off]
command = "true"
count = 0
"""


@pytest.mark.parametrize(
    ("words", "roles"),
    [
        ((), {"db": 1, "web": 2, "worker": 1}),
        (("web",), {"web": 2}),
        (("worker=3", "web"), {"web": 2, "worker": 3}),
        (("--", "off=2", "db"), {"db": 1, "off": 2}),
        (("web", "worker=0"), {"web": 2}),
        (("worker=3,web",), {"web": 2, "worker": 3}),
        (("worker=0",), {"db": 1, "web": 2}),
    ],
)
def test_a_run_of_some_roles(supervise: Command, words: tuple[str, ...], roles: dict[str, int]):
    """In the order of the file; a count of 0 switches a role off. If no role is wanted, all others run."""
    (supervise.tmp_path / "gang.toml").write_text(NEEDS)
    options = parse(["--file", str(supervise.tmp_path / "gang.toml"), *words])
    assert {part.role: part.count for part in options.parts} == roles
    assert options.words[2:] == tuple(word for word in words if word != "--")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("wbe",), "gang.toml: it has no role 'wbe'; its roles are db, web, worker, off (PROGRAM and "),
        (("wrker=3",), "exclude each other); did you mean 'worker'?"),
        (("web=-1",), "web=-1: '-1' is not a valid number of ranks"),
        (("web", "--dry-run"), "'--dry-run' is after the names of roles; give options before them"),
        (("off",), "every role is switched off by a count of 0; give at least one role a rank"),
        (("db",), "only services remain: db; add another role: services stop when all other roles have ended"),
    ],
)
def test_roles_that_cannot_run(supervise: Command, words: tuple[str, ...], told: str):
    """Before any process starts."""
    (supervise.tmp_path / "gang.toml").write_text(NEEDS)
    done = supervise.refused("run", "--file", "gang.toml", *words)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_run_of_a_role_has_the_roles_that_it_needs(supervise: Command):
    """Directly or not; a role does not wait for one that is switched off."""
    roles = ["[roles.web]", "needs = ['app', 'off']", "[roles.app]", "needs = ['db']"]
    roles += ["[roles.lone]", "[roles.db]", "[roles.off]", "count = 0"]
    text = "\n".join(f"{line}\ncommand = 'true'" if line.startswith("[") else line for line in roles)
    (supervise.tmp_path / "gang.toml").write_text(text)
    done = supervise.supervise("run", "--dry-run", "--file", "gang.toml", "web")
    assert "1. db; 2. app; 3. web\n" in done.stdout, done
    done = supervise.supervise("check", "gang.toml")
    assert "1. lone, db; 2. app; 3. web\n" in done.stdout, done
    done = supervise.supervise("run", "--dry-run", "--file", "gang.toml", "web", "app=0")  # which alone needs db
    assert done.stdout.startswith("# 1 rank\n"), done
    done = supervise.supervise("run", "--dry-run", "--file", "gang.toml", "web=0")
    assert "1. lone, db; 2. app\n" in done.stdout, done


def test_a_role_waits_for_what_a_role_that_is_switched_off_needs(supervise: Command):
    """Over several of them, whether the file or the command line switches them off."""
    roles = ["[roles.web]", "needs = ['migrate']", "[roles.migrate]", "needs = ['seed']", "[roles.seed]", "count = 0"]
    roles += ["needs = ['db']", "[roles.db]"]
    text = "\n".join(f"{line}\ncommand = 'true'" if line.startswith("[") else line for line in roles)
    (supervise.tmp_path / "gang.toml").write_text(text)
    for words, order in (((), "1. db; 2. migrate; 3. web\n"), (("migrate=0",), "1. db; 2. web\n")):
        assert order in supervise.supervise("run", "--dry-run", "--file", "gang.toml", *words).stdout


def test_the_order_of_the_other_roles_does_not_change(supervise: Command):
    """Without the only role that has needs, the others do not begin to wait for those before them."""
    roles = ["[roles.a]", "[roles.b]", "[roles.c]", "needs = ['a']"]
    text = "\n".join(f"{line}\ncommand = 'true'" if line.startswith("[") else line for line in roles)
    (supervise.tmp_path / "gang.toml").write_text(text)
    for words in (("a", "b"), ("a", "b", "c=0")):
        done = supervise.supervise("run", "--dry-run", "--file", "gang.toml", *words)
        assert "in this order: 1. a, b\n" in done.stdout, done


@pytest.mark.parametrize("name", ["0", "3-5"])
def test_a_role_with_the_name_of_ranks_is_refused(supervise: Command, name: str):
    """A list of ranks and roles would have two meanings."""
    (supervise.tmp_path / "gang.toml").write_text(f'[roles.{name}]\ncommand = "true"\n')
    assert f"'{name}' is the number of a rank" in supervise.refused("run", "--file", "gang.toml").stderr


@pytest.mark.parametrize("name", ["all", "none", "root-cause", "a,b", "web=3", "-f", " a", "a "])
def test_a_role_with_a_name_that_options_and_commands_read_otherwise_is_refused(supervise: Command, name: str):
    """As another value of --stdin or --exit-code-from, a list, a count or an option."""
    (supervise.tmp_path / "gang.toml").write_text(f'[roles."{name}"]\ncommand = "true"\n')
    done = supervise.refused("run", "--file", "gang.toml")
    assert f"gang.toml: roles.{name}: {name!r} has another meaning where options and commands take roles" in done.stderr


def test_lines_with_times(supervise: Command):
    """A time between two known times that are far apart has a mark."""
    supervise.run("-q", "--run-id", "job", "sh", "-c", "echo one; printf two")
    at = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d"
    events = supervise.directory() / "events.jsonl"
    started = re.search(r'"event": "supervise.process.started".*?"timestamp": "(.*?)"', events.read_text())
    assert started is not None
    log = supervise.directory() / "attempt_0/0/stdout.log"
    written = datetime.fromtimestamp(log.stat().st_mtime, datetime.fromisoformat(started[1]).tzinfo)
    known = events.read_text()

    def told_if_started(before: timedelta, *words: str) -> str:
        events.write_text(known.replace(started[1], (written - before).isoformat()))
        return told(supervise, "logs", "job", *words)

    soon = told_if_started(timedelta(seconds=1), "-t")
    assert re.fullmatch(rf"\[default0\]:{at} one\n\[default0\]:{at} two\n", soon)
    assert re.match(rf"~{at} one\n{at} two\n", told_if_started(timedelta(minutes=1), "0", "--timestamps"))
