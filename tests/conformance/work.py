"""What the ranks of the cases run. They read their global rank from the environment, as under torchrun."""

import os
import signal
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from supervise import record

ALL = range(4)


def pause(seconds: float) -> None:
    """Let time pass: a rank that computes, or a look that is repeated."""
    threading.Event().wait(seconds)


def rank() -> int:
    return int(os.environ["RANK"])


def attempt() -> int:
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def say(text: str, file: object = None) -> None:
    print(text, flush=True, file=file or sys.stdout)  # type: ignore[call-overload]  # any stream


def value(factor: int) -> dict[str, int]:
    say(f"value of {rank()}")
    return {"product": rank() * factor}


def speaking() -> None:
    say(f"out {rank()}")
    say(f"err {rank()}", sys.stderr)


def meet(folder: str, who: Iterable[int]) -> None:
    """Wait for other ranks."""
    Path(folder, f"met-{rank()}").touch()
    while not all(Path(folder, f"met-{other}").exists() for other in who):
        pause(0.005)


def failing(who: tuple[int, ...], code: int, folder: str) -> None:
    """Exit in the ranks `who`, at the same time, when every rank has said its line."""
    say(f"ready {rank()}")
    meet(folder, ALL)
    if rank() in who:
        sys.exit(code)
    pause(1000)


@record
def raising() -> None:
    if rank() == 1:
        raise ValueError("the 7th shard is empty")
    pause(1000)


def killed() -> None:
    if rank() == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    pause(1000)


def sleeping() -> None:
    say(f"ready {rank()}")
    pause(1000)


def deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleeping()


def failing_once(folder: str) -> int:
    """Fail in rank 1 of the first attempt, when every rank has begun."""
    say(f"attempt {attempt()} of {rank()}")
    if attempt() == 0:
        meet(folder, ALL)
        if rank() == 1:
            sys.exit(9)
        pause(1000)
    return attempt()


def hanging() -> None:
    """Say a line again and again; rank 2 only once."""
    say(f"line of {rank()}")
    while True:
        pause(0.2)
        if rank() != 2:
            say(f"line of {rank()}")


def listening() -> None:
    """Say a line at each SIGUSR1; not in a handler, which may run while the line before is being written."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    say(f"ready {rank()}")
    while True:
        signal.sigwait({signal.SIGUSR1})
        say(f"heard {rank()}")


def begun(folder: str) -> None:
    """Say in the folder that this rank runs."""
    Path(folder, f"{rank()}-{os.getpid()}").touch()
    pause(1000)
