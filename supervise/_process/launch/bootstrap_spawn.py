"""The life of a spawned worker, for which multiprocessing is not imported: that takes a third of its start.

Whoever imports it there finds what it would in a child of its own: the process object, its parent, the key, the
resource tracker. So does logging, whose records name the process where multiprocessing is loaded.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading

from supervise._process.launch import bootstrap_call

try:
    import _pickle as pickle  # what `pickle` wraps, which imports `re`
except ImportError:  # another Python than CPython
    import pickle  # type: ignore[no-redef]

TYPE_CHECKING = False  # not typing's, as in `bootstrap`
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, BinaryIO

    from supervise._process.launch.multiprocessing import Worker
    from supervise._process.launch.settings import Settings

_old_main: list[ModuleType] = []
"""Kept, as multiprocessing keeps it: what it holds may still be needed."""


def live(settings: Settings, file: BinaryIO) -> int:
    """Prepare this interpreter as the host's was, call the function that `file` describes; return the exit code.

    What goes wrong before the call is recorded as if the function had raised it: the failure is to say why.
    """
    atexit.register(_exit_multiprocessing)  # before the user's exit functions, so that it is called after them
    try:
        with file:
            late = _Late(settings, pickle.load(file))
            late.await_import()
            _prepare(pickle.load(file))
            settings.call = pickle.load(file)
    except BaseException as error:  # also a main module that exits when it is imported
        if settings.plain is None:
            from supervise.recording import get_error_handler

            get_error_handler().record_exception(error)
        raise
    if late.has_arrived_before_the_call():
        return late.process().live()
    return _call(settings)


class _Late:
    """Finds multiprocessing when somebody imports it, and has it know where it is."""

    def __init__(self, settings: Settings, prepared: bytes) -> None:
        """Make it.

        Args:
            settings: What the host says about the worker.
            prepared: What multiprocessing is to know of the host, pickled.
        """
        self._settings = settings
        self._prepared = prepared
        self._awaited = {"multiprocessing": self._arrive, "logging": _import_multiprocessing}
        self._lock = threading.Lock()  # guards the next two: any thread may import
        self._arrived = False
        self._calling = False

    def await_import(self) -> None:
        """Find it from now on; or now, where something has imported it (or logging) at the interpreter's start."""
        if "multiprocessing" in sys.modules:
            self._arrive()
            return
        sys.meta_path.insert(0, self)
        if "logging" in sys.modules:
            _import_multiprocessing()

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module as everybody else would, and act as soon as it is there."""
        act = self._awaited.get(name)
        if act is None:
            return None
        finders = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        found = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                main = sys.modules.get("__mp_main__")
                execute(module)
                if main is not None:  # it is being imported, and multiprocessing has put another in its place
                    sys.modules["__mp_main__"] = main
                if module.__name__ == name and name in self._awaited:  # a frozen program has one loader for all
                    act()
                    self._awaited.pop(name, None)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _arrive(self) -> None:
        from multiprocessing import process, resource_tracker, spawn, util

        with self._lock:
            atexit.unregister(util._exit_function)  # type: ignore[attr-defined]  # noqa: SLF001 - `live` has done that
            if self._settings.tracker is not None:
                resource_tracker._resource_tracker._fd = self._settings.tracker  # type: ignore[attr-defined]  # noqa: SLF001 - as spawn_main does
            spawn.prepare(pickle.loads(self._prepared))
            if not self._calling:
                current: Any = process.current_process()
                current._inheriting = True  # noqa: SLF001 - as in multiprocessing's own children while they unpickle
            else:
                self.process().stand_in()
            self._arrived = True
        self._awaited.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def has_arrived_before_the_call(self) -> bool:
        """Whether multiprocessing is imported. If it is imported from now on, the function is being called."""
        with self._lock:
            self._calling = True
            return self._arrived

    def process(self) -> Worker:
        """Return multiprocessing's process object for this worker. Nothing more is unpickled."""
        from multiprocessing import process

        from supervise._process.launch.multiprocessing import Worker

        vars(process.current_process()).pop("_inheriting", None)
        return Worker(self._settings)


def _import_multiprocessing() -> None:
    import multiprocessing  # noqa: F401


def _exit_multiprocessing() -> None:
    """Finalize what multiprocessing has made, and join its children. Again is harmless."""
    util = sys.modules.get("multiprocessing.util")
    leave = getattr(util, "_exit_function", None)  # another thread may be importing it just now
    if leave is not None:
        leave()


def _prepare(data: dict[str, Any]) -> None:
    """Set what of the host's is known to every function, and import its main module. As multiprocessing's `prepare`."""
    sys.path = data["sys_path"]
    sys.argv = data["sys_argv"]
    name, path = data.get("init_main_from_name"), data.get("init_main_from_path")
    if name is not None:
        if name != "__main__" and not name.endswith(".__main__"):
            _import_main(lambda runpy: runpy.run_module(name, run_name="__mp_main__", alter_sys=True))
    elif path is not None and os.path.splitext(os.path.basename(path))[0] != "ipython":
        _import_main(lambda runpy: runpy.run_path(path, run_name="__mp_main__"))


def _import_main(run: Callable[[Any], dict[str, Any]]) -> None:
    import runpy

    _old_main.append(sys.modules["__main__"])
    main = type(sys)("__mp_main__")
    main.__dict__.update(run(runpy))
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main


def _call(settings: Settings) -> int:
    """Call the function, then what is to be called at a worker's end; return the exit code. As `_bootstrap` there."""
    code = 0
    try:
        _close_stdin()
        try:
            bootstrap_call.call(settings)
        finally:
            if sys.version_info < (3, 13):  # from then on it is an exit function only
                _exit_multiprocessing()
    except SystemExit as leaving:
        if isinstance(leaving.code, int):
            code = leaving.code
        elif leaving.code is not None:
            sys.stderr.write(f"{leaving.code}\n")
            code = 1
    except BaseException:
        import traceback

        code = 1
        sys.stderr.write(f"Process {bootstrap_call.name_of(settings)}:\n")
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
        _flush()
    return code & 0xFF


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, ValueError):  # there is none, or it is closed
            continue


def _close_stdin() -> None:
    """A function has an empty stdin, as in multiprocessing."""
    if sys.stdin is None:
        return
    try:  # noqa: SIM105 - contextlib would be one more import
        sys.stdin.close()
    except (OSError, ValueError):  # it may be the main module's own
        pass
    try:
        sys.stdin = open(os.open(os.devnull, os.O_RDONLY), encoding="utf-8", closefd=False)  # noqa: SIM115
    except (OSError, ValueError):
        return
