"""What may be asked for: every argument is looked at before a folder is made or a process is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from supervise._seconds import check_seconds
from supervise.errors import SpecError
from supervise.logs import validate_full_rank

if TYPE_CHECKING:
    from supervise.logs import LogsSpecs

_METHODS = ("spawn", "fork", "forkserver")
_LONGEST = 80


def shown(value: object) -> str:
    """Return a value as an error names it: short."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def check_times(grace_s: object, timeout_s: object, event_sink: object) -> None:
    """Refuse times that are no numbers of seconds, and a listener that cannot be called.

    Raises:
        SpecError: Names the setting and the value.
    """
    check_seconds("grace", grace_s)
    if timeout_s is not None:
        check_seconds("timeout", timeout_s, above_zero=True)
    if event_sink is not None and not callable(event_sink):
        msg = f"event_sink is {event_sink!r}; give a function of one argument, the event, or None"
        raise SpecError(msg)


def check_entrypoint(entrypoint: object, start_method: object) -> None:
    """Refuse what cannot be run, or not in this way.

    Raises:
        SpecError: Names the value.
    """
    if not (isinstance(entrypoint, str) and entrypoint) and not callable(entrypoint):
        msg = f"entrypoint is {shown(entrypoint)}; give a function, or a program's name or path as a string"
        raise SpecError(msg)
    if start_method not in _METHODS:
        msg = f"start_method is {shown(start_method)}; it is one of {', '.join(_METHODS)}"
        raise SpecError(msg)


def arguments(args: object) -> dict[int, tuple[Any, ...]]:
    """Return local rank to arguments, in the order of the ranks.

    Raises:
        SpecError: There is no rank, one is missing, or its arguments are no sequence.
    """
    if not isinstance(args, Mapping):
        msg = f"args is {shown(args)}; give a mapping of local rank to its arguments, such as {{0: (), 1: ()}}"
        raise SpecError(msg)
    if not args:
        msg = "args is empty, so there is no rank to start; give each rank its arguments, such as {0: (), 1: ()}"
        raise SpecError(msg)
    validate_full_rank(args, len(args), "args")
    return {rank: as_tuple(rank, args[rank]) for rank in sorted(args)}


def as_tuple(rank: int, given: Any) -> tuple[Any, ...]:
    """Return a rank's arguments; a bare string is one.

    Raises:
        SpecError: They are no sequence.
    """
    if isinstance(given, (str, bytes)):
        return (given,)
    if isinstance(given, Mapping):  # whose keys alone would be passed
        msg = f"rank {rank}: its arguments are {shown(given)}, a mapping; give a tuple, such as (the_mapping,)"
        raise SpecError(msg)
    try:
        return tuple(given)
    except TypeError:
        msg = f"rank {rank}: its arguments are {shown(given)}; give a tuple, such as ({shown(given)},)"
        raise SpecError(msg) from None


def argv_of(program: str, args: tuple[Any, ...], rank: int) -> list[str]:
    """Return a program and its arguments as strings.

    Raises:
        SpecError: One holds a NUL character.
    """
    argv = [program, *(os.fsdecode(arg) if isinstance(arg, bytes) else str(arg) for arg in args)]
    for arg in argv:
        if "\0" in arg:
            msg = f"rank {rank}: the argument {arg!r} holds a NUL character, which no program can be given"
            raise SpecError(msg)
    return argv


def environments(envs: object, nprocs: int) -> dict[int, dict[str, str]]:
    """Return local rank to what is added to its environment, as text.

    Raises:
        SpecError: A rank is missing, or what it is given cannot be an environment.
    """
    if envs is None:
        return {rank: {} for rank in range(nprocs)}
    if not isinstance(envs, Mapping):
        msg = f"envs is {shown(envs)}; give a mapping of local rank to a dictionary, such as {{0: {{'NAME': 'value'}}}}"
        raise SpecError(msg)
    validate_full_rank(envs, nprocs, "envs")
    return {rank: _environment(rank, envs[rank]) for rank in sorted(envs)}


def _environment(rank: int, env: object) -> dict[str, str]:
    if not isinstance(env, Mapping):
        msg = f"rank {rank}: its envs is {shown(env)}; give a dictionary, such as {{'NAME': 'value'}}, or {{}}"
        raise SpecError(msg)
    found = {}
    for key, value in env.items():
        if not isinstance(key, str):
            msg = f"rank {rank}: in its envs, the name {shown(key)} is not text; give {str(key)!r}"
            raise SpecError(msg)
        found[key] = text = _variable(rank, key, value)
        if not key or "=" in key or "\0" in key or "\0" in text:
            msg = f"rank {rank}: {key!r} cannot be an environment variable; no '=' in its name and no NUL at all"
            raise SpecError(msg)
    return found


