"""The rank's side of an error file: it writes an uncaught exception where the launcher reads it.

The process of every spawned function imports this module. So until an exception occurs, this module imports only `os`
and built-in modules.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # no stub: it is what `signal` wraps
import errno
import faulthandler
import os
import sys

TYPE_CHECKING = False  # instead of importing typing into every worker
if TYPE_CHECKING:
    from collections.abc import Callable
    from logging import Logger
    from typing import Any, ParamSpec, TypeGuard, TypeVar

    from supervise.errors import ChildFailedError

    _P = ParamSpec("_P")
    _R = TypeVar("_R")

__all__ = ["ErrorHandler", "get_error_handler", "record"]

_NOT_AVAILABLE = "<N/A>"
_NS_PER_S = 1_000_000_000
_LARGEST_RECORD = (4 << 20) - 4096
"""Bytes; `result.MOST_BYTES` are read."""
_MOST_FRAMES = 50
_HOMES_OF_CHILD_FAILED = ("supervise.errors", "torch.distributed.elastic.multiprocessing.errors")
_KEPT = _LARGEST_RECORD // 2 // 12
"""Number of characters that fit into half a record, even if JSON needs twelve bytes for each."""


class ErrorHandler:
    """A writer of exceptions, as JSON, to the file that ``TORCHELASTIC_ERROR_FILE`` names, if that variable is set.

    Subclasses may override `initialize` and `record_exception`.
    """

    def _get_error_file_path(self) -> str | None:
        """Return the path of this process's error file; None if there is none."""
        return os.environ.get("TORCHELASTIC_ERROR_FILE")

    def initialize(self) -> None:
        """Enable `faulthandler` for all threads; warn if that fails."""
        try:
            faulthandler.enable(all_threads=True)
        except Exception as e:  # without diagnostics, the rank can still run
            _warn(f"Unable to enable fault handler. {type(e).__name__}: {e}")

    def record_exception(self, e: BaseException) -> None:
        """Write `e` with its traceback to the error file in one step; warn if that fails.

        If the disk is full or the file size limit is reached, an empty file with the sticky bit keeps the time of the
        exception.

        The file's modification time is the time of this call in nanoseconds, which gives failures an order.

        Args:
            e: Any exception, even if its text cannot be computed.
        """
        import time

        self._moment_ns = time.time_ns()
        path = self._get_error_file_path()
        if path:
            with StopLater():
                try:
                    text = _record_of(e, self._moment_ns)
                except Exception:  # an import: the rank has no descriptor, or has changed its user or its root folder
                    text = bare_record_of(e, self._moment_ns, text_of(e))
                self._write_error_file(path, text)

    _moment_ns: int | None = None
    """The modification time to set on the next file; None leaves the time of the write."""
    _written = False
    """Whether a record was written."""

    def _write_error_file(self, file_path: str, error_msg: str) -> None:
        """Write `error_msg` to the file; warn if that fails."""
        try:
            write_file(file_path, error_msg.encode("utf-8", "backslashreplace"), self._moment_ns)
            self._written = True
        except Exception as e:  # must not hide the recorded exception
            self._could_not_write(e, error_msg)

    def _could_not_write(self, error: Exception, _text: str) -> None:
        _warn(f"Unable to write error to file. {type(error).__name__}: {error}")

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Copy the error file of a child to this process's error file, with its time and with `error_code` added.

        Args:
            rootcause_error_file: The child's file.
            error_code: The child's exit code, which the child's record cannot contain; 0 adds nothing.

        Raises:
            OSError: The child's file cannot be read.
            ValueError: The child's file is not JSON. In both cases this process's own file is unchanged.
        """
        import json

        from supervise._files import read_regular
        from supervise.result import MOST_BYTES, load_record

        content, time_ns = read_regular(rootcause_error_file, MOST_BYTES)
        rootcause_error = load_record(content)
        if error_code:
            self.override_error_code_in_rootcause_data(rootcause_error_file, rootcause_error, error_code)
        text = json.dumps(rootcause_error)

        log = _logger()
        log.debug("child error file (%s) contents:\n%s", rootcause_error_file, text)
        path = self._get_error_file_path()
        if not path:
            log.error("no error file defined for parent, to copy child error file (%s)", rootcause_error_file)
            return
        self._rm(path)
        self._moment_ns = time_ns
        self._write_error_file(path, text)
        log.info("dumped error file to parent's %s", path)

    def override_error_code_in_rootcause_data(
        self, rootcause_error_file: str, rootcause_error: dict[str, Any], error_code: int = 0
    ) -> None:
        """Set ``errorCode`` in a child's record; log a warning if the record has another form.

        Args:
            rootcause_error_file: Path of the record, for the log.
            rootcause_error: The record, changed in place.
            error_code: The child's exit code.
        """
        if not isinstance(rootcause_error, dict) or "message" not in rootcause_error:
            _logger().warning(
                "child error file (%s) does not have field `message`. \ncannot override error code: %s",
                rootcause_error_file,
                error_code,
            )
        elif not isinstance(rootcause_error["message"], dict):
            _logger().warning(
                "child error file (%s) has a new message format. \nskipping error code override",
                rootcause_error_file,
            )
        else:
            rootcause_error["message"]["errorCode"] = error_code

    def _rm(self, my_error_file: str) -> None:
        """Remove an existing error file after logging its content."""
        if not os.path.isfile(my_error_file):
            return
        import json

        from supervise._files import read_regular
        from supervise.result import MOST_BYTES, load_record

        try:
            content, _ = read_regular(my_error_file, MOST_BYTES)
            original = json.dumps(load_record(content), indent=2)
        except (OSError, ValueError):
            _logger().warning(
                "%s already exists and will be overwritten. Unable to load original contents:\n", my_error_file
            )
        else:
            _logger().warning(
                "%s already exists and will be overwritten. Original contents:\n%s", my_error_file, original
            )
        os.remove(my_error_file)


class StopLater:
    """A context at whose end SIGTERM ends the process, unless the program handles SIGTERM.

    Several ranks often fail together. supervise then stops the others because of the first, while they still write why
    they have failed.
    """

    def __enter__(self) -> None:
        self._came = self._waits = False
        try:
            if _signal.getsignal(_signal.SIGTERM) == _signal.SIG_DFL:
                _signal.signal(_signal.SIGTERM, self._note)
                self._waits = True
        except ValueError:  # not the main thread
            return

    def _note(self, *_: object) -> None:
        self._came = True

    def __exit__(self, *_: object) -> None:
        if self._waits:
            _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
        if self._came:
            os.kill(os.getpid(), _signal.SIGTERM)


def get_error_handler() -> ErrorHandler:
    """Return a new `ErrorHandler`, as `record` uses by default."""
    return ErrorHandler()


def record(fn: Callable[_P, _R], error_handler: ErrorHandler | None = None) -> Callable[_P, _R | None]:
    """Wrap `fn` so that an exception that leaves it is written to the error file.

    Use it once per process, on the main function, which may be an ``async def``. ``SystemExit(0)`` becomes a return of
    None; other exits, and exceptions that are not an `Exception`, pass without a record, and so do exceptions in
    processes that `fn` forks. For a `ChildFailedError`, also that of PyTorch, the error file of its first failure is
    copied to this process's error file.

    Args:
        fn: The main function.
        error_handler: Writes the file; None is the result of `get_error_handler`.
    """
    import functools  # lazy: not built in

    handler = error_handler or get_error_handler()

    @functools.wraps(fn)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        with _Recording(handler):
            return fn(*args, **kwargs)
        return None

    @functools.wraps(fn)
    async def asynchronous(*args: _P.args, **kwargs: _P.kwargs) -> Any:
        with _Recording(handler):
            return await fn(*args, **kwargs)  # type: ignore[misc]

    code = getattr(fn, "__code__", None)
    is_asynchronous = code is not None and code.co_flags & _CO_COROUTINE  # `inspect` would take long to import
    return asynchronous if is_asynchronous else wrapper  # type: ignore[return-value]


_CO_COROUTINE = 0x80


class _Recording:
    """The context of a main function: records the exception that leaves it, and ends ``SystemExit(0)``."""

    def __init__(self, handler: ErrorHandler) -> None:
        self._handler = handler
        self._pid = os.getpid()

    def __enter__(self) -> None:
        self._handler.initialize()

    def __exit__(self, _kind: object, e: BaseException | None, _traceback: object) -> bool:
        if isinstance(e, Exception) and os.getpid() == self._pid:  # otherwise the function has forked: not its file
            _record(self._handler, e)
        return isinstance(e, SystemExit) and e.code == 0


def _record(handler: ErrorHandler, e: Exception) -> None:
    """Pass `e` to the handler; for a `ChildFailedError`, pass the error file of the first child that failed."""
    if not _is_child_failed(e):
        handler.record_exception(e)
        return
    rank, failure = e.get_first_failure()
    if failure.error_file == _NOT_AVAILABLE:
        _logger().info(
            "local_rank %s FAILED with no error file. Decorate your entrypoint fn with @record for traceback info."
            " See: https://pytorch.org/docs/stable/elastic/errors.html",
            rank,
        )
        return
    try:
        handler.dump_error_file(failure.error_file, failure.exitcode)
    except (OSError, ValueError):  # the child's file is truncated or gone: record the parent's exception
        handler.record_exception(e)


def _is_child_failed(e: Any) -> TypeGuard[ChildFailedError]:
    """Return whether `e` is a `ChildFailedError` of supervise, or of PyTorch, whose class `agent.launch` raises."""
    homes = (sys.modules.get(name) for name in _HOMES_OF_CHILD_FAILED)
    return any(isinstance(e, getattr(home, "ChildFailedError", ())) for home in homes)


def record_uncaught(e: BaseException, now_ns: int) -> None:
    """Write the uncaught exception `e` to the error file, unless the file already has a record.

    The first write has file, line and function of each frame only, because formatting a traceback imports modules.
    Meanwhile another rank may fail, and supervise may stop this rank before the imports are done. The second write has
    the whole traceback.

    Args:
        e: Any exception.
        now_ns: Time of the exception, in nanoseconds since the epoch.

    Raises:
        OSError: The file cannot be written.
    """
    handler = get_error_handler()
    path = handler._get_error_file_path()  # noqa: SLF001 - a class of this module
    if not path or (os.path.isfile(path) and os.path.getsize(path)):
        return
    if _is_child_failed(e) and e.get_first_failure()[1].error_file != _NOT_AVAILABLE:
        _record(handler, e)
        return
    with StopLater():
        write_file(path, bare_record_of(e, now_ns, text_of(e)).encode(), now_ns)
        write_file(path, _record_of(e, now_ns).encode(), now_ns)


def first_record_of(e: BaseException, now_ns: int) -> str:
    """Return the same record as `bare_record_of`, but without the text of `e` if code of the user computes it.

    That code may take long.
    """
    is_plain = type(type(e).__str__) is type(BaseException.__str__) and all(type(arg) in _PLAIN for arg in e.args)
    return bare_record_of(e, now_ns, text_of(e) if is_plain else "")


_PLAIN = (str, int, float, bytes, type(None))


def bare_record_of(e: BaseException, now_ns: int, text: str) -> str:
    """Return the record of `e` without source lines and without the chain of exceptions. It needs no import.

    Args:
        e: Any exception.
        now_ns: Time of the exception, in nanoseconds since the epoch.
        text: The text of `e`.
    """
    message = _shortened(f"{type(e).__name__}: {text}" if text else type(e).__name__)
    extra = f'{{"py_callstack": "{_in_json(_frames_of(e) + message)}", "timestamp": "{now_ns // _NS_PER_S}"}}'
    return f'{{"message": {{"message": "{_in_json(message)}", "extraInfo": {extra}}}}}'


def _in_json(text: str) -> str:
    """Return the content of a JSON string, without the module `json` and without a codec, which may be an import."""
    codes = [ord(char) for char in text]
    return "".join(
        f"\\u{code:04x}" if code < 0x10000 else f"\\u{0xD7C0 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
        for code in codes
    )


def _frames_of(e: BaseException) -> str:
    """Return the frames of a traceback as Python prints them, but without source lines; of many, the last."""
    rows: list[str] = []
    trace = e.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        rows = [*rows[-_MOST_FRAMES:], f'  File "{code.co_filename}", line {trace.tb_lineno}, in {code.co_name}\n']
        trace = trace.tb_next
    return "Traceback (most recent call last):\n" + "".join(rows)


def _record_of(e: BaseException, now_ns: int) -> str:
    """Return the record of `e` in PyTorch's format."""
    with _StandardLibrary():
        import json

    message, traceback = f"{type(e).__name__}: {text_of(e)}", traceback_of(e)
    extra = {"py_callstack": traceback, "timestamp": str(now_ns // _NS_PER_S)}
    record = json.dumps({"message": {"message": message, "extraInfo": extra}})
    if len(record) > _LARGEST_RECORD:
        extra["py_callstack"] = _shortened(traceback)
        record = json.dumps({"message": {"message": _shortened(message), "extraInfo": extra}})
    return record


def _shortened(text: str) -> str:
    """Return the beginning and the end of a long text."""
    if len(text) <= _KEPT:
        return text
    half = _KEPT // 2 - 50  # room for the line between them
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def write_file(path: str, content: bytes, time_ns: int | None) -> None:
    """Write a private file to `path` in one step; write into an existing device or pipe.

    A symbolic link to a file is replaced, since it may be planted. A link of another user on the path is an error.
    """
    from supervise._files import closing, open_folder

    folder, name = os.path.split(path)
    with closing(open_folder(folder)) as at:
        if _is_stream(path, name, at):
            _overwrite(path, content, None)
        else:
            _replace(name, content, time_ns, at)


def _replace(name: str, content: bytes, time_ns: int | None, at: int) -> None:
    temporary = f".error.{os.getpid()}.{os.urandom(8).hex()}"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=at)
    except OSError as failed:  # a writable file in a read-only folder: overwrite it in place
        try:
            _overwrite(name, content, time_ns, at)
        except FileNotFoundError:
            raise failed from None
        return
    try:
        _fill(fd, content, time_ns)
        os.replace(temporary, name, src_dir_fd=at, dst_dir_fd=at)
    except BaseException as failed:
        os.unlink(temporary, dir_fd=at)
        if isinstance(failed, OSError) and failed.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            _mark(name, time_ns, at)
        raise


def _mark(name: str, time_ns: int | None, at: int) -> None:
    """Create the empty file that `_files.is_mark` recognizes; keep an existing file."""
    import stat

    try:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 | stat.S_ISVTX, dir_fd=at)
    except OSError:
        return
    _fill(fd, b"", time_ns)


