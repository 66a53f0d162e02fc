"""What is shown where, and what is written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import SUPERVISE, Command, environment

SAY = 'echo "out $RANK"; echo "err $RANK" >&2'


def test_each_line_is_shown_behind_its_prefix_and_written(supervise: Command):
    """By default both streams are live and in the run directory, bare there."""
    done = supervise.run("-q", "-n", "2", "--", "sh", "-c", SAY)
    assert sorted(done.stdout.splitlines()) == ["[default0]:out 0", "[default1]:out 1"]
    assert sorted(done.stderr.splitlines()) == ["[default0]:err 0", "[default1]:err 1"]
    attempt = supervise.directory() / "attempt_0"
    assert [(attempt / f"{rank}/stdout.log").read_text() for rank in range(2)] == ["out 0\n", "out 1\n"]
    assert [(attempt / f"{rank}/stderr.log").read_text() for rank in range(2)] == ["err 0\n", "err 1\n"]


def test_the_role_and_the_run_id_have_their_places(supervise: Command):
    """The role is in the prefix; the run's name begins that of its directory, under the one asked for."""
    logs = supervise.tmp_path / "logs"
    done = supervise.run("--role", "trainer", "--run-id", "job7", "--log-dir", "logs", "--", "sh", "-c", "echo hi")
    assert done.stdout == "[trainer0]:hi\n"
    [directory] = logs.iterdir()
    assert directory.name.startswith("job7_")
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_umask_without_rights_of_the_owner_leaves_the_folders_usable(supervise: Command):
    """Otherwise this run of a user fails, and so does each later one, since the folders of all runs remain."""
    state = supervise.tmp_path / "state"
    words = ("sh", "-c", 'umask 0777; exec "$@"', "sh")
    done = supervise.run("echo", "hi", before=words, SUPERVISE_RUNS_DIR="", XDG_STATE_HOME=str(state))
    assert done.stdout == "[default0]:hi\n"
    folders = [state, *(path for path in state.rglob("*") if path.is_dir())]
    [run] = (state / "supervise" / "runs").iterdir()
    assert {*folders} == {state, run.parent.parent, run.parent, run, run / "attempt_0", run / "attempt_0/0"}
    assert {oct(path.stat().st_mode & 0o777) for path in folders} == {"0o700"}


