"""Definition of dataclasses and of named tuples in a fraction of the time that the standard library takes.

At each import, `dataclass` compiles six methods of a frozen class, and `typing.NamedTuple` compiles a constructor and
the annotation of each field; `dataclasses` itself imports `inspect`. A first gang needs forty dataclasses, and sixty
named tuples with 170 fields. Here all dataclasses share their methods, and all named tuples with the same number of
fields share the code of their constructor.
"""

from __future__ import annotations

import typing
from functools import cache, cached_property, partial
from operator import attrgetter, itemgetter
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Self, TypeVar, dataclass_transform, overload

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import field as field  # noqa: PLC0414 - other modules import it
    from typing import NamedTuple as NamedTuple  # noqa: PLC0414


class _Field(dict[str, Any]):
    """The options of `dataclasses.field`, for a record."""


if not TYPE_CHECKING:
    field = _Field

_Class = TypeVar("_Class", bound=type)
_One = TypeVar("_One")


@overload
def record(cls: _Class) -> _Class: ...


@overload
def record(*, kw_only: bool = True, frozen: bool = True, eq: bool = True) -> Callable[[_Class], _Class]: ...


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def record(cls: Any = None, *, kw_only: bool = True, frozen: bool = True, eq: bool = True) -> Any:
    """Make a class a dataclass that is frozen and takes only keyword arguments, unless the arguments say otherwise.

    Without `eq`, a record has the `repr` of an object, which shows no variable of an environment.
    `dataclasses.fields`, `replace`, `asdict`, `inspect.signature` and `match` work as with any dataclass. The
    `replace` of this module keeps only the fields of the record, not those that a subclass adds.
    """
    if cls is None:
        return partial(record, kw_only=kw_only, frozen=frozen, eq=eq)
    cls.__record__ = plan = _Plan(cls, kw_only=kw_only, frozen=frozen)
    space = {
        "__init__": __init__,
        "__replace__": replace,
        "__match_args__": plan.positional,
        **({"__setattr__": _refuse, "__delattr__": _refuse} if frozen else {}),
        **({"__repr__": __repr__, "__eq__": __eq__, "__hash__": __hash__ if frozen else None} if eq else {}),
        **{name: _OfTwin(name) for name in ("__dataclass_fields__", "__dataclass_params__", "__signature__")},
    }
    for name, value in space.items():
        if name not in vars(cls):
            setattr(cls, name, value)
    return cls


def replace(one: _One, /, **changes: Any) -> _One:
    """Return a copy of a record with other values of some fields."""
    return type(one)(**as_dict(one) | changes)


def as_dict(one: Any) -> dict[str, Any]:
    """Return the arguments with which the constructor makes an equal record."""
    return {name: getattr(one, name) for name in one.__record__.accepted}


class _Plan:
    """The fields of a record, as its methods need them."""

    def __init__(self, cls: Any, *, kw_only: bool, frozen: bool) -> None:
        self.cls, self.how = cls, {"kw_only": kw_only, "frozen": frozen}
        base = getattr(cls, "__record__", None)
        self.annotations = {**(base.annotations if base else {}), **cls.__annotations__}
        self.options: dict[str, dict[str, Any]] = dict(base.options) if base else {}
        for name in cls.__annotations__:
            value = vars(cls).get(name, self)
            if isinstance(value, _Field):
                self.options[name] = value
                delattr(cls, name)
            else:
                self.options[name] = {} if value is self else {"default": value}
        options = self.options.items()
        self.accepted = tuple([name for name, each in options if each.get("init", True)])
        self.positional = () if kw_only else self.accepted
        self.known = frozenset(self.accepted)
        self.defaults = {name: each["default"] for name, each in options if "default" in each}
        self.makers = {name: each["default_factory"] for name, each in options if "default_factory" in each}
        self.required = self.known - self.defaults.keys() - self.makers.keys()
        self.key = attrgetter(*[name for name, each in options if each.get("compare", True)])
        self.begins = getattr(cls, "__post_init__", None) is not None

    @cached_property
    def twin(self) -> Any:
        """Return the class that `dataclasses` makes of the same fields."""
        import dataclasses

        same = {name: getattr(self.cls, name) for name in ("__doc__", "__module__", "__qualname__")}
        fields = {name: dataclasses.field(**each) for name, each in self.options.items()}
        twin = type(self.cls.__name__, (), {"__annotations__": self.annotations, **same, **fields})
        return dataclasses.dataclass(**self.how)(twin)


