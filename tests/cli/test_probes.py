"""Probes in gang files and options: `check`, `--dry-run`, real servers; and what ranks report without an option."""

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.cli.test_run_commands import until
from tests.ports import free_port

GANG = """
[roles.migrate]
command = ["sh", "-c", "echo migrated; exec touch schema"]
ready = "exit"

[roles.web]
command = ["{python}", "server.py"]
count = 2
ready = ["tcp:80${{ROLE_RANK}}1", "exec:test -e 'schema'"]
alive = "http://localhost:80${{ROLE_RANK}}1/"
alive-interval = "2s"
alive-failures = 5
"""
SERVER = """
import http.server, os, threading
port = int(os.environ["PORTS"].split()[int(os.environ["ROLE_RANK"])])
print("the schema is there:", os.path.exists("schema"), flush=True)
timer = threading.Timer(1.0, lambda: http.server.HTTPServer(("127.0.0.1", port), Serves).serve_forever())
class Serves(http.server.SimpleHTTPRequestHandler):
    pass
timer.start()
"""
MAKE = 'echo "import time; time.sleep(1000)" > sleeps.py; exec "$0" "$@"'
CLIENT = """
import os, urllib.request
for port in os.environ["PORTS"].split():
    urllib.request.urlopen(f"http://127.0.0.1:{port}/").close()
print("the servers answer")
"""


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "gang.toml"
    path.write_text(GANG.format(python=sys.executable))
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "client.py").write_text(CLIENT)
    return path


def test_a_migration_slow_servers_and_their_client(supervise: Command, toml: Path):
    """No program speaks a protocol of supervise; each role starts when the one before is ready."""
    first, second = free_port(), free_port()
    toml.write_text(f"""
env = {{ PORTS = "{first} {second}" }}
[roles.migrate]
command = "touch schema"
ready = "exit"
[roles.web]
command = ["{sys.executable}", "server.py"]
count = 2
ready = ["tcp:{first}", "http://localhost:{second}/server.py"]
service = true
[roles.client]
command = ["{sys.executable}", "client.py"]
""")
    done = supervise.run("-q", "--file", str(toml))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("[web0]:the schema is there: True") == 1
    assert "[client0]:the servers answer" in lines


def test_check_and_dry_run_show_the_probes_and_try_none(supervise: Command, toml: Path):
    """They print the text of the file."""
    done = supervise.refused("check", str(toml))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("  migrate: 1 rank, ready exit, in ")
    assert lines[3].startswith(
        "  web: 2 ranks, ready tcp:80${ROLE_RANK}1 and exec:test -e 'schema', alive http://localhost:80${ROLE_RANK}1/,"
        " alive-interval 2 s, alive-failures 5, in "
    )
    done = supervise.run("--dry-run", "--file", str(toml))
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("# rank")] == [
        "# rank 0: ready exit",
        "# rank 1: ready tcp:80${ROLE_RANK}1",
        "# rank 1: ready exec:test -e 'schema'",
        "# rank 1: alive http://localhost:80${ROLE_RANK}1/",
        "# rank 2: ready tcp:80${ROLE_RANK}1",
        "# rank 2: ready exec:test -e 'schema'",
        "# rank 2: alive http://localhost:80${ROLE_RANK}1/",
    ]
    assert not (toml.parent / "schema").exists()


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"exit"', '"exti"', "roles.migrate: ready is 'exti'; it is one of exec, notify, exit; a probe is tcp:"),
        ("${{ROLE_RANK}}1/", "${{PRT}}/", "role 'web': rank 0: alive is 'http://localhost:80${PRT}/'; PRT is not"),
        (
            "alive-failures = 5",
            "alive-failures = 0",
            "roles.web: alive-failures: '0' is not a valid number of times; give 1 or more",
        ),
        ("test -e", "no-such-test -e", "; No such file or directory"),
        ('"exit"', "3", "roles.migrate: ready is 3; give a text or a list of texts"),
    ],
)
def test_a_wrong_probe_of_a_file_is_refused(supervise: Command, toml: Path, old: str, new: str, complaint: str):
    """By the role, the key and the value, before any process starts."""
    toml.write_text(GANG.replace(old, new).format(python=sys.executable))
    done = supervise.refused("check", str(toml))
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr


