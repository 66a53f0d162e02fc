"""`start_processes`: what it refuses; signals; contexts that are made, subclassed and reused."""
# ruff: noqa: PTH110, PTH123 - paths are strings in the libraries, too

import os
import select
import signal
import sys
import threading
import warnings

from tests.compat.tell import family, kind, outcome, scrub

FORK = {"start_method": "fork"}


def nothing(*args):
    """Return what was given."""
    return list(args)


def signals_host(fd, pid, number):
    """Send the host a signal when it says so, and stay."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.read(fd, 1)
    os.kill(pid, number)
    signal.pause()


def stays(fd):
    """Say that it runs, and stay."""
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(name, signal.SIG_DFL)
    os.write(fd, b"x")
    signal.pause()


def _start(lib, folder, entrypoint, args, envs=None, **more):
    envs = {rank: {} for rank in args} if envs is None else envs
    more.setdefault("logs_specs", lib.DefaultLogsSpecs(str(folder / "logs")))
    if callable(entrypoint):
        more.setdefault("start_method", "fork")
    return lib.start_processes(name="job", entrypoint=entrypoint, args=args, envs=envs, **more)


def _ended(context):
    context.close()
    return "started"


@family
def refused(lib, folder):
    def told(*args, **kwargs):
        return outcome(lambda: _ended(_start(lib, folder, *args, **kwargs)))

    return {
        "args without 0": told(nothing, {1: ()}, {1: {}}),
        "args with a hole": told(nothing, {0: (), 2: ()}, {0: {}, 2: {}}),
        "envs short": told(nothing, {0: (), 1: ()}, {0: {}}),
        "envs long": told(nothing, {0: ()}, {0: {}, 1: {}}),
        "binary args": told("/bin/true", {1: ()}, {1: {}}),
        "binary envs": told("/bin/true", {0: (), 1: ()}, {0: {}}),
        "no program": told("/nonexistent/program", {0: ()})[:2],
        "no program by name": told("nonexistent-program", {0: (), 1: ()})[:2],
        "no folder": outcome(lib.DefaultLogsSpecs, "/dev/zero/x")[:2],
        "positional": outcome(
            lambda: _ended(
                lib.start_processes(
                    "job", "/bin/true", {0: ()}, {0: {}}, lib.DefaultLogsSpecs(str(folder / "logs")), {0: "p"}, "spawn"
                )
            )
        ),
        "unknown name": outcome(
            lambda: lib.start_processes(
                "job", "/bin/true", {0: ()}, {0: {}}, lib.DefaultLogsSpecs(str(folder / "logs")), nonsense=1
            )
        )[:2],
    }


@family
def arguments_of_programs(lib, folder):
    args = {
        0: ("-c", 'printf "%s|" "$@"', "sh", 1, 2.5, "a b", "", None, True, folder / "p", "ü*?$X"),
        1: ["-c", "echo list"],
    }
    specs = lib.DefaultLogsSpecs(str(folder / "logs"), redirects=lib.Std.ALL)
    context = _start(lib, folder, "/bin/sh", args, logs_specs=specs)
    result = context.wait(period=0.05)
    return [open(result.stdouts[0]).read(), open(result.stdouts[1]).read(), result.return_values]


@family
def values_of_functions(lib, folder):
    args = {0: (1, "a", None), 1: [b"x", {"k": (1, 2)}], 2: ()}
    result = _start(lib, folder, nothing, args).wait(period=0.05)
    return [result.return_values, list(result.return_values), type(result).__name__]


@family
def repeated_calls(lib, folder):
    context = _start(lib, folder, "/bin/true", {0: (), 1: ()})
    first = context.wait(period=0.05)
    seen = [first.return_values, outcome(context.start)[:2]]
    seen += [outcome(context.close), outcome(context.close, signal.SIGINT), outcome(context.close, signal.SIGKILL, 1)]
    return [*seen, context.nprocs, context.name, context.args, context.entrypoint, sorted(context.envs)]


@family
def never_started(lib, folder):
    specs = lib.DefaultLogsSpecs(str(folder / "logs"))
    made = lib.api.SubprocessContext("job", "/bin/true", {0: ()}, {0: {}}, specs)
    other = lib.api.MultiprocessContext("job", nothing, {0: ()}, {0: {}}, "fork", specs)
    return [made.pids(), made.stdouts, made.nprocs, outcome(made.close), outcome(other.close), other.start_method]


@family
def polled(lib, folder):
    read, write = os.pipe()
    context = _start(lib, folder, stays, {0: (write,), 1: (write,)})
    os.read(read, 1)
    os.read(read, 1)
    seen = [
        context.wait(0),
        context.wait(0),
        context._poll(),
        set(context.pids().values()) == {*context.pids().values()},
    ]
    context._close(death_sig=signal.SIGTERM, timeout=5)
    seen.append([os.path.exists(f"/proc/{pid}") for pid in context.pids().values()])
    context.close(signal.SIGTERM, 5)
    return seen


@family
def closed_programs_that_exit_cleanly(lib, folder):
    """Ranks that had finished, that exit with code 0 at our SIGTERM, and that die of it."""
    ready = folder / "ready"
    os.mkfifo(ready)
    ear = os.open(ready, os.O_RDWR)
    scripts = {
        "finished": "exit 0",
        "clean": f"trap 'exit 0' TERM; echo x >{ready}; while :; do sleep 0.05; done",
        "dies": f"echo x >{ready}; exec sleep 600",
    }
    seen = {}
    for ranks in ("clean", "clean clean", "finished clean", "clean dies", "finished dies"):
        args = {rank: ("-c", scripts[how]) for rank, how in enumerate(ranks.split())}
        context = _start(lib, folder, "/bin/sh", args)
        for how in ranks.split():
            if how == "finished":
                while context.subprocess_handlers[0].proc.poll() is None:
                    select.select([], [], [], 0.01)
            else:
                os.read(ear, 2)
        context.close(signal.SIGTERM, 20)
        result = context.wait(period=0.05)
        codes = {rank: failure.exitcode for rank, failure in result.failures.items()}
        seen[ranks] = [result.is_failed(), codes, result.return_values]
    return seen


@family
def own_layout(lib, folder):
    class Specs(lib.LogsSpecs):
        @property
        def root_log_dir(self):
            return str(folder)

        def reify(self, envs):
            for rank, env in envs.items():
                env["TORCHELASTIC_ERROR_FILE"] = str(folder / f"{rank}.json")
            return lib.LogsDest(
                stdouts={rank: str(folder / f"{rank}.out") for rank in envs},
                stderrs=dict.fromkeys(envs, ""),
                tee_stdouts={0: str(folder / "0.out")},
                error_files={rank: str(folder / f"{rank}.json") for rank in envs},
            )

    args = {rank: ("-c", f"echo {rank}; echo e{rank} >&2; exit {rank}") for rank in range(2)}
    context = _start(lib, folder, "/bin/sh", {0: args[0]}, logs_specs=Specs())
    result = context.wait(period=0.05)
    sys.stdout.flush()
    return [result.stdouts, result.stderrs, open(folder / "0.out").read(), open(folder / "host.stdout").read()]


@family
def signals(lib, folder):
    seen = {}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        read, write = os.pipe()
        context = _start(lib, folder, signals_host, {0: (read, os.getpid(), number)})
        try:
            os.write(write, b"x")
            told = context.wait(period=0.05)
        except lib.SignalException as error:
            told = [kind(error), scrub(str(error)), repr(error.sigval)]
            context.close(signal.SIGTERM, 10)
        seen[number.name] = [told, [os.path.exists(f"/proc/{pid}") for pid in context.pids().values()]]
    return seen


@family
def signals_of_the_variable(lib, folder):
    seen = {}
    for text in ("SIGUSR1,SIGUSR2", "SIGUSR2, SIGUSR1", "SIGUSR1,SIGNOPE", "SIGUSR1"):
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = text
        read, write = os.pipe()
        context = _start(lib, folder, signals_host, {0: (read, os.getpid(), signal.SIGUSR1)})
        try:
            os.write(write, b"x")
            told = context.wait(period=0.05)
        except lib.SignalException as error:
            told = [scrub(str(error)), repr(error.sigval)]
        context.close(signal.SIGTERM, 10)
        seen[text] = told
    return seen


@family
def signals_off_the_main_thread(lib, folder):
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def main():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            context = _start(lib, folder, nothing, {0: (5,)})
            seen.append(context.wait(period=0.05).return_values)
            context.close()

    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
    return [*seen, signal.getsignal(signal.SIGTERM) is before]


@family
def wrapped(lib, folder):
    import multiprocessing

    fork = multiprocessing.get_context("fork")
    event = fork.Event()
    event.set()
    queues = {0: fork.SimpleQueue(), 1: fork.SimpleQueue()}
    args = (nothing, {0: (1,), 1: (2, 3)}, {0: {}, 1: {"X_COMPAT": "y"}}, {0: "", 1: str(folder / "o")}, {0: "", 1: ""})
    lib.api._wrap(1, *args, queues, event, None)
    return [queues[0].empty(), queues[1].get(), os.environ.get("X_COMPAT"), (folder / "o").read_text()]


@family
def handler(lib, folder):
    from importlib import import_module

    get = import_module(f"{lib.__name__}.subprocess_handler").get_subprocess_handler
    one = get("/bin/sh", ("-c", "echo $A; echo e >&2; exit 4"), {"A": "b"}, str(folder / "o"), str(folder / "e"), 3)
    code = one.proc.wait()
    two = get("/bin/sleep", (600,), {}, "", "", 0)
    two.close()
    three = get("/bin/sleep", (600,), {}, "", "", 0)
    three.close(death_sig=signal.SIGKILL)
    return [
        code,
        one.local_rank_id,
        (folder / "o").read_text(),
        (folder / "e").read_text(),
        two.proc.wait(),
        three.proc.wait(),
    ]


# torch.multiprocessing


def raises(index, text):
    """Raise."""
    raise ValueError(f"{text} {index}")


def ends(index, how):
    """End without an exception."""
    if how == "exit":
        sys.exit(5)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


@family
def multiprocessing_failures(lib, folder):
    from importlib import import_module

    name = "torch.multiprocessing" if lib.__name__.startswith("torch") else "supervise.multiprocessing"
    mp = import_module(name)
    seen = {}
    for key, function, args in (
        ("ok", ends, ("",)),
        ("exit", ends, ("exit",)),
        ("kill", ends, ("kill",)),
        ("raise", raises, ("x",)),
    ):
        try:
            seen[key] = mp.start_processes(function, args=args, nprocs=1, start_method="fork")
        except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
            seen[key] = [kind(error), str(error), error.error_index, type(error.error_pid).__name__]
            seen[key] += [getattr(error, "exit_code", None), getattr(error, "signal_name", None)]
    context = mp.start_processes(ends, args=("",), nprocs=2, join=False, start_method="fork")
    seen["pids"] = [type(pid).__name__ for pid in context.pids()]
    while not context.join(timeout=5):
        pass
    seen["codes"] = [process.exitcode for process in context.processes]
    seen["lists"] = [len(context.sentinels), len(context.error_files)]
    return seen
