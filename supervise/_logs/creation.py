"""Who wants to know that a file has come into being: its folder is watched, or the nearest that exists."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from supervise._logs.watch import watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._logs.watch import Watch

log = logging.getLogger("supervise")


class FileCreation:
    """A file that may come, or not. Used by one thread."""

    def __init__(self, path: str, changed: Callable[[], None]) -> None:
        """Nothing is watched before `is_there` was asked.

        Args:
            path: The file; its folders may be missing too.
            changed: Called on the watching thread, which it must not block, when `is_there` is to be asked again.
        """
        self.path = path
        self._changed = changed
        self._seen: tuple[str, int, int] | None = None  # the folder that is watched
        self._watch: Watch | None = None

    def is_there(self) -> bool:
        """Whether the file exists; if not, `changed` will be called when there is news."""
        while not os.path.exists(self.path):
            folder = nearest_folder(self.path)
            try:
                found = os.stat(folder)
                seen = (folder, found.st_dev, found.st_ino)
                if seen == self._seen:
                    return False
                self.cancel()
                self._seen = seen  # then look again: it may have come before the watch
                self._watch = watch(folder, self._changed)
            except FileNotFoundError:  # gone again
                self._seen = None
            except OSError as error:  # it may not be read, or no more threads
                log.debug("nobody will tell when %s is there: %s", self.path, error)
        return True

    def cancel(self) -> None:
        """End the watch; again is harmless."""
        watching, self._watch, self._seen = self._watch, None, None
        if watching is not None:
            watching.cancel()


def nearest_folder(path: str) -> str:
    """Return the existing folder that is nearest above `path`, where a link leads."""
    folder = os.path.dirname(os.path.realpath(path))
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder
