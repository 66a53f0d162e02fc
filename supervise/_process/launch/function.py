"""Start of a function in a process of its own, by spawn or forkserver. The start by fork is in `forks`.

All three start methods continue in `supervise._process.launch.bootstrap`. The function and its arguments are pickled in
the caller's thread, before any process starts. A launch writes the pickle into a memory file, so that the launch never
waits until the child reads.
"""

from __future__ import annotations

import fcntl
import io
import marshal
import os
import pickle
import re
import sys
import threading
from collections import ChainMap
from functools import lru_cache, partial
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any, NewType, cast

from supervise import _platform as platform
from supervise._process.launch import bootstrap, program
from supervise._process.launch.fork_server import ensure_server, request
from supervise._process.launch.posix_spawn import CLEAR_OF_SOCKETS
from supervise._process.launch.return_value import OutcomeFile
from supervise._process.launch.settings import Plain, Settings
from supervise._record import field, record
from supervise._runtime.descriptors import clear_of_stdio, close, file_of, stdio_taken
from supervise.errors import SpecError, unguarded
from supervise.recording import repr_of, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from supervise._settings import StartMethod


# Choice of the executable that runs a function, and check that it can be started as a new interpreter
#
# An ordinary Python is started with ``-c``. A frozen program (PyInstaller, cx_Freeze) does not accept ``-c``: its new
# process runs the main module of the program, and becomes the worker when that module calls
# `multiprocessing.freeze_support`. So supervise starts a frozen program with multiprocessing's command line.


_PYTHON = re.compile("py", re.IGNORECASE)
"""Part of the file name of every Python, such as python3.13, pypy3, graalpy, .python3-wrapped."""
_HELPERS = ("from multiprocessing.", "import sys; from multiprocessing.")
"""Beginning of the code with which multiprocessing starts its resource tracker and fork server."""
_FREEZE = "freeze_support"
_WAYS = "give one to multiprocessing.set_executable(), or use start_method='fork'"


def is_frozen() -> bool:
    """Return whether this is a frozen program. Such a program accepts only multiprocessing's command line."""
    return bool(getattr(sys, "frozen", False))


def executable() -> str:
    """Return the executable that multiprocessing starts; a program may set another one. "" if there is none."""
    if sys.executable is None and "multiprocessing.spawn" not in sys.modules:
        return ""  # early versions of Python 3.11 cannot import multiprocessing.spawn without sys.executable
    from multiprocessing import spawn

    return os.fsdecode(spawn.get_executable() or "")


def check(start_method: str | None) -> None:
    """Refuse a start method that would run this program instead of a worker. The caller's thread calls this function.

    Args:
        start_method: Start method of a function that runs in a new interpreter; None for programs and for a fork.

    Raises:
        SpecError: No worker can be started; the text names a remedy.
    """
    if is_frozen():
        _check_frozen(start_method)
    elif start_method is not None:
        _check_python(start_method)


def _check_python(start_method: str) -> None:
    path = executable()
    if not path:
        raise SpecError(f"start_method {start_method!r} needs a Python to start, and sys.executable is empty; {_WAYS}")
    real = os.path.realpath(path)
    if not _PYTHON.search(os.path.basename(real)) and real == os.path.realpath("/proc/self/exe"):
        raise SpecError(
            f"start_method {start_method!r} needs a Python to start, and sys.executable is this program, {path},"
            f" in which Python is embedded; {_WAYS}"
        )


def _check_frozen(start_method: str | None) -> None:
    first = "call multiprocessing.freeze_support() first in the main module"
    if "--multiprocessing-fork" in sys.argv[1:2] or any(arg.startswith(_HELPERS) for arg in sys.argv):
        raise SpecError(
            f"multiprocessing has started this frozen program for a worker, and its main module runs instead; {first}"
        )
    frames = sys._current_frames()  # noqa: SLF001 - Python documents it
    if start_method is not None and not _freezes(frames.get(threading.main_thread().ident or 0)):
        again = f"start_method {start_method!r} would run the main module of this frozen program again"
        raise SpecError(f"{again}; {first}, or use start_method='fork'")


