"""The options of ``supervise run`` about environment, folder, hosts, signals and messages, on real ranks."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervise.cli.options import gang_file, values
from supervise.cli.options.options import parse
from tests.cli.command import Command

SHOW = 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $MASTER_ADDR $MASTER_PORT"'


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("1.5", 1.5), ("90s", 90), ("500ms", 0.5), ("5m", 300), ("2h", 7200), ("1d", 86400)]
)
def test_durations(text: str, seconds: float):
    """Seconds, or a number with a unit."""
    assert values.seconds(text) == seconds


def test_variables_of_a_file_and_of_the_line(supervise: Command):
    """A later source takes precedence; quotes and comments are as compose has them."""
    (supervise.tmp_path / "a.env").write_text("# comment\nA=1 # comment\nexport B='x # $Y'\n\nC=\"l1\\nl2\"\nD=\n")
    words = ("--env-file", "a.env", "--env", "A=2", "--env", "E=f=g")
    done = supervise.run(*words, "--no-prefix", "sh", "-c", 'echo "$A|$B|$C|$D|$E"')
    assert (done.returncode, done.stdout) == (0, "2|x # $Y|l1\nl2||f=g\n")


@pytest.mark.parametrize("line", ["1A=2", "A='x", 'A="x\\"', "A B=1", "=1"])
def test_a_line_of_another_form_is_refused(supervise: Command, line: str):
    """The message names the file and the line."""
    (supervise.tmp_path / "a.env").write_text(f"X=1\n{line}\n")
    done = supervise.run("--env-file", "a.env", "true")
    assert done.returncode == 2
    assert f"'a.env', line 2: {line!r} is not NAME=VALUE" in done.stderr


def test_a_file_of_variables_that_is_no_text(tmp_path: Path):
    """Neither bytes nor a file without end are read on."""
    (tmp_path / "a").write_bytes(b"\xff=1")
    with pytest.raises(Exception, match="is not text in UTF-8"):
        gang_file.read(str(tmp_path / "a"))
    with pytest.raises(Exception, match="is larger than 1 MiB"):
        gang_file.read("/dev/zero")


def test_the_folder_of_the_ranks(supervise: Command):
    """A relative path of a program is relative to it."""
    folder = supervise.tmp_path / "work"
    folder.mkdir()
    (folder / "a.py").write_text("import os; print(os.getcwd())")
    program = folder / "b"
    program.write_text("#!/bin/sh\npwd\n")
    program.chmod(0o755)
    for words in (["a.py"], ["./b"], ["sh", "-c", "pwd"]):
        done = supervise.run("--cwd", "work", "--no-prefix", *words)
        assert (done.returncode, done.stdout.strip()) == (0, str(folder.resolve())), words
    assert supervise.run("--cwd", "work", "c.py").returncode == 127
    program.chmod(0o644)
    assert "chmod +x work/./b\n" in supervise.run("--cwd", "work", "./b").stderr


def test_a_file_of_any_name_under_this_python(supervise: Command):
    """As torchrun's --run-path."""
    (supervise.tmp_path / "job").write_text("import sys; print(sys.argv[1:], __name__)")
    assert supervise.run("--run-path", "--no-prefix", "job", "x").stdout == "['x'] __main__\n"


def test_two_hosts_by_hand(supervise: Command):
    """Each host has a supervise run of its own; ranks are numbered through."""
    seen = []
    for number in (0, 1):
        words = ("--nnodes", "2", "--node-rank", str(number), "--master-addr", "10.0.0.1", "-n", "2", "--no-prefix")
        seen += supervise.run(*words, "sh", "-c", SHOW).stdout.splitlines()
    assert sorted(seen) == [f"{rank} {rank % 2} 4 {rank // 2} 2 10.0.0.1 29500" for rank in range(4)]