def _is_stream(path: str, name: str, at: int) -> bool:
    """Return whether `path` is a character device or a named pipe, directly or by a link of this user."""
    import stat

    from supervise._files import is_own

    try:
        found = os.lstat(name, dir_fd=at)
        if stat.S_ISLNK(found.st_mode) and is_own(found.st_uid):
            found = os.stat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISCHR(found.st_mode) or stat.S_ISFIFO(found.st_mode)


def _overwrite(path: str, content: bytes, time_ns: int | None, at: int | None = None) -> None:
    """Write into an existing file; refuse a symbolic link if `at` is given. A pipe without a reader is an error."""
    flags = os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    fd = os.open(path, flags if at is None else flags | os.O_NOFOLLOW, dir_fd=at)
    os.set_blocking(fd, True)
    _fill(fd, content, time_ns)


def _fill(fd: int, content: bytes, time_ns: int | None) -> None:
    """Write `content`, set the modification time if one is given, and close the file."""
    with open(fd, "wb", buffering=0) as file:
        while content:
            content = content[file.write(content) :]
        if time_ns is not None:
            os.utime(fd, ns=(time_ns, time_ns))


def text_of(value: object) -> str:
    """Return ``str(value)``, or a substitute if that raises."""
    try:
        return str(value)
    except BaseException:  # user code may raise anything
        return "<exception str() failed>"


