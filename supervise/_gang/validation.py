"""The checks of a gang's settings, before any folder is made and before any process is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import index
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from supervise import _platform as platform
from supervise._gang.notify_protocol import SOCKET
from supervise._gang.rank_spec import RankSpec, held_by_rank, naming
from supervise._gang.spec import INTERNAL
from supervise._process.launch import dispositions, limits
from supervise._settings import GANG, address_of, conditions, of_roles, shown
from supervise.errors import SpecError
from supervise.logs import validate_full_rank
from supervise.recording import text_of

if TYPE_CHECKING:
    from supervise.roles import Role


# Functions whose call runs none of their code
#
# The call returns a coroutine or a generator, which a rank can neither run nor send.


_RUN_IT = "whose call runs nothing yet; give a function that runs it to its end"
_KINDS = {
    0x80: f"an async function, {_RUN_IT}, such as one that calls asyncio.run",
    0x200: f"an async generator function, {_RUN_IT}",
    0x20: f"a generator function, {_RUN_IT}",
}
"""The flags of code objects, to kinds of functions.

`inspect` has them, but its import takes longer than a gang's start.
"""


def deferred_kind(fn: object) -> str:
    """Return the kind of such a function and the remedy; ``""`` for all other functions.

    The functions inside methods, partials and callable objects count, too.
    """
    while isinstance(fn, partial):
        fn = fn.func
    fn = getattr(fn, "__func__", fn)
    if not hasattr(fn, "__code__") and not isinstance(fn, type):
        fn = vars(type(fn)).get("__call__")  # an inherited one is ignored
    flags = getattr(getattr(fn, "__code__", None), "co_flags", 0)
    return next((kind for flag, kind in _KINDS.items() if flags & flag), "")


# Checks of texts for the kernel: programs, arguments and variables


_PLAIN = (str, int, float, bool)
"""Types whose `__str__` does not raise."""


def argv_of(program: str, args: tuple[Any, ...], rank: int) -> list[str]:
    """Return a program and its arguments as strings.

    Raises:
        SpecError: The `__str__` of an argument has raised; the text names the rank and the argument.
    """
    return [program, *[_argument(arg, number, rank) for number, arg in enumerate(args)]] if args else [program]


def _argument(arg: object, number: int, rank: int) -> str:
    if isinstance(arg, bytes):
        return os.fsdecode(arg)
    if type(arg) in _PLAIN:  # an exception of a signal handler must not be taken for one that `str` raises
        return str(arg)
    try:
        return str(arg)
    except Exception as error:
        why = f"{type(error).__name__}: {text_of(error)}"
        raise SpecError(
            f"rank {rank}: its argument {number}, {shown(arg)}, cannot be converted to text ({why}); give a text"
        ) from error


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
        text.encode(*platform.FILE_SYSTEM)
    except UnicodeEncodeError:
        return False
    return True


# The checks of the settings that the table cannot check one by one


def checked_roles(found: Mapping[str, Any]) -> list[Role]:
    """Return the roles that have ranks: a role with empty `args` is switched off.

    Refuse settings that cannot be used with `roles`, and roles that do not form a valid gang.

    Raises:
        SpecError: A setting or a role is not valid; the text names it.
    """
    for row in GANG.values():
        value = found[row.field]
        if row.role == "own" and value is not row.default and value != row.default:
            raise SpecError(f"{row.name} is not an argument of a gang with roles; each Role has its own")
    roles: object = found["roles"]
    from supervise.roles import Role  # lazy: most gangs have no roles

    if not isinstance(roles, Sequence) or not all(isinstance(role, Role) for role in roles) or not roles:
        raise SpecError("roles is not a list of roles; give at least one, such as [Role(name='store', ...)]")
    names = [role.name for role in roles]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"two roles have the name {name!r}; give each its own")
    kept = [role for role in roles if role.args or not isinstance(role.args, Mapping)]
    if not kept:
        raise SpecError("every role is switched off, because its args are empty; give at least one role a rank")
    if all(role.service for role in kept):
        raise SpecError(
            "every role is a service; add a role that is not: services stop when all other roles have ended"
        )
    for role in kept:
        if role.restart is not None and found["restart_policy"] is None:
            raise SpecError(
                f"role {role.name!r}: restart is {role.restart!r}, but the gang has no restart_policy; give it one,"
                " such as RestartPolicy(max_restarts=3), or max-restarts = 3 at the top of the file of the roles"
            )
    return kept


def checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check the settings of a gang; return the fields of its `GangSpec`.

    They are the settings as the gang uses them, with the defaults of those that are missing, and the settings for the
    ranks of each role.

    Raises:
        SpecError: A setting is not valid. The text names the setting and the value, or the rank.
        TypeError: A keyword is not the name of a setting.
    """
    if unknown := settings.keys() - GANG.keys() - set(INTERNAL):
        raise TypeError(f"a gang has no argument {min(unknown)!r}")
    found = {name: settings[name] for name in INTERNAL if name in settings}
    found |= {row.field: row.checked(settings[name]) if name in settings else row.default for name, row in GANG.items()}
    sources = _sources(found)
    _check_records(found, alive=any(getattr(source, "alive", None) for source in sources))
    _check_exit_codes(found, sources)
    found["parts"] = parts = tuple(_parts(found, sources))
    if found.get("stdin") or any(part.stdin != "null" for part in parts):
        _check_stdin(found, parts)
    _check_addresses(parts)
    if nprocs := parts[-1].ranks.stop:  # checked first, because the number of ranks may be a mistake
        here = any(part.travels or part.cwd is None for part in parts)  # pickled calls name this process's folder
        functions = any(part.kind == "function" for part in parts)
        limits.check_host(nprocs, None if here else parts[0].cwd, functions=functions)
        sockets = _needs_sockets(found, parts)
        each = held_by_rank(parts, sockets=sockets, holds=found["hold_returned"])
        filters = bool(found["duplicate_stdout_filters"]) + bool(found["duplicate_stderr_filters"])
        later = limits.opened_later(nprocs, filters=filters)
        spare = limits.check_open_files(nprocs, each=each, shown=0, later=later)
        # An optional socket must not take a descriptor that a lifeline or the start may need
        found["notifies"] = sockets or (found.get("hears", False) and spare > later + 4 * nprocs)
    args: dict[int, tuple[Any, ...]] = {}
    for part, source in zip(parts, sources, strict=True):
        with naming(part.name):
            for rank, given in _arguments(source.args).items():
                args[part.ranks[rank]] = given
                if isinstance(source.entrypoint, str):
                    check_argv(argv_of(source.entrypoint, given, rank), rank)
    found["args"], found["envs"] = args, _environments(found["envs"], len(args))
    found["control"] = _checked_socket(found["control"])
    if found["roles"] is not None:
        found["role_of"] = tuple(number for number, part in enumerate(parts) for _ in part.ranks)
        found["needs"] = _numbered_needs(parts, settings["roles"])
        found["envs"] = _role_environments(found["roles"], parts, found["envs"])
    heard = [rank for rank, env in found["envs"].items() if SOCKET in env]
    if heard and _needs_sockets(found, parts):
        raise SpecError(f"rank {heard[0]}: its envs set {SOCKET}, which the gang sets; leave it out")
    if heard:  # the caller's `envs` set the variable
        found["notifies"] = False
    return found


