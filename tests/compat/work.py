"""What the functions of the cases do. Imports neither library."""
# ruff: noqa: TRY301 - what is raised is to be recorded

import os
import signal
import sys
from pathlib import Path


def rank(local_rank: int, nprocs: int, outcome: str, extra: str, sync: str) -> object:
    """Write to both streams, note the environment, and end as the case says.

    The last rank fails after the others have done their work; a FIFO each tells it so, when it is closed: by
    their end if `extra` is "held".
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork of PyTorch's has its host's handler: test_differences.py
    last = nprocs - 1
    everybody = outcome in {"value", "none", "exit0", "timeout"} or outcome.startswith("close")
    fifo = None if local_rank == last and not everybody else os.open(f"{sync}/done.{local_rank}", os.O_WRONLY)
    note_environment(local_rank, sync)
    print(f"out {local_rank} first", flush=True)
    print(f"err {local_rank} first äöü", file=sys.stderr, flush=True)
    os.write(1, b"out %d raw KEEP\n" % local_rank)
    os.write(2, b"err %d raw KEEP\n" % local_rank)
    print(f"out {local_rank} last", flush=outcome in {"hard5", "kill", "segv", "abort"} or bool(fifo))
    if fifo is not None and extra != "held":
        os.close(fifo)
    if everybody:
        return _quiet_end(local_rank, outcome)
    if local_rank != last:
        if extra == "blocked":
            signal.pause()
        return ["companion", local_rank]
    for other in range(last):
        Path(f"{sync}/done.{other}").read_bytes()  # until it is closed
    return _bad_end(local_rank, outcome)


def note_environment(local_rank: int, sync: str) -> None:
    """Write the environment where the observer finds it."""
    text = "\0".join(f"{key}={value}" for key, value in os.environ.items())
    Path(f"{sync}/env.{local_rank}").write_text(text, encoding="utf-8", errors="surrogateescape")


def _quiet_end(local_rank: int, outcome: str) -> object:
    if outcome == "timeout" or outcome.startswith("close"):
        signal.pause()
    if outcome == "exit0":
        sys.exit(0)
    return None if outcome == "none" else {"rank": local_rank, "bytes": b"\0" * 3, "big": "x" * 200_000}


def _bad_end(local_rank: int, outcome: str) -> object:
    if outcome == "raises":
        raise ValueError(f"rank {local_rank} is wrong: äöü\nsecond line")
    if outcome == "raises-group":
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ExceptionGroup("outer", [OSError(2, "No such file", "gone")]) from error
    if outcome.startswith("exit"):
        sys.exit({"exit3": 3, "exit138": 138}[outcome])
    if outcome == "hard5":
        os._exit(5)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "segv": signal.SIGSEGV, "abort": signal.SIGABRT}[outcome])
    return signal.pause()
