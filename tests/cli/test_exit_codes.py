"""What the shell, a scheduler or a script above learns from the exit code alone."""

import os
import re
import sys
from types import SimpleNamespace

import pykka
import pytest

from supervise import messages as say
from supervise._runtime.future import Reply
from supervise.cli import main
from supervise.cli.options.options import parse
from supervise.cli.run.console import Console
from supervise.cli.run.rank_stdin import RankStdin
from supervise.cli.run.run import _Run
from supervise.cli.run.signal_inbox import SignalInbox
from supervise.errors import SpecError
from supervise.result import RunProcsResult
from tests.cli.command import HANG, Command


def sh(script: str) -> tuple[str, ...]:
    return "--", "sh", "-c", script


def test_0_where_all_succeed(supervise: Command):
    """Success is quiet: only where the logs are, and with -q nothing."""
    done = supervise.run("-n", "2", "true", OMP_NUM_THREADS="2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"supervise: logs: {supervise.directory()}\n")
    done = supervise.run("-q", "-n", "2", "true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("code", [1, 3, 255])
def test_the_root_causes_own_code(supervise: Command, code: int):
    """A failing rank's code is ours, and not that of the ranks that we stopped."""
    # A SIGTERM between the shell's fork and the exec of sleep is lost, and sleep lives until the end of the grace
    done = supervise.run(
        "-n",
        "3",
        "--shutdown-timeout",
        "2",
        *sh(f'[ "$RANK" = 1 ] && exit {code}; trap "exit 77" TERM; sleep 1000 & wait'),
    )
    assert done.returncode == code
    assert f"rank 1 of 3 failed: exit code {code}" in done.stderr


@pytest.mark.parametrize(("name", "code"), [("KILL", 137), ("SEGV", 139), ("TERM", 143), ("INT", 130)])
def test_128_and_the_signal_that_a_rank_died_of(supervise: Command, name: str, code: int):
    """A rank that dies of a signal by itself is a failure with the signal's name."""
    done = supervise.run(*sh(f"kill -{name} $$"))
    assert done.returncode == code
    assert f"rank 0 failed: SIG{name}" in done.stderr


@pytest.mark.parametrize("count", ["1", "2"])
def test_the_signal_that_a_rank_died_of_is_told_also_if_supervise_sends_it_to_the_rest_of_the_group(
    supervise: Command, count: str
):
    script = 'sleep 1000 & [ "$RANK" = 1 ] || kill -TERM $$; wait'
    done = supervise.run("-n", count, *sh(script))
    assert done.returncode == 143
    assert re.search(r"rank 0 (of 2 )?failed: SIGTERM ", done.stderr)


def test_124_at_the_timeout(supervise: Command):
    """A run that takes too long is stopped."""
    done = supervise.run("-n", "2", "--timeout", "4", *sh(HANG))
    assert done.returncode == 124
    assert "--timeout of 4 s exceeded" in done.stderr
    assert "ranks 0-1: stopped by SIGTERM (sent by supervise)" in done.stderr


def test_1_for_a_hang_whose_rank_exits_with_0_at_its_stop(supervise: Command):
    """The hang is the failure, whatever the exit code."""
    words = ("--output-timeout", "0.3", "--on-hang", "fail")
    done = supervise.run(*words, *sh('trap "exit 0" TERM; sleep 1000 & echo up; wait'))
    assert done.returncode == 1
    assert re.search(r"rank 0 failed: hung: no output for \d+\.\d s", done.stderr)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nope"], "nope is not in PATH"),
        (["./nope"], "./nope: No such file or directory"),
        (["nope.py"], "nope.py: No such file or directory"),
        (["--no-python", "nope.py"], "nope.py is not in PATH"),
        (["A=1", "./nope", "b c"], "A=1 is not in PATH; to set a variable for a program: env A=1 ./nope 'b c'"),
        (["cd", "x"], "cd is not in PATH; it is a command of the shell; for a shell: sh -c 'cd x'"),
    ],
)
def test_127_where_the_program_is_not_found(supervise: Command, words: list[str], why: str):
    """One line says what is missing, and no directory is made."""
    done = supervise.run("-n", "2", *words, OMP_NUM_THREADS="1")
    assert done.returncode == 127
    assert done.stderr == f"supervise: cannot start rank 0: {why}\n"
    assert not list(supervise.tmp_path.iterdir())