def test_options_replace_the_probes_of_a_file(supervise: Command, tmp_path: Path):
    """The list of a file is that of all roles; options are repeated for a list, and replace that of the file."""
    toml = tmp_path / "gang.toml"
    toml.write_text('ready = ["file:a", "log:a,b"]\nalive = "exec:true"\n[roles.a]\ncommand = "true"\n')

    def shown(*words: str) -> str:
        return supervise.refused("check", *words, str(toml)).stdout.splitlines()[1]

    assert ", ready file:a and log:a,b, alive exec:true, in " in shown()
    assert ", ready notify, alive tcp:80, in " in shown("--ready", "notify", "--alive", "tcp:80")
    assert ", ready file:x and tcp:80 and notify, alive" in shown("--ready=file:x", "--ready=tcp:80", "--ready=notify")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--ready-timeout", "5"), "--ready-timeout needs --ready"),
        (("--alive-interval", "5"), "--alive-interval needs --alive"),
        (("--alive-failures", "5", "--ready", "tcp:80"), "--alive-failures needs --alive"),
        (("--on-hang", "fail"), "--on-hang needs --heartbeat-timeout, --output-timeout or --alive"),
        (("--ready", "exit", "--ready", "tcp:80"), "give exit alone"),
        (("--ready", "tcp:x"), "'x' is not a port"),
        (("--ready", "log:x", "--log-dir", "/dev/null"), "its output is not written to a file"),
    ],
)
def test_options_that_need_others(supervise: Command, words: tuple[str, ...], complaint: str):
    """And values that are not valid."""
    done = supervise.run(*words, "true")
    assert done.returncode == 2
    assert complaint in done.stderr


def test_a_hang_that_a_probe_finds_fails_the_run(supervise: Command):
    """The line says which probe, and its last answer."""
    words = ("--alive", "exec:sh -c 'echo stuck; exit 4'", "--alive-interval", "0.1", "--on-hang", "fail")
    done = supervise.run(*words, "sleep", "1000")
    assert done.returncode != 0
    assert "rank 0 hangs: no answer for " in done.stderr
    assert "(\"exec:sh -c 'echo stuck; exit 4': exit code 4: stuck\")" in done.stderr


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        ("one_for_all", "rank 0 failed (hung); restart 1 of 1 now\n"),
        ("one_for_one", "rank 0 ended (hung); restart 1 of this rank now\n"),
    ],
)
def test_the_restart_of_a_rank_that_hung_does_not_blame_the_signal_of_supervise(
    supervise: Command, strategy: str, told: str
):
    """Neither at once on stderr, nor later in the files, nor in the events."""
    words = ("--alive", "exec:false", "--alive-interval", "0.1", "--alive-failures", "1", "--on-hang", "fail")
    done = supervise.run(
        *words, "--strategy", strategy, "--max-restarts", "1", "--backoff", "0", "--run-id", "job", "sleep", "1000"
    )
    assert f"supervise: {told}" in done.stderr
    assert told.partition("1 ")[0] in supervise.supervise("show", "job").stdout
    events = [json.loads(line) for line in (supervise.directory() / "events.jsonl").read_text().splitlines()]
    assert {each["error_type"] for each in events if "error_type" in each} == {"hung"}


def test_an_exception_of_a_probe_is_not_one_of_the_rank(supervise: Command, tmp_path: Path):
    """Below `supervise run`, Python programs record theirs for the report."""
    probe = f"exec:{sys.executable} -c 'raise ValueError(7)'"
    done = supervise.run(
        "--ready", probe, "--ready-timeout", "12", "--run-path", "sleeps.py", before=("sh", "-c", MAKE)
    )
    assert done.returncode != 0
    assert "the last answer: exit code 1: ValueError: 7" in done.stderr
    assert not list(tmp_path.rglob("error.json"))


def test_reports_of_ranks_are_heard_without_an_option(supervise: Command, tmp_path: Path):
    """Step and status are in `supervise status`."""
    told = "import signal, supervise\nsupervise.notify(step=41, status='epoch 2')\nprint('told', flush=True)\n"
    (tmp_path / "steps.py").write_text(f"{told}signal.pause()\n")
    with supervise.started("--run-id", "steps", "steps.py") as run:
        assert "told" in run.hear()[0]

        def row() -> dict[str, object] | None:
            done = supervise.supervise("status", "steps", "--json")
            found: dict[str, object] = json.loads(done.stdout)["ranks"]["0"] if done.returncode == 0 else {}
            return found if found.get("step") else None

        found = until(row)
        assert (found["step"], found["status"]) == (41, "epoch 2")
        run.process.terminate()
        run.end()


def test_a_caller_s_own_notify_socket_stays(supervise: Command):
    """An option that needs none does not take it away from the ranks."""
    show = "import os; print(os.environ['NOTIFY_SOCKET'])"
    done = supervise.run("-q", "--no-prefix", "--env", "NOTIFY_SOCKET=/run/mine", sys.executable, "-c", show)
    assert (done.returncode, done.stdout, done.stderr) == (0, "/run/mine\n", "")


@pytest.mark.parametrize(("beats", "told"), [("", 1), ("import supervise; supervise.notify(step=1)", 0)])
def test_a_watchdog_without_a_single_beat_says_so_once(supervise: Command, beats: str, told: int):
    """At the end of the run, if it does not last for three deadlines."""
    done = supervise.run("--heartbeat-timeout", "1000", "-n", "2", sys.executable, "-c", beats)
    assert done.returncode == 0
    assert done.stderr.count("no rank has sent a heartbeat yet, so --heartbeat-timeout has watched none") == told