def test_a_failure_on_the_second_host_names_both_ranks(supervise: Command):
    """RANK is what programs print; the local rank is in the prefix and in the name of the folder."""
    words = ("--nnodes", "2", "--node-rank", "1", "--master-addr", "a", "-n", "2")
    done = supervise.run(*words, "sh", "-c", "test $RANK != 3")
    assert re.search(r"rank 3 of 4 failed: exit code 1 \(host \S+, local rank 1, pid", done.stderr), done.stderr


def test_an_endpoint_of_torchrun_is_the_master(supervise: Command):
    """Kubeflow gives PET_* variables, and c10d as the backend."""
    env = {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "[::1]:2345"}
    done = supervise.run("--no-prefix", "sh", "-c", SHOW, **env)
    assert done.stdout == "0 0 2 0 2 ::1 2345\n", done.stderr


def test_an_error_in_a_variable_names_what_the_environment_gives(supervise: Command):
    """Otherwise nobody would find an option that is not on the line."""
    done = supervise.run("true", PET_NPROC_PER_NODE="0", PET_STANDALONE="1")
    assert done.returncode == 2
    assert "The environment gives --standalone --nproc-per-node=0 (PET_*)" in done.stderr


def test_the_line_takes_precedence_over_the_variables(supervise: Command):
    """As with torchrun."""
    done = supervise.run("-n", "1", "--no-prefix", "sh", "-c", SHOW, PET_NPROC_PER_NODE="3", PET_MASTER_PORT="77")
    assert done.stdout.split()[2:] == ["1", "0", "1", "127.0.0.1", "77"]


def test_each_rank_sees_its_own_gpu(supervise: Command):
    """As torchrun's --virtual-local-rank."""
    words = (
        "-n",
        "2",
        "--virtual-local-rank",
        "--no-prefix",
        "sh",
        "-c",
        'echo "$RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES"',
    )
    assert sorted(supervise.run(*words, CUDA_VISIBLE_DEVICES="4, 7").stdout.splitlines()) == ["0 0 4", "1 0 7"]
    assert "has no GPU for local rank 1; give -n 1" in supervise.run(*words, CUDA_VISIBLE_DEVICES="4").stderr


@pytest.mark.parametrize("way", ["failure", "timeout", "user"])
def test_the_stop_signal(supervise: Command, way: str):
    """It replaces SIGTERM, and the signal of the user, in every stop."""
    wait = 'trap "echo told; exit 0" USR2; trap "echo wrong; exit 1" TERM INT; echo up; while :; do sleep 0.01; done'
    fail = 'test $RANK = 0 || { while ! grep -q up "$0"; do sleep 0.01; done; exit 3; }; '
    first = supervise.tmp_path / "up"
    first.touch()
    words = ["-n", "2", "--stop-signal", "USR2", "--no-prefix"]
    words += ["--timeout", "8s"] if way == "timeout" else []
    script = wait.replace("echo up", 'echo up | tee -a "$0"')
    with supervise.started(*words, "sh", "-c", fail + script if way == "failure" else script, str(first)) as run:
        if way == "user":
            run.hear(2)
            run.signal(signal.SIGTERM)
        code, out, _ = run.end()
    assert code == {"failure": 3, "timeout": 124, "user": 143}[way]
    assert "told" in out
    assert "wrong" not in out


def test_the_signals_that_stop_a_run(supervise: Command):
    """SIGUSR1 is passed on otherwise, and SIGHUP then has its default action."""
    words = ("--signals-to-handle", "SIGUSR1,SIGTERM", "--no-prefix", "sh", "-c", "echo up; exec sleep 1000")
    with supervise.started(*words) as run:
        run.hear()
        run.signal(signal.SIGUSR1)
        assert run.end()[0] == 128 + signal.SIGUSR1
    with supervise.started(*words) as run:
        run.hear()
        run.signal(signal.SIGHUP)
        assert run.end()[0] == -signal.SIGHUP


