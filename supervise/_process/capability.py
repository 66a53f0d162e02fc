"""What this kernel and Python can do. Tests force a fallback by patching a flag here."""

from __future__ import annotations

import os
import signal
import sys

LINUX = sys.platform == "linux"

PIDFD = hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")
"""Exits are told by a descriptor on the loop; otherwise by one waiting thread a worker."""

MEMFD = hasattr(os, "memfd_create")
"""Outcomes and arguments travel in memory files; otherwise in private temporary files."""

F_SETSIG = 10 if LINUX else None
"""The lifeline is the kernel's own: a hang-up sends SIGKILL; otherwise functions watch it by a thread."""

PIDFD_SIGNAL_PROCESS_GROUP = 4
"""Flag of pidfd_send_signal since Linux 6.9."""


def _group_signals() -> bool:
    if not PIDFD:
        return False
    try:
        fd = os.pidfd_open(os.getpid())
    except OSError:
        return False
    try:
        signal.pidfd_send_signal(fd, 0, None, PIDFD_SIGNAL_PROCESS_GROUP)
    except ProcessLookupError:  # understood: we lead no group
        return True
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)


GROUP_BY_PIDFD = _group_signals()
"""A group can be signalled through its leader's pidfd, also after the leader was reaped."""
