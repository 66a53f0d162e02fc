"""The last lines of each life of a rank: on the screen, in ``supervise logs``, while it follows and afterwards."""

import json
import signal
import sys

import pytest

from tests.cli.command import Command, plain

RESTARTS = 40
LIFE = 'n=$TORCHELASTIC_RESTART_COUNT; seq -f "body $n %g" 20; printf "end $n" >&2; exit 3'
BEHIND_A_SHELL = ("sh", "-c", '"$@"; exit $?', "wrapper")


def lines_of(life: int) -> set[str]:
    return {*(f"body {life} {number}" for number in range(1, 21)), f"end {life}"}


def of_ranks(out: str) -> list[str]:
    return [line.partition("]:")[2] for line in plain(out).splitlines() if line.startswith("[default")]


@pytest.mark.parametrize("strategy", ["one_for_all", "one_for_one"])
@pytest.mark.parametrize("behind", [(), BEHIND_A_SHELL], ids=["", "behind a shell"])
def test_t10_the_last_words_of_each_fast_life_are_shown_once(supervise: Command, strategy: str, behind: tuple[str]):
    """On the screen, by ``logs -f`` from the first life on, and by ``logs`` at the end; ``logs`` shows whole lives."""
    restarts = ("--strategy", strategy, "--max-restarts", str(RESTARTS), "--backoff", "0")
    script = f"[ $TORCHELASTIC_RESTART_COUNT = 0 ] && echo up; until [ -e follows ]; do sleep 0.01; done; {LIFE}"
    with supervise.started("--run-id", "job", *restarts, "--", *behind, "sh", "-c", script) as run:
        run.hear()
        with supervise.started_command("logs", "-f", "job") as follower:
            follower.hear()
            (supervise.tmp_path / "follows").touch()
            code, out, err = run.end()
            followed = follower.end()[1]
    wanted = sorted(line for life in range(RESTARTS + 1) for line in lines_of(life))
    assert code == 3
    assert sorted(of_ranks(out + err)) == wanted
    for shown in (followed, supervise.supervise("logs", "job").stdout.replace("[default0]:up\n", "")):
        assert sorted(of_ranks(shown)) == wanted
        first, *later = shown.split("--- rank 0, life ")
        lives = [("0", first), *((life.partition(" ---\n")[0], life.partition(" ---\n")[2]) for life in later)]
        assert [(int(number), set(of_ranks(life))) for number, life in lives] == [
            (life, lines_of(life)) for life in range(RESTARTS + 1)
        ]


def test_logs_shows_one_life_or_all(supervise: Command):
    """``--life`` and ``--previous`` show one without a line between; JSON has the life as a field."""
    script = 'echo "life $TORCHELASTIC_RESTART_COUNT of $RANK"; [ $TORCHELASTIC_RESTART_COUNT = 2 ] || [ $RANK = 1 ]'
    only = ("--strategy", "one_for_one", "--max-restarts", "2", "--backoff", "0")
    supervise.run("-n", "2", "--run-id", "job", *only, "--", "sh", "-c", script)

    def shown(*words: str) -> list[str]:
        done = supervise.supervise("logs", "job", *words)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    whole = shown()
    assert [line for line in whole if "[default1]" in line] == ["[default1]:life 0 of 1"]
    assert shown("--rank", "0") == [
        *("life 0 of 0", "--- rank 0, life 1 ---", "life 1 of 0", "--- rank 0, life 2 ---", "life 2 of 0")
    ]
    assert sorted(shown("--life", "0")) == ["[default0]:life 0 of 0", "[default1]:life 0 of 1"]
    assert shown("--life", "1") == ["[default0]:life 1 of 0"]
    assert shown("--previous") == ["[default0]:life 1 of 0"]
    found = [json.loads(line) for line in shown("--json", "--rank", "0")]
    assert [(line["attempt"], line["line"]) for line in found] == [(life, f"life {life} of 0") for life in range(3)]
    for words, why in ((("--life", "3"), "life 3"), (("--previous", "--rank", "1"), "earlier life")):
        done = supervise.supervise("logs", "job", *words)
        assert (done.returncode, done.stdout) == (2, "")
        who = "none of these ranks has an" if "earlier" in why else "no rank has a"
        assert f"{who} {why} in job_" in done.stderr


@pytest.mark.parametrize(("of_run", "of_logs"), [(("-t", "0"), ()), (("--merge",), ("--stderr",))])
def test_a_run_without_such_logs_says_so(supervise: Command, of_run: tuple[str, ...], of_logs: tuple[str, ...]):
    supervise.run("--run-id", "job", *of_run, "echo", "hi")
    done = supervise.supervise("logs", "job", *of_logs)
    what = "log of stderr" if of_logs else "logs"
    assert (done.returncode, done.stdout, f"has no {what}; the options -t, -r" in done.stderr) == (0, "", True)