def _numbered_needs(parts: Sequence[RankSpec], roles: Sequence[Role]) -> tuple[frozenset[int], ...] | None:
    """Return the roles that each role needs, directly or not, by number; None for those before it.

    Args:
        parts: The roles that have ranks. No role waits for the others, which are switched off.
        roles: All roles.
    """
    if all(role.needs is None for role in roles):
        return None
    from supervise._core import role_order  # lazy: few gangs have needs

    numbers = {part.name: number for number, part in enumerate(parts)}
    off = {role.name for role in roles}.difference(numbers)
    given = {part.name: [each for each in part.needs or () if each not in off] for part in parts}
    found = role_order.needs_of(given)
    return tuple(frozenset(numbers[each] for each in found[part.name]) for part in parts)


def _check_stdin(found: Mapping[str, Any], parts: Sequence[RankSpec]) -> None:
    """Refuse a stdin for functions, and a stdin together with a gate.

    The gate is a pipe on the stdin of the shell that waits. Refuse also more than one rank with the host's stdin.
    """
    reader: str | None = None
    for part in parts:
        if part.stdin == "inherit" and (len(part.ranks) > 1 or reader is not None):
            other = f"role {reader!r} has it" if reader is not None else f"the role has {len(part.ranks)}"
            raise SpecError(f"role {part.name!r}: stdin is 'inherit', which is for one rank, and {other}; give 'null'")
        reader = part.name if part.stdin == "inherit" else reader
        given = found.get("stdin", {}).keys() & set(part.ranks)
        for rank in sorted(given) if part.stdin == "null" else part.ranks:
            if part.kind != "binary":
                raise SpecError(f"rank {rank}: only a program can have a stdin, and a function cannot")
            if found["gate"] or dispositions.kernel_reaps():
                reason = "gate=True" if found["gate"] else "an ignored SIGCHLD"
                raise SpecError(f"rank {rank}: with {reason}, programs wait on their stdin at the start; omit one")


