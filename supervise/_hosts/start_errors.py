"""The error for a failed start of a host, as the caller of the whole gang gets it."""

from __future__ import annotations

import re

from supervise.errors import SpawnError, SpecError


def start_error(error: BaseException, where: str, first: int) -> BaseException:
    """Return the error of a host, with the global rank and the name of the host added.

    An `OSError` keeps its errno and its file name.

    Args:
        error: The exception of the host's Supervisor.
        where: The name of the host in the message.
        first: Global rank of the host's local rank 0.
    """
    found = error
    if isinstance(error, SpawnError):
        why = str(error).partition(f" {error.what}: ")[2]
        text = f"{why} (local rank {error.local_rank} of {where})"
        found = SpawnError(text, local_rank=first + error.local_rank, exitcode=error.exitcode, what=error.what)
    elif isinstance(error, SpecError):
        found = SpecError(f"{where}: {error}")
    elif isinstance(error, OSError) and error.errno is not None:
        text = re.sub(r"^rank (\d+) ", lambda local: f"rank {first + int(local[1])} ", str(error.strerror))
        found = OSError(error.errno, f"{where}: {text}", error.filename)
    if found is not error:
        found.__cause__ = error
    return found
