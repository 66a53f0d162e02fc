"""PyTorch's `_wrap`, for callers that start the process of a function themselves. It runs in that process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from supervise._torch.redirects import get_std_cm, redirect_stderr, redirect_stdout
from supervise.recording import record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _wrap(  # noqa: PLR0917 - PyTorch's order
    local_rank: int,
    fn: Callable[..., Any],
    args: Mapping[int, Any],
    envs: Mapping[int, Mapping[str, Any]],
    stdout_redirects: Mapping[int, str],
    stderr_redirects: Mapping[int, str],
    ret_vals: Mapping[int, Any],
    queue_finished_reading_event: Any,
    numa_options: Any = None,
) -> None:
    """Call `fn` as a rank in this process, put its return value into the queue, and wait until the value was read.

    Args:
        local_rank: The key in all mappings.
        fn: The function to call.
        args: Local rank to arguments.
        envs: Local rank to variables added to this process's environment.
        stdout_redirects: Local rank to the path of stdout; ``""`` does not redirect it.
        stderr_redirects: Local rank to the path of stderr; ``""`` does not redirect it.
        ret_vals: Local rank to a queue for the return value.
        queue_finished_reading_event: Event to wait for at the end.
        numa_options: The CPUs to bind this process to (`NumaOptions`); None does not bind it.

    Raises:
        KeyError: A mapping lacks the rank; nothing was called.
        SpecError: This process cannot be bound; nothing was called.
    """
    given, env, channel = args[local_rank], envs[local_rank], ret_vals[local_rank]
    arguments = (given,) if isinstance(given, (str, bytes)) else tuple(given)
    stdout, stderr = stdout_redirects[local_rank], stderr_redirects[local_rank]
    os.environ.update({key: str(value) for key, value in env.items()})
    with get_std_cm(stdout, redirect_stdout), get_std_cm(stderr, redirect_stderr):
        if numa_options is not None:
            from supervise._process.launch import numa

            for cpus in numa.cpus_of_ranks([local_rank], numa_options).values():
                numa.bind_this_process(cpus)
        value = record(fn)(*arguments)
    channel.put(value)
    queue_finished_reading_event.wait()
