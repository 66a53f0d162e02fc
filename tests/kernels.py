"""Older kernels: without signals to a group by the pidfd of its leader (before Linux 6.9), and without pidfds (5.3).

And kernels without inotify, or whose inotify has run out: files are polled. What else depends on the machine: the C
library, by which programs are started, and the tree of control groups.
"""

import os
from pathlib import Path

import pytest

from supervise import SpecError, _platform as platform
from supervise._process.containment import cgroup
from supervise._process.launch import posix_spawn
from supervise._process.launch.stack_signal import SAFE

__all__ = [
    "ARMS_PROGRAMS",
    "HAS_PIDFD",
    "NEEDS_FAULTHANDLER",
    "control_groups",
    "need_cgroup",
    "own_control_groups",
    "use_another_c_library",
    "use_inotify",
    "use_older_kernel",
]

HAS_PIDFD = platform.PIDFD
NEEDS_FAULTHANDLER = pytest.mark.skipif(
    not SAFE, reason="faulthandler of this Python may crash the process: CPython issue 140815"
)
ARMS_PROGRAMS = posix_spawn.CHANGES_FOLDER
"""Whether a program is held from its first instruction, so that no handler can reap it before."""


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


def use_inotify(monkeypatch: pytest.MonkeyPatch, *, use: bool) -> None:
    """Make the package watch files by inotify, or poll them, in this process and until the end of the test."""
    monkeypatch.setattr("supervise._logs.watch.HAVE_INOTIFY", use)


def use_another_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have programs be started by what Python has where the C library is another: before 3.13, for all of them."""
    for name, value in (("glibc", None), ("CHANGES_FOLDER", False), ("CLOSE_FROM", None)):
        monkeypatch.setattr(posix_spawn, name, value)


def control_groups(pid: int) -> set[Path]:
    """Return the control groups that gangs of a host have made."""
    try:
        return set(Path(cgroup.own_folder()).glob(f"supervise-{pid}-*"))
    except (SpecError, OSError):  # there is no tree in which they could be
        return set()


def own_control_groups() -> set[Path]:
    """Return the control groups that gangs of this process have made."""
    return control_groups(os.getpid())


def use_no_control_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no tree of control groups in this process, until the end of the test."""
    monkeypatch.setattr(cgroup, "_unified", lambda: None)


def need_cgroup() -> None:
    """Skip the test where there is no tree in which control groups can be made."""
    try:
        cgroup.own_folder()
    except SpecError as error:
        pytest.skip(str(error))
