"""Descriptors that the ranks of a gang inherit in all their lives: listening sockets, and a stdin that never ends."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
from typing import TYPE_CHECKING

from supervise._control.protocol import SocketFile
from supervise._gang.rank_spec import RankSpec, naming
from supervise._process import lifeline
from supervise._process.launch.posix_spawn import CLEAR_OF_SOCKETS
from supervise._process.launch.program import Stdin
from supervise._runtime import fork_hooks
from supervise._runtime.descriptors import clear_of_stdio, close
from supervise._settings import address_of
from supervise.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_BACKLOG = 4096
"""Most connections that wait while no rank accepts. The kernel's limit is net.core.somaxconn, 4096 by default."""
_MODE = 0o666
"""Mode of a socket file, as systemd makes it: like a port of this machine, it accepts every user who can reach it."""
_REMEDIES = {
    errno.EADDRINUSE: "; stop the process that listens there, or give another address",
    errno.EADDRNOTAVAIL: "; give an address of this machine, such as 127.0.0.1 or 0.0.0.0",
}

_alive = fork_hooks.instances("inherited")


class Inherited:
    """The descriptors of one gang. The host keeps them until the end of the gang."""

    def __init__(self) -> None:
        """Begin without descriptors."""
        self.sockets: dict[str, dict[int, str]] = {}
        """Name of a role to its sockets: descriptor to name, in the order of their numbers in the ranks."""
        self._files: list[SocketFile] = []
        self._pipe = (-1, -1)
        _alive.add(self)

    def listen(self, part: RankSpec) -> None:
        """Bind the addresses of a role, and listen.

        Raises:
            SpecError: An address cannot be used; the text names the role, the address and a remedy.
        """
        made = self.sockets[part.name] = {}
        for text in part.listen:
            try:
                fd, name = self._bound(address_of(text), part.cwd or "")
            except OSError as error:
                remedy = _REMEDIES.get(error.errno or 0, "; give another address")
                if error.errno == errno.EACCES and text.startswith("tcp:"):
                    remedy = "; ports below net.ipv4.ip_unprivileged_port_start need root: give a higher one"
                why = (error.strerror or str(error)).partition(" (while")[0]  # it goes on with the address
                with naming(part.name):
                    raise SpecError(f"listen: {text!r}: {why}{remedy}") from error
            made[fd] = name

    def _bound(self, address: tuple[str, int] | str, cwd: str) -> tuple[int, str]:
        """Return a listening socket and its name.

        Its number is above those that sockets have in the ranks, so that none replaces another on the way.
        """
        if isinstance(address, str):
            path = os.path.join(os.path.abspath(cwd), address)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._files.append(file := SocketFile(path, mode=_MODE, backlog=_BACKLOG))
            file.open()
            made, name = file.take(), os.path.basename(path).replace(":", "_")
        else:
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
            both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
            made = socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
            name = str(made.getsockname()[1])
        with made:
            made.setblocking(True)
            return fcntl.fcntl(made.fileno(), fcntl.F_DUPFD_CLOEXEC, CLEAR_OF_SOCKETS), name

    def stdin_of(self, part: RankSpec) -> int:
        """Return the stdin of a role: that of the host, or the read end of a pipe to which no process writes.

        Raises:
            SpecError: The stdin of the host is a terminal, which a rank in a session of its own cannot read.
        """
        if part.stdin == "inherit":
            if os.isatty(0):
                why = "stdin is 'inherit', and this process has a terminal, which only supervise run can pass on"
                with naming(part.name):
                    raise SpecError(f"{why}; redirect it, or give 'null' or 'open'")
            return 0
        if self._pipe[0] < 0:
            read, write = lifeline.private_pipe()
            self._pipe = clear_of_stdio(read), write
        return self._pipe[0]

    def close_sockets(self) -> None:
        """Close the sockets. Idempotent. Their files stay until `close`: in an ordered stop, other ranks need them."""
        sockets, self.sockets = self.sockets, {}
        for made in sockets.values():
            close(*made)

    def close(self) -> None:
        """Close all descriptors, and remove the files of sockets. Idempotent."""
        self.close_sockets()
        for file in self._files:
            file.remove()
            file.close()
        (read, write), self._pipe = self._pipe, (-1, -1)
        if read >= 0:
            os.close(read)
            lifeline.close_private(write)

    def close_in_child(self) -> None:
        """Close the descriptors in a forked child. The files belong to the parent."""
        for file in self._files:
            file.forget()
        self.close()


def inherited_by(parts: Iterable[RankSpec], given: Mapping[int, Stdin]) -> tuple[Inherited, dict[int, Stdin]]:
    """Make the descriptors that the roles need; return them, and rank to stdin.

    Args:
        parts: The roles.
        given: Rank to stdin, for the ranks to which the caller has given one.

    Raises:
        SpecError: An address cannot be used, or the stdin of this process; the text names the role and a remedy.
        OSError: No descriptor is left.
    """
    found = Inherited()
    stdin = dict(given)
    try:
        for part in parts:
            if part.listen and part.ranks:
                found.listen(part)
            closed = part.stdin == "inherit" and sys.__stdin__ is None  # another file may have its number
            if part.stdin != "null" and not closed and not given.keys() & set(part.ranks):
                stdin |= dict.fromkeys(part.ranks, Stdin(found.stdin_of(part)))
    except BaseException:
        found.close()
        raise
    return found, stdin
