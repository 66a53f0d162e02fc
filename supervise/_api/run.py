"""`run`: a function or a program on every rank of a gang, in one call that returns the values."""

from __future__ import annotations

import operator
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, overload

import pykka

from supervise._api import signals
from supervise._api.context import GangContext
from supervise._process.launch import limits
from supervise._settings import GANG, shown
from supervise.errors import GangFailed, SignalException, SpawnError, SpecError, is_unguarded
from supervise.logs import DefaultLogsSpecs, Std, new_temp_dir

if TYPE_CHECKING:
    from supervise._gang.spec import SharedSettings
    from supervise.result import RunProcsResult

    class RunSettings(SharedSettings, total=False):
        """The other keyword arguments of `run`."""

        name: str
        numa_options: Any

    Envs = Mapping[int, Mapping[str, Any]] | Mapping[str, Any] | None

_PACKAGES = (
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ""),
    os.path.join(os.path.dirname(pykka.__file__), ""),
)
"""The folders with the files whose frames are left out of an exception of `run`."""

_NOT_OF_RUN = frozenset(("entrypoint", "args", "envs", "roles", "stop_signal", "reload_signal"))
"""The settings of a gang that `run` has as `fn` and `args`, or lacks."""

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")


@overload
def run(fn: Callable[[], _T], n: int, *, envs: Envs = None, **settings: Unpack[RunSettings]) -> list[_T]: ...
@overload
def run(
    fn: Callable[[*_Args], _T],
    n: int,
    args: tuple[*_Args],
    envs: Envs = None,
    **settings: Unpack[RunSettings],
) -> list[_T]: ...
@overload
def run(
    fn: Callable[[*_Args], _T],
    n: int | None = None,
    *,
    args: Mapping[int, tuple[*_Args]],
    envs: Envs = None,
    **settings: Unpack[RunSettings],
) -> list[_T]: ...
@overload
def run(
    fn: str,
    n: int | None = None,
    args: Sequence[Any] | Mapping[int, Any] = (),
    envs: Envs = None,
    **settings: Unpack[RunSettings],
) -> list[None]: ...
def run(
    fn: Callable[..., Any] | str,
    n: int | None = None,
    args: Sequence[Any] | Mapping[int, Any] = (),
    envs: Envs = None,
    **settings: Unpack[RunSettings],
) -> list[Any]:
    """Run a function, or a program, on `n` ranks; return the values in the order of the ranks.

    When a rank fails, all others are stopped, and the call raises. No process is left when it returns or raises.
    The output of the ranks is shown as it arrives. Without `logs_specs`, it is also written to a temporary folder,
    which is removed unless the gang fails. Each rank gets torchrun's variables, such as ``RANK``, ``WORLD_SIZE`` and
    ``MASTER_PORT``, unless `rank_variables` is False.

    On the main thread, a termination signal stops the gang politely; then the signal's own handler is called, which
    raises `KeyboardInterrupt` for Ctrl-C. A second signal kills the gang at once.

    Args:
        fn: A function that every rank calls, or the name or path of a program.
        n: Number of ranks; None if `args` maps each rank to its arguments.
        args: The arguments of all ranks as a tuple, or rank to its arguments.
        envs: The variables added to the environment of all ranks, or rank to its variables. They take precedence over
            those of supervise.
        **settings: The other arguments of `Supervisor`, by name.

    Returns:
        The return value of each rank; None for each rank of a program.

    Raises:
        GangFailed: A rank failed, the timeout expired, or another process stopped the gang. The text is the report of
            ``supervise run``, ``result`` is the result, and ``__cause__`` has the traceback of the rank.
        SpecError: A setting is not valid or cannot be pickled; no process was started.
        TypeError: A keyword is not a setting.
        OSError: A rank could not be started, or a folder cannot be used; no rank is left running.
        SpawnError: A rank did not start for another reason; no rank is left running.
        KeyboardInterrupt: SIGINT arrived; no rank is left running.
        SignalException: Another termination signal arrived, and the program's own handler, if any, has not raised; no
            rank is left running.
    """
    if not isinstance(fn, str) and not callable(fn):
        raise SpecError(f"fn is {shown(fn)}; give a function (not what its call returns), or a program's name or path")
    if unknown := settings.keys() - (GANG.keys() - _NOT_OF_RUN):
        raise TypeError(f"run() got an unexpected keyword argument {min(unknown)!r}{_meant(min(unknown))}")
    calls = _calls(n, args)
    _check_call(fn, calls)
    outcome = _outcome(fn, calls, _environments(envs, len(calls)), settings)
    if isinstance(outcome, BaseException):  # raised here, so that the traceback has one frame of supervise
        raise outcome
    return outcome


def _calls(n: int | None, args: Sequence[Any] | Mapping[int, Any]) -> Mapping[int, Any]:
    """Return rank to arguments.

    Raises:
        SpecError: `n` is not a number of ranks, is too large, or differs from the number of ranks in `args`.
    """
    if n is None:
        if not isinstance(args, Mapping):
            raise SpecError("run() needs the number of ranks; give n=4, or args as a mapping of rank to arguments")
        return args
    try:
        count = operator.index(n)
    except TypeError:
        count = 0
    if count < 1 or isinstance(n, bool):
        raise SpecError(f"n is {n!r}; give the number of ranks, 1 or more")
    if isinstance(args, (str, bytes)):
        raise SpecError(f"args is {shown(args)}; give a tuple, such as ({shown(args)},)")
    if not isinstance(args, Mapping):
        limits.check_count(count)  # a mistyped number must not fill the memory
        return dict.fromkeys(range(count), args)
    if len(args) != count:
        raise SpecError(f"n is {count}, but the length of args is {len(args)}; leave out n")
    return args


