"""What makes no sense is refused by name, with its value and what to do, before anything is made or started."""

import os
import re
import resource
import signal
import subprocess
import sys
from enum import Enum
from pathlib import Path

import pytest

from supervise import DefaultLogsSpecs, SignalException, SpecError, Std, Supervisor, start_processes
from tests.patience import PATIENCE_S
from tests.processes import work
from tests.processes.hosts import NO_FILES, ROOT


def refused(folder, match, **wrong):
    """Both ways of starting say why, and no folder is made below `folder`."""
    given = {"entrypoint": "true", "args": {0: (), 1: ()}, "logs_specs": DefaultLogsSpecs(str(folder))} | wrong
    with pytest.raises(SpecError, match=match):
        Supervisor.start(name="wrong", **given)
    if "event_sink" not in wrong:
        with pytest.raises(SpecError, match=match):
            start_processes("wrong", **({"envs": None} | given))
    assert list(folder.iterdir()) == []


class Half:
    """No path, no text, no number."""

    def __repr__(self):
        return "Half()"


class NoLogs(DefaultLogsSpecs):
    """Specifications whose author has forgotten to return the paths."""

    def reify(self, envs):
        return None


WRONG = [
    ({"entrypoint": ""}, "entrypoint is ''; give a function, or a program"),
    ({"entrypoint": None}, "entrypoint is None; give a function"),
    ({"start_method": "thread", "entrypoint": print}, "start_method is 'thread'; it is one of spawn, fork, forkserver"),
    ({"args": None}, "args is None; give a mapping of local rank to its arguments"),
    ({"args": 3}, "args is 3; give a mapping"),
    ({"args": [(), ()]}, r"args is \[\(\), \(\)\]; give a mapping"),
    ({"args": {0: (), 1: {"a": 1}}}, r"rank 1: its arguments are \{'a': 1\}, a mapping; give a tuple"),
    ({"args": {0: (), 1: 7}}, r"rank 1: its arguments are 7; give a tuple, such as \(7,\)"),
    ({"envs": [{}, {}]}, "envs is .*; give a mapping of local rank to a dictionary"),
    ({"envs": {0: {}, 1: None}}, "rank 1: its envs is None; give a dictionary"),
    ({"envs": {0: {}, 1: {"A": None}}}, "rank 1: in its envs, the value of 'A' is None; .*leave the variable out"),
    ({"envs": {0: {"A": ["secret"]}, 1: {}}}, "rank 0: in its envs, the value of 'A' is of type list; give a text"),
    ({"envs": {0: {"A": {}}, 1: {}}}, "the value of 'A' is of type dict"),
    ({"envs": {0: {"A": b"x"}, 1: {}}}, "the value of 'A' is of type bytes"),
    ({"envs": {0: {"A": Half()}, 1: {}}}, "the value of 'A' is of type Half"),
    ({"envs": {0: {}, 1: {3: "x"}}}, "rank 1: in its envs, the name 3 is not text; give '3'"),
    ({"envs": {0: {}, 1: {"A": "\ud800"}}}, "rank 1: 'A' or its value cannot be encoded; leave out the surrogates"),
    ({"args": {0: (), 1: ("\ud800",)}}, r"rank 1: the argument '\\ud800' cannot be encoded"),
    ({"args": {0: (), 1: ("a\0b",)}}, r"rank 1: the argument 'a\\x00b' holds a NUL character"),
    ({"entrypoint": "a\0b"}, r"rank 0: the argument 'a\\x00b' holds a NUL character"),
    ({"envs": {0: {}, 1: {"A=B": "x"}}}, "rank 1: 'A=B' cannot be an environment variable"),
    ({"logs_specs": Std.ALL}, "logs_specs is <Std.ALL: 3>; give a LogsSpecs, such as DefaultLogsSpecs"),
    ({"logs_specs": DefaultLogsSpecs}, "logs_specs is <class .*; give a LogsSpecs"),
    ({"log_line_prefixes": "x"}, "log_line_prefixes is 'x'; give a mapping of local rank to text"),
    ({"log_line_prefixes": {1: 3}}, "rank 1: its log_line_prefixes is 3; give a text"),
    ({"duplicate_stdout_filters": "loss"}, r"_filters is 'loss'; give a list of texts, such as \['loss'\]"),
    ({"duplicate_stderr_filters": [3]}, r"_filters is \[3\]; give a list of texts, such as \['3'\]"),
    ({"listen": "tcp:1"}, r"listen is 'tcp:1'; give a list of texts, such as \['tcp:1'\]"),
    ({"ready_timeout_s": None}, "ready_timeout_s is None; it is a number of seconds above 0$"),
    ({"duplicate_stderr_filters": 3}, "duplicate_stderr_filters is 3; give a list of texts"),
    ({"grace": "5"}, "grace is '5'; it is a number of seconds, 0 or more"),
    ({"grace": True}, "grace is True"),
    ({"grace": -1}, "grace is -1"),
    ({"timeout": 0}, "timeout is 0; it is a number of seconds above 0, or None"),
    ({"timeout": "5"}, "timeout is '5'; it is a number of seconds above 0"),
    ({"timeout": float("inf")}, "timeout is inf"),
    ({"timeout": float("nan")}, "timeout is nan"),
    ({"timeout": 1e300}, r"timeout is 1e\+300; it is a number of seconds above 0, or None, at most 9\.2"),
    ({"grace": 10**400}, "grace is 1000"),
    ({"cwd": 3}, "cwd is 3; give the path of a folder, or None"),
    ({"cwd": "/no/such/folder"}, "cwd is '/no/such/folder', where there is no folder; make it first"),
    ({"cwd": "/dev/null"}, "cwd is '/dev/null', where there is no folder"),
    ({"event_sink": "x"}, "event_sink is 'x'; give a function"),
    ({"restart_policy": 3}, "restart_policy is 3; give a RestartPolicy"),
]