def _check_addresses(parts: Iterable[RankSpec]) -> None:
    """Refuse sockets for functions that are forked, and an address that is given twice."""
    owners: dict[tuple[str, int] | str, str] = {}
    for part in parts:
        with naming(part.name):
            if part.listen and part.start_method in ("fork", "forkserver"):
                why = "other files of this process may have the descriptors from 3 on; use 'spawn'"
                raise SpecError(f"listen is not possible with start_method {part.start_method!r}, because {why}")
            for text in part.listen:
                address = _place(text, part.cwd)
                if address[1:] == (0,):  # a free port, a different one each time
                    continue
                if (owner := owners.setdefault(address, part.name)) != part.name:
                    raise SpecError(
                        f"listen: {text!r} is an address of role {owner!r}, too; give each address to one role, in a"
                        " file below its [roles.NAME]"
                    )
                if [_place(each, part.cwd) for each in part.listen].count(address) > 1:
                    raise SpecError(f"listen: {text!r} is given twice; remove one of the two")


def _place(text: str, cwd: str | None) -> tuple[str, int] | str:
    """Return the address, with a path that is the same for each spelling. A relative path is below `cwd`."""
    address = address_of(text)
    return os.path.realpath(os.path.join(cwd or "", address)) if isinstance(address, str) else address


def _needs_sockets(found: Mapping[str, Any], parts: Iterable[RankSpec]) -> bool:
    """Whether the ranks have notify sockets."""
    return found["watchdog"] is not None or any("notify" in part.ready for part in parts)


def _sources(found: dict[str, Any]) -> Sequence[Any]:
    """Return the objects that have the settings for ranks: the roles, or the settings of a gang without roles."""
    if found["roles"] is not None:
        found["roles"] = roles = checked_roles(found)
        return roles
    if found["entrypoint"] is None and found["args"] is None:
        raise SpecError("there is nothing to start; give entrypoint and args, or roles")
    return (SimpleNamespace(**{**found, "stdin": "null"}),)


def check_policy(policy: object) -> None:
    """Refuse a restart policy that is not a `RestartPolicy`.

    Raises:
        SpecError: It is not.
    """
    if policy is not None:
        from supervise.restarts import RestartPolicy

        if not isinstance(policy, RestartPolicy):
            such = "RestartPolicy(max_restarts=3)"
            raise SpecError(f"restart_policy is {shown(policy)}; give a RestartPolicy, such as {such}, or None")


def _check_records(found: Mapping[str, Any], *, alive: bool) -> None:
    """Refuse a `restart_policy` or a `watchdog` of another class. Most gangs do not load these classes."""
    watchdog = found["watchdog"]
    check_policy(found["restart_policy"])
    if watchdog is not None:
        from supervise.watchdog import Watchdog

        if not isinstance(watchdog, Watchdog):
            raise SpecError(f"watchdog is {shown(watchdog)}; give a Watchdog, such as Watchdog(30.0), or None")
        if watchdog.heartbeat_timeout_s is None and watchdog.output_timeout_s is None and not alive:
            raise SpecError("a Watchdog needs heartbeat_timeout_s or output_timeout_s, in seconds, or an alive probe")


def _check_exit_codes(found: Mapping[str, Any], sources: Sequence[Any]) -> None:
    """Refuse exit codes with which functions cannot succeed, and codes that the restart policy contradicts."""
    codes, policy = found["success_exit_codes"], found["restart_policy"]
    if 0 not in codes and not all(isinstance(source.entrypoint, str) for source in sources):
        raise SpecError(f"success_exit_codes is {sorted(codes)}; functions exit with 0, so add 0")
    if policy is not None:
        from supervise.restarts import check_disjoint

        check_disjoint(
            success_exit_codes=codes,
            uncounted_exit_codes=policy.uncounted_exit_codes,
            never_restart_exit_codes=policy.never_restart_exit_codes,
        )


def _parts(found: Mapping[str, Any], sources: Sequence[Any]) -> Iterator[RankSpec]:
    """Yield the settings for the ranks of each role.

    If the arguments of a role are not a mapping, the role has no ranks.

    Raises:
        SpecError: An entrypoint, a start method or a working directory is not valid.
    """
    first = 0
    inherited = [row for row in GANG.values() if row.role == "inherited"]
    for source in sources:
        role = "" if found["roles"] is None else source.name
        with naming(role):
            _check_entrypoint(source.entrypoint)
            given = {row: getattr(source, row.name if role else row.field, row.default) for row in of_roles()}
            own: dict[str, Any] = {row.name: value for row, value in given.items()}
            if role:
                own |= {row.name: row.checked(value) for row, value in given.items() if value is not None}
                own["cwd"] = GANG["cwd"].checked(source.cwd)
                own |= {row.name: found[row.field] for row in inherited if own[row.name] is None}
        own["ready"] = conditions(own["ready"])
        kind = own["restart"] or getattr(found["restart_policy"], "restart", "")
        own["restart"] = "transient" if "exit" in own["ready"] and kind == "permanent" else own["restart"]
        end = first + (len(source.args) if isinstance(source.args, Mapping) else 0)
        entrypoint: Any = source.entrypoint
        if isinstance(entrypoint, str):
            own["start_method"] = None
        yield RankSpec(entrypoint, range(first, end), name=role, **own)
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