def _freezes(frame: FrameType | None) -> bool:
    """Return whether code on the main thread's stack names `freeze_support`.

    A call of `freeze_support` leaves no other trace.
    """
    while frame is not None:
        if _names(frame.f_code, _FREEZE):
            return True
        frame = frame.f_back
    return False


def _names(code: CodeType, name: str) -> bool:
    return name in code.co_names or any(isinstance(c, CodeType) and _names(c, name) for c in code.co_consts)


# Pickling, by cloudpickle, of calls that a new interpreter cannot import
#
# Such calls come from cells or prompts, or are lambdas or closures.


_CACHE = type(lru_cache(len))
INSTALL = "pip install 'supervise-gang[pickle]'"
"""The command that installs cloudpickle."""


def is_installed() -> bool:
    """Return whether cloudpickle can be imported."""
    from importlib import util

    return util.find_spec("cloudpickle") is not None


def dump(call: object, file: io.BytesIO) -> None:
    """Pickle a call. Objects that only this process can import are pickled by value.

    Queues, locks and connections are pickled as for a child of multiprocessing.

    Raises:
        ImportError: cloudpickle is not installed.
        Exception: The call cannot be pickled.
    """
    from multiprocessing import reduction

    import cloudpickle

    of_children: Any = reduction.ForkingPickler(io.BytesIO())
    table = cloudpickle.Pickler.dispatch_table
    own = {CodeType: partial(_reduced_code, table[CodeType]), _CACHE: _reduced_cache, NewType: _reduced_type}
    both = ChainMap(own, table, of_children.dispatch_table)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
        dispatch_table = both  # read when the pickler is made

        def reducer_override(self, value: Any) -> Any:
            reduced = super().reducer_override(value)
            if reduced is NotImplemented and type(value) not in both and _is_name_in_main(value):
                raise pickle.PicklingError(f"{repr_of(value)} is of the main module, and pickles by its name only")
            return reduced

    Pickler(file).dump(call)


def _is_name_in_main(value: Any) -> bool:
    """Return whether pickle replaces an object by its name in the main module, which a rank does not have."""
    if getattr(value, "__module__", None) != "__main__":
        return False
    if isinstance(value, (type, FunctionType)):
        return True
    reduce: Any = type(value).__reduce__
    return reduce is not object.__reduce__ and isinstance(reduce(value), str)


def _reduced_cache(cached: Any) -> Any:
    """Pickle a function with the decorator `functools.cache` or `lru_cache`: an own one by value, without results."""
    if cached.__module__ != "__main__":
        return cached.__reduce__()
    return _cached, (cached.__wrapped__, cached.cache_parameters())


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return lru_cache(**parameters)(function)


def _reduced_type(made: Any) -> Any:
    """Pickle a `typing.NewType`, an own one by value."""
    return made.__reduce__() if made.__module__ != "__main__" else (NewType, (made.__name__, made.__supertype__))


def _reduced_code(reduce: Callable[[CodeType], tuple[Any, ...]], code: CodeType) -> tuple[Any, ...]:
    """Pickle a code object as cloudpickle does, with its file name and source, for tracebacks in the rank."""
    import linecache

    make, args = reduce(code)[:2]
    source = [] if os.path.exists(code.co_filename) else linecache.getlines(code.co_filename)  # a cell has no file
    return _code, (make, args, code.co_filename, tuple(source))


def _code(make: Callable[..., CodeType], args: tuple[Any, ...], filename: str, source: tuple[str, ...]) -> CodeType:
    """Return a code object in the rank, and keep the source of the code for tracebacks."""
    import linecache

    if source and filename not in linecache.cache:
        linecache.cache[filename] = sum(map(len, source)), None, list(source), filename
    return make(*args).replace(co_filename=filename)


def dump_without_main(call: object, file: io.BytesIO) -> None:
    """Pickle a call that refers to nothing in the main module, as for a child of multiprocessing.

    Raises:
        PicklingError: The call refers to a function or a class of the main module.
        Exception: The call cannot be pickled.
    """
    from multiprocessing import reduction

    class Pickler(reduction.ForkingPickler):
        def reducer_override(self, value: Any) -> Any:
            if _is_name_in_main(value):
                raise pickle.PicklingError(f"{repr_of(value)} is of the main module")
            return NotImplemented

    Pickler(file).dump(call)


