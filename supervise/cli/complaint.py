"""The text of an error for a person."""

from __future__ import annotations


def complaint(error: BaseException) -> str:
    """Return the text of an error, with its file."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error) or repr(error)


def is_of_a_file(error: BaseException) -> bool:
    """Return whether the error is about a file or a folder that cannot be used."""
    return isinstance(error, NotADirectoryError) or getattr(error, "filename", None) is not None


def refusal(error: BaseException, log_dir: str | None) -> str:
    """Return the text for a run that is refused before it starts.

    Args:
        error: Why the run is refused.
        log_dir: The log directory that the user gave; None if there is none.
    """
    advice = "; give --log-dir a writable directory" if log_dir and is_of_a_file(error) else ""
    return f"{complaint(error)}{advice}"
