"""What the ranks of the cases run. They read their global rank from the environment, as under torchrun."""

import os
import signal
import sys
import threading
from pathlib import Path

from supervise import record


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


def failing(who: tuple[int, ...], code: int, folder: str = "") -> None:
    """Exit in the ranks `who`; with a folder, when all of them have come so far."""
    say(f"ready {rank()}")
    if rank() in who:
        if folder:
            Path(folder, f"failing-{rank()}").touch()
            while not all(Path(folder, f"failing-{other}").exists() for other in who):
                pause(0.005)
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
        Path(folder, f"begun-{rank()}").touch()
        while rank() != 1 or not all(Path(folder, f"begun-{other}").exists() for other in range(4)):
            pause(0.005)
        sys.exit(9)
    return attempt()


def hanging() -> None:
    """Say a line again and again; rank 2 says it once."""
    say(f"line of {rank()}")
    while True:
        pause(0.2)
        if rank() != 2:
            say(f"line of {rank()}")


def listening() -> None:
    signal.signal(signal.SIGUSR1, lambda *_: say(f"heard {rank()}"))
    say(f"ready {rank()}")
    while True:
        signal.pause()


def begun(folder: str) -> None:
    """Say in the folder that this rank runs."""
    Path(folder, f"{rank()}-{os.getpid()}").touch()
    pause(1000)
