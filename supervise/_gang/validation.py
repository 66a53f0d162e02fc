"""The checks of a gang's settings, before any folder is made and before any process is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from supervise._gang.control import checked_path
from supervise._gang.deferred_calls import deferred_kind
from supervise._gang.notify_protocol import SOCKET
from supervise._gang.rank_spec import RankSpec, held_by_rank, naming
from supervise._gang.texts import argv_of, check_argv, check_name, is_encodable, shown
from supervise._process.launch import by_value, dispositions, limits
from supervise._seconds import check_seconds
from supervise.errors import SpecError
from supervise.logs import LEAST_LOG_BYTES, validate_full_rank
from supervise.recording import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervise._gang.spec import GangSpec
    from supervise.roles import Role

_METHODS = ("spawn", "fork", "forkserver")
_OF_ALL = ("ready", "ready_timeout_s")
_OF_A_ROLE = ("restart", "service")
"""The fields that `Role` and `RankSpec` have in common and that a gang without roles lacks."""


def checked(spec: GangSpec) -> dict[str, Any]:
    """Check the settings; return the fields that must be changed.

    These fields are the arguments as tuples, the environments as text, and the settings for the ranks of each role.

    Raises:
        SpecError: A setting is not valid. The text names the setting and the value, or the rank.
    """
    check_name(spec.name)
    sources = _sources(spec)
    _check_end(spec, sources)
    if not isinstance(spec.gate, bool):
        raise SpecError(f"gate is {shown(spec.gate)}; give True or False")
    if not isinstance(spec.rank_variables, bool):
        raise SpecError(f"rank_variables is {shown(spec.rank_variables)}; give True or False")
    parts = tuple(_parts(spec, sources))
    if spec.stdin:
        _check_stdin(spec, parts)
    if nprocs := parts[-1].ranks.stop:  # checked first, because the number of ranks may be a mistake
        here = any(part.travels or part.cwd is None for part in parts)  # pickled calls name this process's folder
        limits.check_host(nprocs, None if here else parts[0].cwd)
        each = held_by_rank(parts, sockets=_needs_sockets(spec, parts))
        filters = bool(spec.duplicate_stdout_filters) + bool(spec.duplicate_stderr_filters)
        later = limits.opened_later(nprocs, filters=filters)
        limits.check_open_files(nprocs, each=each, shown=0, later=later)
    args: dict[int, tuple[Any, ...]] = {}
    for part, source in zip(parts, sources, strict=True):
        with naming(part.name):
            for rank, given in _arguments(source.args).items():
                args[part.ranks[rank]] = given
                if isinstance(source.entrypoint, str):
                    check_argv(argv_of(source.entrypoint, given, rank), rank)
    envs = _environments(spec.envs, len(args))
    _check_logs(spec)
    changes: dict[str, Any] = {"args": args, "envs": envs, "parts": parts, "control": checked_path(spec.control)}
    if spec.roles is not None:
        changes["role_of"] = tuple(number for number, part in enumerate(parts) for _ in part.ranks)
        changes["envs"] = _role_environments(spec.roles, parts, envs)
    if _needs_sockets(spec, parts):
        _check_unset(changes["envs"])
        changes["notify_token"] = os.urandom(8).hex()
    return changes


def _check_stdin(spec: GangSpec, parts: Sequence[RankSpec]) -> None:
    """Refuse a stdin for functions, and a stdin together with a gate.

    The gate is a pipe on the stdin of the shell that waits.
    """
    for part in parts:
        for rank in sorted(spec.stdin.keys() & set(part.ranks)):
            if part.kind != "binary":
                raise SpecError(f"rank {rank}: only a program can have a stdin, and a function cannot")
            if spec.gate or dispositions.kernel_reaps():
                reason = "gate=True" if spec.gate else "an ignored SIGCHLD"
                raise SpecError(f"rank {rank}: with {reason}, programs wait on their stdin at the start; omit one")


def _needs_sockets(spec: GangSpec, parts: Iterable[RankSpec]) -> bool:
    """Whether the ranks have notify sockets."""
    return spec.watchdog is not None or any(part.ready == "notify" for part in parts)


def _check_unset(envs: Mapping[int, Mapping[str, str]]) -> None:
    """Raise `SpecError` if the caller sets the address of a rank's notify socket."""
    for rank, env in envs.items():
        if SOCKET in env:
            raise SpecError(f"rank {rank}: its envs set {SOCKET}, which the gang sets; leave it out")


