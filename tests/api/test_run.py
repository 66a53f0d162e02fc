"""`supervise.run`: the values, the failure with the traceback of the rank, signals, the logs, bad arguments."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest

import supervise
from supervise import (
    DefaultLogsSpecs,
    GangFailed,
    ProcessFailure,
    RestartPolicy,
    RunProcsResult,
    SignalException,
    SpawnError,
    SpecError,
    Start,
    Status,
    Supervisor,
    SupervisorRef,
    Wait,
    run,
    start_processes,
)
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
NO_FILES = DefaultLogsSpecs(os.devnull)


def rank() -> int:
    return int(os.environ["RANK"])


def shard(size: int, name: str = "a") -> str:
    return f"{name}{rank()}:{size}"


def fail_at(number: int) -> int:
    if rank() == number:
        raise_two(f"shard {number} is empty")
    signal.sigtimedwait([signal.SIGUSR1], 3600)
    return rank()


def raise_two(text: str) -> None:
    try:
        {}["the first"]
    except KeyError as error:
        raise ValueError(text) from error


def fail_once(path: str) -> str:
    """Fail in the first attempt; return the master port of both."""
    with Path(path).open("a+") as file:
        file.write(os.environ["MASTER_PORT"] + "\n")
        file.flush()
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("at first")
    return Path(path).read_text()


def variables() -> dict[str, str]:
    return dict(os.environ)


def nested() -> tuple[str, str]:
    """Return the master port of this rank and that of a gang in it."""
    inner = run(variables, 2, start_method="fork", logs_specs=DefaultLogsSpecs(os.devnull))
    return os.environ["MASTER_PORT"], inner[0]["MASTER_PORT"]


@pytest.fixture(autouse=True)
def temporary(temporary_folder: Path) -> Path:
    """The folder for temporary files."""
    return temporary_folder


# Values


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_the_values_are_in_the_order_of_the_ranks(method: str):
    assert run(shard, n=3, args=(7,), start_method=method) == ["a0:7", "a1:7", "a2:7"]


def test_arguments_by_rank_determine_the_number_of_ranks():
    assert run(shard, args={1: (2, "y"), 0: (1, "x")}, start_method="fork") == ["x0:1", "y1:2"]


def test_a_program_has_no_values():
    assert run("sh", 2, ("-c", 'test "$WORLD_SIZE" = 2')) == [None, None]


def test_output_is_shown_and_its_folder_is_removed(capfd: pytest.CaptureFixture[str], temporary: Path):
    """Live, with the name of the program and the rank; nothing stays in the temporary folder."""
    assert run("echo", n=2, args=("hello", "you")) == [None, None]
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[echo0]:hello you", "[echo1]:hello you"]
    assert err == ""
    assert list(temporary.iterdir()) == []


# Failures


def test_a_failure_is_the_rank_s_own(temporary: Path, capfd: pytest.CaptureFixture[str]):
    """The text is one screen; the cause is the traceback of the rank, without a frame of supervise; no other line."""
    with pytest.raises(GangFailed) as caught:
        run(fail_at, 3, (1,), start_method="fork")
    error = caught.value
    text = str(error)
    assert text.startswith("rank 1 of 3 failed: exit code 1 (host ")
    assert "  ValueError: shard 1 is empty\n" in text
    assert "  ranks 0, 2: stopped by SIGTERM (sent by supervise)\n" in text
    assert len(text.splitlines()) < 40
    folder = text.rpartition("  logs: ")[2]
    assert Path(folder, "1/error.json").is_file()
    assert folder.startswith(str(temporary))
    assert error.result.root_cause == 1
    told = str(error.__cause__)
    assert told == f'\n"""\n{error.rank_traceback}\n"""'
    assert error.rank_traceback.startswith("Traceback (most recent call last):\n")
    assert error.rank_traceback.endswith("\nValueError: shard 1 is empty")
    assert "KeyError: 'the first'" in told
    assert "/supervise/" not in told.replace(str(ROOT / "tests"), "")
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/supervise/" in frame.filename]
    assert [frame.name for frame in ours] == ["run"]
    assert capfd.readouterr().err == ""


def test_it_keeps_its_text_result_and_cause_when_pickled():
    with pytest.raises(GangFailed) as caught:
        run(fail_at, 2, (0,), start_method="fork")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is GangFailed
    assert str(again) == str(caught.value)
    assert again.result == caught.value.result
    assert again.rank_traceback == caught.value.rank_traceback
    assert str(again.__cause__) == str(caught.value.__cause__)


def test_the_failure_of_a_program_shows_the_end_of_its_stderr():
    with pytest.raises(GangFailed) as caught:
        run("sh", 2, ("-c", "echo no such shard >&2; exit 3"), strategy="one_for_one")
    assert str(caught.value).startswith("rank ")
    assert "failed: exit code 3 (" in str(caught.value)
    assert "the end of its stderr:\n    no such shard\n" in str(caught.value)
    assert caught.value.rank_traceback == ""
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("stream", ["stderr", "stdout"])
def test_the_error_of_a_start_has_notes_with_the_end_of_the_output_and_the_folder_of_the_logs(stream: str):
    """The text stays one line. The stdout is shown if the rank wrote nothing to its stderr."""
    with pytest.raises(SpawnError) as caught:
        run("sh", 1, ("-c", f"echo bad indent >&{1 + (stream == 'stderr')}; exit 4"), ready="log:Ready")
    assert str(caught.value).startswith("rank 0 ended before it was ready: exit code 4; log:Ready was tried ")
    end, logs = caught.value.__notes__
    assert end == f"the end of its {stream}:\n  bad indent"
    assert Path(logs.removeprefix("logs: "), f"{stream}.log").read_text() == "bad indent\n"


def raise_and_stay() -> None:
    """Rank 0 raises, and its process does not end; rank 1 ends once the exception is recorded."""
    if rank() == 0:
        threading.Thread(target=threading.Event().wait).start()
        raise ValueError("the cause")
    record = Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parents[1] / "0/error.json"
    while not record.exists():
        signal.sigtimedwait([signal.SIGUSR1], 0.01)
    sys.exit(3)


def test_a_rank_that_has_raised_and_is_stopped_at_its_exit_failed_by_its_exception():
    """Not by the signal of supervise."""
    with pytest.raises(GangFailed, match=r"^rank 0 of 2 failed: ValueError \(host ") as caught:
        run(raise_and_stay, 2, start_method="fork")
    assert caught.value.result.ends[0].exitcode == -signal.SIGTERM
    assert "\n  rank 1: failed too: exit code 3\n" in str(caught.value)


def test_the_report_counts_the_restarts_before_the_last_failure():
    """It does not say that the policy gave up: a result does not tell that from a timeout between restarts."""
    with pytest.raises(GangFailed, match=r"^rank 0 failed: exit code 3 \(.+\); after 1 restart\n"):
        run("sh", 1, ("-c", "exit 3"), restart_policy=RestartPolicy(max_restarts=1, backoff=0.0))


def raise_lines() -> None:
    raise ValueError(f"shard {rank()} is empty\nsee the manual")


def return_what_does_not_arrive() -> BaseException:
    return NeedsTwo("one", "two")


class NeedsTwo(Exception):  # noqa: N818 - no error: a value
    """Is pickled with one argument."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)
        self.two = two


