"""Bootstrap of a spawned worker without multiprocessing, whose import would take a third of the worker's start.

If user code imports multiprocessing, it finds the same objects as in a child of multiprocessing: process object,
parent, key, resource tracker. An import of logging loads multiprocessing, too, because the records of logging then name
the process.
"""

from __future__ import annotations

import _pickle as pickle  # the core of `pickle`, which itself imports `re`
import atexit
import os
import sys
import threading

from supervise._process.launch import bootstrap_call

TYPE_CHECKING = False  # without an import of typing, as in `bootstrap`
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, BinaryIO

    from supervise._process.launch.multiprocessing import Worker
    from supervise._process.launch.settings import Settings

_old_main: list[ModuleType] = []
"""The original main module. A reference is kept, as in multiprocessing, because other objects may use its contents."""


def live(settings: Settings, file: BinaryIO) -> int:
    """Apply the host's preparation data, and call the function that `file` describes; return the exit code.

    An exception before the call is recorded like an exception of the function, so that the failure shows the cause.
    """
    atexit.register(_exit_multiprocessing)  # called last: user code registers its exit functions later
    try:
        with file:
            late = _Late(settings, pickle.load(file))
            late.await_import()
            _prepare(pickle.load(file))
            settings.call = bootstrap_call.load(file)
    except BaseException as error:  # also a main module that exits when it is imported
        if bootstrap_call.told(settings, error):
            return 1
        raise
    if late.has_arrived_before_the_call():
        return late.process().live()
    return _call(settings)


class _Late:
    """Import hook that sets up multiprocessing when it is imported."""

    def __init__(self, settings: Settings, prepared: bytes) -> None:
        """Make the hook.

        Args:
            settings: Settings of the worker.
            prepared: The pickle of the host's preparation data for multiprocessing.
        """
        self._settings = settings
        self._prepared = prepared
        self._awaited = {"multiprocessing": self._arrive, "logging": _import_multiprocessing}
        self._lock = threading.Lock()  # guards the next two attributes, because any thread may import
        self._arrived = False
        self._calling = False

    def await_import(self) -> None:
        """Install the hook.

        If the interpreter has imported multiprocessing or logging at its start, set up multiprocessing at once.
        """
        if "multiprocessing" in sys.modules:
            self._arrive()
            return
        sys.meta_path.insert(0, self)
        if "logging" in sys.modules:
            _import_multiprocessing()

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module by the other finders.

        After the import of multiprocessing or logging, set up multiprocessing.
        """
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
                if main is not None:  # multiprocessing has replaced `__mp_main__`, which is still being imported
                    sys.modules["__mp_main__"] = main
                if module.__name__ == name and name in self._awaited:  # a frozen program has one loader for all modules
                    act()
                    self._awaited.pop(name, None)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _arrive(self) -> None:
        from multiprocessing import process, resource_tracker, spawn, util

        with self._lock:
            atexit.unregister(util._exit_function)  # type: ignore[attr-defined]  # noqa: SLF001 - `live` has registered its own
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
        """Return whether multiprocessing is imported. From this call on, an import counts as one by the function."""
        with self._lock:
            self._calling = True
            return self._arrived

    def process(self) -> Worker:
        """Return multiprocessing's process object for this worker. Call this only after all arguments are unpickled."""
        from multiprocessing import process

        from supervise._process.launch.multiprocessing import Worker

        vars(process.current_process()).pop("_inheriting", None)
        return Worker(self._settings)


def _import_multiprocessing() -> None:
    import multiprocessing  # noqa: F401


def _exit_multiprocessing() -> None:
    """Run the finalizers of multiprocessing and join its children. Idempotent."""
    util = sys.modules.get("multiprocessing.util")
    leave = getattr(util, "_exit_function", None)  # missing while another thread is importing the module
    if leave is not None:
        leave()


def _prepare(data: dict[str, Any]) -> None:
    """Set the host's `sys.path` and `sys.argv`, and import its main module, like `multiprocessing.spawn.prepare`."""
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
    """Call the function, then do the exit steps of `BaseProcess._bootstrap`; return the exit code."""
    code = 0
    try:
        _close_stdin()
        try:
            bootstrap_call.call(settings)
        finally:
            if sys.version_info < (3, 13):  # from 3.13 on, only `atexit` calls it
                _exit_multiprocessing()
    except SystemExit as leaving:
        if isinstance(leaving.code, int):
            code = leaving.code
        elif leaving.code is not None:
            from supervise.recording import text_of

            sys.stderr.write(f"{text_of(leaving.code)}\n")
            code = 1
    except BaseException:
        import traceback

        code = 1
        sys.stderr.write(f"Process {bootstrap_call.name_of(settings)}:\n")
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
        _flush()
    return bootstrap_call.exit_code(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, ValueError):  # the stream is None or closed
            continue


def _close_stdin() -> None:
    """Replace stdin by the null device, as multiprocessing does."""
    if sys.stdin is None:
        return
    try:  # noqa: SIM105 - contextlib would be one more import
        sys.stdin.close()
    except (OSError, ValueError):  # the main module may have put an object there that cannot be closed
        pass
    try:
        sys.stdin = open(os.open(os.devnull, os.O_RDONLY), encoding="utf-8", closefd=False)  # noqa: SIM115
    except (OSError, ValueError):
        return
