"""Definition of frozen dataclasses and of named tuples in less than half of the time that the standard library takes.

At each import, `dataclass` compiles six methods of a frozen class, and `typing.NamedTuple` compiles the annotation of
each field. A first gang needs twenty of these dataclasses, and sixty named tuples with 170 fields. Here a dataclass
compiles three methods, the others are functions that all records share; and a named tuple compiles no annotation.
"""

from __future__ import annotations

import typing
from collections import namedtuple
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform, overload

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NamedTuple as NamedTuple  # noqa: PLC0414 - other modules import it

_Class = TypeVar("_Class", bound=type)


@overload
def record(cls: _Class) -> _Class: ...


@overload
def record(*, kw_only: bool) -> Callable[[_Class], _Class]: ...


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(cls: Any = None, *, kw_only: bool = True) -> Any:
    """Make a class a dataclass that is frozen, has slots and takes only keyword arguments.

    `dataclasses.fields`, `replace`, `asdict` and `match` work as with any dataclass.
    """
    from dataclasses import dataclass  # lazy: a spawned rank needs named tuples only

    if cls is None:
        return partial(record, kw_only=kw_only)
    made = dataclass(frozen=True, slots=True, kw_only=kw_only, repr=False, eq=False)(cls)
    for method in (__repr__, __eq__, __hash__):
        if method.__name__ not in vars(cls):
            setattr(made, method.__name__, method)
    return made


def __repr__(self: Any) -> str:  # noqa: N807 - a method of every record
    shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in _fields(self) if each.repr)
    return f"{type(self).__qualname__}({shown})"


def __eq__(self: Any, other: object) -> bool:  # noqa: N807
    return _compared(self) == _compared(other) if type(self) is type(other) else NotImplemented


def __hash__(self: Any) -> int:  # noqa: N807
    return hash(_compared(self))


def _compared(one: Any) -> tuple[object, ...]:
    return tuple(getattr(one, each.name) for each in _fields(one) if each.compare)


def _fields(one: Any) -> Any:
    return one.__dataclass_fields__.values()


if not TYPE_CHECKING:

    class _NamedTupleMeta(type):
        def __new__(cls, name: str, _bases: object, space: dict[str, Any]) -> Any:
            """Return a named tuple. Its annotations stay texts."""
            if "__annotations__" not in space:  # a Python that evaluates annotations later
                return typing.NamedTupleMeta(name, (typing._NamedTuple,), space)  # noqa: SLF001 - as `NamedTuple` does
            annotations = space.pop("__annotations__")
            defaults = [space.pop(field) for field in annotations if field in space]
            made = namedtuple(name, annotations, defaults=defaults, module=space["__module__"])  # noqa: PYI024
            made.__annotations__ = annotations
            for key, value in space.items():
                setattr(made, key, value)
            return made

    NamedTuple = type.__new__(_NamedTupleMeta, "NamedTuple", (), {})
    """The same as `typing.NamedTuple` for a class statement."""
