"""Deliberate differences: what `test_differences.py` says both do."""
# ruff: noqa: PTH110, PTH116, PTH118, PTH120, PTH123, PTH208 - paths are strings in the libraries, too

import json
import os
import select
import signal
import subprocess
import sys

from tests.compat.families_contexts import _start, raises, stays
from tests.compat.tell import family, outcome, scrub


def _result(lib, result):
    """Return a result's failures, shortly."""
    if result is None:
        return None
    return {
        rank: [f.exitcode, f.message if isinstance(f.message, str) else f.message["message"]]
        for rank, f in result.failures.items()
    }


def _wait(lib, context, timeout=-1):
    try:
        seen = _result(lib, context.wait(timeout=timeout, period=0.05))
    except Exception as error:
        seen = ["raised", type(error).__name__]
    context.close(signal.SIGKILL, 10)
    return seen


def tears(text):
    """End like a worker that was killed while it wrote its error file."""
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        file.write(text)
    os._exit(1)


def vanishes():
    """End well, without a value."""
    os._exit(0)


def interrupted():
    """End as Ctrl-C ends it."""
    raise KeyboardInterrupt


def says_why():
    """Exit with a text."""
    sys.exit("the reason")


def obeys(fd):
    """Say that it runs, and leave the handlers as they came."""
    os.write(fd, b"x")
    signal.pause()


def returns_when_told(fd):
    """Say that it runs, and return once SIGTERM has come."""
    came = []
    signal.signal(signal.SIGTERM, lambda *_: came.append(1))
    os.write(fd, b"x")
    while not came:
        select.select([], [], [], 0.05)
        signal.pthread_sigmask(signal.SIG_BLOCK, ())  # a forked child of 3.13 sees a signal only so, or in a call
    return "value"


def has_a_child(fd):
    """Start a process, and stay."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    child = subprocess.Popen(["/bin/sleep", "600"])
    os.write(fd, b"%d\n" % child.pid)
    signal.pause()


@family
def std_of_rank_ten(lib, folder):
    return [
        outcome(lambda: {k: repr(v) for k, v in lib.Std.from_str("0:1,10:3").items()})[:2],
        str(outcome(lib.Std.from_str, "x")[2]),
    ]


@family
def stopped_programs_are_listed(lib, folder):
    """Rank 1 fails while ranks 0 and 2 run on, and are stopped."""
    args = {0: ("-c", "exec sleep 600"), 1: ("-c", "exit 7"), 2: ("-c", "exec sleep 600")}
    context = _start(lib, folder, "/bin/sh", args)
    result = context.wait(period=0.05)
    ends = getattr(result, "ends", None)
    return [
        {rank: failure.exitcode for rank, failure in sorted(result.failures.items())},
        ends and {rank: [end.exitcode, end.role] for rank, end in sorted(ends.items())},
    ]


@family
def closed_functions_are_listed(lib, folder):
    read, write = os.pipe()
    context = _start(lib, folder, stays, {0: (write,), 1: (write,)})
    assert os.read(read, 1) + os.read(read, 1) == b"xx"
    context.close(signal.SIGTERM, 10)
    return sorted(_result(lib, context.wait(period=0.05)))


@family
def closed_functions_that_exit_cleanly(lib, folder):
    """Both functions return when SIGTERM comes."""
    read, write = os.pipe()
    context = _start(lib, folder, returns_when_told, {0: (write,), 1: (write,)})
    assert os.read(read, 1) + os.read(read, 1) == b"xx"
    context.close(signal.SIGTERM, 15)  # longer than a machine stands still; PyTorch takes this time
    result = context.wait(period=0.05)
    return [{rank: failure.exitcode for rank, failure in result.failures.items()}, result.return_values]


@family
def failure_of_a_bad_error_file(lib, folder):
    """``ProcessFailure(...)`` by itself."""
    records = {
        "unknown keys": '{"error": "x", "code": 3}',
        "unknown keys beside": '{"message": "m", "more": 1}',
        "no time": '{"message": {"message": "E"}}',
        "a text as time": '{"message": "m", "timestamp": "soon"}',
        "a list": "[1, 2]",
        "torn": '{"mess',
    }
    seen = {}
    for name, text in records.items():
        path = folder / f"{name}.json"
        path.write_text(text)
        told = outcome(lambda path=path: lib.errors.ProcessFailure(0, 4711, 3, str(path)).message)
        seen[name] = [word.replace(str(path), "<file>") for word in told]
    return seen


@family
def torn_error_file(lib, folder):
    return _wait(lib, _start(lib, folder, tears, {0: ('{"message": {"mess',)}))


@family
def empty_error_file(lib, folder):
    return _wait(lib, _start(lib, folder, tears, {0: ("",)}))


@family
def foreign_error_file(lib, folder):
    return _wait(lib, _start(lib, folder, tears, {0: ("[1, 2]",)}))


@family
def torn_error_file_of_a_child(lib, folder):
    """`record` has a torn child's file to copy."""
    path = folder / "child.json"
    path.write_text(json.dumps({"message": "whole", "timestamp": 1}))
    failure = lib.errors.ProcessFailure(0, 1, 3, str(path))
    path.write_text('{"mess')
    os.environ["TORCHELASTIC_ERROR_FILE"] = str(folder / "mine.json")

    def main():
        raise lib.errors.ChildFailedError("job", {0: failure})

    return outcome(lib.errors.record(main))[1]


