"""How a process ended that somebody else has reaped: the kernel remembers it for who holds its pidfd."""

from __future__ import annotations

import fcntl
import os
import struct

_PIDFD_GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3


def remembered(pidfd: int) -> tuple[int | None, bool]:
    """Return (exit code, core dumped) of a process that is reaped; (None, False) before Linux 6.15."""
    info = bytearray(64)
    struct.pack_into("Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return None, False
    (mask,) = struct.unpack_from("Q", info, 0)
    if not mask & _PIDFD_INFO_EXIT:
        return None, False
    (status,) = struct.unpack_from("i", info, 60)
    return os.waitstatus_to_exitcode(status), os.WCOREDUMP(status)
