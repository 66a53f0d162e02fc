"""`start_processes`, in both generations of its signature."""

from __future__ import annotations

import os

from supervise.logs import DefaultLogsSpecs, Std

TYPE_CHECKING = False  # so ranks whose main module imports this need not import typing and inspect
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, overload

    from supervise._api.base import PContext
    from supervise._api.context import GangContext
    from supervise._settings import Containment, KillMode, Strategy
    from supervise.logs import LogsSpecs
    from supervise.restarts import RestartPolicy
    from supervise.roles import Role
    from supervise.watchdog import Watchdog

    Streams = Std | dict[int, Std]
else:

    def overload(function: Callable[..., Any]) -> Callable[..., Any]:
        """Register a signature for introspection."""
        _generations.append(function)
        return function


_generations: list[Callable[..., Any]] = []


@overload
def start_processes(  # noqa: PLR0917 - PyTorch's
    name: str,
    entrypoint: Callable[..., Any] | str | None = None,
    args: Mapping[int, Any] | None = None,
    envs: Mapping[int, dict[str, Any]] | None = None,
    logs_specs: LogsSpecs | None = None,
    log_line_prefixes: Mapping[int, str] | None = None,
    start_method: str = "spawn",
    numa_options: Any = None,
    duplicate_stdout_filters: Sequence[str] | None = None,
    duplicate_stderr_filters: Sequence[str] | None = None,
    *,
    grace: float | None = None,
    cwd: str | os.PathLike[str] | None = None,
    listen: Sequence[str] = (),
    timeout: float | None = None,
    restart_policy: RestartPolicy | None = None,
    containment: Containment = "group",
    kill_mode: KillMode = "group",
    gate: bool = False,
    strategy: Strategy = "one_for_all",
    success_exit_codes: frozenset[int] = frozenset({0}),
    ready: str | Sequence[str] = "exec",
    ready_timeout_s: float = 60.0,
    alive: str | None = None,
    alive_interval_s: float = 10.0,
    alive_timeout_s: float = 5.0,
    alive_failures: int = 3,
    watchdog: Watchdog | None = None,
    roles: Sequence[Role] | None = None,
    control: str | os.PathLike[str] | None = None,
    rank_variables: bool = False,
    hold_returned: bool = False,
) -> PContext: ...


@overload
def start_processes(  # noqa: F811, PLR0917 - PyTorch's, of another generation
    name: str,
    entrypoint: Callable[..., Any] | str | None = None,
    args: Mapping[int, Any] | None = None,
    envs: Mapping[int, dict[str, Any]] | None = None,
    log_dir: str | os.PathLike[str] | None = None,
    start_method: str = "spawn",
    redirects: Streams = Std.NONE,
    tee: Streams = Std.NONE,
    *,
    grace: float | None = None,
    cwd: str | os.PathLike[str] | None = None,
    listen: Sequence[str] = (),
    timeout: float | None = None,
    restart_policy: RestartPolicy | None = None,
    containment: Containment = "group",
    kill_mode: KillMode = "group",
    gate: bool = False,
    strategy: Strategy = "one_for_all",
    success_exit_codes: frozenset[int] = frozenset({0}),
    ready: str | Sequence[str] = "exec",
    ready_timeout_s: float = 60.0,
    alive: str | None = None,
    alive_interval_s: float = 10.0,
    alive_timeout_s: float = 5.0,
    alive_failures: int = 3,
    watchdog: Watchdog | None = None,
    roles: Sequence[Role] | None = None,
    control: str | os.PathLike[str] | None = None,
    rank_variables: bool = False,
    hold_returned: bool = False,
) -> PContext: ...