@pytest.mark.parametrize(("wrong", "match"), WRONG, ids=[str(wrong)[:60] for wrong, _ in WRONG])
def test_a_senseless_setting_is_refused_before_anything_is_done(no_launch, tmp_path, wrong, match):
    """Its name, its value, the rank where there is one, and what to give instead."""
    refused(tmp_path, match, **wrong)


def test_an_async_sink_and_specifications_without_paths_are_refused(no_launch, tmp_path):
    refused(tmp_path, "event_sink is .*; give a function of .* the event, which is not async", event_sink=work.never)
    refused(tmp_path, "NoLogs.reify returned None; return a LogsDest", logs_specs=NoLogs())


@pytest.mark.parametrize(
    ("name", "match"),
    [
        (5, "name is 5; give a text, such as '5'"),
        ("a\0b", r"name is 'a\\x00b'; leave out the NUL character"),
        ("\ud800", r"name is '\\ud800', which UTF-8 cannot encode"),
    ],
)
def test_a_name_that_cannot_be_written_is_refused(name, match):
    for start in (Supervisor.start, start_processes):
        with pytest.raises(SpecError, match=match):
            start(name=name, entrypoint="true", args={0: ()}, envs={0: {}})


def test_a_string_of_logs_specs_is_refused_too():
    """Only where it cannot be the `log_dir` of PyTorch's older signature."""
    with pytest.raises(SpecError, match="logs_specs is 'logs'; give a LogsSpecs"):
        start_processes("wrong", "true", {0: ()}, logs_specs="logs")


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"redirects": 3}, "redirects is 3; give a Std, such as Std.ALL"),
        ({"tee": "3"}, "tee is '3'; give a Std"),
        ({"tee": None}, "tee is None; give a Std"),
        ({"redirects": {0: "3"}}, "rank 0: its redirects is '3'; give a Std"),
        ({"redirects": {0: 4}}, "rank 0: its redirects is 4; give a Std"),
        ({"tee": {"0": Std.ALL}}, "tee has '0' in place of a local rank"),
        ({"local_ranks_filter": "0"}, "local_ranks_filter is '0'; give a set of local ranks"),
        ({"local_ranks_filter": 0}, "local_ranks_filter is 0; give a set"),
    ],
    ids=str,
)
def test_streams_of_another_kind_are_refused_when_the_specs_are_made(tmp_path, wrong, match):
    """By both layouts; nothing is made."""
    with pytest.raises(SpecError, match=match):
        DefaultLogsSpecs(str(tmp_path / "logs"), **wrong)
    if "local_ranks_filter" not in wrong:
        with pytest.raises(SpecError, match=match):
            start_processes("wrong", "true", {0: ()}, log_dir=str(tmp_path / "logs"), **wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_does_not_exist_cannot_be_shown(no_launch, tmp_path):
    """It would show nobody, and say nothing."""
    match = r"local_ranks_filter names ranks \[7\], which do not exist; the local ranks are 0 to 1"
    refused(tmp_path, match, logs_specs=DefaultLogsSpecs(str(tmp_path), local_ranks_filter={0, 7}))


class Text(str, Enum):  # noqa: UP042 - StrEnum has another `__str__`
    """A member is a text, as for `subprocess`."""

    E = "e"


def test_texts_numbers_and_paths_are_values_of_variables(tmp_path):
    """As a program sees them; the mapping that was given is also told where the error file is."""
    envs = {0: {"A": 1, "B": 1.5, "C": True, "D": Path("/x"), "E": Text.E}}
    logs = DefaultLogsSpecs(str(tmp_path), redirects=Std.OUT)
    script = ("-c", "echo $A $B $C $D $E")
    with start_processes("fine", "/bin/sh", {0: script}, envs, logs, cwd=tmp_path) as context:
        result = context.wait(PATIENCE_S)
    assert Path(result.stdouts[0]).read_text() == "1 1.5 True /x e\n"
    assert envs[0]["TORCHELASTIC_ERROR_FILE"] == context.error_files[0]


# Limits


@pytest.mark.parametrize(
    ("hard", "advice"), [(None, "raise it with: ulimit -n"), (64, "use fewer ranks, or have root")]
)
def test_e4_too_many_ranks_for_the_open_files_make_no_folder(tmp_path, hard, advice):
    """In a process of its own, whose hard limit can be lowered."""
    program = f"""
import resource, sys
from supervise import DefaultLogsSpecs, SpecError, Std, Supervisor
hard = {hard} or resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
try:
    Supervisor.start(name="many", entrypoint="true", args=dict.fromkeys(range(99), ()),
                     logs_specs=DefaultLogsSpecs({str(tmp_path)!r}, redirects=Std.ALL))
except SpecError as error:
    print(error)
"""
    said = run(["-c", program])
    assert "99 ranks need about" in said.stdout, said.stderr
    assert advice in said.stdout
    assert list(tmp_path.iterdir()) == []
    if hard:
        enough = int(said.stdout.partition("need about ")[2].split()[0])
        assert run(["-c", program.replace("(64, hard)", f"({enough}, {enough})")]).stdout == ""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64


def test_e4_too_few_open_files_for_one_rank_is_one_error():
    """The check without the optional descriptors is not the context of the one with them."""
    program = """
import resource
from supervise import SpecError, run
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
try:
    run("true", n=1)
except SpecError as error:
    print(error, error.__context__)
"""
    said = run(["-c", program])
    wanted = r"1 rank needs about [0-9]+ open files, which is above the hard limit of 30 \(RLIMIT_NOFILE\): .* None\n"
    assert re.fullmatch(wanted, said.stdout), said


# Functions of a main module


def run(argv, stdin="", **more):
    """Run Python on something and return what it said."""
    env = {**os.environ, "PYTHONPATH": ROOT, "PYTHONWARNINGS": "ignore"}
    return subprocess.run(
        [sys.executable, *argv],
        input=stdin,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        **more,
    )


MAIN = """
import functools, sys
from supervise import DefaultLogsSpecs, SpecError, start_processes

class Config:
    pass

def f(*args):
    return 7

def show(fn=f, args=(), start_method=METHOD):
    logs = DefaultLogsSpecs("/dev/null")
    try:
        with start_processes("main", fn, {0: args}, {0: {}}, logs, start_method=start_method) as context:
            print("value", context.wait(30).return_values)
    except SpecError as error:
        print("refused", error)

if __name__ == "__main__":
"""


def main(method, body):
    return MAIN.replace("METHOD", repr(method)) + f"    {body}\n"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("way", ["-c", "stdin"])
@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("show()", "f was defined"),
        ("show(functools.partial(f, 1))", "f was defined"),
        ("show(print, (Config(),))", "rank 0: its argument <__main__.Config object"),
    ],
    ids=["function", "partial", "argument"],
)
def test_what_a_new_interpreter_cannot_import_is_refused(method, way, body, what):
    """It was defined by -c or came from stdin, and cloudpickle is not installed."""
    source = "import sys; sys.modules['cloudpickle'] = None\n" + main(method, body)
    said = run(["-c", source]) if way == "-c" else run(["-"], stdin=source)
    assert said.stdout.startswith(f"refused {what}"), said
    assert "put it into a file, install cloudpickle (pip install 'supervise-gang[pickle]'), or use " in said.stdout


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("show(lambda: N + 5)", 7),
        ("N = 9; show(functools.partial(f, 1))", 7),
        ("show(lambda config: config.size, (Config(7),))", 7),
        ("show(lambda sizes: [each.size for each in sizes][0], ([Config(7)],))", 7),
        ("show(lambda lock: lock.__enter__() and 7, (multiprocessing.get_context(METHOD).Lock(),))", 7),
        ("show(lambda queue: queue.put(7) or 7, (multiprocessing.get_context(METHOD).Queue(),))", 7),
        ("show(lambda: Config(7))", "Config(size=7)"),
        ("show(lambda: cached(7))", 7),
        ("show(cached, (7,))", 7),
        ("show(lambda kind: kind(7), (Kind,))", 7),
    ],
    ids=["lambda", "partial", "argument", "nested", "lock", "queue", "value", "cache", "cached", "new_type"],
)
def test_cloudpickle_takes_what_a_new_interpreter_cannot_import(method, body, value):
    """Functions and classes of the main module, also in values, which have the host's class."""
    head = """
import dataclasses, functools, multiprocessing, typing
N = 2
Kind = typing.NewType("Kind", int)

@functools.lru_cache
def cached(number):
    return number if number < 2 else number and cached(number - 1) + 1

@dataclasses.dataclass
class Config:
    size: int
"""
    source = head + main(method, body).replace("class Config:\n    pass\n", "")
    said = run(["-c", source.replace("METHOD", repr(method))])
    assert said.stdout == f"value {{0: {value}}}\n", said


@pytest.mark.parametrize("argument", [True, False])
def test_what_pickles_by_its_name_in_the_main_module_is_refused(argument):
    """In a rank, nothing has that name. pickle would only tell there, after the start."""
    sentinel = """
class Sentinel:
    def __reduce__(self):
        return "MISSING"
MISSING = Sentinel()
"""
    body = "show(print, (MISSING,))" if argument else "show(lambda: MISSING)"
    said = run(["-c", sentinel + main("spawn", body)])
    assert said.stdout.startswith("refused rank 0: "), said
    assert "is of the main module, and pickles by its name only" in said.stdout


@pytest.mark.parametrize("installed", [True, False])
def test_a_closure_of_a_file_needs_cloudpickle(tmp_path, installed):
    hidden = "" if installed else "sys.modules['cloudpickle'] = None; "
    (tmp_path / "program.py").write_text(main("spawn", f"{hidden}show(lambda: f() + 1)"))
    said = run(["program.py"], cwd=tmp_path)
    if installed:
        assert said.stdout == "value {0: 8}\n", said
    else:
        assert said.stdout.startswith("refused rank 0: <lambda> or one of its arguments () cannot be pickled"), said
        assert "install cloudpickle (pip install 'supervise-gang[pickle]'), or use start_method='fork'" in said.stdout


@pytest.mark.parametrize(
    ("method", "way", "body"),
    [
        ("fork", "-c", "show()"),
        ("spawn", "-c", "show(__import__('operator').neg, (-7,))"),
        ("spawn", "file", "show()"),
        ("forkserver", "file", "show(f, (Config(),))"),
        ("spawn", "-m", "show()"),
    ],
)
def test_what_can_be_imported_or_is_forked_runs(tmp_path, method, way, body):
    """From a file, by -m, by fork; and a function of another module, wherever the main module came from."""
    (tmp_path / "program.py").write_text(main(method, body))
    argv = {"-c": ["-c", main(method, body)], "file": ["program.py"], "-m": ["-m", "program"]}[way]
    said = run(argv, cwd=tmp_path)
    assert said.stdout == "value {0: 7}\n", said


def test_a_spawned_rank_s_main_module_has_no_names_of_ours():
    """Else a function of the user's with such a name would be found there, and something else be called."""
    source = "import __main__; value = sorted(name for name in vars(__main__) if not name.startswith('__'))"
    program = f"""
from supervise import DefaultLogsSpecs, start_processes
from tests.processes import work
with start_processes("main", work.run_source, {{0: ({source!r},)}}, None, DefaultLogsSpecs("/dev/null")) as context:
    print(context.wait(30).return_values)
"""
    said = run(["-c", program])
    assert said.stdout == "{0: []}\n", said