def test_a_value_that_does_not_arrive_is_the_reason_for_each_rank():
    with pytest.raises(GangFailed) as failed:
        run(return_what_does_not_arrive, n=2)
    assert str(failed.value).count("its return value could not be unpickled here: TypeError: ") == 2


def test_a_rank_that_failed_too_is_shown_with_the_first_line_of_its_exception():
    with pytest.raises(GangFailed, match=r"\n  rank \d: failed too: exit code 1: ValueError: shard \d is empty\n"):
        run(raise_lines, 2, start_method="fork", strategy="one_for_one")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("call", ["supervise.run(f, 4, start_method={!r})", "spawn"])
def test_a_program_without_the_guard_of_the_main_module_is_told_in_one_sentence(tmp_path: Path, method: str, call: str):
    """Once, by the host, below the line that starts the gang; the ranks show nothing."""
    if call == "spawn":
        call = "from supervise import multiprocessing; multiprocessing.start_processes(f, nprocs=4, start_method={!r})"
    program = tmp_path / "unguarded.py"
    program.write_text(f"import supervise\n\ndef f(*args): ...\n\n{call.format(method)}\n")
    done = subprocess.run(
        [sys.executable, program],
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("the program starts a gang while a rank imports it; start the gang under `if __name_") == 1
    assert f'File "{program}", line 5, in <module>\n' in done.stderr
    assert done.stderr.count("\n") <= 17


@pytest.mark.parametrize(
    ("fn", "settings", "told"),
    [
        (lambda rank: rank, {"n": 2}, r"needs arguments, and run\(\) passes none, not even the rank: read os.environ"),
        (shard, {"args": {0: (1,), 1: ()}}, r"^shard\(size\) needs arguments"),
    ],
)
def test_a_function_that_needs_arguments_is_refused_without_any(fn: Any, settings: Any, told: str):
    """Before the start: the usual reason is that another launcher passes the rank."""
    with pytest.raises(SpecError, match=told):
        run(fn, start_method="fork", **settings)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("nprocs", "n"),
        ("world_size", "n"),
        ("env", "envs"),
        ("max_restarts", "restart_policy"),
        ("grase", "grace"),
        ("zork", ""),
    ],
)
def test_a_keyword_of_another_library_gets_the_one_that_does_it(word: str, meant: str):
    """Or only the error of Python."""
    hint = f"; did you mean '{meant}'\\?" if meant else ""
    with pytest.raises(TypeError, match=f"^run\\(\\) got an unexpected keyword argument '{word}'{hint}$"):
        run(shard, args={0: (1,)}, **{word: 2})


