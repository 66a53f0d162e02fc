"""What the live table costs: ``python -m tests.benchmarks.top --ranks 64 1000``.

For each number of idle ranks: the time from the exec of ``supervise top`` to its first picture, its size, the bytes a
second at rest; and what `supervise run` itself uses while no client is connected, with its control socket and samples.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUNDS = 7
REST_S = 15.0
PATIENCE_S = 120.0
SUPERVISE = (sys.executable, "-m", "supervise")
IDLE = "echo rank $RANK is up; exec sleep 1000"
TABLE = b"LAST LINE"
"""The head of the table, which the first picture with ranks has."""
SILENCE_S = 0.02


def main(words: Sequence[str]) -> int:
    """Print a line for each number of ranks."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.top")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 64, 1000])
    for ranks in parser.parse_args(words).ranks:
        with tempfile.TemporaryDirectory() as runs:
            _measure(ranks, {**os.environ, "SUPERVISE_RUNS_DIR": runs, "TERM": "xterm"}, Path(runs))
    return 0


def _measure(ranks: int, env: dict[str, str], runs: Path) -> None:
    words = [*SUPERVISE, "run", "-n", str(ranks), "--run-id", "idle", "-r", "3", "-q", "--", "sh", "-c", IDLE]
    with subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        try:
            _await_start(run, ranks, runs)
            used_s = _rest(run.pid)
            firsts = [_first_picture(env) for _ in range(ROUNDS)]
            at_rest = _first_picture(env, rest_s=REST_S)[3]
        finally:
            run.send_signal(signal.SIGTERM)
            run.wait(PATIENCE_S)
    times = sorted(time_s * 1000 for time_s, *_ in firsts)
    own_ms = min(used_s * 1000 for _, used_s, *_ in firsts)
    size = statistics.median(size for *_, size, _ in firsts)
    print(f"{ranks} ranks: first picture after {statistics.median(times):.0f} ms (least {times[0]:.0f})", end=", ")
    print(f"processor time {own_ms:.0f} ms, {size:.0f} bytes; at rest {at_rest / REST_S:.0f} bytes/s", end="; ")
    print(f"supervise run without a client: {used_s / REST_S * 100:.2f} % of a processor", flush=True)


def _await_start(run: subprocess.Popen[bytes], ranks: int, runs: Path) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while sum(path.stat().st_size > 0 for path in runs.glob("idle_*/attempt_0/*/stdout.log")) < ranks:
        assert run.poll() is None, "the run has ended"
        assert time.monotonic() < deadline_s, "the ranks do not start"
        select.select([], [], [], 0.1)


def _rest(pid: int) -> float:
    """Return the processor time of a process in `REST_S` seconds."""
    process = psutil.Process(pid)
    before = process.cpu_times()
    select.select([], [], [], REST_S)
    after = process.cpu_times()
    return after.user + after.system - before.user - before.system


def _first_picture(env: dict[str, str], rest_s: float = 0.0) -> tuple[float, float, int, int]:
    """Start ``supervise top`` and wait for its first picture.

    Returns:
        Seconds until then, seconds of processor time until then, bytes until then, bytes in `rest_s` seconds.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
    begun_s = time.monotonic()
    with subprocess.Popen([*SUPERVISE, "top", "idle"], env=env, stdin=slave, stdout=slave, stderr=slave) as top:
        try:
            seen = b""
            while TABLE not in seen:
                seen += os.read(master, 65536)
            first_s, used_s, count = time.monotonic() - begun_s, _used_s(top.pid), 0
            while select.select([master], [], [], SILENCE_S)[0]:
                seen += os.read(master, 65536)
            size = len(seen)
            if rest_s:
                _count(master, 3.0)  # the second picture, with processes and logs
                count = _count(master, rest_s)
            return first_s, used_s, size, count
        finally:
            top.send_signal(signal.SIGTERM)
            _count(master, PATIENCE_S, top)
            os.close(slave)
            os.close(master)


def _used_s(pid: int) -> float:
    """Return the processor time of all threads of a process, which on a busy machine says more than the time."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _count(master: int, time_s: float, until_end_of: subprocess.Popen[bytes] | None = None) -> int:
    """Read for some time, or until a process has ended; return the number of bytes."""
    end_s, count = time.monotonic() + time_s, 0
    while (left_s := end_s - time.monotonic()) > 0 and (until_end_of is None or until_end_of.poll() is None):
        if select.select([master], [], [], min(left_s, 0.05))[0]:
            with suppress(OSError):
                count += len(os.read(master, 65536))
    return count


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
