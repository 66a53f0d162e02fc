"""The control socket of a gang that another program starts: the check of its path, and its server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from supervise.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pykka

    from supervise._gang.spec import GangSpec


def checked_path(value: object) -> str | None:
    """Return the absolute path of the socket file; None for no socket.

    Raises:
        SpecError: The value is not a path, its folder does not exist, or its name is too long.
    """
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)) or not isinstance(path := os.fspath(value), str) or "\0" in path:
        raise SpecError(f"control is {value!r}; give the path of a socket file to make, or None")
    from supervise._control.socket_file import LONGEST_NAME  # lazy: most gangs have none

    folder, name = os.path.split(os.path.abspath(path))
    if not os.path.basename(path):
        raise SpecError(f"control is {path!r}; its last part is the name of a socket file to make")
    if len(os.fsencode(name)) > LONGEST_NAME:
        raise SpecError(f"control is {path!r}; the name of the socket file has more than {LONGEST_NAME} bytes")
    if not os.path.isdir(folder):
        raise SpecError(f"control is {path!r}; its folder does not exist")
    return os.path.join(folder, name)


def opened(spec: GangSpec, gang: pykka.ActorRef[Any]) -> Callable[[], object]:
    """Start the server of a gang, if the caller has requested one.

    Return the function that closes the server without blocking.

    Raises:
        SpecError: The socket file cannot be made, for instance because another process listens there.
        OSError: No thread is available.
    """
    if spec.control is None:
        return _nothing
    from supervise._control.server import ControlServer  # lazy: most gangs have none

    server = ControlServer(os.fspath(spec.control), gang, name=spec.name)
    try:
        server.start()
    except OSError as error:
        if error.filename is None:
            raise
        raise SpecError(f"control is {os.fspath(spec.control)!r}; {error.strerror}") from error
    return server.close


def _nothing() -> None:
    """Close nothing."""
