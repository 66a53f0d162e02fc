"""``supervise ls``, ``show``, ``logs`` and ``clean``: what the files of runs tell, also after a kill of supervise."""

import html
import json
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from supervise.cli.runs_folder import make_runs_dir, runs_dir
from tests.cli.command import HANG, SUPERVISE, Command, environment, plain
from tests.patience import PATIENCE_S
from tests.views.fake_run import event, read_run, write_run

_T = TypeVar("_T")
FAILS = 'echo "out $RANK"; echo "err $RANK" >&2; [ "$RANK" = 1 ] && exit 3; exec sleep 1000'


def until(holds: Callable[[], _T]) -> _T:
    """Return what `holds` returns as soon as it is true."""
    end_s = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < end_s
        select.select([], [], [], 0.01)
    return found


def told(supervise: Command, *words: str) -> str:
    """Return what a command prints, which must succeed."""
    done = supervise.supervise(*words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_runs_are_listed_the_newest_first(supervise: Command):
    """State, exit code, ranks and program; a folder that is no run is not listed."""
    assert told(supervise, "ls") == f"no runs in {supervise.tmp_path / 'runs'}\n"
    supervise.run("-n", "2", "--run-id", "first", "true", "a b")
    supervise.run("--run-id", "second", "sh", "-c", "exit 7")
    (supervise.tmp_path / "runs" / "other").mkdir()
    head, second, first = told(supervise, "ls").splitlines()
    assert head.split() == ["NAME", "STATE", "EXIT", "STARTED", "TIME", "RANKS", "PROGRAM"]
    assert re.fullmatch(r"second_\w+ +failed +7 +\S+ \S+ +[\d.]+ m?s +1 +sh -c 'exit 7'", second)
    assert re.fullmatch(r"first_\w+ +succeeded +0 +\S+ \S+ +[\d.]+ m?s +2 +true 'a b'", first)
    rows = [json.loads(line) for line in told(supervise, "ls", "--json").splitlines()]
    assert [(row["state"], row["exit_code"], row["program"]) for row in rows] == [
        ("failed", 7, ["sh", "-c", "exit 7"]),
        ("succeeded", 0, ["true", "a b"]),
    ]


def test_a_failure_is_shown_again(supervise: Command):
    """The report, from the files alone."""
    failed = supervise.run("-n", "2", "--run-id", "job", "--", "sh", "-c", FAILS)
    report = failed.stderr[failed.stderr.index("supervise: rank 1 of 2 failed") :]
    shown = told(supervise, "show", "job")
    assert shown.startswith(f"{supervise.directory().name}: failed\n")
    assert shown.endswith(report)
    whole = json.loads(told(supervise, "show", "--json", "job"))
    assert whole["result"]["root_cause"] == 1
    assert whole["ranks"]["1"] == "ended, exit code 3"


def test_restarts_and_hangs_are_in_the_story(supervise: Command):
    """Each restart is a line; so is each hang."""
    supervise.run("--run-id", "a", "--max-restarts", "1", "--backoff", "0", "sh", "-c", "exit 3")
    assert "  rank 0 failed (exit code 3); restart 1\n" in told(supervise, "show", "a")
    words = ("--run-id", "b", "--output-timeout", "0.2", "--on-hang", "fail", "sh", "-c", "echo up; exec sleep 1000")
    supervise.run(*words, **supervise.patient_stacks())
    shown = told(supervise, "show", "b")
    assert re.search(r"^  stacks: /.*stacks-1\.txt\n  logs: ", shown, re.MULTILINE)
    assert re.search(r"^  rank 0 hung: no output for [\d.]+ m?s$", shown, re.MULTILINE)
    assert re.search(r"^  stacks: /.*stacks-1\.txt$", shown, re.MULTILINE)


def test_show_tells_what_happened_in_its_order(supervise: Command):
    """A hang comes before the restart that it causes, and is not taken for one of the next life."""
    ended = {"role": "root_cause", "exit_code": 4, "exit_signal": None, "attempt": 1}
    hung = {"tier": "answer", "status": None, "step": None, "waiting": []}
    events = [
        event("process.started", 0, 0, pid=7),
        event("process.hung", 1, 0, age_s=1.0, **hung | {"status": "exec:false: exit code 1"}),
        event("process.restarting", 2, 0, **ended),
        event("process.started", 3, 0, pid=8) | {"attempt": 1},
        event("process.hung", 4, 0, age_s=2.0, **hung) | {"attempt": 1},
    ]
    write_run(supervise.tmp_path / "runs" / "job_x", 1, events, outcome="succeeded", exit_code=0)
    shown = told(supervise, "show", "job_x").splitlines()[5:]
    assert shown == [
        '  rank 0 hung: no answer for 1 s ("exec:false: exit code 1")',
        "  rank 0 ended (exit code 4); restart 1 of this rank",
        "  rank 0 hung: no answer for 2 s",
        "  exit:     0",
    ]
    page = html.unescape(told(supervise, "report", "job_x", "--output", "-"))
    assert 'no answer for 1 s ("exec:false: exit code 1")' in page


@pytest.mark.parametrize(("left_out", "state"), [([], "waiting for a restart"), ([1], "ended, exit code 0")])
def test_a_rank_that_a_restart_has_left_out_is_shown_as_ended(supervise: Command, left_out: list[int], state: str):
    """Rank 1 is temporary: it does not wait for a restart."""
    supervise.run("-n", "2", "--run-id", "job", "true")
    folder = supervise.directory()
    (folder / "result.json").unlink()
    events = [
        {"event": "process.started", "local_rank": 0, "pid": 11},
        {"event": "process.started", "local_rank": 1, "pid": 12},
        {"event": "gang.started"},
        {"event": "process.exited", "local_rank": 1, "exit_code": 0, "exit_signal": None},
        {"event": "process.exited", "local_rank": 0, "exit_code": 3, "exit_signal": None},
        {
            "event": "gang.restarting",
            "root_cause_rank": 0,
            "error_type": "exit code 3",
            "attempt": 1,
            "left_out": left_out,
        },
        {"event": "process.started", "local_rank": 0, "pid": 13},
    ]
    at = "2026-01-01T00:00:00+00:00"
    lines = [json.dumps(event | {"event": f"supervise.{event['event']}", "timestamp": at}) for event in events]
    (folder / "events.jsonl").write_text("\n".join(lines))
    whole = json.loads(told(supervise, "show", "--json", "job"))
    assert whole["ranks"] == {"0": "running, pid 13", "1": state}
    assert f"  rank 1: {state}\n" in told(supervise, "show", "job")


def test_a_killed_run_does_not_wait_for_a_rank_that_its_restart_leaves_out(supervise: Command):
    """The event of the restart names the temporary rank, before any rank starts again."""
    (supervise.tmp_path / "gang.toml").write_text(
        'max_restarts = 1\nbackoff = 600\n[roles.once]\ncommand = "true"\nrestart = "temporary"\n'
        '[roles.fails]\ncommand = ["sh", "-c", "while ! grep -q process.exited $RUNS/*/events.jsonl; do sleep 0.1; '
        'done; exit 3"]\n'
    )
    runs = str(supervise.tmp_path / "runs")
    with supervise.started("--run-id", "job", "--file", "gang.toml", RUNS=runs) as run:
        restarting = '"supervise.gang.restarting"'
        until(lambda: any(restarting in path.read_text() for path in supervise.tmp_path.glob("runs/*/events.jsonl")))
        run.signal(signal.SIGKILL)
        run.process.wait()
    shown = told(supervise, "show", "job")
    assert "  rank 0 (once 0): ended, exit code 0\n" in shown
    assert "  rank 1 (fails 0): waiting for a restart\n" in shown


def test_after_a_kill_of_supervise_in_a_flood_the_files_tell_the_story(supervise: Command):
    """The host was killed, and what each rank was doing; a torn last event does not matter."""
    # Until the kill, and with pauses: `logs` shows all of it, on a busy machine too
    flood = 'lines=$(yes flood | head -n 100); while :; do echo "$lines"; sleep 0.02; done'
    script = f'[ "$RANK" = 2 ] && exit 0; echo up >&2; {flood}'
    with supervise.started("-n", "3", "--role", "r", "--run-id", "job", "--", "sh", "-c", script) as run:
        events = until(lambda: [*supervise.tmp_path.glob("runs/job_*/events.jsonl")])[0]
        until(lambda: "process.exited" in events.read_text() and events.read_text().count("process.started") == 3)
        until(lambda: all(log.read_text() for log in events.parent.glob("attempt_0/[01]/stderr.log")))
        assert told(supervise, "ls").splitlines()[1].split()[1] == "running"
        assert "  rank 2: finished, exit code 0\n" in told(supervise, "show", "job")
        run.signal(signal.SIGKILL)
        run.process.wait()
    with events.open("a") as file:
        file.write('{"event": "supervise.process.exi')
    assert told(supervise, "ls").splitlines()[1].split()[1] == "killed"
    shown = told(supervise, "show", "job")
    assert re.search(
        r"^supervise ended after \d{4}-\d\d-\d\d \d\d:\d\d:\d\d without a result:"
        r" it was killed, or its disk was full\. The ranks were then:$",
        shown,
        re.MULTILINE,
    )
    assert "  ranks 0-1: running\n  rank 2: ended, exit code 0\n" in shown
    assert "ran " not in shown, "nobody knows how long"
    assert "[r0]:flood\n" in told(supervise, "logs", "job")
    said = told(supervise, "logs", "--stderr", "job").splitlines()
    assert sorted(said) == ["[r0]:up", "[r1]:up"]  # the older one is first


def test_the_logs_of_a_run(supervise: Command):
    """With prefixes; of one rank without; a last line without an end gets one."""
    supervise.run("-n", "2", "--run-id", "job", "--", "sh", "-c", 'echo "out $RANK"; printf "err $RANK" >&2')
    assert sorted(told(supervise, "logs", "job").splitlines()) == [
        *("[default0]:err 0", "[default0]:out 0", "[default1]:err 1", "[default1]:out 1")
    ]
    assert told(supervise, "logs", "job", "--rank", "1") == "out 1\nerr 1\n"
    assert told(supervise, "logs", "job", "--since", "1d", "--stderr", "--rank", "0") == "err 0\n"
    assert told(supervise, "logs", "job", "--since", "0") == ""
    done = supervise.supervise("logs", "job", "--rank", "7")
    assert done.returncode == 2
    assert "rank 7 does not exist; the ranks are 0 to 1" in done.stderr


def test_logs_follow_a_run_to_its_end(supervise: Command):
    """What is written later is shown, and the command ends with the run."""
    script = "echo one; until [ -e word ]; do sleep 0.02; done; echo two; printf three"
    with supervise.started("--run-id", "job", "sh", "-c", script) as run:
        run.hear()
        with supervise.started_command("logs", "-f", "job") as follower:
            assert follower.hear() == ["[default0]:one\n"]
            (supervise.tmp_path / "word").touch()
            assert follower.end() == (0, "[default0]:two\n[default0]:three\n", "")
        run.end()


def test_logs_end_when_their_reader_has_gone_although_no_rank_writes(supervise: Command):
    """As `tail -f` in a pipe to `head -1`."""
    with supervise.started("--run-id", "job", "sh", "-c", "echo one; exec sleep 1000") as run:
        run.hear()
        with supervise.started_command("logs", "-f", "job") as follower:
            assert follower.hear() == ["[default0]:one\n"]
            assert follower.process.stdout is not None
            follower.process.stdout.close()
            assert follower.process.wait(20) == 141
        run.process.terminate()
        run.end()


def to_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def to_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize("change", [Path.unlink, to_pipe, to_folder, to_link], ids=["gone", "pipe", "folder", "link"])
def test_a_log_that_is_gone_is_named(supervise: Command, change: Callable[[Path], None]):
    """Other logs are shown; if no log can be shown, the command fails."""
    supervise.run("-q", "-n", "2", "--run-id", "job", "sh", "-c", "echo out; echo err >&2")
    folder = supervise.directory() / "attempt_0"
    change(folder / "0" / "stdout.log")
    done = supervise.supervise("logs", "job", "--rank", "0")
    assert (done.returncode, done.stdout) == (0, "err\n")
    assert re.fullmatch(f"supervise logs: rank 0 has no stdout.log: {folder}/0/stdout.log: .+\n", done.stderr)
    assert told(supervise, "logs", "job", "--rank", "0", "--stderr") == "err\n"
    change(folder / "0" / "stderr.log")
    done = supervise.supervise("logs", "job", "--rank", "0")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 2)


