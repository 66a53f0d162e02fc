"""Older kernels: without signals to a group by the pidfd of its leader (before Linux 6.9), and without pidfds (5.3)."""

import pytest

from supervise import _platform as platform

HAS_PIDFD = platform.PIDFD


def use_older_kernel(monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    """Make the package use its fallbacks, in this process.

    Args:
        monkeypatch: Ends it with the test.
        lacks: ``group``; ``pidfd``, which implies it; or nothing: this kernel.
    """
    if lacks:
        monkeypatch.setattr(platform, "GROUP_BY_PIDFD", False)
    if lacks == "pidfd":
        monkeypatch.setattr(platform, "PIDFD", False)