def _check_entrypoint(entrypoint: object) -> None:
    if not (isinstance(entrypoint, str) and entrypoint) and not callable(entrypoint):
        raise SpecError(f"entrypoint is {shown(entrypoint)}; give a function, or a program's name or path as a string")
    if kind := deferred_kind(entrypoint):
        raise SpecError(f"entrypoint is {shown(entrypoint)}, {kind}")


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
    return {index(rank): as_tuple(rank, args[rank]) for rank in sorted(args)}


def as_tuple(rank: int, given: Any) -> tuple[Any, ...]:
    """Return the arguments of a rank. A bare string is one argument.

    Raises:
        SpecError: The arguments are not a sequence.
    """
    if isinstance(given, tuple):
        return tuple(given)
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
    if not isinstance(env, (dict, Mapping)):  # faster than `Mapping` alone
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
                f"rank {rank}: {key!r} cannot be an environment variable; its name has no '=', and neither name nor"
                " value has a NUL"
            )
        if not (is_encodable(key) and is_encodable(text)):
            raise SpecError(f"rank {rank}: {key!r} or its value cannot be encoded; leave out the surrogates")
    return found


def _variable(rank: int, key: str, value: object) -> str:
    """Return the value of a variable as text. An error shows only the type of the value, because it may be a secret."""
    if isinstance(value, str):
        return str.__str__(value)  # the text of an enumeration's member, and not its name
    if isinstance(value, (int, float)):
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
    from supervise._process.launch import function  # lazy: a gang of programs does not need it

    where = _unimportable_main()
    if where is None or function.is_installed():
        return where is not None
    while isinstance(fn, partial):
        fn = fn.func
    if _at_prompt() and _is_of_main_file(fn):
        return False
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
    if spec is not None and not _at_prompt():
        inside = spec.name == "__main__" or spec.name.endswith(".__main__")
        where = "in the __main__.py of a package or an archive, which the new processes do not import"
        return f"{where}; put it into another module" if inside else None
    known = os.path.isfile(getattr(main, "__file__", None) or "") and not _at_prompt()
    where = "at a prompt, in a notebook, by -c or from stdin, which the new processes cannot import"
    return None if known else f"{where}; put it into a file"


def _at_prompt() -> bool:
    """Return whether the main module is that of a prompt or of a notebook.

    Such a module may have the file or the spec of what `%run`, `python -i` or the front end has run.
    """
    return hasattr(sys, "ps1") or hasattr(sys.modules.get("__main__"), "get_ipython")


def _is_of_main_file(fn: object) -> bool:
    """Return whether a function is of the file of the main module, which new processes can import."""
    code, main = getattr(fn, "__code__", None), sys.modules.get("__main__")
    return code is not None and code.co_filename == getattr(main, "__file__", None)


def _refuse_main(what: str, where: str) -> None:
    from supervise._process.launch import function

    more = f"install cloudpickle ({function.INSTALL})"
    raise SpecError(f"{what} was defined {where}, {more}, or use start_method='fork'")


# The path of the control socket


def _checked_socket(value: object) -> str | None:
    """Return the absolute path of the socket file; None for no socket.

    Raises:
        SpecError: The value is not a path, its folder does not exist, or its name is too long.
    """
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)) or not isinstance(path := os.fspath(value), str) or "\0" in path:
        raise SpecError(f"control is {value!r}; give the path of a socket file to make, or None")
    from supervise._control.protocol import LONGEST_NAME  # lazy: most gangs have none

    folder, name = os.path.split(os.path.abspath(path))
    if not os.path.basename(path):
        raise SpecError(f"control is {path!r}; its last part is the name of a socket file to make")
    if len(os.fsencode(name)) > LONGEST_NAME:
        raise SpecError(f"control is {path!r}; the name of the socket file has more than {LONGEST_NAME} bytes")
    if not os.path.isdir(folder):
        raise SpecError(f"control is {path!r}; its folder does not exist")
    return os.path.join(folder, name)
