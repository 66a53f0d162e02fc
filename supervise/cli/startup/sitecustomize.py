"""Imported by Python at the start of a rank of ``supervise run``: records an uncaught exception at its moment.

The folder of this file is the first of the rank's ``PYTHONPATH``. Both are taken back before anything of the user's
runs, and the `sitecustomize` that Python would have imported without it is imported instead.
"""

import os
import sys

TYPE_CHECKING = False  # a rank is spared typing
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

_FOLDER = os.path.dirname(__file__)
_MARK = "SUPERVISE_RECORD"
"""Our variable: the pid of ``supervise run``, and whether there was a ``PYTHONPATH`` before (0 or 1)."""


def _take_back() -> bool:
    """Make environment and path what they are without us; return whether this process is the rank itself."""
    host, _, given = os.environ.pop(_MARK, "").partition(" ")
    paths = os.environ.get("PYTHONPATH", "")
    first, _, rest = paths.partition(os.pathsep)
    if first == _FOLDER:
        if given == "1":
            os.environ["PYTHONPATH"] = rest
        else:
            del os.environ["PYTHONPATH"]
    if _FOLDER in sys.path:
        sys.path.remove(_FOLDER)
    sys.path_importer_cache.pop(_FOLDER, None)
    return host == str(os.getppid())


def _watch() -> None:
    """Have the uncaught exception of this process's main thread recorded before it is shown."""
    import _thread

    shown_by, pid, main_thread = sys.excepthook, os.getpid(), _thread.get_ident()

    def hook(kind: type[BaseException], error: BaseException, trace: "TracebackType | None", /) -> None:
        import time

        now_ns = time.time_ns()
        try:
            here = os.getpid() == pid and _thread.get_ident() == main_thread
            if here and not issubclass(kind, KeyboardInterrupt) and _at_the_end():
                _record(error, now_ns)
        except OSError as failed:
            try:  # noqa: SIM105 - contextlib is one more import
                print(f"supervise: this exception could not be recorded: {failed}", file=sys.stderr)
            except Exception:  # noqa: S110 - stderr is on the same full disk, or closed
                pass
        except BaseException:  # noqa: S110 - nothing that is wrong with a record may hide the exception
            pass
        shown_by(kind, error, trace)

    # Also the second: `sys.excepthook is sys.__excepthook__` stays true, and hooks of the user's call it.
    sys.excepthook = sys.__excepthook__ = hook


def _at_the_end() -> bool:
    """Return whether the program runs no more: the hook may be called by anything that wants a traceback shown."""
    frame = sys._getframe()  # noqa: SLF001 - as traceback.walk_stack does
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name not in ("<module>", "_run_module_as_main")


def _record(error: BaseException, now_ns: int) -> None:
    """Record an exception. The rank may be unable to import our modules, and `sys.modules` stays as it is."""
    folders = "supervise._folders"  # `recording` imports it when it writes
    known = folders in sys.modules
    sys.modules[folders] = _module(folders)
    try:
        _module("supervise.recording").record_uncaught(error, now_ns)
    finally:
        if not known:
            del sys.modules[folders]


def _module(name: str) -> "Any":
    if name in sys.modules:
        return sys.modules[name]
    path = os.path.join(os.path.dirname(os.path.dirname(_FOLDER)), f"{name.removeprefix('supervise.')}.py")
    module = type(sys)(name)
    type(__loader__)(name, path).exec_module(module)  # type: ignore[name-defined]
    return module


if _take_back():
    _watch()
del sys.modules["sitecustomize"]
__import__("sitecustomize")  # where there is none, that is the ImportError that Python expects