def _meant(word: str) -> str:
    """Return a hint with the argument of `run` that another word probably means, or ``""``."""
    import difflib

    known = [*(GANG.keys() - _NOT_OF_RUN), "n", "args", "envs"]
    counts = dict.fromkeys(("num_processes", "num_workers", "workers", "world_size"), "n")
    foreign = {"env": "envs", "max_restarts": "restart_policy", **counts}
    meant = "n" if word.startswith("nproc") else foreign.get(word) or "".join(difflib.get_close_matches(word, known, 1))
    return f"; did you mean {meant!r}?" if meant else ""


def _check_call(fn: object, calls: Mapping[int, Any]) -> None:
    """Refuse a function that needs arguments if none are given.

    Raises:
        SpecError: The text names the function and its arguments.
    """
    code = getattr(fn, "__code__", None)
    if isinstance(fn, FunctionType) and isinstance(code, CodeType) and any(args == () for args in calls.values()):
        needed = code.co_varnames[: code.co_argcount - len(fn.__defaults__ or ())]
        if needed:
            call = f"{fn.__qualname__}({', '.join(needed)})"
            raise SpecError(
                f"{call} needs arguments, and run() passes none, not even the rank: read os.environ['RANK'] in it, or"
                " give args, such as args=(5,) for all ranks, or args={0: (5,), 1: (6,)}"
            )


def _environments(envs: Any, count: int) -> dict[int, dict[str, Any]] | None:
    """Return rank to variables; None if there are none. The gang itself refuses a value that is not a mapping."""
    if envs is None or (isinstance(envs, Mapping) and not envs):
        return None
    if isinstance(envs, Mapping) and not all(hasattr(key, "__index__") for key in envs):
        return {rank: dict(envs) for rank in range(count)}
    by_rank = isinstance(envs, Mapping) and all(isinstance(env, Mapping) for env in envs.values())
    return {rank: {**env} for rank, env in envs.items()} if by_rank else envs


def _outcome(
    fn: Callable[..., Any] | str,
    calls: Mapping[int, Any],
    envs: dict[int, dict[str, Any]] | None,
    settings: RunSettings,
) -> list[Any] | BaseException:
    """Run the gang; return the values, or the exception to raise."""
    folder = None
    if settings.get("logs_specs") is None:
        folder = new_temp_dir("supervise-")
        settings["logs_specs"] = DefaultLogsSpecs(folder, tee=Std.ALL)
    settings.setdefault("rank_variables", True)
    settings.setdefault("name", _name_of(fn))
    kept = False
    came: SignalException | None = None
    try:
        try:
            with GangContext(entrypoint=fn, args=calls, envs=envs, shows_failure=False, **settings) as context:
                context.start()
                result = context.wait()
        except SignalException as error:
            came = error
        except (SpecError, SpawnError, OSError) as error:
            kept = folder is not None and isinstance(error, SpawnError)
            refused = isinstance(error, (FileNotFoundError, PermissionError)) and error.filename == fn
            if isinstance(fn, str) and refused and os.path.isfile(fn):
                import shlex

                path = fn if os.path.dirname(fn) else f"./{fn}"
                first = "" if os.access(fn, os.X_OK) else f"chmod +x {shlex.quote(path)}, and "
                with_python = f"run(sys.executable, args=({path!r},), ...)"
                error.add_note(f"to run it with Python: {with_python}; or to execute it: {first}give {path!r}")
            if kept and not hasattr(error, "__notes__"):  # otherwise they name the folder of the rank
                error.add_note(f"logs: {folder}")
            return _without_our_frames(error)
        # Not in the handler above: `came` must not be the context of what the signal's handler raises
        if came is not None:
            return _usual_exception(came)
        if result.outcome == "succeeded":
            return [result.return_values.get(rank) for rank in range(len(calls))]
        if (unguarded := _unguarded(result)) is not None:
            return unguarded
        kept = True
        return GangFailed(result, timeout_s=settings.get("timeout"))
    finally:
        if folder is not None and not kept:
            shutil.rmtree(folder, ignore_errors=True)


def _unguarded(result: RunProcsResult) -> SpecError | None:
    """Return the error of a rank about a program that starts a gang at its import; None if no rank has it."""
    told = (each.message["message"] for each in result.failures.values() if isinstance(each.message, dict))
    return next((SpecError(text.removeprefix("SpecError: ")) for text in map(str, told) if is_unguarded(text)), None)


def _without_our_frames(error: BaseException) -> BaseException:
    """Remove the frames of supervise with which the tracebacks of `error` and of its cause begin."""
    for each in (error, error.__cause__):
        if each is not None:
            found = each.__traceback__
            while found is not None and found.tb_frame.f_code.co_filename.startswith(_PACKAGES):
                found = found.tb_next
            each.__traceback__ = found
    return error


def _name_of(fn: object) -> str:
    """Return the name of a function or program, for the prefixes of output; ``rank`` for a lambda."""
    name = os.path.basename(fn) if isinstance(fn, str) else getattr(fn, "__name__", "")
    name = name if name and not name.startswith("<") else "rank"
    return name.encode(errors="backslashreplace").decode()


def _usual_exception(came: SignalException) -> BaseException:
    """Call the program's own handler of a signal; return the exception that the handler raises.

    Return `came` if the program has no such handler, or if the handler raises nothing.
    """
    if signals.is_handled_otherwise(came.sigval):
        try:
            signal.raise_signal(came.sigval)
        except KeyboardInterrupt as error:
            told = "supervise: stopped by SIGINT (Ctrl-C)"  # what IPython shows in place of a traceback
            error._render_traceback_ = lambda: [told]  # type: ignore[attr-defined]  # IPython's protocol
            return error.with_traceback(None)
        except BaseException as error:  # raised by the application's handler
            return error
    return came.with_traceback(None)