@pytest.mark.parametrize(("who", "code"), [("root-cause", 3), ("0", 0), ("1", 3)])
def test_exit_code_from(supervise: Command, who: str, code: int):
    """That of one rank, or of the first failure."""
    done = supervise.run("-n", "2", "--keep-going", "--exit-code-from", who, "sh", "-c", "exit $((RANK * 3))")
    assert done.returncode == code


def test_exit_code_from_a_rank_that_was_stopped(supervise: Command):
    """Its own, as a shell gives it."""
    script = "test $RANK = 1 && exit 3; exec sleep 1000"
    assert supervise.run("-n", "2", "--exit-code-from", "0", "sh", "-c", script).returncode == 143


@pytest.mark.parametrize("log_dir", ["file", "file/below", "sealed", "sealed/below"])
def test_a_dry_run_refuses_a_log_directory_that_a_run_refuses(supervise: Command, log_dir: str):
    if os.geteuid() == 0 and log_dir.startswith("sealed"):
        pytest.skip("root may write to every folder")
    (supervise.tmp_path / "file").touch()
    (supervise.tmp_path / "sealed").mkdir(mode=0o500)
    told = [supervise.run(*dry, "--log-dir", log_dir, "true") for dry in ((), ("--dry-run",))]
    assert [(each.returncode, each.stdout) for each in told] == [(2, ""), (2, "")]
    assert all(each.stderr.endswith("; give --log-dir a writable directory\n") for each in told)


def test_the_exit_code_of_a_run_on_ray_may_be_that_of_a_rank_of_any_host():
    words = ("--engine", "ray", "--nnodes", "2", "-n", "2", "--exit-code-from", "3", "true")
    assert parse(words).exit_code_from == 3


def test_a_dry_run_makes_no_log_directory(supervise: Command):
    assert supervise.run("--dry-run", "--log-dir", "new/logs", "true").returncode == 0
    assert list(supervise.tmp_path.iterdir()) == []


def test_the_lines_of_a_dry_run_run_the_ranks(supervise: Command):
    """They are lines of a shell; nothing is started or made."""
    (supervise.tmp_path / "w.py").write_text(
        "import os, sys; print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['A'], sys.argv[1:])"
    )
    (supervise.tmp_path / "sub").mkdir()
    before = sorted(supervise.tmp_path.iterdir())
    done = supervise.run("-n", "2", "--dry-run", "--env", "A=b c", "w.py", "x y")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(supervise.tmp_path.iterdir()) == before
    again = supervise.run("--no-prefix", "sh", "-c", done.stdout)
    assert again.stdout.splitlines() == ["0 2 b c ['x y']", "1 2 b c ['x y']"]


def test_a_dry_run_sets_variables_that_a_shell_cannot_name(supervise: Command):
    """Such as those of Spring; the command `env` sets them."""
    program = (sys.executable, "-c", "import os; print(os.environ['a.b'], os.environ['C'])")
    done = supervise.run("--dry-run", "--env", "a.b=1 2", "--env", "C=3", *program)
    assert subprocess.run(["sh", "-c", done.stdout], check=True, capture_output=True, text=True).stdout == "1 2 3\n"


def test_t9_a_dry_run_prints_no_control_character_and_keeps_every_byte(supervise: Command):
    words = ["it's \\x1b\n\t", "\x1b]0;title\x07", "\udcff\x7f\u202eé'\\"]
    program = [sys.executable, "-c", "import os, sys; print(sys.argv[1:], ascii(os.environ['A']))"]
    done = supervise.run("--dry-run", "--env", f"A={words[2]}", "--cwd", ".", *program, *words)
    assert done.stdout.translate({ord("\n"): "", ord("\t"): ""}).isprintable()
    again = supervise.run("--no-prefix", "bash", "-c", done.stdout, PYTHONIOENCODING="utf-8:backslashreplace")
    assert again.stdout == f"{words!r} {words[2]!a}\n"