_BOOT = (
    "(lambda sys,os,marshal:(lambda f:(sys.path.__setitem__(slice(None),marshal.load(f)),"
    "sys.exit(__import__('supervise._process.launch.bootstrap',fromlist=['spawned']).spawned(f))"
    "))(os.fdopen(int(sys.argv[1]),'rb')))(__import__('sys'),__import__('os'),__import__('marshal'))"
)
"""Code for ``-c``. It is an expression: a statement would leave names in the main module, among the user's names."""
_OF_MULTIPROCESSING = ("name", "authkey", "log_to_stderr", "log_level", "start_method", "orig_dir")
"""Items of the preparation data that only multiprocessing needs."""


@record
class Pickled:
    """A pickled function with its arguments, and the preparation data for its process."""

    data: bytes = field(repr=False)
    fds: tuple[int, ...]
    """Descriptors to which the data refers, in the order of the references."""
    keep: object
    """Owner of the descriptors. It keeps them open until the launch."""
    sys_path: list[str]
    """`sys.path` of the host."""
    prepared: bytes = field(repr=False)
    """Two pickles: the preparation data for multiprocessing, as a pickle within a pickle, and the other data.

    The inner pickle is loaded once multiprocessing is imported.
    """

    def payload(self, settings: Settings) -> int:
        """Return a memory file with the settings and the pickles, positioned at the start of the file."""
        head = marshal.dumps(self.sys_path) + pickle.dumps(settings)
        return file_of("supervise-arguments", head, self.prepared, self.data)

    def beginning(self, arrival: bootstrap.Arrival) -> bytes:
        """Return the two pickles that multiprocessing reads in a child."""
        return pickle.dumps({"sys_path": self.sys_path}) + pickle.dumps(arrival)


class _Travel:
    """Substitute for the Popen of multiprocessing while queues, locks and connections are pickled.

    It owns the descriptors that it duplicates, and closes them when it is collected.
    """

    def __init__(self, method: StartMethod) -> None:
        self.fds: list[int] = []
        from multiprocessing import popen_forkserver, popen_spawn_posix

        self._by_index = method == "forkserver"
        self.DupFd: Any = (popen_forkserver if self._by_index else popen_spawn_posix)._DupFd  # noqa: SLF001

    def duplicate_for_child(self, fd: int) -> int:
        # The caller may close its descriptor before a restart
        copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, CLEAR_OF_SOCKETS)
        self.fds.append(copy)
        return len(self.fds) - 1 if self._by_index else copy

    def __del__(self) -> None:
        close(*self.fds)


def pickle_calls(
    calls: Mapping[int, tuple[Callable[..., Any], tuple[Any, ...]]], method: StartMethod, *, own_main: bool
) -> dict[int, Pickled]:
    """Pickle the call of each rank, and the preparation data of this process.

    The caller's thread calls this function.

    Args:
        calls: Local rank to function and arguments.
        method: ``spawn`` or ``forkserver``.
        own_main: Whether only this process can import its main module. If so, cloudpickle (if it is installed) pickles
            the objects that refer to that module or that pickle refuses.

    Raises:
        SpecError: A call cannot be pickled; the text names the rank and a remedy.
        OSError: The resource tracker or the fork server cannot be started; the text names it.
    """
    sys_path, prepared = _preparation(method, {id(fn): fn for fn, _ in calls.values()}.values(), own_main=own_main)
    pickled = {}
    for rank, (fn, args) in calls.items():
        data, owner = _pickle(fn, args, rank, method, own_main=own_main)
        fds = tuple(owner.fds)
        pickled[rank] = Pickled(data=data, fds=fds, keep=(owner, args), sys_path=sys_path, prepared=prepared)
    return pickled


