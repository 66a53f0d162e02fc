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
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from supervise import _threads
from supervise._process.files import close, file_of
from supervise._process.launch import bootstrap, by_value, interpreter, program
from supervise._process.launch.fork_server import ensure_server, request
from supervise._process.launch.launched import Launched
from supervise._process.launch.return_value import OutcomeFile
from supervise._process.launch.settings import Plain, Settings
from supervise.errors import SpecError
from supervise.recording import repr_of, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervise._process.exits.handle import Process
    from supervise._process.launch.fork_server import ServerStatus
    from supervise._process.launch.launch_spec import LaunchSpec

StartMethod = Literal["spawn", "fork", "forkserver"]

_BOOT = (
    "(lambda sys,os,marshal:(lambda f:(sys.path.__setitem__(slice(None),marshal.load(f)),"
    "sys.exit(__import__('supervise._process.launch.bootstrap',fromlist=['spawned']).spawned(f))"
    "))(os.fdopen(int(sys.argv[1]),'rb')))(__import__('sys'),__import__('os'),__import__('marshal'))"
)
"""Code for ``-c``. It is an expression: a statement would leave names in the main module, among the user's names."""
_OF_MULTIPROCESSING = ("name", "authkey", "log_to_stderr", "log_level", "start_method", "orig_dir")
"""Items of the preparation data that only multiprocessing needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Substitute for the Popen of multiprocessing while queues, locks and connections are pickled."""

    def __init__(self, method: StartMethod) -> None:
        self.held = _Held()
        self.fds = self.held.fds
        self._by_index = method == "forkserver"
        self.DupFd = self._dup_fd_type()

    def _dup_fd_type(self) -> Any:
        from multiprocessing import popen_forkserver, popen_spawn_posix

        return popen_forkserver._DupFd if self._by_index else popen_spawn_posix._DupFd  # noqa: SLF001

    def duplicate_for_child(self, fd: int) -> int:
        copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)  # the caller may close its descriptor before a restart
        self.fds.append(copy)
        return len(self.fds) - 1 if self._by_index else copy


class _Held:
    """Owner of duplicated descriptors. It closes them when it is collected."""

    def __init__(self) -> None:
        self.fds: list[int] = []

    def __del__(self) -> None:
        for fd in self.fds:
            os.close(fd)


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
    sys_path, prepared = _preparation(method)
    pickled = {}
    for rank, (fn, args) in calls.items():
        data, held = _pickle(fn, args, rank, method, own_main=own_main)
        fds = tuple(held.fds)
        pickled[rank] = Pickled(data=data, fds=fds, keep=(held, args), sys_path=sys_path, prepared=prepared)
    return pickled


def _pickle(
    fn: Callable[..., Any], args: tuple[Any, ...], rank: int, method: StartMethod, *, own_main: bool
) -> tuple[bytes, _Held]:
    from multiprocessing import reduction

    try:
        return _dumped((fn, args), method, by_value.dump_without_main if own_main else reduction.dump)
    except Exception as first:  # the next attempt is outside of this handler, so that its error lacks this context
        error = first
    more = f"install cloudpickle ({by_value.INSTALL}), "
    if by_value.is_installed():
        more = ""
        try:
            return _dumped((fn, args), method, by_value.dump)
        except Exception as second:
            error = second
    name = getattr(fn, "__qualname__", None) or repr_of(fn)
    raise SpecError(
        f"rank {rank}: {name} or one of its arguments {_short(args)} cannot be pickled for start method"
        f" {method!r}: {type(error).__name__}: {text_of(error)}. Define the function at the top level of a module,"
        f" and pass arguments that pickle; {more}or use start_method='fork'."
    ) from error


def _dumped(call: object, method: StartMethod, dump: Callable[[Any, Any], object]) -> tuple[bytes, _Held]:
    """Return the pickle of a call, and the descriptors to which it refers."""
    from multiprocessing import context

    popen: Any = _Travel(method)
    buffer = io.BytesIO()
    context.set_spawning_popen(popen)
    try:
        dump(call, buffer)
    finally:
        context.set_spawning_popen(None)
    return buffer.getvalue(), popen.held


def _short(args: tuple[Any, ...]) -> str:
    return "(" + ", ".join(type(arg).__name__ for arg in args) + ")"


def _preparation(method: StartMethod) -> tuple[list[str], bytes]:
    """Return the values for `Pickled.sys_path` and `Pickled.prepared`.

    Start the resource tracker and the fork server of multiprocessing, as far as `method` needs them.
    """
    from multiprocessing import context, process, reduction, resource_tracker, spawn

    if getattr(process.current_process(), "_inheriting", False):  # as multiprocessing itself finds out
        raise SpecError(
            "the program starts a gang while a rank imports it; start the gang under `if __name__ == '__main__':`,"
            f" or use start_method='fork' instead of {method!r}"
        )
    main = sys.modules.get("__main__")
    if main is not None and not hasattr(main, "__spec__"):  # `python -m pdb` before 3.13 has removed it
        main.__spec__ = None  # as in every script
    with _threads.no_process("the resource tracker of multiprocessing"):
        resource_tracker.ensure_running()  # all ranks share it
    if method == "forkserver":
        ensure_server()
    data = spawn.get_preparation_data("supervise")
    data.pop("dir", None)  # the launch sets it
    key: Any = process.AuthenticationString  # type: ignore[attr-defined]
    data["authkey"] = key(data["authkey"])  # in a worker of Celery, its type does not pickle
    if interpreter.is_frozen() or os.path.basename(data.get("init_main_from_path") or "").startswith("<"):
        data.pop("init_main_from_path", None)  # a frozen worker has the main module, and stdin cannot be read again
    of_multiprocessing = {key: data.pop(key) for key in _OF_MULTIPROCESSING if key in data}
    context.set_spawning_popen(cast("Any", _Travel("spawn")))  # the authentication key pickles only with one set
    try:
        prepared = pickle.dumps(pickle.dumps(of_multiprocessing)) + bytes(reduction.ForkingPickler.dumps(data))
    finally:
        context.set_spawning_popen(None)
    return [entry for entry in data["sys_path"] if isinstance(entry, str)], prepared


def _command(payload: int) -> list[str]:
    from multiprocessing import util

    flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing does
    return [interpreter.executable(), *flags, "-c", _BOOT, str(payload), "--multiprocessing-fork"]


def _frozen_command(tracker: int | None, begin: int) -> list[str]:
    """Return the command line for `multiprocessing.freeze_support`."""
    return [interpreter.executable(), "--multiprocessing-fork", f"tracker_fd={tracker}", f"pipe_handle={begin}"]


@dataclass(slots=True, kw_only=True)
class FunctionLauncher:
    """Launcher of one rank's function. `launch` runs on the loop and does not wait for the child."""

    local_rank: int
    method: StartMethod
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    how: LaunchSpec
    pickled: Pickled | None
    """Pickle of the call. None after the launch."""
    plain: Plain | None = None
    """Settings of a function whose return value is ignored; None if the host reads the value."""

    def launch(self) -> Launched:
        """Start the process.

        Raises:
            OSError: The process could not be started; none is left.
        """
        outcome, line = OutcomeFile(), self.how.line
        read_end: int | None = None
        process: Process | None = None
        status: ServerStatus | None = None
        try:
            read_end = line.read_end()
            if self.method == "spawn":
                process = self._spawn(outcome, read_end)
            else:
                status = self._ask_server(outcome, read_end)
        except BaseException:
            outcome.close()
            close(read_end)
            raise
        self.pickled = None
        return Launched(process=process, status=status, outcome=outcome, line=line, read_end=line.keep(read_end))

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

    def _spawn(self, outcome: OutcomeFile, read_end: int) -> Process:
        from multiprocessing import resource_tracker

        assert self.pickled is not None  # noqa: S101 - a launcher launches once
        users = self.pickled.fds
        payload = begin = None
        try:
            tracker = resource_tracker.getfd()
            if tracker is not None and tracker <= 2:  # the host's stdio is closed: the worker gets its own tracker
                tracker = None
            settings = self._settings(outcome, line=read_end, channel=outcome.fd, tracker=tracker, fds=users)
            payload = self.pickled.payload(settings)
            if not interpreter.is_frozen():
                command = _command(payload)
            else:
                arrival = bootstrap.Arrival(payload, execs=True)
                begin = file_of("supervise-arguments", self.pickled.beginning(arrival))
                command = _frozen_command(tracker, begin)
            fds = {fd for fd in (payload, begin, tracker, outcome.fd, *users) if fd is not None}
            return program.run_program(command, self.how, read_end, sorted(fds))
        finally:
            close(payload, begin)

    def _ask_server(self, outcome: OutcomeFile, read_end: int) -> ServerStatus:
        assert self.pickled is not None  # noqa: S101 - a launcher launches once
        payload = None
        out, err = self.how.streams.open()
        try:
            users = list(self.pickled.fds)
            settings = self._settings(
                outcome,
                line=len(users),
                channel=len(users) + 1,
                stdio=(None, len(users) + 2, len(users) + 3),
                env=dict(self.how.env),
                cwd=os.path.abspath(self.how.cwd or "."),
            )
            payload = self.pickled.payload(settings)
            fds = [*users, read_end, outcome.fd, 1 if out is None else out, 2 if err is None else err, payload]
            return request(fds, self.pickled.beginning(bootstrap.Arrival(len(fds) - 1, execs=False)))
        finally:
            close(out, err, payload)