def _sources(spec: GangSpec) -> Sequence[GangSpec | Role]:
    """Return the objects that have the settings for ranks: the roles, or the settings of a gang without roles."""
    if spec.roles is not None:
        from supervise._gang.role_checks import check_roles

        check_roles(spec)
        return spec.roles
    if spec.entrypoint is None and spec.args is None:
        raise SpecError("there is nothing to start; give entrypoint and args, or roles")
    return (spec,)


def _parts(spec: GangSpec, sources: Sequence[GangSpec | Role]) -> Iterator[RankSpec]:
    """Yield the settings for the ranks of each role.

    If the arguments of a role are not a mapping, the role has no ranks.

    Raises:
        SpecError: An entrypoint, a start method or a working directory is not valid.
    """
    first = 0
    for source in sources:
        role = "" if spec.roles is None else source.name
        with naming(role):
            _check_entrypoint(source)
            cwd = _folder(source.cwd)
        end = first + (len(source.args) if isinstance(source.args, Mapping) else 0)
        entrypoint: Any = source.entrypoint
        method: Any = None if isinstance(entrypoint, str) else source.start_method
        own = {name: getattr(source, name) for name in (_OF_ALL + _OF_A_ROLE if role else _OF_ALL)}
        yield RankSpec(entrypoint, range(first, end), method, cwd, role, **own)
        first = end


def _role_environments(
    roles: Sequence[Role], parts: Sequence[RankSpec], envs: Mapping[int, Mapping[str, str]]
) -> dict[int, dict[str, str]]:
    """Return local rank to variables.

    They are those that describe the role, then the `envs` of the gang, then the `envs` of the role.
    """
    found = {}
    for role, part in zip(roles, parts, strict=True):
        with naming(role.name):
            own = _environments(role.envs, len(part.ranks))
        for role_rank, rank in enumerate(part.ranks):
            size = str(len(part.ranks))
            told = {"ROLE_NAME": role.name, "ROLE_RANK": str(role_rank), "ROLE_WORLD_SIZE": size}
            found[rank] = {**told, **envs[rank], **own[role_rank]}
    return found


def check_times(spec: GangSpec) -> None:
    """Raise `SpecError` for times that are not numbers of seconds.

    Raises:
        SpecError: The text names the setting and the value.
    """
    check_seconds("grace", spec.grace_s)
    if spec.timeout_s is not None:
        check_seconds("timeout", spec.timeout_s, above_zero=True)


def _check_end(spec: GangSpec, sources: Sequence[GangSpec | Role]) -> None:
    """Raise `SpecError` for invalid times, an invalid event sink or an invalid restart policy."""
    check_times(spec)
    if spec.event_sink is not None and not callable(spec.event_sink):
        raise SpecError(f"event_sink is {spec.event_sink!r}; give a function of one argument, the event, or None")
    _check_strategy(spec, sources)
    _check_ready(spec)
    if spec.restart_policy is None:
        return
    from supervise.restarts import RestartPolicy, check_disjoint

    policy: object = spec.restart_policy
    if not isinstance(policy, RestartPolicy):
        raise SpecError(
            f"restart_policy is {shown(policy)}; give a RestartPolicy, such as RestartPolicy(max_restarts=3), or None"
        )
    check_disjoint(
        success_exit_codes=spec.success_exit_codes,
        uncounted_exit_codes=policy.uncounted_exit_codes,
        never_restart_exit_codes=policy.never_restart_exit_codes,
    )


def _check_strategy(spec: GangSpec, sources: Sequence[GangSpec | Role]) -> None:
    """Raise `SpecError` for an invalid strategy or set of exit codes."""
    if spec.strategy == "one_for_all" and spec.success_exit_codes == {0}:
        return
    from supervise.restarts import check_strategy, exit_codes

    check_strategy(spec.strategy)
    codes = exit_codes("success_exit_codes", spec.success_exit_codes)
    if 0 not in codes and not all(isinstance(source.entrypoint, str) for source in sources):
        raise SpecError(f"success_exit_codes is {sorted(codes)}; functions exit with 0, so add 0")