def _variable(rank: int, key: str, value: object) -> str:
    """Return a variable's value. An error does not show more than its type: it may be a secret."""
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    import numbers

    if isinstance(value, numbers.Number):  # such as NumPy's
        return str(value)
    kind = "None" if value is None else f"of type {type(value).__name__}"
    way = "; leave the variable out" if value is None else ""
    msg = f"rank {rank}: in its envs, the value of {key!r} is {kind}; give a text, a number or a path{way}"
    raise SpecError(msg)


def check_logs(specs: LogsSpecs | None, prefixes: object) -> None:
    """Refuse what does not say where the output goes, or what stands before its lines.

    Args:
        specs: As for the Supervisor; anything that can `reify` will do, PyTorch's too.
        prefixes: As for the Supervisor.

    Raises:
        SpecError: Names the argument and the value.
    """
    if specs is not None and (isinstance(specs, type) or not callable(getattr(specs, "reify", None))):
        msg = f"logs_specs is {shown(specs)}; give a LogsSpecs, such as DefaultLogsSpecs('logs', redirects=Std.ALL)"
        raise SpecError(msg)
    if prefixes is not None and not isinstance(prefixes, Mapping):
        msg = f"log_line_prefixes is {shown(prefixes)}; give a mapping of local rank to text, such as {{0: 'zero: '}}"
        raise SpecError(msg)
    for rank, prefix in (prefixes or {}).items():
        if not isinstance(prefix, str):
            msg = f"rank {rank}: its log_line_prefixes is {shown(prefix)}; give a text"
            raise SpecError(msg)


def check_filters(what: str, needles: object) -> None:
    """Refuse what is no list of texts; a bare text would be one of letters.

    Raises:
        SpecError: Names the argument and the value.
    """
    if needles is None:
        return
    listed = isinstance(needles, Collection) and not isinstance(needles, (str, bytes))
    if not listed or not all(isinstance(needle, str) for needle in needles):  # type: ignore[attr-defined]
        msg = f"{what} is {shown(needles)}; give a list of texts, such as ['loss']"
        raise SpecError(msg)


def folder(cwd: object) -> str | None:
    """Return the working directory of the ranks; None is this process's.

    Raises:
        SpecError: It is no path, or there is no such folder.
    """
    if cwd is None:
        return None
    if not isinstance(cwd, (str, os.PathLike)):
        msg = f"cwd is {shown(cwd)}; give the path of a folder, or None"
        raise SpecError(msg)
    path = os.fsdecode(cwd)
    if "\0" in path or not os.path.isdir(path):
        msg = f"cwd is {path!r}, where there is no folder; make it first, or give another one"
        raise SpecError(msg)
    return path


def check_gate(gate: object) -> None:
    """Refuse what is neither True nor False.

    Raises:
        SpecError: Names the value.
    """
    if not isinstance(gate, bool):
        msg = f"gate is {shown(gate)}; give True or False"
        raise SpecError(msg)


def check_policy(policy: object) -> None:
    """Refuse what is neither a policy nor None.

    Raises:
        SpecError: Names the value.
    """
    if policy is None:
        return
    from supervise.restarts import RestartPolicy

    if not isinstance(policy, RestartPolicy):
        msg = f"restart_policy is {shown(policy)}; give a RestartPolicy, such as RestartPolicy(max_restarts=3), or None"
        raise SpecError(msg)


def check_main(fn: object, args: Mapping[int, tuple[Any, ...]]) -> None:
    """Refuse what was defined in a main module that a new interpreter cannot import: it would find another, or none.

    Raises:
        SpecError: Names the function, or the rank whose argument it is, and what to do.
    """
    where = _unimportable_main()
    if where is None:
        return
    while isinstance(fn, partial):
        fn = fn.func
    if getattr(fn, "__module__", None) == "__main__":
        _refuse_main(getattr(fn, "__qualname__", None) or shown(fn), where)
    for rank, given in args.items():
        for arg in given:
            if getattr(arg, "__module__", None) == "__main__":
                _refuse_main(f"rank {rank}: its argument {shown(arg)}", where)


def _unimportable_main() -> str | None:
    """Return where the main module was defined, and what to do, if new interpreters do not import it; or None."""
    main = sys.modules.get("__main__")
    if getattr(sys, "frozen", False):  # each new process is one more of it, with the same main module
        return None
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        inside = spec.name == "__main__" or spec.name.endswith(".__main__")
        where = "in the __main__.py of a package or an archive, which the new processes do not import"
        return f"{where}; put it into another module" if inside else None
    known = os.path.isfile(getattr(main, "__file__", None) or "")
    where = "at a prompt, by -c or from stdin, which the new processes cannot import"
    return None if known else f"{where}; put it into a file"


def _refuse_main(what: str, where: str) -> None:
    msg = f"{what} was defined {where}, or use start_method='fork'"
    raise SpecError(msg)