def test_a_timeout_is_a_failure():
    with pytest.raises(GangFailed, match=r"^stopped: timeout of 5.5 s exceeded\n") as caught:
        run("sleep", 1, ("3600",), timeout=5.5, grace=20.0)
    assert caught.value.result.outcome == "timed_out"


def test_a_program_that_does_not_exist_is_an_os_error(temporary: Path):
    with pytest.raises(FileNotFoundError):
        run("there-is-no-such-program", 2)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("name", ["train.py", "./train.py"])
def test_a_file_that_is_not_executable_gets_advice(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As from ``supervise run``; a file that cannot be found gets none."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match="could not be started") as caught:
        run(name, 1)
    assert not hasattr(caught.value, "__notes__")
    (tmp_path / "train.py").write_text("print(1)\n")
    with pytest.raises(OSError, match="could not be started") as caught:
        run(name, 1)
    with_python = "to run it with Python: run(sys.executable, args=('./train.py',), ...)"
    executed = "to execute it: chmod +x ./train.py, and give './train.py'"
    assert caught.value.__notes__ == [f"{with_python}; or {executed}"]
    assert run(sys.executable, 1, ("./train.py",)) == [None]
    (tmp_path / "train.py").chmod(0o755)
    with pytest.raises(OSError, match="Exec format error") as caught:
        run("./train.py", 1)
    assert not hasattr(caught.value, "__notes__")
    with pytest.raises(FileNotFoundError) as caught:  # without a folder, it is searched for in PATH
        run("train.py", 1)
    assert caught.value.__notes__ == [f"{with_python}; or to execute it: give './train.py'"]


def test_the_advice_for_a_file_has_a_quoted_path(tmp_path: Path):
    path = tmp_path / "my train.py"
    path.write_text("print(1)\n")
    with pytest.raises(PermissionError) as caught:
        run(str(path), 1)
    assert caught.value.__notes__[0].endswith(f"; or to execute it: chmod +x '{path}', and give {str(path)!r}")


def test_raise_if_failed_returns_a_result_that_succeeded():
    with start_processes("fine", shard, {0: (1,)}, {0: {"RANK": "0"}}, NO_FILES, start_method="fork") as context:
        result = context.wait(PATIENCE_S)
    assert result is not None
    assert result.raise_if_failed() is result


def test_raise_if_failed_raises_what_run_raises():
    envs = {0: {"RANK": "0"}, 1: {"RANK": "1"}}
    with start_processes("bad", fail_at, {0: (0,), 1: (0,)}, envs, start_method="fork") as context:
        result = context.wait(PATIENCE_S)
    assert result is not None
    with pytest.raises(GangFailed, match=r"^rank 0 of 2 failed: exit code 1 \(host .*\n\n  Traceback") as caught:
        result.raise_if_failed()
    assert caught.value.result is result
    assert caught.value.rank_traceback.endswith("ValueError: shard 0 is empty")


def test_raise_if_failed_of_a_gang_that_was_stopped():
    with start_processes("stopped", "sleep", {0: ("3600",)}, logs_specs=NO_FILES) as context:
        context.close()
        result = RunProcsResult(outcome="stopped")
    with pytest.raises(GangFailed, match=r"^stopped$"):
        result.raise_if_failed()


def test_a_result_that_was_made_by_hand_is_a_failure_if_it_has_failures():
    result = RunProcsResult(failures={0: ProcessFailure(0, 17, 3, "/nowhere/error.json")}, stdouts={0: ""})
    with pytest.raises(GangFailed, match=r"^rank 0 failed: exit code 3"):
        result.raise_if_failed()


# Signals

HOST = """
import signal, sys
import supervise
from tests.api.test_run import wait_for_signal
def own(number, frame):
    print("own handler", flush=True)
    sys.exit(9)
if sys.argv[2] == "own":
    signal.signal(signal.SIGTERM, own)
try:
    supervise.run(wait_for_signal, n=2, args=(sys.argv[1],), grace=60, start_method="fork", rank_variables=True)
except (KeyboardInterrupt, supervise.SignalException) as error:
    print(type(error).__name__, getattr(error, "sigval", None), error.__context__, flush=True)
"""


def wait_for_signal(path: str) -> None:
    """Note every SIGINT and SIGTERM; end at the first, after a moment in which a second could come."""
    got = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, got)
    with Path(path).open("a") as ear:
        ear.write("ready\n")
        ear.flush()
        first = signal.sigwait(got)
        again = signal.sigtimedwait(got, 0.2)
        ear.write(f"{first.name} {again}\n")
    sys.exit(5)