def repr_of(value: object) -> str:
    """Return ``repr(value)``, or a substitute if that raises."""
    try:
        return repr(value)
    except BaseException:  # user code may raise anything
        return f"<{type(value).__name__}: repr() failed>"


def traceback_of(e: BaseException) -> str:
    """Return the traceback of `e` as Python prints it; never raise."""
    with _StandardLibrary():
        # The module traceback imports ast, tokenize and unicodedata only while it formats
        import ast  # noqa: F401
        import tokenize  # noqa: F401
        import traceback
        import unicodedata  # noqa: F401
        import warnings

    with warnings.catch_warnings():
        # Python 3.15 warns of a main module without a loader, as multiprocessing creates it; warnings may be errors
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return "".join(traceback.format_exception(e))
        except BaseException as failed:  # user code may raise anything
            frames = traceback.format_list(traceback.extract_tb(e.__traceback__))
            note = f"(the rest could not be printed: {type(failed).__name__})\n"
            return "".join(
                ["Traceback (most recent call last):\n", *frames, f"{type(e).__name__}: {text_of(e)}\n", note]
            )


class _StandardLibrary:
    """A context whose imports find modules of the standard library, even if files of user code have their names.

    The folder of a script is first in `sys.path`, so a file ``traceback.py`` beside the script hides the module.
    """

    def __enter__(self) -> None:
        self._path = sys.path
        self._hidden: dict[str, Any] = {}
        folder = os.path.dirname(getattr(os, "__file__", None) or "")
        if folder not in self._path:  # a frozen program
            return
        own = (folder, os.path.join(folder, "lib-dynload"))
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            foreign = isinstance(file, str) and not file.startswith((f"{folder}{os.sep}", own[1]))
            if foreign and name.partition(".")[0] in sys.stdlib_module_names:
                self._hidden[name] = sys.modules.pop(name)
        sys.path = [each for each in self._path if each in own]

    def __exit__(self, *_: object) -> None:
        sys.path = self._path
        sys.modules.update(self._hidden)


def _warn(text: str) -> None:
    """Issue a warning at the line that called the handler, if that is possible.

    The warning may be an error, and stderr may be closed.
    """
    import warnings

    try:
        warnings.warn(text, stacklevel=3)
    except Exception:
        return


def _logger() -> Logger:
    """Return this module's logger."""
    import logging

    return logging.getLogger(__name__)
