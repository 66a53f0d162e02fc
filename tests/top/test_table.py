"""``supervise top``: the real program on a real terminal, beside a real run."""

import os
import re
import shlex
import signal
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from supervise.cli.commands import steering
from tests.cli.command import ROOT, SUPERVISE, Command
from tests.cli.shell import PROMPT, shell
from tests.patience import PATIENCE_S
from tests.top.driver import SAYS, running, top

BEATS = """
import os, signal, supervise
supervise.enable_stacks()
def all_reduce():
    print("it waits", flush=True)
    while True:  # faulthandler's signal for the stacks ends a pause
        signal.pause()
supervise.notify(ready=True, step=7, heartbeat=True, status="epoch 1")
all_reduce()
"""
HOSTILE = r"""
printf 'up\n'
printf '\033]0;owned\007\033[2Jred \033[31mherring\033[0m \302\233 \342\200\256gnol\n' >&2
exec sleep 1000
"""
HEARS = """
import select, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: print("usr1", flush=True))
print(*range(1, 101), sep="\\n", file=sys.stderr, flush=True)
select.select([], [], [], 0.1)
print("up", flush=True)
while True:
    signal.pause()
"""
FAILS = """
[ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ] && { echo up; echo no space left on device >&2; exit 28; }
echo up; exec sleep 1000
"""


def test_the_table_has_a_row_for_each_rank_and_ends_with_the_run(supervise: Command):
    """The end is one line on the screen as it was before; the exit code is 0."""
    with running(supervise, "sh", "-c", SAYS) as run, top(supervise, "job") as table:
        running_s = re.compile(r"running  0:0\d:\d\d  2 ranks:  \. 2 ready  job_")
        lines = table.until("rank 0 is up", "rank 1 is up", "0%", "MiB", holds=lambda lines: running_s.match(lines[0]))
        assert lines[1].startswith("RANK  STATE")
        assert [line.split()[:2] for line in lines[2:4]] == [["0", "ready"], ["1", "ready"]]
        assert lines[-1].startswith("? help  q quit  Enter logs  w why  n failed")
        assert table.screen.alternate
        assert not table.screen.cursor_shown
        run.send_signal(signal.SIGTERM)
        assert table.end() == 0
        name = supervise.directory().name
        assert table.screen.main == f"{name} has ended: stopped, exit code 143; see: supervise show {name}\r\n"


def test_what_ranks_report_is_in_the_table(supervise: Command):
    (supervise.tmp_path / "beats.py").write_text(BEATS)
    words = ("--ready", "notify", "--heartbeat-timeout", "600", "beats.py")
    with running(supervise, *words, **supervise.patient_stacks()) as _run, top(supervise, "job") as table:
        head, row = table.until("it waits")[1:3]
        assert head.split()[:2] == ["RANK", "STATEv"]
        assert {"STEP", "BEAT"} <= set(head.split())
        assert " 7 " in row
        table.type(b"t")
        table.until("ranks 0-1: all_reduce (beats.py:7)")
        table.type(b"\x1b")
        table.until("LAST LINE")
        table.type(b"T")
        table.until("stacks of rank 0", "rank 0, pid", "all_reduce (", "<module>")
        table.type(b"qq")
        assert table.end() == 0


def test_a_failure_says_why_and_comes_first(supervise: Command):
    words = ("--strategy", "one_for_one", "--max-restarts", "1", "--backoff", "600", "sh", "-c", FAILS)
    with running(supervise, *words) as _run, top(supervise, "job", columns=120) as table:  # also if it took long
        table.until("first failure: rank 1 failed: exit code 28 after", "; last line: no space left on device")
        table.until("running  ", "b 1 backoff", "   1  backoff")
        table.until("   0  ready", holds=lambda lines: [line.split()[:1] for line in lines[2:4]] == [["1"], ["0"]])
        table.type(b"w")
        table.until("why rank 1 failed", "rank 1 of 2 failed: exit code 28 (host", "  the end of its stderr:")
        table.until("    no space left on device", "All that went wrong", "rank 1 restarts in ")
        table.type(b"\r")
        table.until("stderr.log of rank 1", "no space left on device")
        table.type(b"q")
        table.until("why rank 1 failed")
        table.type(b"\x1b")
        table.until("LAST LINE")
        table.type(b"o")
        table.until("RANK^", holds=lambda lines: [line.split()[:1] for line in lines[2:4]] == [["0"], ["1"]])
        table.type(b"n")
        table.until("? help")
        table.type(b"l")
        table.until("of rank 1")
        table.type(b"q")
        table.until("RANK^")
        table.type(b"q")
        assert table.end() == 0


