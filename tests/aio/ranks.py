"""What ranks run, and how the tests run a coroutine."""

import asyncio
import gc
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from supervise import notify
from tests.patience import PATIENCE_S

T = TypeVar("T")


def square(number: int) -> int:
    return number * number


def fail() -> None:
    raise ValueError("on purpose")


def stubborn() -> None:
    """Ignore SIGTERM until SIGKILL."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    notify(ready=True)
    while True:
        signal.pause()


def polite() -> None:
    """End with exit code 7 at SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    notify(ready=True)
    while True:
        signal.sigtimedwait([], 0.05)


def patient(folder: str) -> None:
    """Say in the folder that SIGTERM has come, and end with exit code 7 when it has the file ``go``."""
    told = Path(folder, "told")
    signal.signal(signal.SIGTERM, lambda *_: told.touch())
    notify(ready=True)
    while not Path(folder, "go").exists():
        threading.Event().wait(0.01)
    os._exit(7)


SLEEP: dict[str, Any] = {"name": "sleep", "entrypoint": "sleep", "args": {0: ("1000",), 1: ("1000",)}}
STUBBORN: dict[str, Any] = {"name": "stubborn", "entrypoint": stubborn, "args": {0: ()}, "ready": "notify"}
POLITE: dict[str, Any] = {"name": "polite", "entrypoint": polite, "args": {0: ()}, "ready": "notify"}


class _Problems(logging.Handler):
    """Keeps what asyncio complains about: a task that was destroyed, an exception that was not retrieved."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def run(main: Coroutine[Any, Any, T], timeout_s: float = PATIENCE_S) -> T:
    """Run a coroutine to its end; fail if it takes too long, or if asyncio complains."""

    async def bounded() -> T:
        async with asyncio.timeout(timeout_s):
            return await main

    problems = _Problems()
    logging.getLogger("asyncio").addHandler(problems)
    try:
        return asyncio.run(bounded())
    finally:
        gc.collect()  # asyncio complains when a task or a future is collected
        logging.getLogger("asyncio").removeHandler(problems)
        assert not problems.found


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Ask until the answer is true; `run` bounds the time."""
    while not await condition():  # noqa: ASYNC110 - what is asked tells nobody
        await asyncio.sleep(0.005)


async def until_exists(path: Path) -> None:
    """Wait for a file."""

    async def exists() -> bool:
        return path.exists()  # noqa: ASYNC240 - a call of microseconds

    await until(exists)
