"""What this kernel and Python can do.

``SUPERVISE_WITHOUT``, a list such as ``pidfd,inotify``, has this process and its workers do without what is
there: to try a fallback, or around a kernel (or a sandbox) that does not keep what it promises.
"""

from __future__ import annotations

import os
import signal

NAMES = frozenset({"pidfd", "group", "inotify", "glibc"})
"""What ``SUPERVISE_WITHOUT`` may name; ``group`` is the signal to a group through its leader's pidfd."""
_WITHOUT = frozenset(filter(None, os.environ.get("SUPERVISE_WITHOUT", "").split(",")))

PIDFD = hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal") and "pidfd" not in _WITHOUT
"""Exits are told by a descriptor on the loop; otherwise by one waiting thread a worker."""

INOTIFY = "inotify" not in _WITHOUT
"""Files tell when they grow; otherwise they are looked at each 50 ms."""

GLIBC = "glibc" not in _WITHOUT
"""Programs are started by glibc's own `posix_spawn`, where it is 2.34 or later; otherwise by Python's."""

PIDFD_SIGNAL_PROCESS_GROUP = 4
"""Flag of pidfd_send_signal since Linux 6.9."""


def _group_signals() -> bool:
    if not PIDFD or "group" in _WITHOUT:
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