def test_a_rank_is_found_by_its_number(supervise: Command):
    """On a terminal: a digit opens the question; the row comes into view and its logs open."""
    with running(supervise, "sh", "-c", SAYS, count=12) as _run, top(supervise, "job", rows=8) as table:
        table.until("rank 0 is up")
        table.type(b"11")
        table.until("Go to rank: 11_  Enter: go   Esc: no")
        table.type(b"\r")
        table.until("rank 11 is up", "? help")
        table.type(b"\r")
        table.until("stdout.log of rank 11")
        table.type(b"qh")
        table.until("  g, 0 to 9        go to a rank")
        table.type(b"hn")
        table.until("no rank is failed, hung, suspended or in backoff")
        table.type(b"q")
        assert table.end() == 0


def test_a_table_may_be_asked_for_before_its_run_exists(supervise: Command):
    """As after ``supervise run ... &``; a run with this name that has ended does not count."""
    supervise.run("--run-id", "job", "true")
    found: list[int] = []
    runs = supervise.tmp_path / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUPERVISE_RUNS_DIR", str(runs))
        waits = threading.Thread(
            target=lambda: found.append(steering.running_run("job", PATIENCE_S).info["world_size"])
        )
        waits.start()
        with running(supervise, "sh", "-c", SAYS):
            waits.join(PATIENCE_S)
            assert not waits.is_alive()
        assert len(list(runs.iterdir())) == 2
    assert found == [2]


def test_a_stop_asks_first(supervise: Command):
    with running(supervise, "sh", "-c", SAYS) as run, top(supervise, "job") as table:
        table.until("rank 1 is up")
        table.type(b"x")
        table.until("Stop the run, all 2 ranks? y: stop   other key: no")
        table.type(b"n")
        table.until("? help")
        assert run.poll() is None
        table.type(b"x")
        table.until("Stop the run")
        table.type(b"y")
        assert table.end() == 0
        assert "has ended: stopped, exit code 143" in table.screen.main


def test_a_signal_is_sent_to_the_selected_rank_or_to_all(supervise: Command):
    with running(supervise, sys.executable, "-c", HEARS) as _run, top(supervise, "job") as table:
        table.until("  up")
        table.type(b"\x1b[Bs")
        table.until("Signal to rank 1: _")
        table.type(b"usr1")
        table.until("Signal to rank 1: USR1_")
        table.type(b"\r")
        table.until("sent to rank 1")
        table.until("usr1", holds=lambda lines: [line.split()[-1:] for line in lines[2:4]] == [["up"], ["usr1"]])
        table.type(b"s\tUSR1\r")
        table.until("sent to ranks 0-1")
        table.type(b"snothing\r")
        table.until("'NOTHING' is not a signal; type a name such as USR1, or a number")
        table.type(b"q")
        assert table.end() == 0


def test_logs_of_a_rank(supervise: Command):
    """The log that was written last, followed; Tab shows the other; the first lines are above."""
    with running(supervise, sys.executable, "-c", HEARS) as run, top(supervise, "job", rows=12) as table:
        table.until("  up")
        table.type(b"\r")
        table.until("stdout.log of rank 0", "up")
        run.send_signal(signal.SIGUSR1)
        table.until("usr1")
        table.type(b"\t")
        table.until("stderr.log of rank 0", "100", holds=lambda lines: "92" in lines)
        table.type(b"\x1b[5~")
        table.until("83", "91", "83-91 of 100")
        table.type(b"\x1b[H")
        table.until("1-9 of 100", holds=lambda lines: lines[2:4] == ["1", "2"])
        table.type(b"q")
        table.until("LAST LINE")
        table.type(b"q")
        assert table.end() == 0


def test_text_of_ranks_cannot_reach_the_terminal(supervise: Command):
    """Titles, erasing, colors, C1 controls and right-to-left marks: the emulator knows none of them."""
    with running(supervise, "sh", "-c", HOSTILE, count=2) as _run, top(supervise, "job") as table:
        table.until("red herring  gnol")
        table.type(b"\r")
        table.until("of rank 0", "red herring  gnol")
        table.type(b"qq")
        assert table.end() == 0


def test_a_resize_draws_anew_at_every_size(supervise: Command):
    with running(supervise, "sh", "-c", SAYS, count=12) as _run, top(supervise, "job") as table:
        table.until("rank 11 is up", "0%")
        for columns, rows in ((20, 4), (160, 50), (1, 1), (40, 10), (80, 24)):
            table.resize(columns, rows)
            table.until("." if columns == 1 else "ready" if columns > 20 else ". 12")
            if rows > 2 and columns >= 20:
                table.until(holds=lambda lines: "q quit" in lines[-1])
        table.type(b"q")
        assert table.end() == 0


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_table_and_restores_the_terminal(supervise: Command, sig: signal.Signals):
    with running(supervise, "sh", "-c", SAYS) as run, top(supervise, "job") as table:
        table.until("rank 1 is up")
        if sig == signal.SIGINT:
            table.type(b"\x03")
        else:
            table.process.send_signal(sig)
        assert table.end() == 128 + sig
        assert table.screen.main == ""
        assert run.poll() is None


