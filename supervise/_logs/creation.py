"""Notice of the creation of a file, by a watch on the nearest existing folder above the file."""

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
    """File that may be created later. Used by one thread."""

    def __init__(self, path: str, changed: Callable[[], None]) -> None:
        """Prepare; the first call of `is_there` starts the watch.

        Args:
            path: The file. Its folders may be missing, too.
            changed: Function that is called on the watching thread when `is_there` may return another value. The
                function must not block.
        """
        self.path = path
        self._changed = changed
        self._seen: tuple[str, int, int] | None = None  # the watched folder
        self._watch: Watch | None = None

    def is_there(self) -> bool:
        """Return whether the file exists. If it does not, watch for it and call `changed` later."""
        while not os.path.exists(self.path):
            folder = nearest_folder(self.path)
            try:
                found = os.stat(folder)
                seen = (folder, found.st_dev, found.st_ino)
                if seen == self._seen:
                    return False
                self.cancel()
                self._seen = seen  # then check again, as the file may have been created before the watch
                self._watch = watch(folder, self._changed)
            except FileNotFoundError:  # the folder was removed
                self._seen = None
            except OSError as error:  # the folder is not readable, or no thread is available
                log.debug("the creation of %s cannot be watched: %s", self.path, error)
        return True

    def cancel(self) -> None:
        """End the watch. Idempotent."""
        watching, self._watch, self._seen = self._watch, None, None
        if watching is not None:
            watching.cancel()


def nearest_folder(path: str) -> str:
    """Return the nearest existing folder above `path`, with symbolic links resolved."""
    folder = os.path.dirname(os.path.realpath(path))
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder
