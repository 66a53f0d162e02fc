"""What multiprocessing in a worker takes for the worker's process, so that its functions work as in a child of it."""

from __future__ import annotations

import itertools
from multiprocessing import context, process

from supervise._process.launch import bootstrap_call

TYPE_CHECKING = False  # not typing's, as in `bootstrap`
if TYPE_CHECKING:
    from typing import Any

    from supervise._process.launch.settings import Settings


class Worker(process.BaseProcess):
    """Multiprocessing's process object for this worker."""

    def __init__(self, settings: Settings) -> None:
        """Make it, in the worker itself, from what the host says about it."""
        plain, (fn, args) = settings.plain, settings.call
        daemon = None if plain is None else plain.daemon
        super().__init__(target=fn, name=bootstrap_call.name_of(settings), args=args, daemon=daemon)
        self._settings = settings
        self._start_method = settings.method
        self._parent_pid = settings.host_pid
        self._parent_name = "MainProcess"

    def live(self) -> int:
        """Call the function, then what is to be called at a worker's end; return the exit code."""
        return self._bootstrap()

    def _bootstrap(self, parent_sentinel: Any = None) -> int:  # noqa: ARG002 - the lifeline is the sentinel
        """As `live`: what the fork server calls."""
        code: int = super()._bootstrap(self._settings.line)  # type: ignore[misc]
        return code & 0xFF  # what an exit keeps of it; os._exit refuses a larger number

    def run(self) -> None:
        """Call the function. Multiprocessing does that in its surroundings."""
        bootstrap_call.call(self._settings)

    def stand_in(self) -> None:
        """Be the current process of a multiprocessing that was imported while the function runs already.

        As its own `_bootstrap` begins, but for stdin, which was closed already, and what a fork would ask for.
        """
        multiprocessing: Any = process
        context._force_start_method(self._start_method)  # noqa: SLF001
        multiprocessing._process_counter = itertools.count(1)  # noqa: SLF001
        multiprocessing._children = set()  # noqa: SLF001
        multiprocessing._current_process = self  # noqa: SLF001
        multiprocessing._parent_process = multiprocessing._ParentProcess(  # noqa: SLF001
            self._parent_name, self._parent_pid, self._settings.line
        )
