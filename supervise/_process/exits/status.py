"""Status of a process that other code has reaped, and check of a peak of memory."""

from __future__ import annotations

import fcntl
import os
import struct

_PIDFD_GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3
_known_kb = 0
"""The last known peak of memory of this process. A peak only grows."""


def remembered(pidfd: int) -> tuple[int | None, bool]:
    """Return (exit code, core dumped) of a reaped process; (None, False) before Linux 6.15."""
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


def is_within_ours(peak_kb: int) -> bool:
    """Return whether a peak is at most that of this process, with which the kernel begins for a program."""
    global _known_kb  # noqa: PLW0603 - called once for each rank; the known value avoids most calls of getrusage
    if peak_kb <= _known_kb:
        return True
    import resource

    _known_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak_kb <= _known_kb