def test_no_prefix_shows_bare_lines(supervise: Command):
    """Every byte passes as it is, also what is no UTF-8."""
    done = subprocess.run(
        [*SUPERVISE, "run", "--no_prefix", "--", "printf", r"a\n\377b\n"],
        env=environment(supervise.tmp_path),
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"a\n\xffb\n"


@pytest.mark.parametrize(
    ("words", "out", "err", "written"),
    [
        ("-r 3", "", "", "out err"),
        ("-r 1", "", "[default0]:err 0\n", "out err"),
        ("-r 0", "[default0]:out 0\n", "[default0]:err 0\n", "out err"),
        ("-t 1", "[default0]:out 0\n", "err 0\n", "out"),
        ("-t 0", "out 0\n", "err 0\n", ""),
        ("-t 1 -r 2", "[default0]:out 0\n", "", "out err"),
        ("-t 1 -r 1", "[default0]:out 0\n", "err 0\n", "out"),
        ("--tee 0:2 --redirects 0:1", "", "[default0]:err 0\n", "out err"),
    ],
)
def test_redirects_and_tee(supervise: Command, words: str, out: str, err: str, written: str):
    """-t: shown and written. -r: only written. The rest: as by default, or with -t straight through."""
    done = supervise.run("-q", *words.split(), "--", "sh", "-c", SAY)
    assert (done.stdout, done.stderr) == (out, err)
    logs = supervise.directory() / "attempt_0" / "0"
    assert sorted(path.stem for path in logs.glob("std*.log")) == [f"std{name}" for name in sorted(written.split())]


def test_the_filter_shows_some_ranks_and_all_are_written(supervise: Command):
    """What is not shown is still in the files."""
    done = supervise.run("-n", "3", "--local_ranks_filter", "0,2", "--", "sh", "-c", SAY, OMP_NUM_THREADS="1")
    assert sorted(done.stdout.splitlines()) == ["[default0]:out 0", "[default2]:out 2"]
    assert (supervise.directory() / "attempt_0/1/stdout.log").read_text() == "out 1\n"


def test_nothing_of_ours_goes_to_stdout(supervise: Command):
    """Also in a run that fails, stdout is the ranks'."""
    done = supervise.run("-n", "2", "--no-prefix", "--", "sh", "-c", '[ "$RANK" = 0 ] && echo mine; exit 4')
    assert done.returncode == 4
    assert done.stdout in ("mine\n", "")  # rank 1 may have been faster


def test_a_python_program_is_seen_live(supervise: Command):
    """Its output is unbuffered, unless the user says otherwise."""
    program = "import os; print(os.environ['PYTHONUNBUFFERED'])"
    assert supervise.run("--no-prefix", sys.executable, "-c", program).stdout == "1\n"
    assert supervise.run("--no-prefix", sys.executable, "-c", program, PYTHONUNBUFFERED="").stdout == "\n"


def test_a_module_runs_as_python_would_run_it(supervise: Command):
    """-m, with arguments that look like our options."""
    (supervise.tmp_path / "worker.py").write_text("import sys; print(__name__, sys.argv[1:])")
    done = supervise.run("--no-prefix", "-m", "worker", "-n", "3", "--", "--color")
    assert done.stdout == "__main__ ['-n', '3', '--', '--color']\n"


def test_a_py_file_is_executed_as_it_is_where_python_is_not_wanted(supervise: Command):
    """--no-python: its first line says what runs it."""
    file = supervise.tmp_path / "script.py"
    file.write_text("#!/bin/sh\necho shell\n")
    file.chmod(0o755)
    assert supervise.run("--no-prefix", "--no_python", "./script.py").stdout == "shell\n"


def test_two_dashes_end_our_options_only(supervise: Command):
    """The first ones are ours, all others the program's."""
    show = 'for word; do echo "<$word>"; done'
    for dashes in ((), ("--",)):
        done = supervise.run("--no-prefix", *dashes, "sh", "-c", show, "sh", "--", "-n", "--")
        assert done.stdout == "<-->\n<-n>\n<-->\n"


def test_a_reader_that_leaves_does_not_end_the_run(supervise: Command):
    """``supervise run ... | head -1``: the ranks go on, their logs are whole, and the exit code is theirs."""
    write = "seq 100000; seq 100000; seq 100000; exit 5"
    script = f'{" ".join(SUPERVISE)} run -- sh -c "{write}" | head -1; echo ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", script], env=environment(supervise.tmp_path), capture_output=True, text=True, check=True
    )
    assert done.stdout == "[default0]:1\n5\n"
    assert f"the reader of stdout is gone; the run continues, its output goes to {supervise.directory()}" in done.stderr
    assert len((supervise.directory() / "attempt_0/0/stdout.log").read_text().splitlines()) == 300_000


def test_a_stderr_that_nobody_reads_does_not_crash_the_run(supervise: Command):
    """Our own notes meet a broken pipe, or no stderr at all."""
    read, write = os.pipe()
    os.close(read)
    words = [*SUPERVISE, "run", "-n", "2", "--", "sh", "-c", "exit 9"]
    env = environment(supervise.tmp_path)
    try:
        assert subprocess.run(words, env=env, stderr=write, check=False).returncode == 9
    finally:
        os.close(write)
    closed = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *words], env=env, check=False)
    assert closed.returncode == 9


def test_without_files_there_is_still_a_run(supervise: Command):
    """--log-dir /dev/null keeps nothing: output goes straight through, which -t 0 and -r 0 do not contradict."""
    for words in ((), ("-t", "0"), ("-r", "0")):
        done = supervise.run("--log-dir", os.devnull, *words, "--", "sh", "-c", "echo hi; exit 3")
        assert (done.returncode, done.stdout) == (3, "hi\n")
        assert "logs:" not in done.stderr
        assert not list(Path(supervise.tmp_path).iterdir())


def test_l3_without_a_prefix_a_pipe_gets_every_byte(supervise: Command):
    """Another program may read them; on a terminal a carriage return has its meaning."""
    words = ("--", "printf", r"id=1\rid=2\nend\r\n")
    assert supervise.supervise("run", "--no-prefix", *words).stdout == "id=1\nid=2\nend\n"  # as text, \r is a newline
    assert supervise.supervise("run", *words).stdout == "[default0]:id=2\n[default0]:end\n"