@pytest.mark.parametrize(
    ("sig", "handler", "shown"),
    [
        (signal.SIGINT, "none", "KeyboardInterrupt None None"),
        (signal.SIGTERM, "none", f"SignalException {signal.SIGTERM!s} None"),
        (signal.SIGTERM, "own", "own handler"),
    ],
)
def test_a_signal_closes_the_gang_once_and_then_is_the_usual_exception(
    sig: signal.Signals, handler: str, shown: str, tmp_path: Path
):
    """Each rank gets that signal once. The folder of the logs is removed."""
    fifo = tmp_path / "ear"
    os.mkfifo(fifo)
    temporary = tmp_path / "of-the-host"
    temporary.mkdir()
    env = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    with (
        os.fdopen(os.open(fifo, os.O_RDWR), encoding="ascii") as ear,
        subprocess.Popen(
            [sys.executable, "-c", HOST, fifo, handler], env=env, stdout=subprocess.PIPE, text=True
        ) as host,
    ):
        assert [ear.readline() for _ in range(2)] == ["ready\n"] * 2
        host.send_signal(sig)
        out, _ = host.communicate(timeout=PATIENCE_S)
        assert [ear.readline() for _ in range(2)] == [f"{sig.name} None\n"] * 2
    assert out == f"{shown}\n"
    assert host.returncode == (9 if handler == "own" else 0)
    assert list(temporary.iterdir()) == []


def test_within_another_gang_a_signal_is_its_exception():
    """The handlers stay those of supervise, so `run` raises what the other gang's `wait` would."""
    with start_processes("outer", "sleep", {0: ("3600",)}, logs_specs=NO_FILES):
        with pytest.raises(SignalException) as caught:
            run("sh", 1, ("-c", f"kill -INT {os.getpid()}; exec sleep 3600"), logs_specs=NO_FILES)
        assert caught.value.sigval == signal.SIGINT


# Variables of ranks