def test_streams_that_were_not_redirected_are_no_error(supervise: Command):
    """They have no logs; nor have runs without any."""
    supervise.run("-q", "--run-id", "job", "-r", "1", "-t", "0", "sh", "-c", "echo out; echo err >&2")
    assert told(supervise, "logs", "job") == "[default0]:out\n"
    supervise.run("-q", "--run-id", "none", "-r", "0", "-t", "0", "true")
    done = supervise.supervise("logs", "none")
    assert (done.returncode, done.stdout, "has no logs; the options" in done.stderr) == (0, "", True)
    supervise.run("-q", "--run-id", "merged", "--merge", "sh", "-c", "echo out; echo err >&2")
    assert told(supervise, "logs", "merged") == "[default0]:out\n[default0]:err\n"


def test_logs_without_a_reader_end(supervise: Command):
    """``supervise logs RUN | head`` ends with 141 and without a traceback."""
    supervise.run("-q", "--run-id", "job", "sh", "-c", "yes | head -100000")
    with supervise.started_command("logs", "job") as process:
        process.hear()
        assert process.process.stdout is not None
        process.process.stdout.close()
        assert process.process.stderr is not None
        assert process.process.stderr.read() == ""
        assert process.process.wait() == 141


def test_clean_removes_what_is_over(supervise: Command):
    """Never a run that goes on, nor a folder that is no run; a link in a run is not followed."""
    supervise.run("--run-id", "good", "true")
    supervise.run("--run-id", "bad", "false")
    runs = supervise.tmp_path / "runs"
    (runs / "other").mkdir()
    outside = supervise.tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    [good] = runs.glob("good_*")
    (good / "link").symlink_to(outside)
    (runs / "link_x").symlink_to(outside)
    late = supervise.run("--run-id", "late", "--timeout", "0.3", "--shutdown-timeout", "0", "sleep", "1000")
    assert late.returncode == 124
    with supervise.started("--run-id", "busy", "sh", "-c", f"echo up; {HANG}") as run:
        run.hear()
        assert "0 runs removed" in told(supervise, "clean", "--older-than", "1h")
        kept = told(supervise, "clean", "--all", "--keep-failed")
        assert re.match(r"removed good_\w+ \(succeeded, \d+ KiB\)\n1 run removed, ", kept)
        rest = told(supervise, "clean", "--all")
        assert re.search(r"removed bad_\w+ \(failed, \d+ KiB\)\n", rest)
        assert re.search(r"removed late_\w+ \(timed_out, \d+ KiB\)\n", rest)
        assert "\n2 runs removed, " in rest
        run.signal(signal.SIGTERM)
        run.end()
    assert sorted(path.name.partition("_")[0] for path in runs.iterdir()) == ["busy", "link", "other"]
    assert (outside / "file").exists()


