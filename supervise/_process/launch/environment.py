"""The environment of a program, as the C library takes it.

The ranks of a gang share most of their variables, so these are encoded once for a gang, not at each launch.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Mapping

from supervise._record import NamedTuple

_TEXT = bytes.__basicsize__ - 1
"""Offset of the characters in a bytes object. The address of the object is its `id`."""
_POINTER = struct.Struct("P")
FILE_SYSTEM = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
"""The encoding of `os.fsencode`, which takes four calls for a text."""


class Block(NamedTuple):
    """An environment in memory."""

    pointers: bytes
    """A null-terminated array of the addresses of ``name=value`` texts."""
    texts: tuple[list[bytes], ...]
    """The texts. The caller keeps a reference to them as long as C uses the array."""


class SharedEnvironment:
    """The variables that the programs of a gang share: name to value."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        """Encode the variables."""
        self.variables = encoded(variables)
        self._frames: dict[tuple[bytes, ...], tuple[Block, list[int]]] = {}

    def with_own(self, own: Mapping[bytes, bytes]) -> Block:
        """Return the variables with those of one rank, in the order of a dictionary that was updated with them."""
        names = tuple(own)
        if names not in self._frames:  # all ranks usually have the same names
            self._frames[names] = self._frame(own)
        (pointers, kept), places = self._frames[names]
        texts, filled = _texts(own), bytearray(pointers)
        for place, text in zip(places, texts, strict=True):
            _POINTER.pack_into(filled, place, id(text) + _TEXT)
        return Block(bytes(filled), (texts, *kept))

    def _frame(self, own: Mapping[bytes, bytes]) -> tuple[Block, list[int]]:
        """Return a block for these names, and the offset of the pointer to each of these variables."""
        whole = {**self.variables, **own}
        texts, place = _texts(whole), {name: number * _POINTER.size for number, name in enumerate(whole)}
        return Block(array(texts), (texts,)), [place[name] for name in own]


class ProgramEnvironment(Mapping[bytes, bytes]):
    """The environment of one program: shared variables, and its own, which replace shared ones."""

    __slots__ = ("_own", "_shared")

    def __init__(self, shared: SharedEnvironment, own: Mapping[str, str]) -> None:
        """Encode the own variables."""
        self._shared = shared
        self._own = encoded(own)

    def __getitem__(self, name: bytes) -> bytes:
        """Return the value of a variable."""
        found = self._own.get(name)
        return self._shared.variables[name] if found is None else found

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the names."""
        return iter({**self._shared.variables, **self._own})

    def __len__(self) -> int:
        """Return the number of variables."""
        return len(self._shared.variables.keys() | self._own.keys())

    def block(self) -> Block:
        """Return the environment for C."""
        return self._shared.with_own(self._own)


def block_of(env: Mapping[bytes, bytes]) -> Block:
    """Return an environment for C."""
    if isinstance(env, ProgramEnvironment):
        return env.block()
    texts = _texts(env)
    return Block(array(texts), (texts,))


def encoded(env: Mapping[str, str]) -> dict[bytes, bytes]:
    """Return an environment as the kernel takes it."""
    return {name.encode(*FILE_SYSTEM): value.encode(*FILE_SYSTEM) for name, value in env.items()}


def array(texts: list[bytes]) -> bytes:
    """Return an array of pointers to `texts`, which a null pointer ends. The caller keeps a reference to the texts.

    Such an array takes less time to make than one of `c_char_p`.
    """
    return struct.pack(f"{len(texts)}PP", *map(_TEXT.__add__, map(id, texts)), 0)


def _texts(env: Mapping[bytes, bytes]) -> list[bytes]:
    return [name + b"=" + value for name, value in env.items()]
