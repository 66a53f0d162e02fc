"""Runs folders of other users, hostile files of a run, texts that the locale lacks, and deleted folders."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from supervise.cli import main
from tests.cli.command import SUPERVISE, Command, environment
from tests.patience import PATIENCE_S

OTHER = 12345
COMMANDS = (
    ("ls",),
    ("show", "job"),
    ("logs", "job"),
    ("report", "job", "--output", "-"),
    ("clean", "--all"),
    ("status", "job"),
    ("stop", "job"),
    ("top", "job"),
    ("wait", "job"),
    ("restart", "job", "--rank", "0"),
    ("signal", "job", "USR1"),
    ("stacks", "job"),
)
LOCALES = {
    "utf-8": {"PYTHONIOENCODING": "utf-8:strict"},
    "ascii": {"PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "c": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}
ODD = os.fsdecode(b"odd \xff\xfe caf\xc3\xa9 \xe2\x98\x83 \x1b]0;title\x07\x1b[31m red\n two")
"""Bytes that are not UTF-8, characters that ASCII lacks, control sequences and a newline."""


@pytest.fixture
def fallback(supervise: Command) -> dict[str, str]:
    """Return the environment of a user without a home, whose runs are below TMPDIR."""
    return {"SUPERVISE_RUNS_DIR": "", "HOME": "", "XDG_STATE_HOME": "", "TMPDIR": str(supervise.tmp_path)}


@pytest.mark.parametrize("words", [*COMMANDS, ("run", "true")], ids=lambda words: words[0])
@pytest.mark.parametrize("planted", ["folder", "link", "writable"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user")
def test_t2_a_fallback_folder_of_another_user_is_refused(
    supervise: Command, fallback: dict[str, str], words: tuple[str, ...], planted: str
):
    """Every command names the folder, and its owner if there is one."""
    folder = supervise.tmp_path / f"supervise-{os.geteuid()}"
    run = supervise.tmp_path / "theirs" / "job_1"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"program": ["theirs"], "started": "2026-01-01T00:00:00+00:00"}))
    if planted == "link":
        folder.symlink_to(run.parent)
    else:
        shutil.copytree(run.parent, folder)
        if planted == "folder":
            os.chown(folder, OTHER, OTHER)
        else:
            folder.chmod(0o777)
    done = supervise.supervise(*words, **fallback)
    assert done.returncode != 0
    assert "theirs" not in done.stdout
    assert str(folder) in done.stderr
    wanted = {
        "folder": f"belongs to user {OTHER}",
        "link": "is not a folder",
        "writable": "other users may write to it",
    }
    assert wanted[planted] in done.stderr
    assert (run / "run.json").exists()
    assert (folder / "job_1" / "run.json").exists()


def test_t2_new_folders_are_private_whatever_the_umask_is(supervise: Command):
    """Also those above the folder of runs."""
    home = supervise.tmp_path / "home"
    home.mkdir()
    words = (sys.executable, "-c", "import os, sys; os.umask(0); os.execv(sys.argv[1], sys.argv[1:])")
    done = supervise.run("-q", "true", before=words, SUPERVISE_RUNS_DIR="", HOME=str(home), XDG_STATE_HOME="")
    assert (done.returncode, done.stderr) == (0, "")
    made = [
        home / ".local",
        home / ".local/state",
        home / ".local/state/supervise",
        home / ".local/state/supervise/runs",
    ]
    assert [oct(path.stat().st_mode & 0o7777) for path in made] == ["0o700"] * 4


def test_t2_clean_removes_only_what_a_run_writes(supervise: Command):
    """A file of the user stays with the folders above it; a link to a folder is removed, and not followed."""
    supervise.run("--run-id", "job", "sh", "-c", "echo out; exit 3")
    run = supervise.directory()
    (run / "attempt_0" / "0" / "checkpoint.pt").write_text("precious")
    (supervise.tmp_path / "outside").mkdir()
    (supervise.tmp_path / "outside" / "stdout.log").write_text("precious")
    (run / "attempt_1").symlink_to(supervise.tmp_path / "outside")
    done = supervise.supervise("clean", "--all")
    assert done.returncode == 0
    assert "/attempt_0/0/checkpoint.pt, which no run has written" in done.stdout
    assert [str(path.relative_to(run)) for path in run.rglob("*")] == [
        "attempt_0",
        "attempt_0/0",
        "attempt_0/0/checkpoint.pt",
    ]
    assert (supervise.tmp_path / "outside" / "stdout.log").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a run of another user")
def test_t2_the_logs_of_another_user_change_no_terminal(supervise: Command):
    """Neither a line, nor a name of a role; this user's own logs are shown as they are."""
    supervise.run("--run-id", "job", "printf", "\\033]0;title\\007\\033[31mred\\n")
    own = supervise.supervise("logs", "job").stdout
    assert own == "[default0]:\x1b]0;title\x07\x1b[31mred\n"
    info = supervise.directory() / "run.json"
    roles = [{"name": "\x1b[2Jrole", "count": 1, "program": ["printf"]}]
    info.write_text(json.dumps(json.loads(info.read_text()) | {"roles": roles}))
    os.chown(supervise.directory(), OTHER, OTHER)
    shown = supervise.supervise("logs", str(supervise.directory()))
    assert (shown.returncode, shown.stdout) == (0, "[role0]:red\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a run of another user")
def test_t2_a_run_of_another_user_in_a_folder_of_all_takes_no_ones_place(supervise: Command):
    """Its name is that of a run of the caller, and it is the newer one; by its path, it is still found."""
    supervise.run("--run-id", "job", "sh", "-c", "exit 7")
    own = supervise.directory()
    own.parent.chmod(0o1777)
    theirs = own.with_name("job_00000000")
    shutil.copytree(own, theirs)
    for name, changes in (("run.json", {"started": "2999-01-01T00:00:00+00:00"}), ("result.json", {"exit_code": 0})):
        path = theirs / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert supervise.supervise("wait", "job").returncode == 0, "the newer one, as long as it is one of this user"
    os.chown(theirs, OTHER, OTHER)
    assert supervise.supervise("wait", "job").returncode == 7
    assert theirs.name not in supervise.supervise("ls").stdout
    assert theirs.name in supervise.supervise("show", str(theirs)).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may write to the home of another user")
def test_t2_root_makes_no_folder_in_the_home_of_another_user(supervise: Command):
    """As with `sudo -E`: the folder would keep the user from their own `.local`."""
    home = supervise.tmp_path / "home"
    home.mkdir()
    os.chown(home, OTHER, OTHER)
    where = {"SUPERVISE_RUNS_DIR": "", "XDG_STATE_HOME": "", "HOME": str(home), "TMPDIR": str(supervise.tmp_path)}
    assert supervise.run("-q", "true", **where).returncode == 0
    assert list(home.iterdir()) == []
    assert len(list((supervise.tmp_path / "supervise-0").iterdir())) == 1


def test_t9_the_logs_of_a_role_whose_name_no_encoding_has_are_shown(supervise: Command):
    """Its name is half of a character, which JSON can hold."""
    supervise.run("--run-id", "job", "echo", "line")
    info = supervise.directory() / "run.json"
    roles = [{"name": "\ud800", "count": 1, "program": ["echo"]}]
    info.write_text(json.dumps(json.loads(info.read_text()) | {"roles": roles}))
    shown = supervise.supervise("logs", "job")
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "[?0]:line\n", "")


# Texts


@pytest.mark.parametrize("locale", LOCALES)
def test_t9_a_text_that_the_locale_lacks_is_shown_by_every_command(supervise: Command, locale: str):
    """Nothing ends by an exception, the other run is listed, and no control sequence reaches the terminal."""
    program = supervise.tmp_path / f"rank {ODD}.py"
    program.write_text("import sys\nprint('line')\nraise ValueError(sys.argv[1])\n")

    def told(*words: str) -> "tuple[int, str, str]":
        env = environment(supervise.tmp_path, **LOCALES[locale])
        done = subprocess.run(
            [*SUPERVISE, *words], cwd=supervise.tmp_path, env=env, capture_output=True, timeout=PATIENCE_S, check=False
        )
        return done.returncode, *(each.decode(errors="backslashreplace") for each in (done.stdout, done.stderr))

    told("run", "--run-id", "plain", "true")
    assert told("run", "--run-id", "job", "-n", "2", "--", str(program), ODD)[0] == 1
    assert told("run", "--dry-run", "--", str(program), ODD)[0] == 0
    for words in (("ls",), *COMMANDS):
        code, out, err = told(*words)
        assert "Traceback" not in err
        assert code == 0 or words[0] not in ("ls", "show", "report"), err
        assert "\x1b" not in out + err or words[0] in ("logs", "report")
        assert words[0] != "ls" or ("plain_" in out and "job_" in out) or "no runs" in out


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026", 5, ["x"], None])
def test_t9_a_time_at_the_end_of_the_calendar_hides_no_other_run(
    supervise: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], time: object
):
    """Such a time has no counterpart in another time zone."""
    runs = supervise.tmp_path / "runs"
    monkeypatch.setenv("SUPERVISE_RUNS_DIR", str(runs))
    for name in ("plain", "job"):
        (runs / f"{name}_1").mkdir(parents=True)
        info = {"program": ["true"], "world_size": 1, "started": time if name == "job" else "2026-01-01T00:00:00+00:00"}
        (runs / f"{name}_1" / "run.json").write_text(json.dumps(info))
    event = {"event": "supervise.gang.stopping", "reason": "close", "timestamp": time, "monotonic_ns": 1}
    (runs / "job_1" / "events.jsonl").write_text(f"{json.dumps(event)}\n")
    for words in (
        ("ls",),
        ("ls", "--json"),
        ("show", "job"),
        ("report", "job", "--output", "-"),
        ("clean", "--dry-run"),
    ):
        main([*words, *(["--older-than", "1d"] if words[0] == "clean" else [])])
    out = capsys.readouterr().out
    assert out.count("plain_1") > 2


@pytest.mark.parametrize("name", ["a\nb\x1b[31mc", "\udcff\udcfe", "n" * 250, "é" * 120, "-"])
def test_t9_the_default_run_id_is_a_plain_short_name(supervise: Command, name: str):
    """Whatever the name of the program is; it runs."""
    program = supervise.tmp_path / name
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    done = supervise.run("-q", "--", f"./{name}")
    assert (done.returncode, done.stderr) == (0, "")
    made = supervise.directory().name
    assert re.fullmatch(r"[^\x00-\x1f\x7f]{0,64}-[0-9a-f]{8}_\w+", made)
    assert len(os.fsencode(made)) < 90


# Folders and files


FROM_NOWHERE = (("run", "--cwd", "/", "pwd"), ("check", "gang.toml"), ("run", "--file", "gang.toml"))