# Ranks that fail before their function is called


LOADING = {
    "no guard": (
        "from supervise import start_processes\ndef f():\n    pass\nGO\n",
        "SpecError",
        "start the gang under `if __name__ == '__main__':`",
    ),
    "below the guard": (
        "if __name__ == '__main__':\n    def f():\n        pass\n    GO\n",
        "AttributeError",
        "attribute 'f'",
    ),
    "import": (
        "if __name__ != '__main__':\n    import no_such_module\ndef f(): ...\nif __name__ == '__main__':\n    GO\n",
        "ModuleNotFoundError",
        "no_such_module",
    ),
    "exit": (
        "import sys\ndef f():\n    pass\nif __name__ == '__main__':\n    GO\nelse:\n    sys.exit('not as a module')\n",
        "SystemExit",
        "not as a module",
    ),
}
GO = (
    "from supervise import DefaultLogsSpecs, Std, start_processes;"
    " logs = DefaultLogsSpecs('logs', redirects=Std.ALL);"
    " c = start_processes('main', f, {0: ()}, {0: {}}, logs, start_method=METHOD);"
    " r = c.wait(30); c.close(); print(r.failures[0].exitcode, r.failures[0].message['message'])"
)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("case", LOADING)
def test_a_rank_that_cannot_load_its_function_says_why(tmp_path, case, method):
    """The exception of the import is the failure's message."""
    source, kind, text = LOADING[case]
    (tmp_path / "program.py").write_text(source.replace("GO", GO.replace("METHOD", repr(method))))
    said = run(["program.py"], cwd=tmp_path)
    assert said.stdout.startswith(f"1 {kind}: "), said
    assert text in said.stdout


@pytest.mark.parametrize("kind", ["spawn", "forkserver", "fork"])
def test_o3_the_text_of_an_exit_is_the_failure_s_message(tmp_path, kind):
    """The exit code stays Python's."""
    logs = DefaultLogsSpecs(str(tmp_path), redirects=Std.ALL)
    sources = {0: ("import sys; sys.exit('no data left')",)}
    with start_processes("exit", work.run_source, sources, None, logs, start_method=kind) as context:
        failure = context.wait(PATIENCE_S).failures[0]
    assert (failure.exitcode, failure.message["message"]) == (1, "SystemExit: no data left")
    assert Path(context.stderrs[0]).read_text() == "no data left\n"


# with


def test_a_context_s_block_closes_its_gang():
    """Also when it ends by an exception, which passes."""
    contexts = []

    def fail():
        with start_processes("with", "sleep", {0: ("600",)}, None, NO_FILES) as context:
            contexts.append(context)
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    with pytest.raises(ProcessLookupError):
        os.kill(contexts[0].pids()[0], 0)


def test_a_context_s_block_passes_on_the_signal_that_ended_it(tmp_path):
    """A rank that knows SIGINT alone sees it."""
    logs = DefaultLogsSpecs(str(tmp_path), redirects=Std.ALL)
    os.mkfifo(tmp_path / "ready")
    script = f"trap 'echo int; exit 0' INT; echo >{tmp_path}/ready; while :; do sleep 0.05; done"
    contexts = []

    def interrupt():
        with start_processes("with", "/bin/bash", {0: ("-c", script)}, None, logs) as context:
            contexts.append(context)
            (tmp_path / "ready").read_text()
            signal.raise_signal(signal.SIGINT)
            context.wait(PATIENCE_S)

    with pytest.raises(SignalException):
        interrupt()
    assert Path(contexts[0].stdouts[0]).read_text() == "int\n"
