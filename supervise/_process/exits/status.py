"""The status of a process beyond its exit code: as the kernel remembers it after a reap, and its peak of memory."""

from __future__ import annotations

import fcntl
import os
import struct

_PIDFD_GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3
_known_kb = 0
"""This process's peak of memory when it was last asked for; it only grows."""


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


def is_within_ours(peak_kb: int) -> bool:
    """Whether a peak is no larger than this process's: the kernel counts a program's from its host's on."""
    global _known_kb  # noqa: PLW0603 - asked for once a rank: most are known to be smaller without a look
    if peak_kb <= _known_kb:
        return True
    import resource

    _known_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak_kb <= _known_kb