def test_ranks_have_the_variables_of_the_command_line():
    """All that `supervise run` sets, with the same values, apart from what it adds for programs."""
    words = ["-m", "supervise", "run", "-n", "2", "--no-prefix", "--no-record", "sh", "-c", 'test "$RANK" = 1 || env']
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    shown = subprocess.run(
        [sys.executable, *words], env=env, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True
    ).stdout
    command = dict(line.partition("=")[::2] for line in shown.splitlines())
    first, second = run(variables, 2, start_method="fork", name="default")  # `run` names its only role so
    for_programs = {"PYTHONUNBUFFERED", "OMP_NUM_THREADS", "NOTIFY_SOCKET", "_"}
    added = {name for name in command if name not in env} - for_programs
    assert {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_RANK", "GROUP_RANK", "MASTER_ADDR"} <= added
    assert added <= first.keys()
    varying = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "SUPERVISE_WORKER"}
    assert {name: first[name] for name in added - varying} == {name: command[name] for name in added - varying}
    assert (second["RANK"], second["LOCAL_RANK"], second["ROLE_RANK"]) == ("1", "1", "1")
    assert first["MASTER_PORT"] == second["MASTER_PORT"]


def test_those_of_the_caller_take_precedence():
    found = run(variables, 2, envs={"MASTER_PORT": "4711", "MINE": "1"}, start_method="fork")
    assert [(each["MASTER_PORT"], each["MINE"], each["RANK"]) for each in found] == [
        ("4711", "1", "0"),
        ("4711", "1", "1"),
    ]
    assert len(run(variables, 2, envs={}, start_method="fork")) == 2
    by_rank: Any = {0: {"ROLE_NAME": "store"}, 1: {"LOCAL_RANK": 0}}
    one, two = run(variables, 2, envs=by_rank, start_method="fork")
    assert (one["ROLE_NAME"], two["ROLE_NAME"], two["LOCAL_RANK"]) == ("store", "variables", "0")


def test_they_can_be_left_out_and_are_left_out_of_other_gangs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RANK", raising=False)
    [found] = run(variables, 1, rank_variables=False, start_method="fork")
    assert "RANK" not in found
    with start_processes("plain", variables, {0: ()}, start_method="fork", logs_specs=NO_FILES) as context:
        result = context.wait(PATIENCE_S)
    assert result is not None
    assert "RANK" not in result.return_values[0]
    with start_processes(
        "told", variables, {0: ()}, start_method="fork", logs_specs=NO_FILES, rank_variables=True
    ) as context:
        result = context.wait(PATIENCE_S)
    assert result is not None
    assert result.return_values[0]["RANK"] == "0"


def test_a_gang_inside_of_a_rank_has_a_port_of_its_own():
    """The environment of a rank names the master of its own gang."""
    [(outer, inner)] = run(nested, 1, start_method="fork")
    assert outer != inner


def test_a_master_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.7")
    monkeypatch.setenv("MASTER_PORT", "29500")
    [found] = run(variables, 1, start_method="fork")
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("10.0.0.7", "29500")


def test_the_port_stays_the_same_over_restarts(tmp_path: Path):
    [ports] = run(
        fail_once, 1, (str(tmp_path / "ports"),), start_method="fork", restart_policy=RestartPolicy(max_restarts=1)
    )
    assert len(ports.split()) == 2
    assert len(set(ports.split())) == 1


# Bad arguments


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "run() needs the number of ranks; give n=4"),
        ({"n": 0}, "n is 0; give the number of ranks, 1 or more"),
        ({"n": True}, "n is True; give the number of ranks, 1 or more"),
        ({"n": "4"}, "n is '4'; give the number of ranks, 1 or more"),
        ({"n": 10**9}, "1000000000 ranks are more processes than this machine allows: kernel.pid_max is"),
        ({"n": 1, "name": 5}, "name is 5; give a text, such as '5'"),
        ({"n": 3, "args": {0: ()}}, "n is 3, but the length of args is 1; leave out n"),
        ({"n": 1, "args": 5}, "rank 0"),
        ({"n": 1, "args": "abc"}, "args is 'abc'; give a tuple, such as ('abc',)"),
        ({"n": 2, "envs": {0: {}}}, "envs"),
        ({"n": 2, "envs": "A=1"}, "envs"),
        ({"n": 1, "grace": -1}, "grace"),
        ({"n": 1, "rank_variables": 1}, "rank_variables is 1; give True or False"),
    ],
)
def test_bad_arguments_are_named_before_any_process_starts(given: Any, text: str, temporary: Path):
    with pytest.raises(SpecError) as caught:
        run(variables, **given)
    assert text in str(caught.value)
    assert list(temporary.iterdir()) == []


