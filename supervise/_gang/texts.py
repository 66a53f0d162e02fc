"""Checks of texts for the kernel or for a file: the name of a gang, programs, arguments and variables."""

from __future__ import annotations

import os
from typing import Any

from supervise.errors import SpecError
from supervise.recording import repr_of, text_of

_LONGEST = 80
_PLAIN = (str, int, float, bool)
"""Types whose `__str__` does not raise."""


def shown(value: object) -> str:
    """Return the representation of a value for an error message, cut to 80 characters."""
    text = repr_of(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def check_name(name: object) -> None:
    """Check the name of a gang. The name is in the prefix of shown lines and in events.

    Raises:
        SpecError: The name is not text, or cannot be written.
    """
    if not isinstance(name, str):
        raise SpecError(f"name is {shown(name)}; give a text, such as {text_of(name)!r}")
    if "\0" in name:
        raise SpecError(f"name is {shown(name)}; leave out the NUL character")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise SpecError(f"name is {shown(name)}, which UTF-8 cannot encode; leave out the surrogates") from None


def argv_of(program: str, args: tuple[Any, ...], rank: int) -> list[str]:
    """Return a program and its arguments as strings.

    Raises:
        SpecError: The `__str__` of an argument has raised; the text names the rank and the argument.
    """
    return [program, *(_argument(arg, number, rank) for number, arg in enumerate(args))]


def _argument(arg: object, number: int, rank: int) -> str:
    if isinstance(arg, bytes):
        return os.fsdecode(arg)
    if type(arg) in _PLAIN:  # an exception of a signal handler must not be taken for one of these
        return str(arg)
    try:
        return str(arg)
    except Exception as error:
        why = f"{type(error).__name__}: {text_of(error)}"
        msg = f"rank {rank}: its argument {number}, {shown(arg)}, cannot be converted to text ({why}); give a text"
        raise SpecError(msg) from error


def check_argv(argv: list[str], rank: int) -> None:
    """Check that the kernel can pass these arguments to a program.

    Raises:
        SpecError: An argument contains a NUL character, or cannot be encoded.
    """
    for arg in argv:
        if "\0" in arg:
            raise SpecError(
                f"rank {rank}: the argument {shown(arg)} holds a NUL character, which no program can be given"
            )
        if not is_encodable(arg):
            raise SpecError(f"rank {rank}: the argument {shown(arg)} cannot be encoded; leave out the surrogates")


def is_encodable(text: str) -> bool:
    """Return whether a text can be encoded for the kernel.

    It can if its only surrogates are those of `os.fsdecode`.
    """
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True