@family
def end_without_a_value(lib, folder):
    return _wait(lib, _start(lib, folder, vanishes, {0: ()}), timeout=20.0)


@family
def interrupt_in_a_rank(lib, folder):
    return _wait(lib, _start(lib, folder, interrupted, {0: ()}), timeout=20.0)


@family
def handlers_afterwards(lib, folder):
    before = signal.getsignal(signal.SIGTERM)
    context = _start(lib, folder, "/bin/true", {0: ()})
    context.wait(period=0.05)
    context.close()
    return signal.getsignal(signal.SIGTERM) is before


@family
def ignored_signals(lib, folder):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    context = _start(lib, folder, "/bin/sleep", {0: (600,)})
    seen = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    context.close(signal.SIGKILL)
    return seen


@family
def handlers_in_forked_ranks(lib, folder):
    """A rank that was forked is stopped politely."""
    read, write = os.pipe()
    context = _start(lib, folder, obeys, {0: (write,)})
    os.read(read, 1)
    context.close(signal.SIGTERM, 10)
    told = _result(lib, context.wait(period=0.05))
    return json.loads(scrub(json.dumps(told), pid=context.pids()[0]))


@family
def text_of_sys_exit(lib, folder):
    specs = lib.DefaultLogsSpecs(str(folder / "logs"), redirects=lib.Std.ALL)
    context = _start(lib, folder, says_why, {0: ()}, logs_specs=specs)
    context.wait(period=0.05)
    return [open(context.stderrs[0]).read(), (folder / "host.stderr").read_text()]


@family
def bytes_that_are_no_text(lib, folder):
    """What is shown of a line that is not UTF-8."""
    specs = lib.DefaultLogsSpecs(str(folder / "logs"), tee=lib.Std.OUT)
    context = _start(lib, folder, "/bin/sh", {0: ("-c", r"printf 'a\377b\n'")}, logs_specs=specs)
    context.wait(period=0.05)
    sys.stdout.flush()
    return (folder / "host.stdout").read_bytes().hex()


@family
def rewritten_lines(lib, folder):
    """What is shown of a progress bar."""
    specs = lib.DefaultLogsSpecs(str(folder / "logs"), tee=lib.Std.OUT)
    context = _start(lib, folder, "/bin/sh", {0: ("-c", r"printf '1%%\r2%%\r3%%\n'")}, logs_specs=specs)
    context.wait(period=0.05)
    sys.stdout.flush()
    return (folder / "host.stdout").read_text()


@family
def unfinished_line_of_two_ranks(lib, folder):
    """What is shown when each rank's last line has no newline."""
    specs = lib.DefaultLogsSpecs(str(folder / "logs"), tee=lib.Std.OUT)
    args = {rank: ("-c", f"printf 'end {rank}'") for rank in range(2)}
    context = _start(lib, folder, "/bin/sh", args, logs_specs=specs)
    context.wait(period=0.05)
    sys.stdout.flush()
    text = (folder / "host.stdout").read_text()
    return [text.count("\n"), sorted(text.replace("[job", "\n[job").split("\n"))]


@family
def logs_of_an_earlier_start(lib, folder):
    """The same specs are used for a second gang of the same attempt."""
    specs = lib.DefaultLogsSpecs(str(folder / "logs"), redirects=lib.Std.OUT)
    for text in ("first", "second"):
        context = _start(lib, folder, "/bin/echo", {0: (text,)}, logs_specs=specs)
        path = context.wait(period=0.05).stdouts[0]
        context.close()
    here = os.path.dirname(path)
    return {name: open(os.path.join(here, name)).read() for name in sorted(os.listdir(here))}


@family
def folders_are_private(lib, folder):
    os.umask(0o022)
    specs = lib.DefaultLogsSpecs(str(folder / "logs"))
    context = _start(lib, folder, "/bin/true", {0: ()}, logs_specs=specs)
    context.wait(period=0.05)
    rank = os.path.dirname(context.error_files[0])
    return [oct(os.stat(path).st_mode & 0o777) for path in (folder / "logs", rank)]


@family
def bare_string(lib, folder):
    """The documents' own example: ``args={0: "hello"}``."""
    specs = lib.DefaultLogsSpecs(str(folder / "logs"), redirects=lib.Std.OUT)
    context = _start(lib, folder, "/bin/echo", {0: "hello"}, logs_specs=specs)
    return open(context.wait(period=0.05).stdouts[0]).read()


