"""What the shell, a scheduler or a script above learns from the exit code alone."""

import sys

import pytest

from tests.cli.command import HANG, Command


def sh(script: str) -> tuple[str, ...]:
    return "--", "sh", "-c", script


def test_0_where_all_succeed(supervise: Command):
    """Success is quiet: nothing on stderr."""
    done = supervise.run("-n", "2", "true", OMP_NUM_THREADS="2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("code", [1, 3, 255])
def test_the_root_causes_own_code(supervise: Command, code: int):
    """A failing rank's code is ours, and not that of the ranks that we stopped."""
    done = supervise.run("-n", "3", *sh(f'[ "$RANK" = 1 ] && exit {code}; trap "exit 77" TERM; sleep 1000 & wait'))
    assert done.returncode == code
    assert f"rank 1 of 3 failed: exit code {code}" in done.stderr


@pytest.mark.parametrize(("name", "code"), [("KILL", 137), ("SEGV", 139), ("TERM", 143), ("INT", 130)])
def test_128_and_the_signal_that_a_rank_died_of(supervise: Command, name: str, code: int):
    """A rank that dies of a signal by itself is a failure with the signal's name."""
    done = supervise.run(*sh(f"kill -{name} $$"))
    assert done.returncode == code
    assert f"rank 0 failed: SIG{name}" in done.stderr


def test_124_at_the_timeout(supervise: Command):
    """A run that takes too long is stopped."""
    done = supervise.run("-n", "2", "--timeout", "0.5", *sh(HANG))
    assert done.returncode == 124
    assert "the --timeout of 500 ms was over" in done.stderr
    assert "ranks 0-1: stopped by SIGTERM (by us)" in done.stderr


@pytest.mark.parametrize("words", [["nope"], ["./nope"], ["nope.py"], ["--no-python", "nope.py"]])
def test_127_where_the_program_is_not_found(supervise: Command, words: list[str]):
    """One line says what is missing, and no directory is made."""
    done = supervise.run("-n", "2", *words, OMP_NUM_THREADS="1")
    assert done.returncode == 127
    assert done.stderr == f"supervise: cannot start rank 0: {words[-1]}: No such file or directory\n"
    assert not list(supervise.tmp_path.iterdir())


def test_127_where_the_interpreter_is_not_found(supervise: Command):
    """What only the start itself finds is told the same way, with the rank."""
    script = supervise.tmp_path / "script"
    script.write_text("#!/nowhere/interpreter\n")
    script.chmod(0o755)
    done = supervise.run(str(script))
    assert done.returncode == 127
    assert done.stderr == f"supervise: cannot start rank 0: {script}: No such file or directory\n"


@pytest.mark.parametrize(("mode", "why"), [(0o644, "Permission denied"), (0o755, "Exec format error")])
def test_126_where_the_program_cannot_be_executed(supervise: Command, mode: int, why: str):
    """A file without the permission, or that is no program."""
    file = supervise.tmp_path / "file"
    file.write_bytes(b"\x00\x01\x02")
    file.chmod(mode)
    done = supervise.run(str(file))
    assert done.returncode == 126
    assert done.stderr == f"supervise: cannot start rank 0: {file}: {why}\n"


def test_126_for_a_directory(supervise: Command):
    """A directory is there, and is no program."""
    assert supervise.run("./").returncode == 126


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "no PROGRAM is given"),
        (["-n", "0", "true"], "'0' is no number of ranks; give 1 or more"),
        (["-n", "many", "true"], "'many' is no number of ranks"),
        (["-n", "gpu", "true"], "CUDA_VISIBLE_DEVICES='' hides every GPU; give a number, or cpu"),
        (["-r", "9", "true"], "'9' is no choice of streams; give 0 (none)"),
        (["-t", "5:1", "true"], "--tee names rank 5; with -n 1 the ranks are 0 only"),
        (["-n", "2", "--local-ranks-filter", "0,7", "true"], "names rank 7; with -n 2 the ranks are 0 to 1"),
        (["--local-ranks-filter", "x", "true"], "'x' is no list of ranks"),
        (["--timeout", "0", "true"], "leave the option out for no limit"),
        (["--shutdown-timeout", "-1", "true"], "'-1' is no number of seconds"),
        (["--shutdown-timeout", "nan", "true"], "'nan' is no number of seconds"),
        (["--color", "red", "true"], "invalid choice: 'red'"),
        (["-m", "--no-python", "true"], "leave one of them out"),
        (["--role", "a/b", "true"], "'a/b' becomes part of a path"),
        (["--nope", "true"], "unrecognized arguments: --nope"),
        (["--time", "3", "true"], "unrecognized arguments: --time"),
    ],
)
def test_2_for_wrong_usage(supervise: Command, words: list[str], told: str):
    """The message names the value and what to do; nothing was run or made."""
    done = supervise.run(*words, CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert not list(supervise.tmp_path.iterdir())


def test_2_for_a_log_directory_that_is_none(supervise: Command):
    """A file cannot hold a run directory."""
    file = supervise.tmp_path / "file"
    file.touch()
    done = supervise.run("--log-dir", str(file), "true")
    assert done.returncode == 2
    assert f"{file} is a file; give --log-dir a directory" in done.stderr


def test_the_command_itself(supervise: Command):
    """Help and version go to stdout; a missing or unknown command is wrong usage."""
    assert supervise.supervise("--version").stdout.startswith("supervise ")
    assert "usage: supervise run" in supervise.supervise("--help").stdout
    assert "--shutdown-timeout SEC" in supervise.run("--help").stdout
    assert supervise.supervise().returncode == 2
    wrong = supervise.supervise("train.py")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "did you mean: supervise run train.py" in wrong.stderr


def test_python_is_not_found_again(supervise: Command):
    """A .py file runs under this very Python."""
    (supervise.tmp_path / "who.py").write_text("import sys; print(sys.executable)")
    assert supervise.run("--no-prefix", "who.py").stdout == f"{sys.executable}\n"