def test_clean_removes_nothing_that_it_was_not_told(supervise: Command):
    """Without a choice it refuses, and on a terminal it asks; ``--dry-run`` only lists."""
    for run_id in ("one", "two", "three"):
        supervise.run("-q", "--run-id", run_id, "true")
    runs = supervise.tmp_path / "runs"

    def left() -> set[str]:
        return {path.name.partition("_")[0] for path in runs.iterdir()}

    done = supervise.supervise("clean", "--keep-failed")
    assert (done.returncode, done.stdout) == (2, "")
    assert "say which runs to remove: RUN, --older-than DUR, or --all; --dry-run lists those of --all" in done.stderr
    for answer in (b"n\n", b"\n", b"\x04"):
        with supervise.on_terminal(command="clean") as terminal:
            shown = terminal.until("Remove them? [y/N] ")
            assert re.search(r"would remove two_\w+ \(succeeded, \d+ KiB\)", shown)
            assert "3 runs to remove, " in shown
            terminal.type(answer)
            assert terminal.end()[0] == 0
    assert "3 runs to remove" in told(supervise, "clean", "--dry-run")
    assert left() == {"one", "two", "three"}
    assert "removed one_" in told(supervise, "clean", "one")
    assert "RUN and --all exclude each other" in supervise.supervise("clean", "two", "--all").stderr
    assert "is named 'one'; see: supervise ls" in supervise.supervise("clean", "one").stderr
    with supervise.on_terminal(command="clean") as terminal:
        terminal.until("Remove them? [y/N] ")
        terminal.type(b"y\n")
        code, shown = terminal.end()
    assert (code, left()) == (0, set())
    assert "2 runs removed, " in shown


