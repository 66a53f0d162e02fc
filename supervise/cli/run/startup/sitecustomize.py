"""A `sitecustomize` for ranks of ``supervise run``: it records an uncaught exception at the time of the exception.

``PYTHONPATH`` of the rank begins with the folder of this file, so Python imports it at its start. Before any user code
runs, this module restores ``PYTHONPATH`` and `sys.path`, and imports the user's own `sitecustomize`, if there is one.
"""

import os
import sys

TYPE_CHECKING = False  # instead of importing typing into every rank
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

_FOLDER = os.path.dirname(__file__)
_MARK = "SUPERVISE_RECORD"
"""A variable with two values: the pid of ``supervise run``, and 1 if ``PYTHONPATH`` was set before, otherwise 0."""


def _take_back() -> bool:
    """Restore the environment and `sys.path`; return whether this process is the rank itself."""
    host, _, given = os.environ.pop(_MARK, "").partition(" ")
    first, _, rest = os.environ.get("PYTHONPATH", "").partition(os.pathsep)
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
    """Install an exception hook. It records an uncaught exception of the main thread before Python prints it."""
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
            try:  # noqa: SIM105 - no import of contextlib
                print(f"supervise: this exception could not be recorded: {failed}", file=sys.stderr)
            except Exception:  # noqa: S110 - stderr is closed, or on the same full disk
                pass
        except BaseException:  # noqa: S110 - an error of the record must not hide the exception
            pass
        shown_by(kind, error, trace)

    # Set both: `sys.excepthook is sys.__excepthook__` stays true, and hooks of user code call the second.
    sys.excepthook = sys.__excepthook__ = hook


def _at_the_end() -> bool:
    """Return whether the interpreter called the hook at its end. User code may call the hook to print a traceback."""
    frame = sys._getframe()  # noqa: SLF001 - as traceback.walk_stack does
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name not in ("<module>", "_run_module_as_main")


def _record(error: BaseException, now_ns: int) -> None:
    """Record an exception. Load modules by path, because the rank may not find supervise; restore `sys.modules`."""
    folders = "supervise._files"  # `recording` imports it to write
    known = folders in sys.modules
    recording = _module("supervise.recording")
    with recording._StandardLibrary():  # noqa: SLF001 - only for the code of supervise
        sys.modules[folders] = _module(folders)
    try:
        recording.record_uncaught(error, now_ns)
    finally:
        if not known:
            del sys.modules[folders]


def _module(name: str) -> "Any":
    if name in sys.modules:
        return sys.modules[name]
    path = os.path.join(
        os.path.dirname(os.path.dirname(os.path.dirname(_FOLDER))), f"{name.removeprefix('supervise.')}.py"
    )
    module = type(sys)(name)
    type(__loader__)(name, path).exec_module(module)  # type: ignore[name-defined]
    return module


if _take_back():
    _watch()
del sys.modules["sitecustomize"]
__import__("sitecustomize")  # if the user has none, this raises the ImportError that Python expects
