"""The screen at the end of a run that failed."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

import pytest

from supervise._story import failure_report, wording
from supervise._story.wording import columns, fitted, shortened
from supervise.result import ProcessFailure, RankEnd, Role, RunProcsResult
from tests.cli.command import HANG, Command

EXAMPLE = Path(__file__).parents[2] / "examples" / "wordcount.py"


def screen_of(stderr: str) -> list[str]:
    """Return the lines from the headline on."""
    lines = stderr.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("supervise: rank"))
    return lines[first:]


def end(rank: int, exitcode: int | None, role: Role, **more: object) -> RankEnd:
    return RankEnd(
        local_rank=rank, pid=100 + rank, exitcode=exitcode, role=role, started_ns=10**9, ended_ns=3 * 10**9, **more
    )


def failed(*ends: RankEnd, message: str = "") -> RunProcsResult:
    result = RunProcsResult(outcome="failed", ends={end.local_rank: end for end in ends})
    for found in ends:
        if found.role in ("root_cause", "concurrent_failure"):
            result.failures[found.local_rank] = ProcessFailure.of(
                found.local_rank, found.pid, found.exitcode, "", message=message
            )
        result.stderrs[found.local_rank] = "/logs/stderr.log"
    return result


def test_a_recorded_traceback_is_the_reason(supervise: Command):
    """Under @record the screen shows the exception of the record; who and where are in the first line."""
    (supervise.tmp_path / "worker.py").write_text(
        "import os, time\n"
        "from supervise import record\n"
        "@record\n"
        "def main():\n"
        "    if os.environ['RANK'] == '1':\n"
        "        raise ValueError('the 7th shard is empty')\n"
        "    time.sleep(1000)\n"
        "main()\n"
    )
    done = supervise.run("-n", "2", "worker.py")
    screen = screen_of(done.stderr)
    assert done.returncode == 1
    assert screen[0].startswith("supervise: rank 1 of 2 failed: exit code 1 (host ")
    assert ", pid " in screen[0]
    assert screen[2] == "  Traceback (most recent call last):"
    assert screen[3].startswith(f'    File "{supervise.tmp_path}/worker.py", line 6')
    assert "  ValueError: the 7th shard is empty" in screen
    assert screen[-2:] == ["  rank 0: stopped by SIGTERM (sent by supervise)", f"  logs: {supervise.directory()}"]


def test_the_end_of_stderr_is_the_reason_where_nothing_is_recorded(supervise: Command):
    """Its last twenty lines, without what would move the cursor."""
    script = r'seq 100 >&2; printf "\033[31mover\033[0m\a\n" >&2; kill -9 $$'
    screen = screen_of(supervise.run("-r", "3", "--", "sh", "-c", script).stderr)
    assert screen[0].startswith("supervise: rank 0 failed: SIGKILL (host ")
    assert screen[2] == "  the end of its stderr:"
    assert screen[3:23] == [*(f"    {number}" for number in range(82, 101)), "    over"]


def test_the_stderr_of_a_single_rank_is_not_repeated_where_it_was_shown(supervise: Command):
    """It stands right above; where somebody did not see it, or others wrote too, it is part of the screen."""
    script = "echo oops >&2; exit 3"
    seen = supervise.run("--", "sh", "-c", script).stderr.splitlines()
    assert [seen[0], seen[2]] == ["[default0]:oops", f"  logs: {supervise.directory()}"]
    assert len(seen) == 3
    for words in (("-r", "2"), ("-n", "2"), ("--local-ranks-filter", "0", "-r", "3")):
        assert "    oops" in screen_of(supervise.run(*words, "--", "sh", "-c", script).stderr)


def test_of_a_line_that_was_rewritten_its_last_state_is_shown():
    """A progress bar takes one line, as it does on a terminal."""
    tail = "10%\r20%\r30%\rdone\nlast\r\n"
    screen = failure_report.lines(failed(end(0, 1, "root_cause", stderr_tail=tail)), failure_report.Story(nproc=1))
    assert screen[2:5] == ["  the end of its stderr:", "    done", "    last"]


@pytest.mark.parametrize(
    ("words", "told"), [((), "  it wrote nothing to stderr"), (("-t", "1"), "  its stderr was not recorded")]
)
def test_where_there_is_no_reason_that_is_said(supervise: Command, words: tuple[str, ...], told: str):
    """An empty stderr, or one that is not redirected."""
    assert screen_of(supervise.run(*words, "--", "sh", "-c", "exit 3").stderr)[2] == told


@pytest.mark.parametrize(
    ("before", "script", "told"),
    [
        ((), "mv logs/* gone; rmdir logs; echo oops >&2; exit 3", "  the log of its stderr was removed: "),
        (
            ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64k none logs; exec "$@"', "sh"),
            "cat /dev/zero > logs/fill; echo oops >&2; exit 3",
            "  the log of its stderr is empty, and its disk is full: ",
        ),
    ],
    ids=["log deleted", "disk full"],
)
def test_of_a_stderr_that_is_lost_it_is_not_said_that_there_was_none(
    supervise: Command, before: tuple[str, ...], script: str, told: str
):
    """The rank has written, and nobody can tell what."""
    (supervise.tmp_path / "logs").mkdir()
    (supervise.tmp_path / "gone").mkdir()
    if before and subprocess.run(["unshare", "--mount", "true"], check=False, stderr=-3).returncode:
        pytest.skip("nothing can be mounted here")
    done = supervise.run("--log-dir", "logs", "--", "sh", "-c", script, before=before)
    assert done.returncode == 3
    assert any(line.startswith(told) for line in screen_of(done.stderr)), done.stderr
    assert "it wrote nothing" not in done.stderr


@pytest.mark.parametrize("words", [("-t", "1"), ("-t", "0"), ("--log-dir", "/dev/null")])
def test_a_stderr_that_is_not_recorded_is_shown_and_the_screen_says_where(supervise: Command, words: tuple[str, ...]):
    """As torchrun shows it, bare and as it comes; of a Python program the traceback is on the screen all the same."""
    done = supervise.run("-n", "2", *words, "--", "sh", "-c", "echo oops >&2; [ $RANK = 0 ] || exec sleep 1000; exit 3")
    assert "oops" in done.stderr.splitlines()
    assert screen_of(done.stderr)[2:4] == [
        "  its stderr was not recorded",
        "  the rank inherited it from supervise; its output is above",
    ]
    if words[0] == "-t":
        (supervise.tmp_path / "work.py").write_text("raise ValueError('boom')\n")
        # A rank that is stopped while it makes its traceback has recorded the last line alone
        assert "  ValueError: boom" in screen_of(supervise.run(*words, "-n", "2", "work.py").stderr)


def test_a_stderr_that_the_filter_leaves_out_is_not_called_empty(supervise: Command):
    """It goes nowhere, as with torchrun, and the screen says so."""
    words = ("-n", "2", "-t", "1", "--local-ranks-filter", "0")
    done = supervise.run(*words, "--", "sh", "-c", "[ $RANK = 1 ] || exec sleep 1000; echo oops >&2; exit 3")
    assert screen_of(done.stderr)[2:4] == ["  its stderr was not recorded", "  --local-ranks-filter excludes the rank"]


def test_sixty_four_ranks_fit_on_one_screen(supervise: Command):
    """Equal ends share a line, however many ranks there are."""
    script = f"""
        if [ "$RANK" = 13 ]; then seq 100 >&2; exit 7; fi
        if [ "$RANK" -gt 60 ]; then exit 0; fi
        {HANG}
    """
    done = supervise.run("-n", "64", "--", "sh", "-c", script)
    screen = screen_of(done.stderr)
    assert done.returncode == 7
    assert len(screen) <= 40
    assert screen[0].startswith("supervise: rank 13 of 64 failed: exit code 7 (host ")
    told = " ".join(screen)
    assert "ranks 0-12, 14-" in told
    assert "stopped by SIGTERM (sent by supervise)" in told
    assert screen[-1] == f"  logs: {supervise.directory()}"


def test_as_many_kinds_of_ends_as_ranks_fit_too():
    """Where every rank ends in its own way, the rest is in the file."""
    ends = [end(0, 1, "root_cause", stderr_tail="\n".join(map(str, range(20))))]
    ends += [end(rank, rank, "bystander") for rank in range(1, 64)]
    facts = failure_report.Story(nproc=64, directory="/logs", sent={rank: {SIGTERM: 0} for rank in range(1, 64)})
    screen = failure_report.lines(failed(*ends), facts)
    assert len(screen) <= 40
    assert screen[-3:] == [
        "  rank 9: exit code 9 after SIGTERM from supervise",
        "  ranks 10-63: 54 other ends; see result.json",
        "  logs: /logs",
    ]


def test_every_role_has_its_words():
    """Who failed too, who was stopped and how, who had finished, who never ran."""
    ends = [
        end(0, -11, "root_cause", core_dumped=True),
        end(1, 4, "concurrent_failure"),
        end(2, -SIGTERM, "bystander"),
        end(3, -SIGKILL, "bystander"),
        end(4, 0, "finished"),
        end(5, None, "unkillable"),
        end(6, -Signals.SIGSEGV, "bystander"),
    ]
    sent = {2: {SIGTERM: 0}, 3: {SIGTERM: 0, SIGKILL: 30 * 10**9}, 6: {SIGTERM: 0}}
    screen = failure_report.lines(failed(*ends), failure_report.Story(nproc=8, sent=sent))
    assert screen[0].startswith("supervise: rank 0 of 8 failed: SIGSEGV, core dumped (host ")
    assert screen[0].endswith(", pid 100, after 2 s)")
    assert screen[4:] == [
        "  rank 1: failed too: exit code 4",
        "  rank 5: survived SIGKILL",
        "  rank 2: stopped by SIGTERM (sent by supervise)",
        "  rank 3: killed by SIGKILL (sent by supervise, 30 s after SIGTERM)",
        "  rank 6: SIGSEGV after SIGTERM from supervise",
        "  rank 4: finished",
        "  rank 7: not started",
    ]


def test_a_rank_that_left_before_the_others_failed_is_told_with_its_time():
    """The others may have failed because their peer had left."""
    early = replace(end(2, 0, "finished", step=7, status="saved"), ended_ns=10**9)
    ends = [end(0, 1, "root_cause"), end(1, -SIGTERM, "bystander"), early, end(3, 0, "finished")]
    story = failure_report.Story(nproc=4, sent={1: {SIGTERM: 0}})
    assert failure_report.lines(failed(*ends), story)[-2:] == [
        "  rank 2: finished at step 7 (saved), 2 s before",
        "  rank 3: finished",
    ]
    many = [replace(early, local_rank=rank) for rank in (4, 5)]
    assert failure_report.lines(failed(*ends, *many), story)[-1] == "  ranks 2-5: finished"


def test_what_is_known_beside_the_exit_code_is_told():
    """For instance that the status was taken by somebody else."""
    result = failed(end(0, 255, "root_cause"), message="exit status lost: somebody reaped the process")
    assert "  exit status lost: somebody reaped the process" in failure_report.lines(
        result, failure_report.Story(nproc=1)
    )


def test_a_long_traceback_is_shortened_in_the_middle(tmp_path: Path):
    """Its first lines and its end are what is read; the path says where all of it is."""
    error_file = tmp_path / "error.json"
    trace = "\n".join([*map(str, range(99)), "x" * 500])
    extra = {"timestamp": "1", "py_callstack": trace}
    error_file.write_text(json.dumps({"message": {"message": "E", "extraInfo": extra}}))
    result = RunProcsResult(outcome="failed", failures={0: ProcessFailure(0, 1, 1, str(error_file))})
    screen = failure_report.lines(result, failure_report.Story(nproc=1))
    assert screen[2:6] == ["  0", "  1", "  2", f"    ... 80 more lines in {error_file}"]
    assert screen[-4:-1] == ["  98", f"  {'x' * 200} ... (200 more characters) ... {'x' * 100}", ""]


def test_an_exception_with_a_long_message_keeps_its_type(tmp_path: Path):
    """As of `load_state_dict`, which lists all keys. The type stands in the middle of what is shortened."""
    error_file = tmp_path / "error.json"
    keys = "\n".join(f"    Missing key {number}" for number in range(40))
    trace = f'Traceback (most recent call last):\n  File "a.py", line 1\n    load()\nmy.Error: cannot load:\n{keys}'
    message = {"message": f"Error: cannot load:\n{keys}", "extraInfo": {"timestamp": "1", "py_callstack": trace}}
    error_file.write_text(json.dumps({"message": message}))
    result = RunProcsResult(outcome="failed", failures={0: ProcessFailure(0, 1, 1, str(error_file))})
    screen = failure_report.lines(result, failure_report.Story(nproc=1))
    assert screen[5:9] == [
        f"    ... 24 more lines in {error_file}",
        "  my.Error: cannot load:",
        "    ...",
        "      Missing key 23",
    ]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([0, 1], "ranks 0-1"),
        ([5, 1, 2, 3, 9], "ranks 1-3, 5, 9"),
        (range(0, 24, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22"),
        (range(0, 26, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, ... (13 in all)"),
        (range(0, 100, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, ... (50 in all)"),
    ],
)
def test_ranks_are_named_in_spans(ranks: list[int], text: str):
    """Few words for many ranks; the count is given only if spans are left out."""
    assert wording.spans(ranks) == text


def test_a_rank_that_no_run_has_is_named_without_a_role():
    """Files of runs may have any number."""
    assert wording.spans([-9, 1, 9], ["web 0", "web 1"]) == f"{wording.spans([-9, 1, 9])} (web 1)"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.0421, "42 ms"), (2.26, "2.3 s"), (30.0, "30 s"), (75, "1 min 15 s"), (7260, "2 h 01 min")),
        *((0.999, "999 ms"), (1.0, "1 s"), (9.96, "10 s"), (10.4, "10 s"), (59.4, "59 s")),  # the bounds of the forms
        *((0.9996, "1.0 s"), (9.94, "9.9 s"), (59.99, "1 min 00 s")),  # no form has a value that it rounds to the next
        *((60.0, "1 min 00 s"), (3599.0, "59 min 59 s"), (3600.0, "1 h 00 min")),
    ],
)
def test_durations_are_for_people(value: float, text: str):
    """The unit fits the value."""
    assert wording.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1023.4, "1023 B"), (1023.6, "1 KiB"), ((1 << 20) - 1, "1 MiB"), (1023 << 20, "1023 MiB"), (3 << 41, "6.0 TiB")],
)
def test_a_size_has_the_unit_that_fits_its_rounded_value(value: float, text: str):
    """Not 1024 B, and not 1024 KiB."""
    assert wording.size(value) == text


def test_the_example_counts_on_four_ranks(supervise: Command):
    """The totals of the shards are those of the text."""
    done = supervise.run("-n", "4", "--no-prefix", str(EXAMPLE))
    assert done.returncode == 0, done.stderr
    words = [int(line.split()[2].replace(",", "")) for line in done.stdout.splitlines() if line.startswith("rank ")]
    assert len(words) == 4
    assert f"{sum(words):,} words, " in done.stdout
    assert "the shards add up to the whole text" in done.stdout


def test_the_example_fails_where_it_is_told_to(supervise: Command):
    """The screen names the rank and shows its traceback."""
    done = supervise.run("-n", "4", str(EXAMPLE), "--fail-rank", "2")
    screen = screen_of(done.stderr)
    assert done.returncode == 1
    assert screen[0].startswith("supervise: rank 2 of 4 failed: exit code 1 ")
    assert "  Traceback (most recent call last):" in screen
    assert any(line.startswith("  RuntimeError: rank 2 was told to fail at byte") for line in screen)
    assert sys.executable not in done.stderr


def test_the_end_of_stdout_where_stderr_has_nothing(supervise: Command):
    """Test runners and many shell tools write to stdout why they fail."""
    script = 'echo "1 of 3 failed"; echo "shard 7 is empty"; [ $RANK = 1 ] && exit 3; exec sleep 1000'
    done = supervise.run("-n", "2", "--", "sh", "-c", script)
    report = done.stderr[done.stderr.index("supervise: rank 1 of 2 failed") :]
    told = "  it wrote nothing to stderr\n  the end of its stdout:\n    1 of 3 failed\n    shard 7 is empty\n"
    assert told in report
    alone = supervise.run("--", "sh", "-c", "echo shown; exit 3")
    assert "the end of its stdout" not in alone.stderr


def test_a_rank_that_ends_before_it_is_ready_is_shown_with_its_last_output(supervise: Command):
    """The start fails, and the reason is on the screen as for any other failure."""
    script = 'if [ "$RANK" = 1 ]; then echo loading; echo "no such file: shard7" >&2; exit 3; fi; exec sleep 1000'
    done = supervise.run("-n", "2", "--ready", "notify", "--", "sh", "-c", script)
    assert done.returncode == 3
    expected = [
        "supervise: cannot start: rank 1 ended before it was ready: exit code 3",
        "",
        "  the end of its stderr:",
        "    no such file: shard7",
        "",
        f"  logs: {supervise.directory()}",
    ]
    assert done.stderr.splitlines()[-6:] == expected
    assert json.loads((supervise.directory() / "result.json").read_text())["report"] == expected


@pytest.mark.parametrize("strategy", ["one_for_all", "rest_for_one"])
def test_a_signal_that_supervise_sent_to_an_earlier_life_explains_no_later_end(supervise: Command, strategy: str):
    """Rank 1 was stopped by SIGTERM for the restart; its next life gets SIGTERM from elsewhere, and is the cause."""
    script = (
        'if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then [ "$RANK" = 1 ] && { : > up; exec sleep 1000; };'
        ' while ! [ -e up ]; do sleep 0.01; done; exit 3; fi; [ "$RANK" = 1 ] && kill -TERM $$; exec sleep 1000'
    )
    words = ("-n", "2", "--strategy", strategy, "--max-restarts", "1", "--backoff", "0", "sh", "-c", script)
    done = supervise.run(*words)
    assert done.returncode == 128 + SIGTERM
    assert "supervise: rank 1 of 2 failed: SIGTERM (host " in done.stderr


# Tables of text in the columns of a terminal

WIDE = "\u6570\u636e"  # two characters in four columns
HEADS = ("RANK", "ROLE", "PID", "BEAT", "STATUS")
ROWS = (HEADS, ("0", f"{WIDE}.0", "4711", "0.1 s", f"epoch {WIDE}"), ("10", "web.1", "4712", "0.2 s", "x" * 70))


def test_control_sequences_at_the_end_of_stderr_are_no_lines_of_the_report(supervise: Command):
    """As progress bars leave them, which show the cursor again."""
    done = supervise.run("-n", "2", "sh", "-c", r"printf 'boom\n\033[?25h\n\033[0m' >&2; exit 3")
    assert "  the end of its stderr:\n    boom\n\n  rank" in done.stderr


def test_on_several_hosts_the_numbers_of_ranks_are_said_to_be_local(supervise: Command):
    """Those of other ranks, and of restarts; the first line of the report has the global rank, too."""
    hosts = ("--nnodes", "2", "--node-rank", "1", "--master-addr", "a", "-n", "2", "--run-id", "job")
    script = '[ $LOCAL_RANK = 0 ] || { sleep 0; exit 4; }; trap "exit 9" TERM; echo ready; while :; do sleep 0.05; done'
    run = supervise.run(*hosts, "--max-restarts", "1", "--backoff", "0", "--", "sh", "-c", script)
    assert run.returncode == 4
    assert "supervise: local rank 1 failed (exit code 4); restart 1 of 1 now" in run.stderr
    assert "supervise: rank 3 of 4 failed: exit code 4 (host " in run.stderr
    assert "  local rank 0: " in run.stderr
    shown = supervise.supervise("show", "job").stdout
    assert "local rank 1 failed (exit code 4); restart 1" in shown
    assert "  local rank 0: " in shown


def test_columns_are_aligned_below_wide_characters():
    """As a terminal shows them; a style has no width."""
    rows = [("NAME", "N", "X"), (WIDE, "10", "a"), ("\x1b[31mred\x1b[0m", "7", "b")]
    assert columns(rows, right={1}) == ["NAME   N  X", f"{WIDE}  10  a", "\x1b[31mred\x1b[0m    7  b"]
    assert shortened(WIDE * 3, 9) == f"{WIDE} ..."


@pytest.mark.parametrize(
    ("room", "lines"),
    [
        (
            40,
            [
                "RANK  ROLE    BEAT   STATUS",
                f"0     {WIDE}.0  0.1 s  epoch {WIDE}",
                f"10    web.1   0.2 s  {'x' * 15} ...",
            ],
        ),
        (30, ["RANK  ROLE    STATUS", f"0     {WIDE}.0  epoch {WIDE}", f"10    web.1   {'x' * 12} ..."]),
        (18, ["RANK  ROLE", f"0     {WIDE}.0", "10    web.1"]),
    ],
)
def test_a_table_fits_the_terminal(room: int, lines: list[str]):
    """By leaving out columns, and by shortening the last one."""
    assert columns(fitted(ROWS, room, ("PID", "BEAT"))) == lines


@pytest.mark.parametrize(
    ("room", "heads", "line"),
    [
        (60, ["RANK", "ROLE", "STATE", "STATUS"], "0     training-of-the-model.0  restarting  epoch 3 of 4  ..."),
        (40, ["RANK", "ROLE", "STATE"], "0     training-of-the-mo ...  restarting"),
        (30, ["RANK", "ROLE", "STATE"], "0     training ...  restarting"),
    ],
)
def test_a_narrow_terminal_shows_the_whole_state(room: int, heads: list[str], line: str):
    """The name before it is shortened."""
    rows = [
        ("RANK", "ROLE", "STATE", "PID", "STATUS"),
        ("0", "training-of-the-model.0", "restarting", "4711", f"epoch 3{' of 4' * 9}"),
    ]
    lines = columns(fitted(rows, room, ("PID",)))
    assert (lines[0].split(), lines[1]) == (heads, line)
    assert max(map(len, lines)) <= room
    without_status = columns(fitted([row[:4] for row in rows], room, ("PID",)))
    assert (without_status == lines) == (room < 60)


def test_a_table_in_a_pipe_has_all_columns():
    assert columns(fitted(ROWS, None, ("PID", "BEAT")))[2] == f"10    web.1   4712  0.2 s  {'x' * 56} ..."