@pytest.mark.parametrize("command", ["run", "check"])
def test_127_for_a_script_that_is_only_in_path(supervise: Command, command: str):
    """A name that ends in .py is a file for Python, which is not looked up in PATH; the way to execute it is told."""
    file = supervise.tmp_path / "bin" / "tool.py"
    file.parent.mkdir()
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    (supervise.tmp_path / "gang.toml").write_text("[roles.a]\ncommand = 'tool.py'\n")
    env = {"PATH": f"{file.parent}:{os.environ['PATH']}"}
    done = supervise.run("tool.py", **env) if command == "run" else supervise.supervise("check", "gang.toml", **env)
    assert done.returncode == (127 if command == "run" else 2)
    told = "that in PATH needs --no-python ('python = false' in a gang file), or its path\n"
    assert f": cannot start rank 0: tool.py: No such file or directory; {told}" in done.stderr


@pytest.mark.parametrize("words", [["worker"], ["--no-python", "worker.py"]])
def test_127_for_a_file_that_is_here_and_not_in_path(supervise: Command, words: list[str]):
    """As in a shell; but the way to the one that was meant is told."""
    file = supervise.tmp_path / words[-1]
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    done = supervise.run(*words)
    assert done.returncode == 127
    assert done.stderr == (
        f"supervise: cannot start rank 0: {file.name} is not in PATH;"
        f" for the file in this directory, give ./{file.name}\n"
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("#!/nowhere/interpreter -x\n", "its first line names '/nowhere/interpreter', which does not exist"),
        (
            "#! /bin/sh\r\necho\r\n",
            r"its first line names '/bin/sh\r', because its lines end in CRLF; convert them to LF",
        ),
    ],
)
def test_127_where_the_interpreter_is_not_found(supervise: Command, content: str, why: str):
    """What only the start itself finds is told the same way, with the rank; and nothing was there to be stopped."""
    script = supervise.tmp_path / "script"
    script.write_bytes(content.encode())
    script.chmod(0o755)
    done = supervise.run(str(script))
    assert done.returncode == 127
    assert done.stderr == f"supervise: cannot start rank 0: {script}: {why}\n"


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        (0o644, "Permission denied; to make it executable: chmod +x {file}"),
        (0o755, "Exec format error; a script needs a first line such as #!/bin/sh"),
    ],
)
def test_126_where_the_program_cannot_be_executed(supervise: Command, mode: int, why: str):
    """A file without the permission, or that is no program."""
    file = supervise.tmp_path / "file"
    file.write_bytes(b"\x00\x01\x02")
    file.chmod(mode)
    done = supervise.run(str(file))
    assert done.returncode == 126
    assert done.stderr == f"supervise: cannot start rank 0: {file}: {why.format(file=file)}\n"


def test_126_where_the_program_is_out_of_reach(supervise: Command):
    """As shells do; a folder that may not be searched is the same to `stat`, but not for root."""
    (supervise.tmp_path / "loop").symlink_to("loop")
    (supervise.tmp_path / "file").touch()
    told = {name: supervise.run(name) for name in ("./loop", "./file/program", f"./{'x' * 300}")}
    assert {done.returncode for done in told.values()} == {126}
    assert [done.stderr.rpartition(": ")[2].strip() for done in told.values()] == [
        *("Too many levels of symbolic links", "Not a directory", "File name too long"),
    ]
    assert supervise.run("loop").stderr.startswith("supervise: cannot start rank 0: loop is not in PATH")


@pytest.mark.skipif(not os.statvfs("/proc").f_flag & os.ST_NOEXEC, reason="/proc is mounted without noexec")
def test_126_where_the_file_system_executes_nothing(supervise: Command):
    """To make the file executable would not help."""
    done = supervise.run("/proc/version")
    told = "supervise: cannot start rank 0: /proc/version: Permission denied; its file system is mounted with noexec\n"
    assert (done.returncode, done.stderr) == (126, told)


def test_126_for_a_directory(supervise: Command):
    """A directory is there, and is no program."""
    done = supervise.run("./")
    assert done.returncode == 126
    assert done.stderr == "supervise: cannot start rank 0: ./: Is a directory\n"


