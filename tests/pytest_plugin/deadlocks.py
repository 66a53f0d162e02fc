"""Seeded deadlocks: tests whose ranks wait for each other, by several means, and the check that pytest ends each.

``python -m tests.pytest_plugin.deadlocks --count 1000 --workers 4`` runs that many in one run of pytest.
"""

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.pytest_plugin.running import QUIET, command, environment, write

HEAD = """
    import multiprocessing, os, select, signal, socket, subprocess, threading, time
    import pytest

    PAIR = socket.socketpair()

    def ignore():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def child():
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
"""
WAITS = (
    "threading.Lock().acquire() and threading.Event().wait()",
    "multiprocessing.Barrier(99).wait()",
    "multiprocessing.Queue().get()",
    "PAIR[0].recv(1)",
    "os.read(os.pipe()[0], 1)",
    "select.select(PAIR, [], [])",
    "rank_gather(timeout_s=1000) if rank else threading.Event().wait()",
    "os.mkfifo(str(gang_tmp_path / str(rank))) or open(gang_tmp_path / str(rank))",
    "[None for _ in iter(int, 1)]",
    "threading.Thread(target=threading.Event().wait).start() or threading.Event().wait()",
    "signal.sigwait([signal.SIGUSR1])",
    "subprocess.run(['sleep', '1000'])",
    "os.kill(os.getpid(), signal.SIGSTOP)",
)
BEFORE = ("pass", "pass", "ignore()", "child()", "print('x' * 100000)", "rank_gather(timeout_s=1000)")


def module(seed: int, count: int) -> str:
    """Return the text of a module with `count` tests that never end by themselves."""
    chance = random.Random(seed)
    tests = []
    for number in range(count):
        ranks = chance.randint(1, 4)
        hangs = chance.sample(range(ranks), chance.randint(1, ranks))
        kind = chance.choice(("timeout", "failure")) if len(hangs) < ranks else "timeout"
        other = "raise ValueError('the cause')" if kind == "failure" else "pass"
        tests.append(
            f"""
    @pytest.mark.ranks({ranks}, timeout_s={0.4 if kind == "timeout" else 20}, grace_s=0.1)
    def test_{number}(rank, rank_gather, gang_tmp_path):
        {chance.choice(BEFORE)}
        if rank in {hangs}:
            {chance.choice(WAITS)}
        {other}
"""
        )
    return HEAD + "".join(tests)


def run(folder: Path, seed: int, count: int, workers: int, timeout_s: float) -> dict[str, int]:
    """Run the tests of a seed; return how many had which outcome, by pytest's last line."""
    write(folder, test_deadlocks=module(seed, count))
    done = subprocess.run(
        command(folder, *QUIET, "-q", "--tb=no", "-n", str(workers)),
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    found = re.findall(r"(\d+) (failed|passed|error)", done.stdout.splitlines()[-1])
    assert found, done.stdout
    return {outcome: int(number) for number, outcome in found}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="of pytest-xdist")
    args = parser.parse_args()
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run(Path(folder), args.seed, args.count, args.workers, 60 + 10.0 * args.count)
    print(f"{args.count} deadlocks, seed {args.seed}: {outcomes} in {time.monotonic() - begin_s:.0f} s")
    sys.exit(outcomes != {"failed": args.count})


if __name__ == "__main__":
    main()
