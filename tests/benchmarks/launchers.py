"""What launchers do when a process fails, and when they are stopped or killed: facts for the comparison page.

    python -m tests.benchmarks.launchers --tools ~/venvs/tools/bin --torch-python ~/venvs/torch/bin/python

Each experiment starts three processes, waits until all three run, and then

- `exit`: one exits with code 3, `kill`: one kills itself by SIGKILL, `child`: one leaves a child in its process group
  and exits with code 3. Measured are the exit code of the launcher, the time from the failure to its end, and
  what is alive then;
- `term`: the launcher gets SIGTERM; `killed`: the launcher gets SIGKILL. Measured is what is alive after it, and 5 s
  later at most.
- `words`: one writes a text without a newline, and exits with code 3. Observed is where the text is: in the output of
  the launcher, with or without a prefix, in a file, or nowhere.

The launchers take turns. One that has not ended after 20 s counts as one that continues.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from tests.benchmarks.launcher_commands import RANKS, Launcher, installed

EXPERIMENTS = ("exit", "kill", "child", "term", "killed", "words")
WORDS = "last words"
PATIENCE_S = 20.0
AFTERWARDS_S = 5.0
START_S = 300.0

_PROGRAM = """
import os, subprocess, sys, time

kind, folder, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3])
for number in range(ranks):
    try:
        os.close(os.open(f"{folder}/claim{number}", os.O_CREAT | os.O_EXCL))
        break
    except FileExistsError:
        pass
if kind == "child" and number == 1:
    child = subprocess.Popen(["sleep", "600"])
    with open(f"{folder}/pid-child", "w") as file:
        file.write(str(child.pid))
with open(f"{folder}/new{number}", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"{folder}/new{number}", f"{folder}/pid{number}")
while not all(os.path.exists(f"{folder}/pid{one}") for one in range(ranks)):
    time.sleep(0.01)
time.sleep(0.5)
if number == 1 and kind in ("exit", "kill", "child", "words"):
    if kind == "words":
        sys.stdout.write("last " + "words")
        sys.stdout.flush()
    with open(f"{folder}/new-failed", "w") as file:
        file.write(repr(time.monotonic()))
    os.rename(f"{folder}/new-failed", f"{folder}/failed")
    if kind == "kill":
        os.kill(os.getpid(), 9)
    os._exit(3)
time.sleep(600)
"""


def observe(launcher: Launcher, kind: str) -> dict[str, object]:
    """Run one experiment, and end what is left of it.

    Returns:
        ``code``: exit code of the launcher, negative for a signal, None if it continues; ``seconds`` from the failure
        or signal to its end; ``alive``: number of processes that are left afterwards; ``lines``: what it wrote;
        ``words``: where the text without a newline is, in the experiment of that name.
    """
    with tempfile.TemporaryDirectory(prefix="launcher-") as name:
        folder = Path(name)
        (folder / "rank.py").write_text(_PROGRAM)
        words = [str(folder / "rank.py"), kind, name, str(RANKS)]
        with (folder / "output").open("wb") as output:
            host = subprocess.Popen(
                launcher.command(folder, words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"SUPERVISE_RUNS_DIR": f"{name}/runs", "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
            try:
                ranks = [int(_content(folder / f"pid{number}")) for number in range(RANKS)]
                began = time.monotonic()
                if kind in {"term", "killed"}:
                    host.send_signal(signal.SIGTERM if kind == "term" else signal.SIGKILL)
                else:
                    began = float(_content(folder / "failed"))
                code = _wait(host)
                seconds = time.monotonic() - began
                children = [int(path.read_text()) for path in folder.glob("pid-child")]
                left = alive([*ranks, *children])
            finally:
                _end(host, folder)
        lines = (folder / "output").read_bytes().count(b"\n")
        found = {"words": _place_of_words(folder)} if kind == "words" else {}
    return {"code": code, "seconds": seconds if code is not None else None, "alive": left, "lines": lines, **found}


def _place_of_words(folder: Path) -> str:
    """Return where the last words of a process are."""
    for line in (folder / "output").read_text(errors="replace").splitlines():
        if WORDS in line:
            return "shown" if line.startswith(WORDS) else "shown with a prefix"
    files = [path for path in folder.rglob("*") if path.is_file()]
    return "in a file" if any(WORDS.encode() in path.read_bytes() for path in files) else "lost"


def _content(path: Path) -> str:
    """Wait until a file exists, which is written in one step, and return its text."""
    pause, deadline = threading.Event(), time.monotonic() + START_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.name} was not written")
        pause.wait(0.01)  # the launchers have no common way to notify
    return path.read_text()


def _wait(host: subprocess.Popen[bytes]) -> int | None:
    try:
        return host.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        return None


def alive(pids: list[int]) -> int:
    """Return how many of these processes are alive when all have ended, or after some seconds.

    A zombie has ended: an orphan is one until PID 1 reaps it, which takes longer on some machines.
    """
    pause, deadline = threading.Event(), time.monotonic() + AFTERWARDS_S
    while (running := sum(map(_runs, pids))) and time.monotonic() < deadline:
        pause.wait(0.01)  # the processes are not children of this one
    return running


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _end(host: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill what is left: the launcher, its descendants, and the processes that have left it."""
    left = [psutil.Process(int(path.read_text())) for path in folder.glob("pid*") if psutil.pid_exists(_pid(path))]
    if host.poll() is None:
        left += [*psutil.Process(host.pid).children(recursive=True), psutil.Process(host.pid)]
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    host.wait(PATIENCE_S)
    psutil.wait_procs(left, timeout=PATIENCE_S)