def _check_ready(spec: GangSpec) -> None:
    """Raise `SpecError` for an invalid kind of readiness, an invalid time, or an invalid watchdog."""
    if spec.ready not in ("exec", "notify"):
        raise SpecError(f"ready is {shown(spec.ready)}; it is one of exec, notify")
    check_seconds("ready_timeout_s", spec.ready_timeout_s, above_zero=True)
    if spec.watchdog is not None:
        from supervise.watchdog import Watchdog

        watchdog: object = spec.watchdog
        if not isinstance(watchdog, Watchdog):
            raise SpecError(f"watchdog is {shown(watchdog)}; give a Watchdog, such as Watchdog(30.0), or None")


def _check_entrypoint(source: GangSpec | Role) -> None:
    """Raise `SpecError` for an invalid entrypoint or start method."""
    entrypoint: object = source.entrypoint
    if not (isinstance(entrypoint, str) and entrypoint) and not callable(entrypoint):
        raise SpecError(f"entrypoint is {shown(entrypoint)}; give a function, or a program's name or path as a string")
    if kind := deferred_kind(entrypoint):
        raise SpecError(f"entrypoint is {shown(entrypoint)}, {kind}")
    if source.start_method not in _METHODS:
        raise SpecError(f"start_method is {shown(source.start_method)}; it is one of {', '.join(_METHODS)}")


def _folder(cwd: object) -> str | None:
    """Return the working directory of the ranks; None for that of this process."""
    if cwd is None:
        return None
    if not isinstance(cwd, (str, os.PathLike)):
        raise SpecError(f"cwd is {shown(cwd)}; give the path of a folder, or None")
    path = os.fsdecode(cwd)
    if "\0" in path or not os.path.isdir(path):
        raise SpecError(f"cwd is {path!r}, where there is no folder; make it first, or give another one")
    return path


def _check_logs(spec: GangSpec) -> None:
    """Raise `SpecError` for invalid specifications of logs, prefixes or filters.

    Every object with a method `reify` is a specification of logs, so PyTorch's are accepted.
    """
    specs: object = spec.logs_specs
    if specs is not None and (isinstance(specs, type) or not callable(getattr(specs, "reify", None))):
        raise SpecError(
            f"logs_specs is {shown(specs)}; give a LogsSpecs, such as DefaultLogsSpecs('logs', redirects=Std.ALL)"
        )
    prefixes: object = spec.log_line_prefixes
    if prefixes is not None and not isinstance(prefixes, Mapping):
        raise SpecError(
            f"log_line_prefixes is {shown(prefixes)}; give a mapping of local rank to text, such as {{0: 'zero: '}}"
        )
    for rank, prefix in (prefixes or {}).items():
        if not isinstance(prefix, str):
            raise SpecError(f"rank {rank}: its log_line_prefixes is {shown(prefix)}; give a text")
    for what in ("duplicate_stdout_filters", "duplicate_stderr_filters"):
        needles = getattr(spec, what)
        if needles is not None and not _is_list_of_texts(needles):
            raise SpecError(f"{what} is {shown(needles)}; give a list of texts, such as ['loss']")
    most: object = spec.log_max_bytes
    if most is not None and not (isinstance(most, int) and not isinstance(most, bool) and most >= LEAST_LOG_BYTES):
        raise SpecError(f"log_max_bytes is {shown(most)}; give at least {LEAST_LOG_BYTES} bytes, or None for no bound")


def _is_list_of_texts(value: object) -> bool:
    """Return whether a value is a collection of strings. A bare string is not one, although its items are strings."""
    if not isinstance(value, Collection) or isinstance(value, (str, bytes)):
        return False
    return all(isinstance(each, str) for each in value)


def _arguments(args: object) -> dict[int, tuple[Any, ...]]:
    """Return local rank to arguments, in the order of the ranks.

    Raises:
        SpecError: There is no rank, a rank is missing, or its arguments are not a sequence.
    """
    if not isinstance(args, Mapping):
        raise SpecError(
            f"args is {shown(args)}; give a mapping of local rank to its arguments, such as {{0: (), 1: ()}}"
        )
    if not args:
        raise SpecError(
            "args is empty, so there is no rank to start; give each rank its arguments, such as {0: (), 1: ()}"
        )
    validate_full_rank(args, len(args), "args")
    return {rank: as_tuple(rank, args[rank]) for rank in sorted(args)}