SERVER = (
    "trap 'echo stopping; sleep 0.3; printf stopped; exit 0' TERM; echo up; touch serving; while :; do sleep 0.02; done"
)
WITHOUT_EXEC = 'sh "$@"; exit $?'  # a shell that SIGTERM ends at once


@pytest.fixture
def server(supervise: Command) -> tuple[str, ...]:
    (supervise.tmp_path / "server.sh").write_text(SERVER)
    return "sh", "-c", WITHOUT_EXEC, "wrapper", "server.sh"


def test_t10_the_last_words_behind_a_shell_are_shown_at_a_stop(supervise: Command, server: tuple[str, ...]):
    """The rank has ended at once, and the run waits for the server below it."""
    with supervise.started("-n", "2", "--", *server) as run:
        run.hear(2)
        run.signal(signal.SIGTERM)
        code, out, _ = run.end()
    assert code == 143
    assert sorted(of_ranks(out)) == ["stopped", "stopped", "stopping", "stopping"]


def test_t10_they_are_shown_on_a_terminal(supervise: Command, server: tuple[str, ...]):
    """Once, above the report, although the result is known before."""
    with supervise.on_terminal("--", *server) as terminal:
        terminal.until("]:\x1b[0mup")  # `supervise` has the word, too
        terminal.process.terminate()
        _, raw = terminal.end()
    shown = plain(raw).replace("\r", "")
    assert [shown.count(f"]:{word}\n") for word in ("stopping", "stopped")] == [1, 1]
    assert shown.index("]:stopped\n") < shown.index("supervise: stopped by SIGTERM")


SERVES = "until [ -e serving ]; do sleep 0.01; done;"


def test_t10_they_are_shown_when_a_peer_fails(supervise: Command, server: tuple[str, ...]):
    """The gang is stopped by the failure, and the run ends what is left."""
    script = f"if [ $RANK = 0 ]; then {SERVES} exit 3; else {WITHOUT_EXEC}; fi"
    run = supervise.run("-n", "2", "--", "sh", "-c", script, *server[3:])
    assert run.returncode == 3
    assert of_ranks(run.stdout) == ["up", "stopping", "stopped"]


def test_t10_they_are_shown_when_the_rank_has_succeeded(supervise: Command, server: tuple[str, ...]):
    """The end of the run stops what the rank has left in its group."""
    run = supervise.run("sh", "-c", f"sh server.sh & {SERVES} echo end")
    assert run.returncode == 0
    assert sorted(of_ranks(run.stdout)) == ["end", "stopped", "stopping", "up"]
    assert of_ranks(run.stdout)[-2:] == ["stopping", "stopped"]


def test_t10_they_are_shown_before_the_next_attempt(supervise: Command, server: tuple[str, ...]):
    """Also with one_for_all, which waits for what ranks left behind before all ranks start again."""
    again = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && { echo again; exit 0; };"
    script = f"{again} if [ $RANK = 0 ]; then {SERVES} exit 3; else {WITHOUT_EXEC}; fi"
    run = supervise.run("-n", "2", "--max-restarts", "1", "--backoff", "0", "--", "sh", "-c", script, *server[3:])
    assert run.returncode == 0, run.stderr
    assert of_ranks(run.stdout) == ["up", "stopping", "stopped", "again", "again"]


FLOODS = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank = os.getppid()
open("serving", "w")
while os.getppid() == rank:
    time.sleep(0.001)
while True:
    print(("y" * 9999 + "\\n") * 20, end="", flush=True)
    time.sleep(0.01)
"""
"""Writes at most 20 MB a second from the end of its parent on, in which supervise may notice that end late."""


def test_l10_a_flood_that_a_rank_left_behind_does_not_hold_up_the_end(supervise: Command):
    """Of what it writes after the end of the rank, a bounded part is shown; a message says so."""
    (supervise.tmp_path / "flood.py").write_text(FLOODS)
    run = supervise.run("--shutdown-timeout", "3", "sh", "-c", f"{sys.executable} flood.py & {SERVES}")
    assert run.returncode == 0
    assert len(run.stdout) < 40 << 20
    written = (supervise.directory() / "attempt_0/0/stdout.log").stat().st_size
    assert ("the rest is not shown" in run.stderr) == (written > len(run.stdout.replace("[default0]:", "")))