def start_processes(  # noqa: F811 - implements both overloads
    name: str,
    entrypoint: Callable[..., Any] | str | None = None,
    args: Mapping[int, Any] | None = None,
    envs: Mapping[int, dict[str, Any]] | None = None,
    *positional: Any,
    **named: Any,
) -> PContext:
    """Start one process per entry of `args`; return the running gang.

    Accept both generations of PyTorch's signature, distinguished by type: the current one
    (``logs_specs, log_line_prefixes, start_method, numa_options, duplicate_stdout_filters,
    duplicate_stderr_filters``) and the one up to 2.1 (``log_dir, start_method, redirects, tee``), whose
    files are ``<log_dir>/<rank>/stdout.log``.

    Args:
        name: Name of the gang; begins the prefix of every shown line, ``[<name><rank>]:``.
        entrypoint: A function that every rank calls, or the name or path of a program.
        args: Local rank, ``0 .. n-1``, to its arguments. Those of a program become strings; a bare string is
            one argument.
        envs: Local rank to variables added to this process's environment; none by default.
            ``TORCHELASTIC_ERROR_FILE`` is set in each.
        *positional: The other arguments of either generation.
        **named: The same by name; and ``grace`` (seconds from the first signal to SIGKILL; None: the environment's
            ``SUPERVISE_GRACE``, or 30),
            ``cwd`` (working directory of the ranks), ``timeout`` (seconds after which the gang is stopped),
            ``listen`` (addresses of sockets that the ranks share and that outlive restarts, from descriptor 3 on),
            ``restart_policy`` (a `RestartPolicy`; None: no rank is restarted),
            ``strategy`` (which ranks the failure of a rank concerns: ``one_for_all``, ``one_for_one``,
            ``rest_for_one``), ``success_exit_codes`` (exit codes that are a success),
            ``ready`` (the start waits until each rank is ready: ``notify`` means that it has reported so by
            `supervise.notify`; or a probe, such as ``tcp:8000``), ``ready_timeout_s`` (seconds from the launch of a
            rank until it must be ready), ``alive`` (a probe that a ready rank must answer; otherwise it counts as
            hung),
            ``alive_interval_s``, ``alive_timeout_s``, ``alive_failures`` (the tries of that probe),
            ``watchdog`` (a `Watchdog`: when a rank counts as hung, and what follows),
            ``containment`` (treatment of processes that leave their process group: ``group`` reports them at the
            close, ``cgroup`` and ``sweep`` end them),
            ``kill_mode`` (destination of the first signal of a stop: ``group``, the process group of each rank, or
            ``mixed``, only its own process; SIGKILL always goes to the group),
            ``gate`` (True: a program waits until its lifeline is armed, so that it cannot outlive this process).
            ``roles`` (a list of `Role`, in place of `entrypoint` and `args`: ranks that do not all run the same).
            ``control`` (path of a socket file that accepts commands of other processes of this user).
            ``rank_variables`` (True: each rank gets torchrun's variables, ``RANK``, ``MASTER_PORT`` and so on; `envs`
            may replace them).
            ``hold_returned`` (True: the process of a function that has returned stays alive until all have returned).
            ``numa_options`` (`NumaOptions`, also PyTorch's) binds each rank to the CPUs of its GPU.

    Raises:
        SpecError: A setting is not valid or cannot be pickled; no process was started.
        OSError: A rank could not be started, or the log folder cannot be used; no rank is left running.
        SignalException: A termination signal arrived during the start; no rank is left running.
    """
    context = _context(name, entrypoint, args, envs, _sort_out(positional, named))
    try:
        context.start()
    except BaseException as error:
        context.__exit__(type(error), error, None)
        raise
    return context


def _context(
    name: str,
    entrypoint: Callable[..., Any] | str | None,
    args: Mapping[int, Any] | None,
    envs: Mapping[int, dict[str, Any]] | None,
    given: dict[str, Any],
) -> GangContext:
    # lazy: a rank may import this module without using it
    if entrypoint is None or args is None or given.get("roles") is not None:
        from supervise._api.context import GangContext

        given.pop("until_polled", None)  # roles have no counterpart in PyTorch
        return GangContext(name=name, entrypoint=entrypoint, args=args, envs=envs, **given)
    from supervise._torch.contexts import MultiprocessContext, SubprocessContext

    if isinstance(entrypoint, str):
        given.pop("start_method", None)
        given.pop("hold_returned", None)  # only functions are held
        return SubprocessContext(name, entrypoint, args, envs, **given)
    given.setdefault("hold_returned", False)
    return MultiprocessContext(name, entrypoint, args, envs, **given)


# help() and editors show the current generation.
start_processes.__wrapped__ = _generations[0]  # type: ignore[attr-defined]
_NOW, _ONCE = (each.__code__.co_varnames[4 : each.__code__.co_argcount] for each in _generations)
"""The arguments that may be positional, of either generation, after the four that both have."""
_OURS = frozenset(_generations[0].__kwdefaults__ or ()) | {"until_polled"}


def _sort_out(positional: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments by their names in the current generation."""
    once = _is_once(positional, named)
    names = _ONCE if once else _NOW
    if len(positional) > len(names):
        most, count = 4 + len(names), 4 + len(positional)
        raise TypeError(f"start_processes() takes at most {most} positional arguments, but {count} were given")
    given = dict(zip(names, positional, strict=False))
    for key, value in named.items():
        if key in given:
            raise TypeError(f"start_processes() got multiple values for argument {key!r}")
        if key not in names and key not in _OURS:
            raise TypeError(f"start_processes() got an unexpected keyword argument {key!r}")
        given[key] = value
    if once:
        given["logs_specs"] = FlatLogsSpecs(
            given.pop("log_dir", None), given.pop("redirects", Std.NONE), given.pop("tee", Std.NONE)
        )
    return given


def _is_once(positional: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether the arguments belong to the generation up to 2.1."""
    if named.keys() & {"log_dir", "redirects", "tee"}:
        return True
    fifth, sixth = (*positional, None, None)[:2]
    return isinstance(fifth, (str, os.PathLike)) or isinstance(sixth, str)


class FlatLogsSpecs(DefaultLogsSpecs):
    """The layout up to PyTorch 2.1: ``<log_dir>/<rank>/{stdout.log,stderr.log,error.json}``."""

    def _attempt_dir(self, _run_id: str, _restart_count: str) -> str:
        """Create the folder of all logs and return its path."""
        root = os.path.abspath(self.root_log_dir)
        os.makedirs(root, mode=0o700, exist_ok=True)
        return root