def _pid(path: Path) -> int:
    text = path.read_text()
    return int(text) if text.isdigit() else -1


def table(found: dict[str, dict[str, list[dict[str, object]]]]) -> list[str]:
    """Return rows of Markdown: a launcher, and for each experiment the code, the median time and what was alive."""
    columns = [kind for kind in EXPERIMENTS if any(kinds.get(kind) for kinds in found.values())]
    rows = [f"| launcher | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, kinds in found.items():
        cells = [_cell(kinds[kind]) if kinds.get(kind) else "not measured" for kind in columns]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def _cell(rounds: list[dict[str, object]]) -> str:
    if "words" in rounds[0]:
        return " or ".join(sorted({str(one["words"]) for one in rounds}))
    codes = sorted({"continues" if one["code"] is None else str(one["code"]) for one in rounds})
    times = [one["seconds"] for one in rounds if one["seconds"] is not None]
    seconds = f", {statistics.median(times):.2f} s" if times else ""
    return f"{' or '.join(codes)}{seconds}, {max(one['alive'] for one in rounds)} alive"


def main() -> None:
    """Run all experiments with all launchers, by turns; print a table."""
    parser = argparse.ArgumentParser(description="What launchers do when processes fail.")
    parser.add_argument("--tools", type=Path, default=Path(sys.executable).parent, help="a folder with launchers")
    parser.add_argument("--torch-python", type=Path, help="an interpreter with PyTorch")
    parser.add_argument("--ray-python", type=Path, help="an interpreter with Ray Train and PyTorch")
    parser.add_argument("--monarch-python", type=Path, help="an interpreter with Monarch")
    parser.add_argument("--rounds", type=int, default=3, help="how often (3)")
    parser.add_argument("--experiments", nargs="+", choices=EXPERIMENTS, default=EXPERIMENTS, help="default: all")
    parser.add_argument("--only", nargs="+", help="names of launchers; default: all")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    asked = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started this with SIGINT ignored
    launchers = installed(asked.tools, asked.torch_python, asked.ray_python, asked.monarch_python)
    launchers = [one for one in launchers if not asked.only or one.name in asked.only]
    found = {f"{one.name} {one.version}": {kind: [] for kind in asked.experiments} for one in launchers}
    for turn in range(asked.rounds):
        for kind in asked.experiments:
            order = launchers[turn % len(launchers) :] + launchers[: turn % len(launchers)]
            for one in order:
                found[f"{one.name} {one.version}"][kind].append(observe(one, kind))
                print(one.name, kind, found[f"{one.name} {one.version}"][kind][-1], file=sys.stderr, flush=True)
    print("\n".join(table(found)))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