@family
def settings_that_cannot_work(lib, folder):
    def told(*args, **kwargs):
        return outcome(lambda: _result(lib, _start(lib, folder, *args, **kwargs).wait(period=0.05)))[:2]

    return {
        "no ranks": told(vanishes, {}, {}),
        "no program": told("", {0: ()}),
        "start method": told(vanishes, {0: ()}, start_method="x"),
        "arguments": told("/bin/true", {0: ("a\0b",)}),
    }


@family
def environment_of_numbers(lib, folder):
    """The documents' own example: ``envs={0: {"LOCAL_RANK": 0}}``."""
    specs = lib.DefaultLogsSpecs(str(folder / "logs"), redirects=lib.Std.OUT)

    def run():
        context = _start(
            lib, folder, "/bin/sh", {0: ("-c", "echo $LOCAL_RANK")}, {0: {"LOCAL_RANK": 0}}, logs_specs=specs
        )
        return open(context.wait(period=0.05).stdouts[0]).read()

    return outcome(run)[:2]


@family
def older_signature(lib, folder):
    """``start_processes(name, entrypoint, args, envs, log_dir, start_method, redirects, tee)``."""

    def run():
        context = lib.start_processes(
            name="job",
            entrypoint="/bin/echo",
            args={0: ("hi",)},
            envs={0: {}},
            log_dir=str(folder),
            redirects=lib.Std.OUT,
        )
        return context.wait(period=0.05).stdouts

    return outcome(run)[:2]


@family
def omitted_envs(lib, folder):
    def run():
        specs = lib.DefaultLogsSpecs(str(folder / "logs"))
        return (
            lib.start_processes(name="job", entrypoint="/bin/true", args={0: ()}, logs_specs=specs)
            .wait(period=0.05)
            .return_values
        )

    return outcome(run)[:2]


@family
def stdin_of_programs(lib, folder):
    read, write = os.pipe()
    os.write(write, b"typed\n")
    os.close(write)
    os.dup2(read, 0)
    specs = lib.DefaultLogsSpecs(str(folder / "logs"), redirects=lib.Std.OUT)
    context = _start(lib, folder, "/bin/cat", {0: ()}, logs_specs=specs)
    return open(context.wait(period=0.05).stdouts[0]).read()


@family
def processes_of_a_stopped_function(lib, folder):
    """A function's rank has started a process; the gang is closed. Does that process live on?"""
    read, write = os.pipe()
    context = _start(lib, folder, has_a_child, {0: (write,)})
    pid = int(os.read(read, 20))
    context.close(signal.SIGTERM, 10)
    fd = os.pidfd_open(pid) if os.path.exists(f"/proc/{pid}") else None
    lives = fd is not None and not select.select([fd], [], [], 2.0)[0]
    if lives:
        os.kill(pid, signal.SIGKILL)
    return lives


@family
def signal_while_closing(lib, folder):
    """SIGTERM reaches the host during `close` of a gang that takes its time."""
    came = []
    signal.signal(signal.SIGTERM, lambda *what: came.append(what[0]))
    ready = folder / "ready"
    os.mkfifo(ready)
    script = f"trap 'kill -TERM {os.getpid()}; sleep 0.3; exit 0' TERM; echo x >{ready}; while :; do sleep 0.05; done"
    context = _start(lib, folder, "/bin/sh", {0: ("-c", script)})
    ready.read_text()
    told = outcome(context.close, signal.SIGTERM, 20)[:2]
    gone = not os.path.exists(f"/proc/{context.pids()[0]}")
    came_by_then = list(came)
    outcome(context.close, signal.SIGKILL, 5)
    return [told, gone, came_by_then]


@family
def traceback_without_an_error_file(lib, folder):
    """A function raises, and there are no files."""
    context = _start(lib, folder, raises, {0: (0, "x")}, logs_specs=lib.DefaultLogsSpecs(os.devnull))
    context.wait(period=0.05)
    sys.stderr.flush()
    return (folder / "host.stderr").read_text().splitlines()[-1:]


@family
def order_within_a_second(lib, folder):
    """Which of two failures of the same second is first."""
    failures = {}
    for rank, stamp_ns in ((0, 1_700_000_000_900_000_000), (1, 1_700_000_000_100_000_000)):
        path = folder / f"{rank}.json"
        path.write_text(json.dumps({"message": {"message": "E", "extraInfo": {"timestamp": "1700000000"}}}))
        os.utime(path, ns=(stamp_ns, stamp_ns))
        failures[rank] = lib.errors.ProcessFailure(rank, 1, 1, str(path))
    return [
        {rank: f.timestamp for rank, f in failures.items()},
        {r: getattr(f, "timestamp_ns", None) for r, f in failures.items()},
    ]


@family
def data_of_an_earlier_failure(lib, folder):
    """What a failure without a record says after another one was made."""
    lib.ProcessFailure(0, 1, 1, "")
    return lib.ProcessFailure(1, 2, -9, "").error_file_data
