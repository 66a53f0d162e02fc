"""Choice of the executable that runs a function, and check that it can be started as a new interpreter.

An ordinary Python is started with ``-c``. A frozen program (PyInstaller, cx_Freeze) does not accept ``-c``: its new
process runs the main module of the program, and becomes the worker when that module calls
`multiprocessing.freeze_support`. So supervise starts a frozen program with multiprocessing's command line.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from types import CodeType
from typing import TYPE_CHECKING

from supervise.errors import SpecError

if TYPE_CHECKING:
    from types import FrameType

_PYTHON = re.compile("py", re.IGNORECASE)
"""Part of the file name of every Python, such as python3.13, pypy3, graalpy, .python3-wrapped."""
_HELPERS = ("from multiprocessing.", "import sys; from multiprocessing.")
"""Beginning of the code with which multiprocessing starts its resource tracker and fork server."""
_FREEZE = "freeze_support"


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
    program = executable()
    if not program:
        msg = f"start_method {start_method!r} needs a Python to start, and sys.executable is empty; {_ways()}"
        raise SpecError(msg)
    real = os.path.realpath(program)
    if not _PYTHON.search(os.path.basename(real)) and real == os.path.realpath("/proc/self/exe"):
        msg = (
            f"start_method {start_method!r} needs a Python to start, and sys.executable is this program, {program},"
            f" in which Python is embedded; {_ways()}"
        )
        raise SpecError(msg)


def _ways() -> str:
    return "give one to multiprocessing.set_executable(), or use start_method='fork'"


def _check_frozen(start_method: str | None) -> None:
    first = "call multiprocessing.freeze_support() first in the main module"
    if "--multiprocessing-fork" in sys.argv[1:2] or any(arg.startswith(_HELPERS) for arg in sys.argv):
        msg = f"multiprocessing has started this frozen program for a worker, and its main module runs instead; {first}"
        raise SpecError(msg)
    frames = sys._current_frames()  # noqa: SLF001 - Python documents it
    if start_method is not None and not _freezes(frames.get(threading.main_thread().ident or 0)):
        again = f"start_method {start_method!r} would run the main module of this frozen program again"
        msg = f"{again}; {first}, or use start_method='fork'"
        raise SpecError(msg)


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
