"""Multiprocessing's process object in a worker, so that multiprocessing works as in a child of its own."""

from __future__ import annotations

import itertools
from multiprocessing import context, process

from supervise._process.launch import bootstrap_call

TYPE_CHECKING = False  # without an import of typing, as in `bootstrap`
if TYPE_CHECKING:
    from typing import Any

    from supervise._process.launch.settings import Settings


class Worker(process.BaseProcess):
    """Multiprocessing's process object for this worker."""

    def __init__(self, settings: Settings) -> None:
        """Make the object in the worker, from the settings of the host."""
        plain, (fn, args) = settings.plain, settings.call
        daemon = None if plain is None else plain.daemon
        super().__init__(target=fn, name=bootstrap_call.name_of(settings), args=args, daemon=daemon)
        number = str(settings.local_rank + 1) if plain is None else self.name.rpartition("-")[2]
        self._identity = tuple(map(int, number.split(":")))  # the base class has counted the processes of this one
        self._settings = settings
        self._start_method = settings.method
        self._parent_pid = settings.host_pid
        self._parent_name = "MainProcess"

    def live(self) -> int:
        """Call the function, then multiprocessing's exit functions; return the exit code."""
        return self._bootstrap()

    def _bootstrap(self, parent_sentinel: Any = None) -> int:  # noqa: ARG002 - the lifeline replaces it
        """Do the same as `live`, for the fork server."""
        code: int = super()._bootstrap(self._settings.line)  # type: ignore[misc]
        return bootstrap_call.exit_code(code)  # because os._exit refuses a number beyond a C int

    def run(self) -> None:
        """Call the user's function. `BaseProcess._bootstrap` calls this method."""
        bootstrap_call.call(self._settings)

    def stand_in(self) -> None:
        """Become multiprocessing's current process after the function has imported multiprocessing.

        The steps are those at the start of `BaseProcess._bootstrap`, without the close of stdin, which is done already,
        and without the hooks after a fork.
        """
        multiprocessing: Any = process
        context._force_start_method(self._start_method)  # noqa: SLF001
        multiprocessing._process_counter = itertools.count(1)  # noqa: SLF001
        multiprocessing._children = set()  # noqa: SLF001
        multiprocessing._current_process = self  # noqa: SLF001
        multiprocessing._parent_process = multiprocessing._ParentProcess(  # noqa: SLF001
            self._parent_name, self._parent_pid, self._settings.line
        )
