"""Files that are written in one step: a reader sees the old content or the new content, never a part."""

from __future__ import annotations

import contextlib
import os

from supervise._folders import open_folder


def write(path: str, data: bytes) -> None:
    """Write a file of mode 0600, and replace an existing one.

    Raises:
        OSError: The file cannot be written; an existing file is unchanged. ``filename`` is the path.
    """
    folder, name = os.path.split(path)
    at = open_folder(folder)
    new = f"{name}.new"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=at)
        with open(os.open(new, flags, 0o600, dir_fd=at), "wb") as file:
            file.write(data)
        os.replace(new, name, src_dir_fd=at, dst_dir_fd=at)
    except BaseException as e:
        with contextlib.suppress(OSError):
            os.unlink(new, dir_fd=at)
        if isinstance(e, OSError):
            raise OSError(e.errno, e.strerror, path) from e
        raise
    finally:
        os.close(at)