def test_after_a_refused_start_nothing_is_said_to_be_left(capfd: pytest.CaptureFixture[str]):
    """However long the close takes: there was no rank that could have left something."""
    replies: dict[type, Reply[object]] = {kind: Reply() for kind in (say.Start, say.Wait, say.Close)}
    replies[say.Start].fail(SpecError("no such containment here"))
    replies[say.Wait].fail(SpecError("no such containment here"))
    replies[say.Close].set(None)
    with SignalInbox((), restore=True) as mailbox:
        options = parse(["--stdin", "none", "true"])
        run = _Run(options, Console("never"), mailbox, RankStdin(options, pytest.fail))
        run._gang = SimpleNamespace(ask=lambda message, **_: replies[type(message)])
        assert run._supervise() == 2
    assert run._progress.reason is None
    assert "cannot start: no such containment here" in capfd.readouterr().err


def test_a_stop_that_is_over_is_not_announced(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """The machine stands still for more than a second, in which the gang closes."""
    replies: dict[type, Reply[object]] = {kind: Reply() for kind in (say.Start, say.Wait, say.Close, say.Status)}
    replies[say.Start].set({})
    replies[say.Wait].set(RunProcsResult(outcome="succeeded"))
    replies[say.Status].fail(pykka.Timeout())
    with SignalInbox((), restore=True) as mailbox:
        options = parse(["--stdin", "none", "true"])
        run = _Run(options, Console("never"), mailbox, RankStdin(options, pytest.fail))
        run._gang = SimpleNamespace(ask=lambda message, **_: replies[type(message)])

        def stands_still(_timeout_s: float | None) -> list[object]:
            run._progress._speak_at_s = 0.0
            if not replies[say.Close].done():
                replies[say.Close].set(None)
            return []

        monkeypatch.setattr(mailbox, "take", stands_still)
        assert run._supervise() == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("words", [["--standalone"], ["--nnodes", "1"], ["--nnodes=1:1", "--node_rank", "0"]])
def test_torchruns_words_for_one_node_change_nothing(supervise: Command, words: list[str]):
    """A line of torchrun's works as it is."""
    done = supervise.run(
        "-q", *words, "--nproc_per_node", "2", "--", "sh", "-c", "echo $WORLD_SIZE", OMP_NUM_THREADS="1"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["[default0]:2", "[default1]:2"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "PROGRAM is missing"),
        (["-n", "0", "true"], "'0' is not a valid number of ranks; give 1 or more"),
        (["-n", "many", "true"], "'many' is not a valid number of ranks"),
        (["-n", "gpu", "true"], "CUDA_VISIBLE_DEVICES='' hides every GPU; give a number, or cpu"),
        (["-r", "9", "true"], "'9' is not a valid choice of streams; give 0 (none)"),
        (["-t", "5:1", "true"], "--tee names rank 5; with -n 1 the ranks are 0 only"),
        (
            ["-n", "2", "--local-ranks-filter", "0,7", "true"],
            "--local-ranks-filter: rank 7 does not exist; the ranks are 0 to 1",
        ),
        (["--local-ranks-filter", "x", "true"], "'x' is not a rank or a role; the ranks are 0 only, the roles default"),
        (["--timeout", "0", "true"], "omit the option for no limit"),
        (
            ["--shutdown-timeout", "-1", "true"],
            "'-1' is not a valid duration; give seconds, or a unit, such as 0.5, 90s",
        ),
        (["--shutdown-timeout", "nan", "true"], "'nan' is not a valid duration"),
        (["--color", "red", "true"], "invalid choice: 'red'"),
        (["-m", "--no-python", "true"], "omit one of them"),
        (["--role", "a/b", "true"], "'a/b' is not a valid name in paths"),
        (["--run-id=-x", "true"], "'-x' is not a valid name in paths and lines; give printable characters without"),
        (["--metrics", "-", "true"], "'-' is not a file; stdout has the output of the ranks, so give a path"),
        (["--nope", "true"], "unrecognized arguments: --nope"),
        ([""], "PROGRAM is empty"),
        (["--timeout", "-1", "true"], "'-1' is not a valid duration"),
        (["--role", "a\nb", "true"], "give printable characters without '/'"),
        (["--log-dir", "", "true"], "'' is not a directory; omit the option"),
        (
            ["--nnodes", "2", "true"],
            "--nnodes 2 needs --node-rank, the number of this host; hosts are numbered from 0 to 1",
        ),
        (["--nnodes", "2", "--node-rank", "0", "true"], "--nnodes 2 needs --master-addr, the address of the host"),
        (["--nnodes", "2", "--standalone", "true"], "--standalone is one host, and --nnodes is 2"),
        (["--engine", "mpi", "true"], "invalid choice: 'mpi'"),
        (["--engine", "ray", "--node-rank", "0", "true"], "--node-rank and --engine ray exclude each other"),
        (["--engine", "ray", "--keep-going", "true"], "a gang on Ray is all or nothing"),
        (["--engine", "ray", "--strategy", "one_for_one", "true"], "a gang on Ray is all or nothing"),
        (["--engine", "ray", "--restart", "permanent", "true"], "a gang on Ray restarts as a whole after a failure"),
        (["--engine", "ray", "--virtual-local-rank", "true"], "Ray chooses the hosts, their order and GPUs"),
        (["--nnodes=1:4", "true"], "supervise run starts a fixed number of hosts; give one number, such as --nnodes 4"),
        (["--nnodes=0", "true"], "'0' is not a number of hosts; give 1 or more"),
        (["--node_rank", "1", "true"], "--node-rank is 1; with --nnodes 1 it is 0"),
        (["--node_rank", "x", "true"], "'x' is not the number of a host"),
        (["--rdzv_backend=etcd", "true"], "'etcd': supervise run needs no rendezvous server; give --nnodes"),
        *(
            (["--nnodes=2", "--node-rank=0", "--rdzv-endpoint", text, "true"], f"{text!r}; give HOST:PORT of the host")
            for text in (":1", "host:", "host:x", "host:29400,h2:1", "[::1", "a b:1", "h\udcff:1", "h:0", "h:65536")
        ),
        (["--logs-specs", "mine", "true"], "'mine': supervise run has no plug-ins for logs"),
        (["--start-method", "x", "true"], "'x' is not a start method; give spawn, fork, forkserver"),
        (["--master_port=0", "true"], "'0' is not a port; give a number from 1 to 65535"),
        (["--run-path", "--no-python", "true"], "--run-path runs a file under Python; omit it or --no-python"),
        (["--env", "FOO", "true"], "'FOO' has no '='; give NAME=VALUE; the ranks inherit your environment"),
        (["--env", "1A=2", "true"], "'1A' is not the name of a variable"),
        (["--env", "RANK=2", "true"], "supervise sets RANK in each rank; omit it"),
        (["--env", "MASTER_PORT=2", "true"], "supervise sets MASTER_PORT in each rank; give --master-port"),
        (["--env-file", "none.env", "true"], "'none.env': No such file or directory"),
        (["--cwd", "none", "true"], "'none' does not exist; create it, or give another path"),
        (["--stop-signal", "KILL", "true"], "no process can handle SIGKILL; give another signal"),
        (["--signals-to-handle", "SIGNOPE", "true"], "'SIGNOPE' is not a signal; give a name, such as SIGTERM"),
        (["--signals-to-handle", ",", "true"], "',' names no signal; give names, such as SIGTERM,SIGINT"),
        (["-q", "-v", "true"], "-q and -v contradict each other; omit one of them"),
        (["--exit-code-from", "1", "true"], "--exit-code-from: rank 1 does not exist; the ranks are 0 only"),
        (
            ["--engine", "ray", "--nnodes", "2", "-n", "2", "--exit-code-from", "4", "true"],
            "--exit-code-from: rank 4 does not exist; the ranks are 0 to 3",
        ),
        (["--exit-code-from", "x", "true"], "--exit-code-from: 'x' is not a rank or a role"),
        (["--log-dir", os.devnull, "-t", "3", "true"], "--tee needs files, and --log-dir /dev/null keeps none"),
        (["--log-dir", os.devnull, "-r", "0:1", "true"], "--redirects needs files, and --log-dir /dev/null keeps"),
        (["--log-dir", os.devnull, "--local-ranks-filter", "0", "--", "true"], "--local-ranks-filter needs files"),
        (["--log-dir", os.devnull, "--output-timeout", "1", "true"], "--output-timeout needs files, and --log-dir"),
        (["-t", "0", "--output-timeout", "1", "true"], "--output-timeout needs files, and -t and -r name no stream"),
        (["-t", "0", "--duplicate-stdout-filters", "a", "true"], "--duplicate-stdout-filters needs files, and -t and"),
        (["-t", "0", "--log-max-bytes", "64K", "true"], "--log-max-bytes needs files, and -t and -r name no stream"),
        (["-t", "0", "--log-line-prefix", "a", "true"], "--log-line-prefix needs files, and -t and -r name no stream"),
        (["--listen", "unix:@a", "true"], "'unix:@a' is not an address; an abstract name is for probes; give tcp:HOST"),
    ],
)
def test_2_for_wrong_usage(supervise: Command, words: list[str], told: str):
    """The message names the value and what to do; nothing was run or made."""
    done = supervise.refused("run", *words, CUDA_VISIBLE_DEVICES="")
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
    assert f"{file} is a file; give --log-dir a writable directory" in done.stderr


def test_the_command_itself(supervise: Command):
    """Help and version go to stdout; a missing or unknown command is wrong usage."""
    assert supervise.supervise("--version").stdout.startswith("supervise ")
    assert supervise.supervise("-V").stdout == supervise.supervise("--version").stdout
    assert "usage: supervise run" in supervise.supervise("--help").stdout
    assert "--shutdown-timeout DUR" in supervise.run("--help").stdout
    assert supervise.supervise().returncode == 2
    wrong = supervise.supervise("train.py")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "did you mean: supervise run train.py" in wrong.stderr
    wrong = supervise.supervise("-n", "2", "my train.py", "--lr", "1")
    assert wrong.returncode == 2
    assert wrong.stderr.endswith("did you mean: supervise run -n 2 'my train.py' --lr 1\n")
    assert "did you mean: supervise check gang.toml" in supervise.supervise("chek", "gang.toml").stderr
    assert "did you mean: supervise run -n 2 x.py" in supervise.supervise("rnu", "-n", "2", "x.py").stderr
    assert supervise.supervise("-h").stdout != supervise.supervise("--help").stdout
    assert supervise.supervise("help").stdout == supervise.supervise("--help").stdout
    assert supervise.supervise("help", "check").stdout == supervise.supervise("check", "--help").stdout
    assert supervise.supervise("help", "run").stdout == supervise.run("--help").stdout
    done = supervise.supervise("help", "shwo")
    assert (done.returncode, done.stderr) == (
        2,
        "supervise: 'shwo' is not a command; did you mean: supervise show\n",
    )


