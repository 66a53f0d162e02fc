"""The return values of ranks.

A thread loads them, because unpickling runs user code, for which there is no limit on the time.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from supervise.recording import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervise._core.model import Gang
    from supervise._process.exits.slots import ExitSlots
    from supervise._process.launch.return_value import OutcomeFile
    from supervise._runtime.loop import Loop


class ReturnValues:
    """The return values of one attempt. Used on the gang's loop."""

    def __init__(self, name: str, nprocs: int, loop: Loop, slots: ExitSlots) -> None:
        """Begin without values.

        Args:
            name: Name of the gang.
            nprocs: Number of ranks.
            loop: The gang's loop.
            slots: The exit slots, which hold the result channels.
        """
        self._name = name
        self._nprocs = nprocs
        self._loop = loop
        self._slots = slots
        self._loaded: Callable[[dict[int, str]], object] | None = None
        self.by_rank: dict[int, Any] = {}
        """Local rank to loaded value."""

    def load(self, gang: Gang, loaded: Callable[[dict[int, str]], object]) -> None:
        """Load the values if all ranks exited with a code of success, except for terminated ranks and stopped services.

        A rank that stays down since an earlier attempt has no value and does not count here.

        Args:
            gang: The state of the gang; all ranks have ended.
            loaded: Function that is called on the loop with a mapping of local rank to complaint, for values that could
                not be loaded.
        """
        self._loaded = loaded
        over = {n for n, rank in enumerate(gang.ranks) if rank.terminated or rank.dismissed or gang.is_left_out(n)}
        ends = [end for end in gang.ends if end.local_rank not in over]
        good = {end.local_rank for end in ends if end.has_value and not gang.failed(end)}
        expected = self._nprocs - len(over)
        if not good or sum(end.exitcode in gang.success for end in ends) < expected:
            self._loop.post(self._arrived, {}, {})
            return
        files = {rank: file for rank in good if (file := self._slots.outcomes[rank]).kind() != "None"}
        nothing = dict.fromkeys(good - files.keys())
        if not files:
            self._loop.post(self._arrived, nothing, {})
            return
        work = partial(_load, files, nothing, partial(self._loop.post, self._arrived))
        try:
            threading.Thread(target=work, name=f"supervise-values-{self._name}", daemon=True).start()
        except RuntimeError:  # there is no thread, as the interpreter is exiting or a limit is reached
            work()

    def abandon(self) -> None:
        """Abandon a pending load whose user code exceeds the deadline."""
        self._arrived({}, dict.fromkeys(range(self._nprocs), "its return value was not unpickled in time"))

    def dismiss(self) -> None:
        """Drop the callback."""
        self._loaded = None

    def _arrived(self, values: dict[int, Any], problems: dict[int, str]) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self.by_rank = values
            loaded(problems)


def _load(
    files: Mapping[int, OutcomeFile],
    known: Mapping[int, Any],
    tell: Callable[[dict[int, Any], dict[int, str]], object],
) -> None:
    """Unpickle the values in `files`.

    Call `tell` with rank to value, which includes `known`, and with rank to problem.
    """
    values = dict(known)
    problems: dict[int, str] = {}
    for rank, file in sorted(files.items()):
        try:
            values[rank] = file.load()
        except BaseException as error:
            problems[rank] = f"its return value could not be unpickled here: {type(error).__name__}: {text_of(error)}"
    tell(values, problems)