def test_quiet(supervise: Command):
    """Only errors: no message at the start, none of a restart; the report stays."""
    done = supervise.run("-q", "-n", "2", "--max-restarts", "1", "--backoff", "0", "sh", "-c", "exit 3")
    assert done.returncode == 3
    assert done.stderr.startswith("supervise: rank ")
    assert "OMP_NUM_THREADS" not in done.stderr
    assert "restart 1 of 1" not in done.stderr
    assert supervise.run("-q", "-n", "2", "true").stderr == ""
    assert "nope is not in PATH" in supervise.run("-q", "nope").stderr


def test_verbose(supervise: Command):
    """Every event is a line: its time, its name, its rank."""
    done = supervise.run("-v", "sh", "-c", "exit 3")
    assert re.search(r"^\d\d:\d\d:\d\d\.\d{3} process\.exited rank=0 pid=\d+ exit_code=3 ", done.stderr, re.MULTILINE)
    assert "gang.finished outcome=failed" in done.stderr
    assert "rank 0 failed: exit code 3" in done.stderr


def test_json(supervise: Command):
    """stderr has JSON objects only: the events of the file."""
    done = supervise.run("--log-format", "json", "-n", "2", "sh", "-c", "exit 3")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    file = [json.loads(line) for line in (supervise.directory() / "events.jsonl").read_text().splitlines()]
    assert lines == file
    assert lines[-1]["event"] == "supervise.gang.finished"
    refused = json.loads(supervise.run("--log-format", "json", "nope").stderr)
    assert refused["level"] == "error"
    assert "nope is not in PATH" in refused["message"]


def test_options_without_an_effect_are_told_once(supervise: Command):
    """A line of torchrun's works, and nobody believes that they do something."""
    words = ("--monitor-interval=5", "--rdzv-conf", "a=b", "--start_method=fork", "--rdzv-id", "job")
    done = supervise.run(*words, "--no-prefix", "sh", "-c", "echo $TORCHELASTIC_RUN_ID")
    assert (done.returncode, done.stdout) == (0, "job\n")
    *notes, logs = done.stderr.splitlines()
    assert [line.split()[1] for line in notes] == ["--monitor-interval", "--rdzv-conf", "--start-method"]
    assert all("has no effect: " in line for line in notes)
    assert logs.startswith("supervise: logs: ")


def test_the_table_of_ranks(supervise: Command):
    """A line for each rank: how it ended, its time, CPU time and memory."""
    done = supervise.run("--summary", "-q", "-n", "2", "sh", "-c", "exit $((RANK * 3))")
    head, first, second, *_ = done.stderr.splitlines()
    assert head.split() == ["rank", "pid", "end", "time", "cpu", "memory"]
    assert re.match(r" +0 +\d+  (exit code 0|SIGTERM) +\d+\.\d\d s", first)
    assert re.match(r" +1 +\d+  exit code 3 +\d+\.\d\d s +\d+\.\d\d s +", second)


def test_numbers_for_prometheus(supervise: Command):
    """Written in one step; each line is a comment or ``name{labels} number``."""
    file = supervise.tmp_path / "run.prom"
    done = supervise.run("--metrics", str(file), "--run-id", 'a"b', "--keep-going", "-n", "2", "sh", "-c", "exit $RANK")
    assert done.returncode == 1
    lines = file.read_text().splitlines()
    number = re.compile(r'supervise_\w+\{run_id="a\\"b"(,local_rank="\d")?\} -?[0-9.e-]+')
    assert all(number.fullmatch(line) or re.match(r"# (HELP|TYPE) supervise_\w+ .+", line) for line in lines)
    assert 'supervise_rank_exit_code{run_id="a\\"b",local_rank="1"} 1' in lines
    assert 'supervise_run_exit_code{run_id="a\\"b"} 1' in lines
    assert [path.name for path in supervise.tmp_path.glob("run.prom*")] == ["run.prom"]
    for words, code in ((["nope"], 127), (["nope.py"], 127), (["--log-dir", "/dev/null/x", "true"], 2)):
        assert supervise.run("--metrics", str(file), "--run-id", "job", *words).returncode == code
        assert f'supervise_run_exit_code{{run_id="job"}} {code}' in file.read_text().splitlines()
    broken = supervise.run("--metrics", "/nowhere/m", "true")
    assert "no metrics: /nowhere: No such file or directory" in broken.stderr
    assert broken.returncode == 0


