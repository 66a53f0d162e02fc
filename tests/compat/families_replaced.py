"""What programs put in place of private parts: `close`, `_close`, `_poll`, and the handler that starts a program."""

import os
import select
import signal
import subprocess
import types
from contextlib import contextmanager
from importlib import import_module

from tests.compat.families_contexts import _start
from tests.compat.tell import family

STAYS = ("-c", "exec sleep 600")


def _lives(pid):
    return os.path.exists(f"/proc/{pid}")  # noqa: PTH110 - as everywhere here


@contextmanager
def _close_does_nothing(context):
    original = context.close
    context.close = types.MethodType(lambda *_, **__: None, context)
    try:
        yield
    finally:
        context.close = original


def _until(context, rank):
    """Wait with a close that does nothing, until a rank is among the failures."""
    for _ in range(1000):
        with _close_does_nothing(context):
            result = context.wait(0)
        if result is not None and rank in result.failures:
            return [result.is_failed(), {r: f.exitcode for r, f in sorted(result.failures.items())}]
        select.select([], [], [], 0.01)
    return "never"


@family
def close_that_does_nothing_during_the_wait(lib, folder):
    """One rank fails before the first wait, one later; one lives until the last close."""
    gate = folder / "gate"
    os.mkfifo(gate)
    word = os.open(gate, os.O_RDWR)
    late = ("-c", f"read word <{gate}; exit 4")
    context = _start(lib, folder, "/bin/sh", {0: STAYS, 1: ("-c", "exit 3"), 2: late})
    while context.subprocess_handlers[1].proc.poll() is None:
        select.select([], [], [], 0.01)
    seen = [_until(context, 1), {rank: _lives(pid) for rank, pid in context.pids().items() if rank != 1}]
    os.write(word, b"go\n")
    seen += [_until(context, 2), _lives(context.pids()[0])]
    result = context.wait(0)
    seen += [result.is_failed(), sorted(set(result.failures) - {0}), _lives(context.pids()[0])]
    context.close()
    return seen


@family
def close_of_a_subclass(lib, folder):
    seen = {}
    for name in ("close", "_close"):
        for code in (0, 3):
            calls = []

            def method(self, *args, calls=calls, name=name, **given):
                calls.append(sorted(given))
                getattr(super(type(self), self), name)(signal.SIGINT, 20)

            cls = type("Own", (lib.SubprocessContext,), {name: method})
            specs = lib.DefaultLogsSpecs(str(folder / f"logs{name}{code}"))
            args = {0: ("-c", f"exit {code}"), 1: STAYS if code else ("-c", "exit 0")}
            context = cls("job", "/bin/sh", args, {0: {}, 1: {}}, specs)
            context.start()
            result = context.wait(-1, 0.02)
            seen[f"{name} {code}"] = [
                len(calls),
                result.is_failed(),
                context.subprocess_handlers[1].proc.poll(),
                result.return_values,
            ]
    return seen


@family
def poll_that_looks_before_the_stop(lib, folder):
    """A launcher logs the exits before the other ranks are stopped. The rank exits between two polls."""
    told, fail, seen = folder / "told", folder / "fail", {}

    class Own(lib.SubprocessContext):
        def _poll(self):
            for rank, handler in self.subprocess_handlers.items():
                code = handler.proc.poll()
                if code is not None:
                    seen.setdefault(rank, [code, told.exists()])
            result = super()._poll()
            fail.touch()
            while self.subprocess_handlers[1].proc.poll() is None:
                select.select([], [], [], 0.01)
            return result

    up = f"trap 'touch {told}; exit 9' TERM; touch {folder}/up; while :; do sleep 0.01; done"
    fails = f"until [ -e {folder}/up ] && [ -e {fail} ]; do sleep 0.01; done; exit 3"
    specs = lib.DefaultLogsSpecs(str(folder / "logs"))
    context = Own("job", "/bin/sh", {0: ("-c", up), 1: ("-c", fails)}, {0: {}, 1: {}}, specs)
    context.start()
    result = context.wait(-1, 0.02)
    context.close()
    return [seen[1], result.is_failed(), told.exists()]


@family
def handler_in_place_of_theirs(lib, folder):
    """A pipe takes the place of a file."""
    own = import_module(f"{lib.__name__}.subprocess_handler").SubprocessHandler

    class Piped(own):
        def _popen(self, args, env):
            return subprocess.Popen(args=args, env=env, stdout=subprocess.PIPE, start_new_session=True)

    original = lib.api.get_subprocess_handler
    lib.api.get_subprocess_handler = Piped
    try:
        args = {rank: ("-c", f"echo {rank} $TEXT; exit {rank}") for rank in range(2)}
        context = _start(lib, folder, "/bin/sh", args, {0: {"TEXT": "a"}, 1: {"TEXT": "b"}})
    finally:
        lib.api.get_subprocess_handler = original
    handlers = context.subprocess_handlers
    said = {rank: handler.proc.stdout.read().decode() for rank, handler in handlers.items()}
    result = context.wait(period=0.02)
    context.close()
    return [
        sorted({type(handler).__name__ for handler in handlers.values()}),
        said,
        context.pids() == {rank: handler.proc.pid for rank, handler in handlers.items()},
        {rank: failure.exitcode for rank, failure in result.failures.items()},
        result.return_values,
        {rank: handler.proc.returncode for rank, handler in handlers.items()},
    ]


@family
def method_of_the_handler_in_place_of_theirs(lib, folder):
    own = import_module(f"{lib.__name__}.subprocess_handler").SubprocessHandler
    original, seen = own._popen, []

    def popen(self, args, env):
        seen.append([type(args).__name__, list(args), env["TEXT"], self._stdout is None, self._stderr is None])
        return original(self, args, env)

    own._popen = popen
    try:
        specs = lib.DefaultLogsSpecs(str(folder / "logs"), redirects=lib.Std.OUT)
        context = _start(lib, folder, "/bin/sh", {0: ("-c", "echo x")}, {0: {"TEXT": "a"}}, logs_specs=specs)
        result = context.wait(period=0.02)
    finally:
        own._popen = original
    return [seen, result.return_values, sorted(result.stdouts)]


@family
def names_of_modules(lib, folder):
    """Names that clients and PyTorch's own tests touch."""
    where = ("api", "errors", "errors.error_handler", "tail_log", "redirects")
    tails = [lib.api.TailLog("n", files, None).start() for files in ({}, {0: ""})]
    pools = [tail._threadpool is None for tail in tails]
    for tail in tails:
        tail.stop()
    return [
        [type(import_module(f"{lib.__name__}.{name}").logger).__name__ for name in where],
        pools,
        tails[1]._threadpool._shutdown,
        callable(lib.MultiprocessContext._is_done),
    ]