def as_tuple(rank: int, given: Any) -> tuple[Any, ...]:
    """Return the arguments of a rank. A bare string is one argument.

    Raises:
        SpecError: The arguments are not a sequence.
    """
    if isinstance(given, (str, bytes)):
        return (given,)
    if isinstance(given, Mapping):  # tuple() would keep only its keys
        raise SpecError(
            f"rank {rank}: its arguments are {shown(given)}, a mapping; give a tuple, such as (the_mapping,)"
        )
    try:
        return tuple(given)
    except TypeError:
        raise SpecError(
            f"rank {rank}: its arguments are {shown(given)}; give a tuple, such as ({shown(given)},)"
        ) from None


def _environments(envs: object, nprocs: int) -> dict[int, dict[str, str]]:
    """Return local rank to the variables that are added to its environment, as text.

    Raises:
        SpecError: A rank is missing, or its value is not valid as an environment.
    """
    if envs is None:
        return {rank: {} for rank in range(nprocs)}
    if not isinstance(envs, Mapping):
        raise SpecError(
            f"envs is {shown(envs)}; give a mapping of local rank to a dictionary, such as {{0: {{'NAME': 'value'}}}}"
        )
    validate_full_rank(envs, nprocs, "envs")
    return {rank: _environment(rank, envs[rank]) for rank in sorted(envs)}


def _environment(rank: int, env: object) -> dict[str, str]:
    if not isinstance(env, Mapping):
        raise SpecError(
            f"rank {rank}: its envs is {shown(env)}; give a dictionary, such as {{'NAME': 'value'}}, or {{}}"
        )
    found = {}
    for key, value in env.items():
        if not isinstance(key, str):
            raise SpecError(f"rank {rank}: in its envs, the name {shown(key)} is not text; give {text_of(key)!r}")
        found[key] = text = _variable(rank, key, value)
        if not key or "=" in key or "\0" in key or "\0" in text:
            raise SpecError(
                f"rank {rank}: {key!r} cannot be an environment variable; no '=' in its name and no NUL at all"
            )
        if not (is_encodable(key) and is_encodable(text)):
            raise SpecError(f"rank {rank}: {key!r} or its value cannot be encoded; leave out the surrogates")
    return found


def _variable(rank: int, key: str, value: object) -> str:
    """Return the value of a variable as text. An error shows only the type of the value, because it may be a secret."""
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    import numbers

    if isinstance(value, numbers.Number):  # such as NumPy's numbers
        return str(value)
    kind = "None" if value is None else f"of type {type(value).__name__}"
    way = "; leave the variable out" if value is None else ""
    raise SpecError(f"rank {rank}: in its envs, the value of {key!r} is {kind}; give a text, a number or a path{way}")


def has_own_main(fn: object, args: Mapping[int, tuple[Any, ...]]) -> bool:
    """Return whether new interpreters cannot import the main module. If so, objects of that module need cloudpickle.

    Raises:
        SpecError: cloudpickle is not installed. The text names the function, or the rank with the argument, and the
            remedy.
    """
    where = _unimportable_main()
    if where is None or by_value.is_installed():
        return where is not None
    while isinstance(fn, partial):
        fn = fn.func
    if getattr(fn, "__module__", None) == "__main__":
        _refuse_main(getattr(fn, "__qualname__", None) or shown(fn), where)
    for rank, given in args.items():
        for arg in given:
            if getattr(arg, "__module__", None) == "__main__":
                _refuse_main(f"rank {rank}: its argument {shown(arg)}", where)
    return True


def _unimportable_main() -> str | None:
    """Return the place where the main module was defined, and the remedy; None if new interpreters can import it."""
    main = sys.modules.get("__main__")
    if getattr(sys, "frozen", False):  # because each new process is the same executable with the same main module
        return None
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        inside = spec.name == "__main__" or spec.name.endswith(".__main__")
        where = "in the __main__.py of a package or an archive, which the new processes do not import"
        return f"{where}; put it into another module" if inside else None
    known = os.path.isfile(getattr(main, "__file__", None) or "")
    where = "at a prompt, in a notebook, by -c or from stdin, which the new processes cannot import"
    return None if known else f"{where}; put it into a file"


def _refuse_main(what: str, where: str) -> None:
    more = f"install cloudpickle ({by_value.INSTALL})"
    raise SpecError(f"{what} was defined {where}, {more}, or use start_method='fork'")