@pytest.mark.parametrize("words", [*COMMANDS, *FROM_NOWHERE], ids=" ".join)
def test_a_deleted_working_directory_is_no_error_of_stdout(supervise: Command, words: tuple[str, ...]):
    """A run is found by its name; a gang with a folder of its own starts."""
    supervise.run("--run-id", "job", "true")
    gone = supervise.tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", str(gone), *SUPERVISE, *words],
        env=environment(supervise.tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "cannot write to stdout" not in done.stderr
    assert "Traceback" not in done.stderr
    if "gang.toml" in words:
        assert "the working directory of this process has been deleted" in done.stderr
        assert done.returncode == 2
    elif words[0] in ("ls", "show", "logs", "clean", "wait", "run"):
        assert done.returncode == 0, done.stderr
    if "pwd" in words:
        assert done.stdout == "[default0]:/\n"


ABSURD: list[Any] = [
    10**400,
    -1,
    float("inf"),
    float("nan"),
    "text",
    None,
    [],
    {},
    True,
    "9999-12-31T23:59:59+00:00",
    "\x1b[2J",
]


def places(value: Any) -> Iterator[list[Any]]:
    """Yield the path to each value in an object."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield [key]
            yield from ([key, *more] for more in places(each))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from ([number, *more] for more in places(each))


def replaced(value: Any, path: list[Any], new: Any) -> Any:
    if not path:
        return new
    made = dict(value) if isinstance(value, dict) else list(value)
    made[path[0]] = replaced(value[path[0]], path[1:], new)
    return made


def in_this_process(*words: str) -> tuple[int, str, str]:
    out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return code, texts[0], texts[1]


@pytest.mark.timeout(4 * PATIENCE_S)  # it runs some thousand commands in this process, and machines are busy
@pytest.mark.parametrize("file", ["run.json", "result.json", "events.jsonl"])
def test_t9_absurd_values_in_the_files_of_a_run_end_no_command(
    supervise: Command, monkeypatch: pytest.MonkeyPatch, file: str
):
    """Each value of each record is replaced in turn; readers skip what they cannot use."""
    script = 'test "$TORCHELASTIC_RESTART_COUNT" = 1 || exit 4; exit 3'
    supervise.run("--run-id", "job", "-n", "2", "--max-restarts", "1", "--backoff", "0", "sh", "-c", script)
    path = supervise.directory() / file
    for name, value in environment(supervise.tmp_path).items():
        monkeypatch.setenv(name, value)
    lines = path.read_text().splitlines() if file.endswith("l") else [path.read_text()]
    kinds = {}
    for number, line in enumerate(lines):
        record = json.loads(line)
        for at in places(record):
            kinds.setdefault((record.get("event"), *map(str, at)), (number, at))
    for turn, (number, at) in enumerate(kinds.values()):
        for new in (ABSURD[turn % len(ABSURD)], ABSURD[(turn * 7 + 3) % len(ABSURD)]):
            changed = json.dumps(replaced(json.loads(lines[number]), at, new))
            path.write_text("\n".join([*lines[:number], changed, *lines[number + 1 :], ""]))
            for words in (("ls",), ("show", "job"), ("report", "job", "--output", "-"), ("show", "job", "--json")):
                code, out, _ = in_this_process(*words)
                assert code in (0, 2), (words, at, new)
                assert "\x1b" not in out, (words, at, new)
            for words in (("wait", "job"), ("status", "job")):  # their exit codes depend on the values
                assert "\x1b" not in "".join(in_this_process(*words)[1:]), (words, at, new)


@pytest.mark.parametrize("words", [("show", "job"), ("report", "job", "--output", "-"), ("logs", "job")])
def test_t9_a_hole_of_40_gb_is_not_read(supervise: Command, words: tuple[str, ...]):
    """In the events, the samples and a log."""
    supervise.run("--run-id", "job", "echo", "out")
    for name in ("events.jsonl", "attempt_0/0/stdout.log"):
        with (supervise.directory() / name).open("ab") as file:
            file.truncate(40 << 30)
    done = supervise.supervise(*words)
    assert done.returncode == 0, done.stderr


def test_a_record_of_more_than_64_mib_is_not_read(supervise: Command):
    """One of exactly 64 MiB is."""
    supervise.run("--run-id", "job", "true")
    info = supervise.directory() / "run.json"
    text = info.read_text()
    info.write_text(text + " " * ((64 << 20) - len(text)))
    assert supervise.supervise("show", str(info.parent)).returncode == 0
    info.write_text(text + " " * ((64 << 20) + 1 - len(text)))
    done = supervise.supervise("show", str(info.parent))
    assert done.returncode == 2
    assert "is not the directory of a run" in done.stderr


def test_a_number_that_is_not_finite_is_missing_in_every_json(supervise: Command):
    """RFC 8259 has neither NaN nor Infinity, so that jq refuses a line with one."""
    supervise.run("--run-id", "job", "true")
    for name in ("run.json", "result.json"):
        file = supervise.directory() / name
        whole = file.read_text().rstrip().removesuffix("}")
        file.write_text(f'{whole}, "exit_code": NaN, "world_size": Infinity, "root_cause": 1e999}}')
    with (supervise.directory() / "events.jsonl").open("a") as events:
        events.write('{"event": "supervise.process.exited", "level": "error", "rank": 0, "exit_code": -Infinity}\n')
    for words in (["ls"], ["show", "job"], ["report", "job"], ["wait", "job"]):
        text = supervise.supervise(*words, "--json").stdout
        json.loads(text, parse_constant=pytest.fail)