@pytest.mark.parametrize("strategy", ["one_for_all", "one_for_one"])
def test_the_metrics_count_the_restarts_of_all_ranks_and_of_single_ranks(supervise: Command, strategy: str):
    file = supervise.tmp_path / "m.prom"
    once = f"test -e {supervise.tmp_path}/failed || {{ touch {supervise.tmp_path}/failed; exit 3; }}"
    policy = ("--strategy", strategy, "--max-restarts", "1", "--backoff", "0")
    assert supervise.run("--metrics", str(file), "--run-id", "job", *policy, "sh", "-c", once).returncode == 0
    assert 'supervise_run_restarts_total{run_id="job"} 1\n' in file.read_text()


MISTAKES = {
    "-f": "--file",
    "-N": "--nnodes",
    "--name=x": "--run-id",
    "--scale": "--file gang.toml web=3",
    "-np": "-n",
    "-np4": "-n",
    "--np": "-n",
    "--nproc": "--nproc-per-node",
    "--nprocpernode": "--nproc-per-node",
    "--ntasks": "-n",
    "-e": "--env",
    "-x": "--env",
    "--envs": "--env",
    "--envfile": "--env-file",
    "--workdir": "--cwd",
    "--chdir": "--cwd",
    "--time": "--timeout",
    "--time-limit": "--timeout",
    "--timeuot": "--timeout",
    "--grace": "--shutdown-timeout",
    "--shutdown": "--shutdown-timeout",
    "--max_restart=3": "--max-restarts",
    "--retries": "--max-restarts",
    "--logdir": "--log-dir",
    "--output-dir": "--log-dir",
    "--redirect": "--redirects",
    "--colour": "--color",
    "--no-color": "--color never",
    "--heartbeat": "--heartbeat-timeout",
    "--red": "--redirects",
    "--keepgoing": "--keep-going",
    "--dryrun": "--dry-run",
    "--quite": "--quiet",
    "--nodes": "--nnodes",
    "--masterport": "--master-port",
    "--stopsignal": "--stop-signal",
    "--nope": "",
    "--foo=bar": "",
    "--duplicate": "",
    "--master": "",
    "--cuda": "",
    "-Z": "",
}
"""Mistyped or foreign option to the suggestion."""


@pytest.mark.parametrize(("word", "meant"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistyped_option_gets_the_right_suggestion_or_none(capsys: pytest.CaptureFixture[str], word: str, meant: str):
    """A wrong one would cost more than none."""
    with pytest.raises(SystemExit):
        parse([word, "true"])
    told = capsys.readouterr().err
    if meant:
        assert f"did you mean {meant}?" in told
    else:
        assert "did you mean" not in told


def test_the_options_of_this_process_are_no_defaults_of_tests():
    """Variables PET_* of whoever runs the tests would change every run."""
    assert not [name for name in os.environ if name.startswith("PET_")]


@pytest.mark.parametrize(("given", "codes"), [("0,255", {0, 255}), ("-64", {-64})])
def test_the_outermost_exit_codes_are_accepted(given: str, codes: set[int]):
    """Linux has exit codes up to 255 and signals up to 64."""
    assert parse([f"--success-exit-codes={given}", "true"]).settings["success_exit_codes"] == codes


@pytest.mark.parametrize("given", ["256", "-65", "0,x", ","])
def test_an_exit_code_that_no_process_has_is_refused(capsys: pytest.CaptureFixture[str], given: str):
    """With the accepted values."""
    with pytest.raises(SystemExit):
        parse([f"--success-exit-codes={given}", "true"])
    assert "give numbers from 0 to 255, or -N for signal N" in capsys.readouterr().err