@pytest.mark.parametrize("words", [(), ("run",)])
def test_the_brief_help_has_examples_first_and_only_options_that_exist(supervise: Command, words: tuple[str, ...]):
    """Both fit a small window; each line says where the rest is."""
    brief, whole = supervise.refused(*words, "-h"), supervise.refused(*words, "--help")
    assert (brief.returncode, brief.stderr) == (0, "")
    lines = brief.stdout.splitlines()
    assert len(lines) <= 25
    assert lines[0].startswith("supervise run -n 4 train.py")
    assert f"{' '.join(['supervise', *words])} --help" in brief.stdout
    options = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", brief.stdout)) - {"-h", "--help", "-f", "--rank", "--lr"}
    assert not [option for option in options if option not in supervise.refused("run", "--help").stdout]
    assert len(whole.stdout) > len(brief.stdout)


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_help_fits_the_terminal(supervise: Command, columns: int):
    """Options are wrapped to its width, and no line of the rest is longer than 80 columns."""
    lines = supervise.run("--help", COLUMNS=str(columns)).stdout.splitlines()
    assert max(map(len, lines)) <= min(max(columns, 80), 118)
    options = lines[lines.index("what runs:") : lines.index("destination of output:")]
    assert max(map(len, options)) <= min(columns, 118)
    assert columns < 200 or max(map(len, options)) > 80


def test_no_help_is_wider_than_a_window_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Lines that wrap break the layout of the texts that are not wrapped by argparse."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    commands = re.findall(r"^  ([a-z]+) ", capsys.readouterr().out.partition("commands:")[2], re.MULTILINE)
    assert len(commands) > 10
    for words in ((), *((command,) for command in commands)):
        for option in ("-h", "--help"):
            assert main([*words, option]) == 0
            wide = [line for line in capsys.readouterr().out.splitlines() if len(line) > 80]
            assert not wide, (words, option)


def test_python_is_not_found_again(supervise: Command):
    """A .py file runs under this very Python."""
    (supervise.tmp_path / "who.py").write_text("import sys; print(sys.executable)")
    assert supervise.run("--no-prefix", "who.py").stdout == f"{sys.executable}\n"