@pytest.mark.parametrize(
    ("source", "hangs"),
    [
        ("signal.sigtimedwait([], 1.2); supervise.notify(ready=True); supervise.notify(step=1)", False),
        ("supervise.notify(ready=True); signal.sigtimedwait([], 1.2)", True),
    ],
    ids=["slow", "silent"],
)
def test_a_watchdog_that_waits_for_readiness_or_finds_a_hang_misses_nothing(
    supervise: Command, source: str, hangs: bool
):
    """A slow import is no program without heartbeats; and who is silent once it is ready is found."""
    words = (
        "--ready",
        "notify",
        "--heartbeat-timeout",
        "0.3",
        sys.executable,
        "-c",
        f"import signal, supervise; {source}",
    )
    done = supervise.run(*words)
    assert (done.returncode, "no rank has sent a heartbeat" in done.stderr) == (0, False)
    assert "hangs: no heartbeat for" in done.stderr or not hangs


def test_a_watchdog_without_a_beat_for_three_deadlines_says_so(supervise: Command):
    """While the ranks run."""
    with supervise.started("--heartbeat-timeout", "0.2", "sleep", "1000") as run:
        assert "notify(heartbeat=True)" in run.hear_error("no rank has sent a heartbeat")
        run.process.terminate()
        _, _, err = run.end()
        assert "heartbeat" not in err


@pytest.mark.parametrize("pattern", [r"^(\w+\s?)*$", "(a+)+$"])
def test_a_pattern_whose_search_does_not_end_stops_nothing_else(supervise: Command, pattern: str):
    """Another process searches; a signal ends the run at once."""
    script = f"echo {'a' * 60}!; exec sleep 1000"
    with supervise.started(
        "--run-id", "job", "--ready", f"log:{pattern}", "--ready-timeout", "900", "sh", "-c", script
    ) as run:
        run.hear()
        assert supervise.supervise("status", "job").returncode == 0
        run.signal(signal.SIGTERM)
        assert run.end()[0] == 128 + signal.SIGTERM


def test_a_bound_of_the_log_keeps_what_was_not_searched(supervise: Command):
    """The line is far before the end of a flood, which comes between two tries."""
    flood = f"print('listening', flush=True)\nfor _ in range(4000): print('{'z' * 80}')\ntime.sleep(1000)"
    words = ("-v", "-r", "3", "--log-max-bytes", "64K", "--ready", "log:listening", "--ready-timeout", "40")
    with supervise.started(*words, sys.executable, "-c", f"import time; time.sleep(0.3)\n{flood}") as run:
        run.hear_error("process.ready")
        run.signal(signal.SIGTERM)
        run.end()


SPARSE = """
import os
path = os.readlink("/proc/self/fd/1")
os.write(1, b"x" * 3_000_000 + b"\\n")
os.truncate(path, 1 << 38)
os.write(1, b"\\nup\\n")
"""


def test_a_line_of_any_length_and_a_hole_are_passed_over(supervise: Command, tmp_path: Path):
    """The file is then as large as 256 GiB."""
    (tmp_path / "sparse.py").write_text(SPARSE + "import time; time.sleep(1000)")
    with supervise.started("-r", "3", "--ready", "log:^up$", "-v", "sparse.py") as run:
        run.hear_error("process.ready")
        run.signal(signal.SIGTERM)
        run.end()


@pytest.mark.parametrize(
    ("pattern", "script"),
    [("^$", "echo one"), (r"^\s*$", "echo one; truncate -s 256G $(readlink /proc/$$/fd/1)")],
    ids=["here", "in a process, before a hole"],
)
def test_the_end_of_a_log_is_not_an_empty_line(supervise: Command, pattern: str, script: str):
    """Nor is a hole up to its end searched, which has no line either."""
    words = ("-r", "3", "--ready", f"log:{pattern}", "--ready-timeout", "8")
    done = supervise.run(*words, "sh", "-c", f"{script}; exec sleep 1000")
    assert done.returncode == 1
    assert "the last answer: no line matches" in done.stderr


@pytest.mark.parametrize("ready", ["exit", "log:done"])
def test_the_time_in_which_supervise_was_suspended_does_not_count(supervise: Command, ready: str):
    """The rank is done before the limit, and supervise goes on only after it."""
    script = "kill -STOP $PPID; (sleep 2; kill -CONT $PPID) & echo done"
    script += "" if ready == "exit" else "; wait; exec sleep 1000"
    with supervise.started("-v", "--ready", ready, "--ready-timeout", "1", "sh", "-c", script) as run:
        run.hear_error("process.ready")
        run.signal(signal.SIGTERM)
        run.end()


def test_a_log_that_is_a_pipe_now_is_said_to_be_one(supervise: Command, tmp_path: Path):
    script = 'path=$(readlink /proc/$$/fd/1); rm "$path"; mkfifo "$path"; exec sleep 1000'
    done = supervise.run("-r", "3", "--ready", "log:up", "--ready-timeout", "1", "sh", "-c", script)
    assert "the last answer: not a regular file" in done.stderr
