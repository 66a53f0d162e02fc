"""The `start_processes` of PyTorch's import path."""

from __future__ import annotations

from supervise._torch import start

TYPE_CHECKING = False  # so ranks whose main module imports this need not import typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from supervise._api.base import PContext


_start: Callable[..., PContext] = start.start_processes


def start_processes(
    name: str,
    entrypoint: Callable[..., Any] | str,
    args: Mapping[int, Any],
    envs: Mapping[int, dict[str, Any]] | None = None,
    *positional: Any,
    **named: Any,
) -> PContext:
    """Start one process per entry of `args`, as `supervise.start_processes` does; return the running gang.

    Two differences, as with PyTorch: a program that fails before the first `wait` stops the others only at that `wait`,
    so an agent that makes `close` do nothing during its `wait` can keep the others running; and the process of a
    function that has returned stays alive until all functions have returned, unless ``hold_returned`` is False.

    Args:
        name: Name of the gang. `supervise.start_processes` describes all arguments.
        entrypoint: A function that every rank calls, or the name or path of a program.
        args: Local rank to arguments.
        envs: Local rank to variables added to this process's environment.
        *positional: The further arguments of either generation.
        **named: The same by name.
    """
    named["until_polled"] = True
    named.setdefault("hold_returned", named.get("roles") is None)
    return _start(name, entrypoint, args, envs, *positional, **named)


start_processes.__wrapped__ = start.start_processes.__wrapped__  # type: ignore[attr-defined]