def test_two_that_clean_at_once_do_not_complain_about_each_other(supervise: Command):
    """What one has removed is gone, as the other wants it."""
    supervise.run("--run-id", "job", "true")
    [path] = (supervise.tmp_path / "runs").iterdir()
    for number in range(60):
        shutil.copytree(path, path.with_name(f"job_{number:08x}"), symlinks=True)
    both = [
        subprocess.Popen(
            [*SUPERVISE, "clean", "--all"],
            env=environment(supervise.tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ends = [(each.communicate(timeout=PATIENCE_S)[1], each.returncode) for each in both]
    assert ends == [("", 0)] * 2
    assert list(path.parent.iterdir()) == []


def test_clean_of_one_run(supervise: Command):
    """Also of one in another folder; not of one that is running."""
    with supervise.started("--run-id", "busy", "--log-dir", "logs", "sh", "-c", f"echo up; {HANG}") as run:
        run.hear()
        [path] = (supervise.tmp_path / "logs").iterdir()
        done = supervise.supervise("clean", f"logs/{path.name}")
        assert (done.returncode, done.stderr) == (
            1,
            f"supervise clean: {path.name} is running; first: supervise stop {path.name}\n",
        )
        run.signal(signal.SIGTERM)
        run.end()
    assert f"removed {path.name} (stopped, " in told(supervise, "clean", f"logs/{path.name}")
    assert not path.exists()


def test_the_list_of_runs_fits_the_terminal(supervise: Command):
    """Columns go, the program is cut, and states have colors."""
    supervise.run("-q", "--run-id", "good", "--", "sh", "-c", "true " + "word " * 40)
    supervise.run("-q", "--run-id", "bad", "false")
    whole = told(supervise, "ls").splitlines()
    assert whole[0].split() == ["NAME", "STATE", "EXIT", "STARTED", "TIME", "RANKS", "PROGRAM"]
    for columns in (140, 100, 80, 60, 40):
        with supervise.on_terminal(command="ls", columns=columns) as terminal:
            code, shown = terminal.end()
        assert code == 0
        head, bad, good = plain(shown).splitlines()
        assert max(map(len, (head, bad, good))) <= columns
        assert head.split()[:2] == ["NAME", "STATE"]
        assert [line.split()[1] for line in (bad, good)] == ["failed", "succeeded"]
        assert good.endswith(" ...")
        assert "\x1b[31mfailed\x1b[0m" in shown
    retried = "test -e again || { touch again; exit 1; }"
    supervise.run("-q", "--run-id", "a-run-with-a-long-name", "--max-restarts", "1", "--", "sh", "-c", retried)
    for columns, state in ((120, "succeeded after 1 restart"), (80, "succeeded "), (40, " suc")):
        with supervise.on_terminal(command="ls", columns=columns) as terminal:
            lines = plain(terminal.end()[1]).splitlines()
        assert max(map(len, lines)) <= columns
        assert state in lines[1]
    with supervise.on_terminal(command="ls", NO_COLOR="1") as terminal:
        assert "\x1b" not in terminal.end()[1]
    assert told(supervise, "ls", "--running") == f"no run is running in {supervise.tmp_path}/runs\n"
    with supervise.started("--run-id", "busy", "sh", "-c", f"echo up; {HANG}") as run:
        run.hear()
        [_, busy] = told(supervise, "ls", "--running").splitlines()
        assert busy.split()[1] == "running"
        run.signal(signal.SIGTERM)
        run.end()


def test_a_name_that_is_not_one_run(supervise: Command):
    """The message lists the candidates."""
    supervise.run("--run-id", "job-a", "true")
    supervise.run("--run-id", "job-b", "true")
    done = supervise.supervise("show", "job")
    assert done.returncode == 2
    assert re.search(r"2 runs are named 'job'\.\.\.: job-b_\w+, job-a_\w+; give more of the name", done.stderr)
    assert "is named 'nope'; see: supervise ls" in supervise.supervise("logs", "nope").stderr
    assert "is not the directory of a run" in supervise.supervise("show", ".").stderr
    [path] = (supervise.tmp_path / "runs").glob("job-a_*")
    assert told(supervise, "show", str(path)).startswith(f"{path.name}: succeeded\n")


def test_of_runs_with_the_same_name_the_one_that_runs_is_shown(supervise: Command):
    """As for the commands that send requests: a run of the same program that has ended does not hide it.

    If none runs, it is the newest with exactly this run ID.
    """
    supervise.run("--run-id", "job", "echo", "old")
    with supervise.started("--run-id", "job", "sh", "-c", f"echo new; {HANG}") as run:
        run.hear()
        assert told(supervise, "logs", "job") == "[default0]:new\n"
        assert re.match(r"job_\w+: running\n", told(supervise, "show", "job"))
        run.signal(signal.SIGTERM)
        run.end()
    assert told(supervise, "logs", "job") == "[default0]:new\n"
    supervise.run("--run-id", "job-b", "true")
    assert told(supervise, "logs", "job") == "[default0]:new\n"
    assert "3 runs are named 'jo'" in supervise.supervise("logs", "jo").stderr


@pytest.mark.parametrize("ids", [("job", "job-b"), ("job-1", "job-12")])
def test_a_run_id_is_meant_rather_than_the_beginning_of_another_one(supervise: Command, ids: tuple[str, str]):
    """Also if the other one is running: a stop or a removal of the wrong run cannot be undone."""
    name, longer = ids
    supervise.run("--run-id", name, "echo", "old")
    with supervise.started("--run-id", longer, "sh", "-c", f"echo other; {HANG}") as run:
        run.hear()
        assert told(supervise, "logs", name) == "[default0]:old\n"
        assert told(supervise, "wait", name).endswith(": succeeded, exit code 0\n")
        done = supervise.supervise("stop", name)
        assert (done.returncode, "has ended: succeeded" in done.stderr) == (3, True)
        run.signal(signal.SIGTERM)
        run.end()
    assert told(supervise, "clean", name).startswith(f"removed {name}_")
    assert told(supervise, "show", longer).startswith(f"{longer}_")


def test_the_beginning_of_a_name_ends_at_no_digit_of_a_number(supervise: Command):
    """Only within the random part: after the removal of job-1, its name does not mean job-12."""
    supervise.run("--run-id", "job-12", "true")
    [path] = (supervise.tmp_path / "runs").glob("job-12_*")
    for word in ("job-1", "job-2"):
        assert f"is named '{word}'" in supervise.refused("clean", word).stderr
    for word in ("job", "job-", "job-12", *(path.name[:length] for length in range(7, len(path.name) + 1))):
        assert told(supervise, "show", word).startswith(f"{path.name}: ")


def test_a_folder_with_the_name_of_a_run_does_not_hide_it(supervise: Command):
    supervise.run("--run-id", "train", "true")
    (supervise.tmp_path / "train").mkdir()
    assert re.match(r"train_\w+: succeeded\n", told(supervise, "show", "train"))
    assert "./train is not the directory of a run" in supervise.supervise("show", "./train").stderr


def test_an_end_that_is_no_failure_is_not_shown_as_one(supervise: Command):
    """An exit code that counts as a success, and a rank that a request has restarted; supervise was killed."""
    words = ("-n", "2", "--run-id", "job", "--success-exit-codes", "0,3", "--", "sh", "-c")
    script = f'[ "$RANK" = 0 ] && exit 3; echo up; {HANG}'
    with supervise.started(*words, script) as run:
        run.hear()
        until(lambda: "finished, exit code 3" in told(supervise, "show", "job"))
        told(supervise, "restart", "job", "--rank", "1")
        run.signal(signal.SIGKILL)
        run.process.wait()
    shown = told(supervise, "show", "job")
    assert shown.endswith("  rank 0: ended, exit code 3\n  rank 1: running\n")


def test_show_and_status_call_a_state_by_the_same_word(supervise: Command):
    """Also of a rank that has not started."""
    (supervise.tmp_path / "gang.toml").write_text(
        '[roles.slow]\ncommand = "sleep 1000"\nready = "file:never"\nneeds = []\n'
        '[roles.late]\ncommand = "sleep 1000"\nneeds = ["slow"]\n'
        '[roles.held]\ncommand = ["sh", "-c", "kill -STOP $$"]\nneeds = []\n'
    )
    with supervise.started("--run-id", "job", "--file", "gang.toml") as run:
        run.hear_error("kill -CONT")
        ranks = json.loads(told(supervise, "show", "job", "--json"))["ranks"]
        told(supervise, "signal", "job", "CONT")
        run.signal(signal.SIGINT)
        run.end()
    assert [re.sub(r"pid \d+", "pid N", ranks[rank]) for rank in "012"] == [
        *("starting, pid N", "waiting", "suspended, pid N")
    ]


@pytest.mark.parametrize("what", ["fifo", "link", "list", "deep", "sequence"])
def test_files_that_a_rank_has_replaced(supervise: Command, what: str):
    """Readers neither block nor believe them, and no control sequence reaches the terminal."""
    supervise.run("--run-id", "job", "sh", "-c", "exit 3")
    for name in ("result.json", "events.jsonl", "attempt_0/0/stdout.log"):
        path = supervise.directory() / name
        path.unlink()
        if what == "fifo":
            os.mkfifo(path)
        elif what == "link":
            path.symlink_to("/etc/passwd")
        else:
            text = {
                "list": "[]",
                "deep": "[" * 100_000,
                "sequence": '{"outcome": "\\u001b[2Jx", "report": ["\\u001b[2Jy"]}',
            }
            path.write_text(text[what])
    for words in (["ls"], ["show", "job"], ["logs", "job"]):
        done = supervise.supervise(*words)
        assert done.returncode == 0, done.stderr
        assert "\x1b[2J" not in done.stdout or words[0] == "logs"
        assert "root:" not in done.stdout


def test_where_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary_folder: Path):
    """A variable, the user's state, or the temporary directory."""
    monkeypatch.setenv("SUPERVISE_RUNS_DIR", str(tmp_path / "a"))
    assert runs_dir() == str(tmp_path / "a")
    monkeypatch.delenv("SUPERVISE_RUNS_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert runs_dir() == str(tmp_path / "state/supervise/runs")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert runs_dir() == str(tmp_path / ".local/state/supervise/runs")
    assert Path(make_runs_dir()).stat().st_mode & 0o777 == 0o700
    shutil.rmtree(tmp_path / ".local/state/supervise")
    (tmp_path / ".local/state/supervise").touch()  # no folder can be made below
    assert runs_dir() == str(temporary_folder / f"supervise-{os.geteuid()}")
    (tmp_path / ".local/state/supervise").unlink()
    (tmp_path / ".local/state/supervise").mkdir()
    (tmp_path / ".local/state/supervise/runs").symlink_to("lost")  # perhaps a disk that is not mounted: no other folder
    with pytest.raises(NotADirectoryError, match="is not a folder; set SUPERVISE_RUNS_DIR to one"):
        make_runs_dir()
    monkeypatch.setenv("HOME", "/dev/null")
    assert runs_dir() == str(temporary_folder / f"supervise-{os.geteuid()}")


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system_call: Any):
    """Its owner could replace what is in it."""
    monkeypatch.setenv("SUPERVISE_RUNS_DIR", str(tmp_path))
    system_call("geteuid", lambda _: 12345)
    with pytest.raises(PermissionError, match=r"belongs to user .*; set SUPERVISE_RUNS_DIR"):
        make_runs_dir()


def test_the_files_tell_of_a_signal_and_of_the_first_failure(supervise: Command):
    """Also where supervise is killed while it stops the others."""
    up = supervise.tmp_path / "up"
    others = f"until [ -e {up}0 ] && [ -e {up}2 ]; do sleep 0.05; done"
    script = (
        f'trap "" TERM; : > {up}$RANK; [ "$RANK" = 1 ] && {{ {others}; kill -9 $$; }}; while :; do sleep 0.05; done'
    )
    with supervise.started("-n", "3", "--run-id", "job", "--", "sh", "-c", script) as run:
        events = until(lambda: [*supervise.tmp_path.glob("runs/job_*/events.jsonl")])[0]
        until(lambda: "gang.stopping" in events.read_text())
        run.signal(signal.SIGKILL)
        run.process.wait()
    shown = told(supervise, "show", "job")
    assert shown.endswith("  ranks 0, 2: running\n  rank 1: ended, SIGKILL\n  the first failure: rank 1, SIGKILL\n")


def test_logs_end_beside_a_flood(supervise: Command):
    """What is written after the look is not waited for."""
    words = ("-n", "2", "-r", "3", "--log-max-bytes", "1000000", "--run-id", "job")
    script = 'echo "up $RANK" >&2; [ "$RANK" = 0 ] && exec yes; exec sleep 1000'
    with supervise.started(*words, "--", "sh", "-c", script) as run:
        until(lambda: len([log for log in supervise.tmp_path.glob("runs/*/*/*/stderr.log") if log.read_text()]) == 2)
        assert "[default1]:up 1\n" in told(supervise, "logs", "job")
        run.signal(signal.SIGKILL)


def test_a_run_json_that_tells_little(tmp_path: Path):
    """Nothing says where it ran: it may go on elsewhere."""
    (tmp_path / "run.json").write_text(
        '{"program": ["x"], "started": "nonsense", "roles": [3, {"name": "a", "count": 2}]}'
    )
    (tmp_path / "events.jsonl").write_text('{"event": "supervise.process.exited", "local_rank": 0}\n3\n{"event": 3}\n')
    run = read_run(tmp_path)
    assert (run.state, run.started, run.duration, run.title(1), run.title(5)) == (
        "unknown",
        None,
        None,
        ("a", 1),
        ("default", 3),
    )
    assert len(list(run.events())) == 1