def test_an_error_of_supervise_itself_restores_the_terminal(supervise: Command):
    """The traceback is on the screen as it was before."""
    breaks = (
        "import sys, supervise._views.top.picture as p\n"
        "draw, count = p.draw, []\n"
        "def planted(view, *size):\n"
        "    count.append(1)\n"
        "    return draw(view, *size) if view.reading is None or len(count) < 4 else 1 / 0\n"
        "p.draw = planted\n"
        "from supervise.cli import main\n"
        "sys.exit(main())\n"
    )
    program = (sys.executable, "-c", breaks)
    with running(supervise, "sh", "-c", SAYS) as _run, top(supervise, "job", program=program) as table:
        assert table.end() == 1
        assert "ZeroDivisionError" in table.screen.main
        assert table.screen.entered == 1


def test_a_lost_terminal_ends_the_table(supervise: Command):
    with running(supervise, "sh", "-c", SAYS) as run, top(supervise, "job") as table:
        table.until("rank 1 is up")
        os.close(table.slave)
        table.hang_up()
        table.slave = table.master
        assert table.process.wait(PATIENCE_S) == 128 + signal.SIGHUP
        assert run.poll() is None


ENDS = "while wait -f $!; code=$?; [ $code = 150 ]; do sleep 0.05; done; exit $code"
"""A shell that has not seen yet that a job was continued returns the signal that has suspended the job."""


@pytest.mark.parametrize(
    ("then", "keys", "code"), [("fg", b"q", 0), (f"kill -TERM $!; kill -CONT $!; {ENDS}", b"", 143)]
)
def test_a_table_in_the_background_waits_for_the_terminal(supervise: Command, then: str, keys: bytes, code: int):
    """SIGTTOU suspends it. ``fg`` continues it, and a signal that ends programs ends it without a traceback."""
    suspended = 'until [ -n "$(jobs -s)" ]; do sleep 0.05; done'  # the shell itself knows that the job was suspended
    program = ("bash", "-mc", f'"$@" & {suspended}; {then}', "bash", *SUPERVISE)
    with running(supervise, "sh", "-c", SAYS), top(supervise, "job", program=program) as table:
        if keys:
            table.until("rank 1 is up")
            table.type(keys)
        assert table.end() == code
        assert "Traceback" not in table.screen.main


def test_a_terminal_that_takes_no_output_delays_nothing_but_the_pictures(supervise: Command):
    """Ctrl-S: keys still work, and the table ends; the modes are those of before."""
    with running(supervise, "sh", "-c", SAYS) as _run, top(supervise, "job") as table:
        table.until("rank 1 is up")
        termios.tcflow(table.slave, termios.TCOOFF)
        for _ in range(100):
            table.type(b"\x0c")  # each asks for a whole picture
        table.type(b"q")
        begun_s = time.monotonic()
        assert table.process.wait(PATIENCE_S) == 0
        assert time.monotonic() - begun_s < PATIENCE_S / 2
        assert termios.tcgetattr(table.slave) == table.modes


def test_a_supervise_that_does_not_answer_is_named(supervise: Command):
    """The table goes on with what it knows, and keys work."""
    with running(supervise, "sh", "-c", SAYS) as run, top(supervise, "job") as table:
        table.until("rank 1 is up")
        run.send_signal(signal.SIGSTOP)
        table.until("no reply", holds=lambda lines: lines[0].startswith("no reply  0:"))
        run.send_signal(signal.SIGCONT)
        table.until("running")
        table.type(b"q")
        assert table.end() == 0


def test_a_run_whose_supervise_is_killed_has_ended(supervise: Command):
    with running(supervise, "sh", "-c", SAYS) as run, top(supervise, "job") as table:
        table.until("rank 1 is up")
        run.send_signal(signal.SIGKILL)
        run.wait(PATIENCE_S)
        assert table.end() == 0
        assert "has ended: supervise was killed; see: supervise show job_" in table.screen.main