class Unready:
    """Fails when it is pickled."""

    def __getstate__(self) -> None:
        raise RuntimeError("not ready")


@pytest.mark.parametrize(
    "given",
    [{"fn": rank, "n": 0}, {"fn": rank, "n": 1, "args": (Unready(),)}, {"fn": "/proc/nonexistent", "n": 1}],
    ids=["a setting", "an argument", "a program"],
)
def test_a_start_that_is_refused_shows_no_inner_frame_of_supervise(given: Any):
    with pytest.raises((SpecError, OSError)) as caught:
        run(**given)
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][1:] in (
        ["run"],
        ["run", "_calls"],
    )


def test_an_argument_that_does_not_pickle_shows_the_code_that_has_failed():
    """The cause has the frames of the argument's class, none of supervise, and no earlier attempt."""
    with pytest.raises(SpecError, match="not ready") as caught:
        run(rank, 1, (Unready(),))
    cause = caught.value.__cause__
    assert cause is not None
    ours = str(ROOT / "supervise"), str(ROOT / "tests")  # the environment may lie in the checkout, too
    frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if frame.filename.startswith(ours)]
    assert [frame.name for frame in frames] == ["__getstate__"]
    assert cause.__context__ is None


@pytest.mark.parametrize("shown", ["Unprintable(...)", None])
def test_an_argument_of_a_program_that_has_no_text_is_named(shown: str | None, temporary: Path):
    class Unprintable:
        def __str__(self) -> str:
            raise KeyError("name")

        def __repr__(self) -> str:
            if shown is None:
                raise KeyError("name")
            return shown

    with pytest.raises(SpecError) as caught:
        run("echo", args={0: ("a", "b"), 1: ("a", Unprintable())})
    what = shown or "<Unprintable: repr() failed>"
    why = "cannot be converted to text (KeyError: 'name'); give a text"
    assert str(caught.value) == f"rank 1: its argument 1, {what}, {why}"
    assert isinstance(caught.value.__cause__, KeyError)
    assert list(temporary.iterdir()) == []


# Names, and the reference


@pytest.mark.parametrize(
    "before", ["", "import supervise.cli.run.run", "import supervise._api.run", "import supervise.cli"]
)
def test_run_is_the_function_whatever_was_imported_before(before: str):
    code = f"{before}\nimport supervise\nprint(callable(supervise.run), supervise.run.__module__)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, check=True
    )
    assert done.stdout == b"True supervise._api.run\n"


def test_the_reference_of_a_supervisor_closes_the_gang_at_the_end_of_a_block():
    with Supervisor.start(name="ref", entrypoint="sleep", args={0: ("3600",)}, logs_specs=NO_FILES) as gang:
        assert isinstance(gang, SupervisorRef)
        [pid] = gang.ask(Start(), timeout=PATIENCE_S).values()
        assert gang.ask(Status(), timeout=PATIENCE_S).phase == "running"
    assert not gang.is_alive()
    assert not Path(f"/proc/{pid}").exists()


def test_the_block_of_a_gang_that_has_ended():
    with Supervisor.start(name="ref", entrypoint="true", args={0: ()}, logs_specs=NO_FILES) as gang:
        gang.ask(Start(), timeout=PATIENCE_S)
        assert gang.ask(Wait(), timeout=PATIENCE_S).raise_if_failed().return_values == {0: None}
        gang.stop()
    assert not gang.is_alive()


def test_a_wrong_keyword_of_a_supervisor_is_a_type_error():
    misspelled: Any = {"grase": 5}
    with pytest.raises(TypeError, match="grase"):
        Supervisor.start(name="ref", entrypoint="true", args={0: ()}, **misspelled)
    assert supervise.run is run
