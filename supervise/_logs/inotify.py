"""The kernel's inotify, by `ctypes`: it reports the watched files and folders that have changed.

The import of this module fails if Python has no `ctypes` or the C library has no inotify.
"""

from __future__ import annotations

import ctypes
import os
import struct

_EVENT = struct.Struct("iIII")
"""Layout of an event: watch, mask, cookie, and the length of the name that follows."""
_READ_BYTES = 16_384
"""Bytes of one read: a thousand events of files. The next read returns the events that remain.

The longest event, one of a folder, has 272 bytes.
"""

_LIBC = ctypes.CDLL(None, use_errno=True)
_INIT, _ADD, _REMOVE = _LIBC.inotify_init1, _LIBC.inotify_add_watch, _LIBC.inotify_rm_watch


class INotify:
    """An inotify instance. Its descriptor is readable when there are events."""

    def __init__(self) -> None:
        """Create the instance.

        Raises:
            OSError: The user's limit on instances is reached, or no descriptor is left.
        """
        self._fd = _checked(_INIT(os.O_CLOEXEC | os.O_NONBLOCK))

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def add_watch(self, path: str, mask: int) -> int:
        """Watch a file or folder; return the number of the watch. Watches of the same file have the same number.

        Raises:
            OSError: The file does not exist, this process may not read it, or the user's limit on watches is reached.
        """
        return _checked(_ADD(self._fd, os.fsencode(path), mask))

    def rm_watch(self, wd: int) -> None:
        """End a watch.

        Raises:
            OSError: There is no such watch, for instance because the file was deleted.
        """
        _checked(_REMOVE(self._fd, wd))

    def read(self) -> list[int]:
        """Return the watches of all pending events, in the order of the events. Never blocks."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return []
        found, at = [], 0
        while at < len(data):
            wd, _, _, name_bytes = _EVENT.unpack_from(data, at)
            found.append(wd)
            at += _EVENT.size + name_bytes
        return found

    def close(self) -> None:
        """Close the descriptor, which also ends all watches. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