def _pickle(
    fn: Callable[..., Any], args: tuple[Any, ...], rank: int, method: StartMethod, *, own_main: bool
) -> tuple[bytes, _Travel]:
    from multiprocessing import reduction

    try:
        return _dumped((fn, args), method, dump_without_main if own_main else reduction.dump)
    except Exception as first:  # the next attempt is outside of this handler, so that its error lacks this context
        error = first
    more = f"install cloudpickle ({INSTALL}), "
    if is_installed():
        more = ""
        try:
            return _dumped((fn, args), method, dump)
        except Exception as second:
            error = second
    name, kinds = getattr(fn, "__qualname__", None) or repr_of(fn), ", ".join(type(arg).__name__ for arg in args)
    raise SpecError(
        f"rank {rank}: {name} or one of its arguments ({kinds}) cannot be pickled for start method"
        f" {method!r}: {type(error).__name__}: {text_of(error)}. Define the function at the top level of a module,"
        f" and pass arguments that pickle; {more}or use start_method='fork'."
    ) from error


def _dumped(call: object, method: StartMethod, dump: Callable[[Any, Any], object]) -> tuple[bytes, _Travel]:
    """Return the pickle of a call, and the owner of the descriptors to which it refers."""
    from multiprocessing import context

    popen: Any = _Travel(method)
    buffer = io.BytesIO()
    context.set_spawning_popen(popen)
    try:
        dump(call, buffer)
    finally:
        context.set_spawning_popen(None)
    return buffer.getvalue(), popen


def _preparation(method: StartMethod, fns: Iterable[Callable[..., Any]], *, own_main: bool) -> tuple[list[str], bytes]:
    """Return the values for `Pickled.sys_path` and `Pickled.prepared`.

    Start the resource tracker and the fork server of multiprocessing, as far as `method` needs them.
    """
    from multiprocessing import context, process, reduction, resource_tracker, spawn

    if getattr(process.current_process(), "_inheriting", False):  # as multiprocessing itself finds out
        raise unguarded(method)
    main = sys.modules.get("__main__")
    if main is not None and not hasattr(main, "__spec__"):  # `python -m pdb` before 3.13 has removed it
        main.__spec__ = None  # as in every script
    with platform.no_process("the resource tracker of multiprocessing"), stdio_taken():
        resource_tracker.ensure_running()  # all ranks share it
    if method == "forkserver":
        ensure_server()
    data = spawn.get_preparation_data("supervise")
    data.pop("dir", None)  # the launch sets it
    key: Any = process.AuthenticationString  # type: ignore[attr-defined]
    data["authkey"] = key(data["authkey"])  # in a worker of Celery, its type does not pickle
    if is_frozen() or os.path.basename(data.get("init_main_from_path") or "").startswith("<"):
        data.pop("init_main_from_path", None)  # a frozen worker has the main module, and stdin cannot be read again
    if own_main:  # a prompt has the name or the file of what `%run` or `python -i` has run
        data.pop("init_main_from_name", None)
        data.pop("init_main_from_path", None)
    sys_path = data["sys_path"] = [entry for entry in data["sys_path"] if isinstance(entry, str)]
    sys_path += {folder: None for fn in fns if (folder := _folder_of(fn)) is not None}
    of_multiprocessing = {key: data.pop(key) for key in _OF_MULTIPROCESSING if key in data}
    if of_multiprocessing.get("start_method", method) not in ("spawn", "fork", "forkserver"):
        of_multiprocessing["start_method"] = method  # a worker of loky has one that a new interpreter does not know
    context.set_spawning_popen(cast("Any", _Travel("spawn")))  # the authentication key pickles only with one set
    try:
        prepared = pickle.dumps(pickle.dumps(of_multiprocessing)) + bytes(reduction.ForkingPickler.dumps(data))
    finally:
        context.set_spawning_popen(None)
    return sys_path, prepared


def _folder_of(fn: Callable[..., Any]) -> str | None:
    """Return the folder from which the module of a function was imported, if Python does not find the module any more.

    Celery, for one, has the current directory in `sys.path` only while it imports the tasks.
    """
    while isinstance(fn, partial):
        fn = fn.func
    name: str = getattr(fn, "__module__", None) or ""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    finders = [finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec")]
    top = name.partition(".")[0]
    if spec is None or not spec.has_location or name == "__main__" or any(find(top, None) for find in finders):
        return None
    levels = name.count(".") + (spec.submodule_search_locations is not None)
    origin: str = spec.origin.rsplit(os.sep, levels)[0]
    return os.path.dirname(origin)


def _command(payload: int) -> list[str]:
    from multiprocessing import util

    flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing does
    return [executable(), *flags, "-c", _BOOT, str(payload), "--multiprocessing-fork"]


@record(frozen=False, eq=False)
class FunctionLauncher:
    """Launcher of one rank's function. It does not wait for the child."""

    local_rank: int
    method: StartMethod
    how: program.LaunchSpec
    pickled: Pickled | None
    """Pickle of the call. None after the launch."""
    plain: Plain | None = None
    """Settings of a function whose return value is ignored; None if the host reads the value."""

    def __call__(self) -> program.Launched:
        """Start the process.

        Raises:
            OSError: The process could not be started; none is left.
        """
        assert self.pickled is not None  # noqa: S101 - a launcher launches once
        start = partial(self._spawn if self.method == "spawn" else self._ask_server, self.pickled)
        launched = program.with_channel(self.how, OutcomeFile(holds=self.how.holds), start)
        self.pickled = None
        return launched

    def _settings(self, outcome: OutcomeFile, **more: Any) -> Settings:
        return Settings(
            local_rank=self.local_rank,
            method=self.method,
            host_pid=os.getpid(),
            address=outcome.address,
            plain=self.plain,
            enter=self.how.enter,
            **more,
        )

    def _spawn(self, pickled: Pickled, outcome: OutcomeFile, read_end: int) -> program.Launched:
        from multiprocessing import resource_tracker

        users = pickled.fds
        copies: list[int] = []

        def clear(fd: int) -> int:  # sockets take the low numbers
            if fd >= self.how.least:
                return fd
            copies.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, self.how.least))
            return copies[-1]

        try:
            tracker = resource_tracker.getfd()
            if tracker is not None and tracker <= 2:  # the host's stdio is closed: the worker gets its own tracker
                tracker = None
            tracker = tracker and clear(tracker)
            hold = outcome.hold.rank_end and clear(outcome.hold.rank_end) if outcome.hold is not None else None
            channel = clear(outcome.fd)
            settings = self._settings(outcome, line=read_end, channel=channel, hold=hold, tracker=tracker, fds=users)
            copies.append(payload := clear_of_stdio(pickled.payload(settings), self.how.least))
            fds = {payload, channel, *users, *(fd for fd in (hold, tracker) if fd is not None)}
            if not is_frozen():
                command = _command(payload)
            else:
                arrival = bootstrap.Arrival(payload, execs=True)
                begin = clear_of_stdio(file_of("supervise-arguments", pickled.beginning(arrival)), self.how.least)
                copies.append(begin)
                fds.add(begin)
                # The command line for `multiprocessing.freeze_support`
                command = [executable(), "--multiprocessing-fork", f"tracker_fd={tracker}", f"pipe_handle={begin}"]
            return program.Launched(process=program.run_program(command, self.how, read_end, sorted(fds)))
        finally:
            close(*copies)

    def _ask_server(self, pickled: Pickled, outcome: OutcomeFile, read_end: int) -> program.Launched:
        payload = None
        out, err = self.how.streams.open()
        try:
            users = list(pickled.fds)
            held = () if outcome.hold is None or outcome.hold.rank_end is None else (outcome.hold.rank_end,)
            settings = self._settings(
                outcome,
                line=len(users),
                channel=len(users) + 1,
                stdio=(None, len(users) + 2, len(users) + 3),
                hold=len(users) + 4 if held else None,
                env=dict(self.how.env),
                cwd=os.path.abspath(self.how.cwd or "."),
            )
            payload = pickled.payload(settings)
            fds = [*users, read_end, outcome.fd, 1 if out is None else out, 2 if err is None else err, *held, payload]
            status = request(fds, pickled.beginning(bootstrap.Arrival(len(fds) - 1, execs=False)))
            return program.Launched(status=status)
        finally:
            close(out, err, payload)
