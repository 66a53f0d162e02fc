"""Features of this kernel, C library and Python.

The environment variable ``SUPERVISE_WITHOUT``, a list such as ``pidfd,inotify``, disables features in this process and
its workers: to test a fallback, or because a kernel or sandbox implements one wrongly.
"""

from __future__ import annotations

import os
import signal

NAMES = frozenset({"pidfd", "group", "inotify", "glibc"})
"""Names for ``SUPERVISE_WITHOUT``; ``group`` is the signal to a group through the pidfd of its leader."""
_WITHOUT = frozenset(filter(None, os.environ.get("SUPERVISE_WITHOUT", "").split(",")))

PIDFD = hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal") and "pidfd" not in _WITHOUT
"""Whether pidfds report exits to the loop; otherwise one thread for each worker waits."""

INOTIFY = "inotify" not in _WITHOUT
"""Whether inotify reports writes to files; otherwise the files are polled every 50 ms."""

GLIBC = "glibc" not in _WITHOUT
"""Whether `posix_spawn` of glibc 2.34 or later starts programs; otherwise `os.posix_spawn` does."""

PIDFD_SIGNAL_PROCESS_GROUP = 4
"""A flag of pidfd_send_signal, which Linux has since 6.9."""


def _group_signals() -> bool:
    if not PIDFD or "group" in _WITHOUT:
        return False
    try:
        fd = os.pidfd_open(os.getpid())
    except OSError:
        return False
    try:
        signal.pidfd_send_signal(fd, 0, None, PIDFD_SIGNAL_PROCESS_GROUP)
    except ProcessLookupError:  # the kernel knows the flag, and this process does not lead a group
        return True
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)


GROUP_BY_PIDFD = _group_signals()
"""Whether a group can be signaled through the pidfd of its leader, also after the leader was reaped."""