class _OfTwin:
    """Attribute of a record that is made at its first use, because it needs `dataclasses`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, _one: object, owner: Any) -> Any:
        """Return the attribute."""
        plan = owner.__record__
        if self._name != "__signature__":
            return getattr(plan.twin, self._name)
        if plan.cls is not owner:  # a subclass may have another constructor
            raise AttributeError(self._name)
        import inspect

        return inspect.signature(plan.twin)


def __init__(self: Any, /, *values: Any, **named: Any) -> None:  # noqa: N807 - a method of every record
    plan = self.__record__
    given = {**dict(zip(plan.positional, values, strict=False)), **named} if values else named
    if not plan.required <= given.keys() <= plan.known or (values and len(given) != len(values) + len(named)):
        plan.twin(*values, **named)  # raises the usual TypeError
    own = self.__dict__
    own |= plan.defaults
    own |= given
    for name in plan.makers:
        if name not in given:
            own[name] = plan.makers[name]()
    if plan.begins:
        self.__post_init__()


def __repr__(self: Any) -> str:  # noqa: N807
    options = self.__record__.options.items()
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name, each in options if each.get("repr", True))
    return f"{type(self).__qualname__}({shown})"


def __eq__(self: Any, other: Any) -> Any:  # noqa: N807
    if type(self) is not type(other):
        return NotImplemented
    key = self.__record__.key
    return key(self) == key(other)


def __hash__(self: Any) -> int:  # noqa: N807
    return hash(self.__record__.key(self))


def _refuse(_one: Any, name: str, *value: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")


if not TYPE_CHECKING:

    class _Tuple(tuple):
        """Methods of all named tuples."""

        __slots__ = ()

        def __repr__(self) -> str:
            shown = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
            return f"{type(self).__name__}({shown})"

        def __getnewargs__(self) -> tuple[object, ...]:
            return tuple(self)

        def _asdict(self) -> dict[str, object]:
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, /, **changes: object) -> Self:
            made = tuple.__new__(type(self), map(changes.pop, self._fields, self))
            if changes:
                raise TypeError(f"{type(self).__name__} has no field {', '.join(changes)}")
            return made

        __replace__ = _replace

    class _NamedTupleMeta(type):
        def __new__(cls, name: str, _bases: object, space: dict[str, Any]) -> Any:
            """Return a named tuple. Its annotations stay texts."""
            if "__annotations__" not in space:  # a Python that evaluates annotations later
                return typing.NamedTupleMeta(name, (typing._NamedTuple,), space)  # noqa: SLF001 - as `NamedTuple` does
            fields = tuple(space["__annotations__"])
            defaults = tuple([space[each] for each in fields if each in space])
            own = {"co_varnames": ("_cls", *fields), "co_qualname": f"{name}.__new__"}
            made = FunctionType(_constructor(len(fields)).replace(**own), {"new": tuple.__new__}, "__new__", defaults)
            getters = {each: property(itemgetter(index)) for index, each in enumerate(fields)}
            also = {"__slots__": (), "__new__": made, "_fields": fields, "__match_args__": fields}
            return type(name, (_Tuple,), {**space, **getters, **also})

    @cache
    def _constructor(count: int) -> CodeType:
        """Return the code of a constructor, which takes long to compile. Classes differ in the names of the fields."""
        names = "".join([f", _{each}" for each in range(count)])
        return eval(f"lambda _cls{names}: new(_cls, ({names[2:]},))").__code__  # noqa: S307 - a text of this module

    NamedTuple = type.__new__(_NamedTupleMeta, "NamedTuple", (), {})
    """The same as `typing.NamedTuple` for a class statement."""
