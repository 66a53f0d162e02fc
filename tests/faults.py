"""Fixtures for what a machine lacks: calls of the kernel that fail, threads that cannot start, no or another py-spy."""

import errno
import functools
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from supervise._process.launch import posix_spawn

__all__ = ["Holes", "holes", "no_launch", "no_threads", "py_spy", "scarce_pidfds", "system_call", "temporary_folder"]


class Holes:
    """Records the holes, which the file system of a test need not support."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []
        self.error: OSError | None = None

    def punch(self, fd: int, start: int, length: int) -> None:
        if self.error is not None:
            raise self.error
        self.made.append((start, length))


@pytest.fixture
def holes(monkeypatch: pytest.MonkeyPatch) -> Holes:
    """Record the holes that are made into logs, or let them fail."""
    made = Holes()
    monkeypatch.setattr("supervise._logs.trim.punch_hole", made.punch)
    return made


@pytest.fixture
def system_call(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[..., Any]], None]:
    """Replace a function of `os` until the end of the test, by one that gets the real function before its arguments."""

    def replace(name: str, instead: Callable[..., Any]) -> None:
        monkeypatch.setattr(os, name, functools.partial(instead, getattr(os, name)))

    return replace


@pytest.fixture
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if a process is started."""

    def never(*_args: object, **_more: object) -> None:
        pytest.fail("a process was started")

    starts = ((os, "fork"), (os, "posix_spawn"), (subprocess, "Popen"), (forkserver, "connect_to_new_process"))
    for owner, name in starts:
        monkeypatch.setattr(owner, name, never)


@pytest.fixture
def no_threads() -> Callable[..., AbstractContextManager[None]]:
    """Return what makes a block in which no thread can start, or none of some names, as at a limit of threads."""

    @contextmanager
    def block(name: str = "") -> Iterator[None]:
        def refuse(thread: threading.Thread) -> None:
            if thread.name.startswith(name):
                raise RuntimeError("can't start new thread")
            start(thread)

        with pytest.MonkeyPatch.context() as patch:
            start = threading.Thread.start
            patch.setattr(threading.Thread, "start", refuse)
            yield

    return block


@pytest.fixture
def scarce_pidfds() -> Callable[..., AbstractContextManager[list[int]]]:
    """Return what makes a block in which no descriptor is left for some pidfds; it yields the pids that got so far."""

    @contextmanager
    def block(*lacking: int) -> Iterator[list[int]]:
        """Args: the numbers of the pidfds that cannot be opened, from 0; none for all."""
        asked: list[int] = []

        def scarce(pid: int, flags: int = 0) -> int:
            asked.append(pid)
            if not lacking or len(asked) - 1 in lacking:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return pidfd_open(pid, flags)

        with pytest.MonkeyPatch.context() as patch:
            pidfd_open = os.pidfd_open
            patch.setattr(os, "pidfd_open", scarce)
            if posix_spawn.glibc is not None:
                patch.setattr(posix_spawn.glibc, "_PIDFD_OPEN", None)  # so that it is opened by the other
            yield asked

    return block


@pytest.fixture
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have temporary files be made in a folder of the test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Have the machine another py-spy, which runs a script of the shell; with None, it has none."""

    def install(script: str | None) -> None:
        program = tmp_path / "py-spy"
        if script is not None:
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
        monkeypatch.setattr(
            "supervise._process.stacks.gather.find_program", lambda: None if script is None else str(program)
        )

    return install
