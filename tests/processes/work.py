"""What the workers of the fault tests run: at the top level of a module, so that it can be pickled."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

PREAMBLE = """
import os, signal, sys

def say(text):
    with open(os.environ["EAR"], "w") as ear:
        ear.write(f"{text}\\n")

def wait_for_word():
    with open(os.environ["GATE"]) as gate:
        return gate.readline().strip()

def die_of(number):
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    while True:
        signal.pause()

value = None
"""

BLOCK = "signal.pause()"
"""Source of a rank that does nothing until it is stopped."""
LOOK = "signal.sigtimedwait([], 0.05), signal.pthread_sigmask(signal.SIG_BLOCK, ())"
"""The second has handlers called for what came before the first: without it, Python 3.13 and later may never call them
in a process that was forked by another thread than the main one."""


def run_source(source: str) -> Any:
    """Run a rank whose fault is written as source."""
    names: dict[str, Any] = {}
    exec(PREAMBLE + source, names)
    return names["value"]


def say(text: str) -> None:
    """Tell the test a line."""
    with Path(os.environ["EAR"]).open("w") as ear:
        ear.write(f"{text}\n")


def double(number: int) -> int:
    return number * 2


def bytes_of(size: int) -> bytes:
    return bytes(size)


class Unpicklable:
    """Cannot travel."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("not by pickle")


def return_unpicklable() -> Unpicklable:
    return Unpicklable()


class Unspeakable(Exception):  # noqa: N818
    """An exception without a text."""

    def __str__(self) -> str:
        raise TypeError("not as text")

    __repr__ = __str__


class UnspeakableValue:
    """An object without a text; its pickle raises an exception without a text."""

    def __reduce__(self) -> NoReturn:
        raise Unspeakable

    def __str__(self) -> str:
        raise Unspeakable

    __repr__ = __str__


class ExitingValue:
    def __reduce__(self):
        raise SystemExit(0)


def return_what_exits():
    return ExitingValue()


def return_unspeakable() -> UnspeakableValue:
    return UnspeakableValue()


class UnpicklableError(Exception):
    """Cannot travel, nor print itself."""

    def __init__(self) -> None:
        super().__init__(Unpicklable())

    def __reduce__(self) -> NoReturn:
        raise TypeError("not by pickle")


def raise_unpicklable() -> NoReturn:
    raise UnpicklableError


def raise_deep(size: int) -> NoReturn:
    """Raise with a traceback of at least `size` characters."""
    raise ValueError("x" * size)


def raise_with_no_file_size():
    """Raise where this process may write to no regular file."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    raise ValueError("not written")


def change_root_folder(folder: str, value: object) -> object:
    """Return where no module can be imported any more."""
    os.chroot(folder)
    os.chdir("/")
    return value


def leave_no_descriptor(value: object) -> object:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    with suppress(OSError):
        while True:
            os.dup(0)
    return value


def return_a_connection() -> object:
    import multiprocessing

    return [multiprocessing.Pipe()[0]]


async def never(_: object) -> None:
    """Return a coroutine, which nothing runs."""


def return_more_than_a_file_may_hold() -> str:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    return "x" * (1 << 17)


def raise_text(text: str, times: int) -> NoReturn:
    """Raise an exception whose text is `text`, so many times."""
    raise ValueError(text * times)


class Endless:
    """Says when it is being written, and is never written to the end."""

    def __reduce__(self) -> NoReturn:
        import signal

        say("writing")
        while True:
            signal.pause()


def return_endless() -> tuple[bytes, Endless]:
    return bytes(1 << 20), Endless()


class Fragile:
    """Is written well, and cannot be read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _break, ()


def _break() -> NoReturn:
    raise LookupError("broken on arrival")


def return_fragile() -> Fragile:
    return Fragile()


class Speechless(Exception):  # noqa: N818 - a name that a message shows
    """Has no text."""

    def __str__(self) -> str:
        raise LookupError("no text")


class Mute:
    """Is written well; its reading raises an exception without a text."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _break_without_text, ()


def _break_without_text() -> NoReturn:
    raise Speechless


def return_speechless() -> Mute:
    return Mute()


def close_everything(first: int, path: str) -> str:
    """Close all descriptors from `first` on; if a path is given, open that file so often that ours has our number."""
    os.closerange(first, 4096)
    if path:
        for _ in range(300):
            os.open(path, os.O_RDWR | os.O_CREAT)
    return "a value"


def fork_and_return(code: int | None) -> int:
    """Return in a forked process; then exit with `code`, or return here as well."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        if code is not None:
            os._exit(code)
    return os.getpid()


class Weak:
    """A value that tells when it is gone."""

    def __init__(self, size: int) -> None:
        self.data = bytes(size)


def weakly(size: int) -> Weak:
    return Weak(size)


def weakly_at_second(size: int, path: str) -> Weak:
    """Raise at the first call."""
    if not Path(path).exists():
        Path(path).touch()
        raise ValueError("the first attempt")
    return Weak(size)