def test_the_report_of_a_failure_stays_on_the_terminal(supervise: Command):
    """Below the line that says how the run ended; a run that was stopped has none."""
    fails = "until [ -e go ]; do sleep 0.01; done; echo 'no such shard' >&2; exit 7"
    with (
        running(supervise, "sh", "-c", f"echo up; [ $RANK = 1 ] && exec sleep 1000; {fails}"),
        top(supervise, "job") as table,
    ):
        table.until("running")
        (supervise.tmp_path / "go").touch()
        assert table.end() == 0
        told = table.screen.main.splitlines()
    name = supervise.directory().name
    assert told[0] == f"{name} has ended: failed, exit code 7; see: supervise show {name}"
    assert told[1].startswith("supervise: rank 0 of 2 failed: exit code 7 (host ")
    assert "    no such shard" in told
    assert told[-1].startswith("  logs: ")


def refused(supervise: Command, *words: str, **env: str) -> tuple[int, str]:
    done = supervise.supervise("top", *words, **env)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_what_the_table_needs_is_told_in_one_line(supervise: Command):
    """rich, a terminal, a run that goes on: no traceback, and nothing is started."""
    (supervise.tmp_path / "without" / "rich").mkdir(parents=True)
    (supervise.tmp_path / "without/rich/__init__.py").write_text("raise ModuleNotFoundError('No module named rich')")
    path = f"{supervise.tmp_path}/without{os.pathsep}{ROOT}"
    supervise.run("--run-id", "job", "sh", "-c", "exit 7")
    name = supervise.directory().name
    assert refused(supervise, "job", PYTHONPATH=path) == (
        1,
        "supervise top: the table needs rich: pip install 'supervise-gang[rich]'; --json works without it\n",
    )
    assert refused(supervise, "job") == (
        1,
        "supervise top: stdout is not a terminal; --json prints readings to any file\n",
    )
    ended = f"supervise top: {name} has ended: failed, exit code 7; see: supervise show {name}\n"
    assert refused(supervise, "job", "--json", PYTHONPATH=path) == (3, ended)
    assert refused(supervise, "nothing", "--json")[0] == 2
    with top(supervise, "job", TERM="dumb") as table:
        assert table.end() == 1
        assert "this terminal cannot move its cursor (TERM is dumb or not set)" in table.screen.main


def test_no_color(supervise: Command):
    with running(supervise, "sh", "-c", SAYS) as _run, top(supervise, "job", NO_COLOR="1") as table:
        raw: list[str] = []
        feed = table.screen.feed
        table.screen.feed = lambda text: (raw.append(text), feed(text))[1]
        table.until("rank 1 is up")
        table.type(b"q")
        assert table.end() == 0
        codes = set(re.findall(r"\x1b\[([\d;]*)m", "".join(raw)))
        assert not [code for code in codes if re.search(r"\b[34]\d\b", code)]


def test_a_gang_of_another_program_has_a_table_too(supervise: Command):
    """RUN is its socket; its logs are not known, and its program goes on when the gang has ended."""
    path = str(supervise.tmp_path / "control.sock")
    program = (sys.executable, str(Path(__file__).parents[1] / "control/host.py"), path, "waits")
    with supervise.started_command(program=program) as host:
        host.hear()
        with top(supervise, path) as table:
            table.until("control.sock", "ready")
            table.type(b"\r")
            table.until("only supervise run keeps logs where this command finds them")
            table.type(b"q")
            table.until("LAST LINE")
            table.type(b"xy")
            assert table.end() == 0
            assert "control.sock: stopped" in table.screen.main
        assert host.process.poll() is None
        host.signal(signal.SIGKILL)
        host.end()


def test_a_gang_of_another_program_has_its_roles_in_the_table_and_its_stacks(supervise: Command):
    """Its socket reports them."""
    path = str(supervise.tmp_path / "control.sock")
    program = (sys.executable, str(Path(__file__).parents[1] / "control/host.py"), path, "roles")
    with supervise.started_command(program=program) as host:
        host.hear()
        with top(supervise, path) as table:
            lines = table.until("ready", "ROLE")
            assert [line.split()[1] for line in lines[2:5]] == ["web0", "web1", "worker0"]
            table.type(b"t")
            table.until("ranks 0-2 (web 0-1, worker 0): no Python frames")
            table.type(b"qq")
            assert table.end() == 0


def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(supervise: Command):
    """In a shell with job control, as with vim or less."""
    with running(supervise, "sh", "-c", SAYS) as _run, shell(supervise) as bash:
        before = bash.modes()
        bash.line(f"{shlex.join([*SUPERVISE, 'top'])} job")
        bash.until("\x1b[?1049h", "rank 1 is up")
        assert bash.modes() != before
        bash.type("\x1a")
        bash.until("\x1b[?1049l", "Stopped", PROMPT)
        assert bash.modes() == before
        bash.line("fg")
        bash.until("\x1b[?1049h", "rank 1 is up")
        bash.until_in_front()
        bash.type("q")
        bash.until("\x1b[?1049l", PROMPT)
        assert bash.modes() == before
        bash.line("echo code $?")
        bash.until("code 0")
