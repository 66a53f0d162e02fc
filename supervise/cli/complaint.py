"""The text of an error for a person."""

from __future__ import annotations


def complaint(error: BaseException) -> str:
    """Return the text of an error, with its file."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error) or repr(error)
