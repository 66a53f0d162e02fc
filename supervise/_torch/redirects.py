"""Redirection of this process's stdout or stderr to a file, for Python, C and child processes."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from supervise._files import closing
from supervise._runtime.descriptors import clear_of_stdio
from supervise.recording import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager


IS_WINDOWS = sys.platform == "win32"
IS_MACOS = sys.platform == "darwin"

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
_NUMBERS = {"stdout": 1, "stderr": 2}


@contextlib.contextmanager
def redirect(std: str, to_file: str) -> Iterator[None]:
    """Redirect stdout or stderr to a file within the block.

    This replaces the file descriptor, so C libraries and child processes are redirected, too. Buffered text is flushed
    to the previous target. Blocks may be nested, on one thread only, since the descriptor belongs to the process.

    Args:
        std: ``"stdout"`` or ``"stderr"``.
        to_file: Path of the file, truncated if it exists, otherwise created with mode 0600. Its folder must exist.

    Raises:
        ValueError: `std` is not one of these names.
        OSError: The file cannot be opened (the stream is unchanged) or written to.
    """
    if std not in _NUMBERS:
        raise ValueError(f"unknown standard stream <{std}>, must be one of {set(_NUMBERS)}")
    stream: TextIO | None = getattr(sys, std)
    own = _own_number(stream)
    numbers = {_NUMBERS[std]} | ({own} if own is not None else set())
    with contextlib.ExitStack() as restored:
        with closing(clear_of_stdio(os.open(to_file, _FLAGS, 0o600))) as file:
            saved = {number: _save(number) for number in numbers}
            for number, copy in saved.items():
                restored.callback(_restore, number, copy)
                if copy is None:  # before ctypes is imported: libffi opens a file, which would get this number
                    os.dup2(file, number)
            _flush(std, stream)
            for number in numbers:
                os.dup2(file, number)
        replacement = None
        if own is None and stream is not None:  # no descriptor: a notebook, a test
            replacement = open(_NUMBERS[std], "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, std, replacement)
        try:
            yield
        finally:
            try:
                _flush(std, stream if replacement is None else replacement)
            finally:
                if replacement is not None and getattr(sys, std) is replacement:
                    setattr(sys, std, stream)


def redirect_stdout(to_file: str) -> AbstractContextManager[None]:
    """Redirect stdout to a file within the block; see `redirect`."""
    return redirect("stdout", to_file)


def redirect_stderr(to_file: str) -> AbstractContextManager[None]:
    """Redirect stderr to a file within the block; see `redirect`."""
    return redirect("stderr", to_file)


def get_std_cm(std_rd: str, redirect_fn: Callable[[str], AbstractContextManager[Any]]) -> AbstractContextManager[Any]:
    """Return ``redirect_fn(std_rd)``, or a context manager without effect if `std_rd` is empty.

    Args:
        std_rd: Path of the file, or ``""``.
        redirect_fn: `redirect_stdout` or `redirect_stderr`.
    """
    return redirect_fn(std_rd) if std_rd else contextlib.nullcontext()


def _own_number(stream: TextIO | None) -> int | None:
    """Return the descriptor that `stream` writes to; None if there is none."""
    try:
        return None if stream is None else stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None


def _save(number: int) -> int | None:
    """Return a duplicate of a descriptor, above the standard ones; None if it is closed."""
    import fcntl

    try:
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:
        return None


def _restore(number: int, copy: int | None) -> None:
    if copy is None:
        os.close(number)
    else:
        os.dup2(copy, number)
        os.close(copy)


def _flush(std: str, stream: TextIO | None) -> None:
    """Flush the buffers of Python and of C."""
    try:
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()  # first, so that C's text does not split a line that Python has written in part
    finally:
        libc = get_libc()
        if libc is not None:
            from ctypes import c_void_p

            libc.fflush(c_void_p.in_dll(libc, std))


def get_libc() -> Any:
    """Return the C library as a `ctypes` object; None if there is none."""
    try:
        import ctypes

        return ctypes.CDLL(None)
    except (ImportError, OSError, TypeError):
        return None


# PyTorch's `_wrap`, for callers that start the process of a function themselves. It runs in that process


def _wrap(  # noqa: PLR0917 - PyTorch's order
    local_rank: int,
    fn: Callable[..., Any],
    args: Mapping[int, Any],
    envs: Mapping[int, Mapping[str, Any]],
    stdout_redirects: Mapping[int, str],
    stderr_redirects: Mapping[int, str],
    ret_vals: Mapping[int, Any],
    queue_finished_reading_event: Any,
    numa_options: Any = None,
) -> None:
    """Call `fn` as a rank in this process, put its return value into the queue, and wait until the value was read.

    Args:
        local_rank: The key in all mappings.
        fn: The function to call.
        args: Local rank to arguments.
        envs: Local rank to variables added to this process's environment.
        stdout_redirects: Local rank to the path of stdout; ``""`` does not redirect it.
        stderr_redirects: Local rank to the path of stderr; ``""`` does not redirect it.
        ret_vals: Local rank to a queue for the return value.
        queue_finished_reading_event: Event to wait for at the end.
        numa_options: The CPUs to bind this process to (`NumaOptions`); None does not bind it.

    Raises:
        KeyError: A mapping lacks the rank; nothing was called.
        SpecError: This process cannot be bound; nothing was called.
    """
    given, env, channel = args[local_rank], envs[local_rank], ret_vals[local_rank]
    arguments = (given,) if isinstance(given, (str, bytes)) else tuple(given)
    stdout, stderr = stdout_redirects[local_rank], stderr_redirects[local_rank]
    os.environ.update({key: str(value) for key, value in env.items()})
    with get_std_cm(stdout, redirect_stdout), get_std_cm(stderr, redirect_stderr):
        if numa_options is not None:
            from supervise._process.launch import numa

            for cpus in numa.cpus_of_ranks([local_rank], numa_options).values():
                numa.bind_this_process(cpus)
        value = record(fn)(*arguments)
    channel.put(value)
    queue_finished_reading_event.wait()
