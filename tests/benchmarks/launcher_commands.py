"""How each launcher is told to run three processes of one program, as its documentation says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RANKS = 3

_SPAWN = """
import runpy
import sys

import torch.multiprocessing

def work(_rank, *words):
    sys.argv = list(words)
    runpy.run_path(words[0], run_name="__main__")

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, args=tuple(sys.argv[1:]), nprocs=3)
"""


@dataclass(frozen=True)
class Launcher:
    """A program that starts others."""

    name: str
    version: str
    command: Callable[[Path, list[str]], list[str]]
    """From an empty folder for its files, and the words of the program after the interpreter."""


def installed(tools: Path, torch_python: Path | None) -> list[Launcher]:
    """Return the launchers of this machine: of this interpreter, of folders with programs, and of one with PyTorch."""
    found = [Launcher("supervise run", _version([sys.executable, "-m", "supervise", "--version"]), _supervise)]
    if torch_python is not None:
        version = _version([torch_python, "-c", "import torch; print(torch.__version__)"])
        found += [
            Launcher("torchrun", version, lambda _, words: [*_torchrun(torch_python), *words]),
            Launcher("torch.multiprocessing.spawn", version, lambda at, words: _spawn(at, words, torch_python)),
        ]
    for name, make, asked in (
        ("mpirun", _mpirun, "--version"),
        ("honcho", _honcho, "version"),
        ("circusd", _circus, "--version"),
        ("supervisord", _supervisord, "--version"),
    ):
        if program := shutil.which(name, path=str(tools)) or shutil.which(name):
            command = _bound(make, program)
            found.append(Launcher(name, _version([program, asked]), command))
    return found


def _bound(make: Callable[[Path, list[str], str], list[str]], program: str) -> Callable[[Path, list[str]], list[str]]:
    return lambda folder, words: make(folder, words, program)


def _version(command: list[object]) -> str:
    """Return the last word of the first line that a program prints about its version."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, check=False)
    lines = (done.stdout or done.stderr).split("\n")
    return lines[0].split()[-1] if lines[0].split() else "?"


def _supervise(_folder: Path, words: list[str]) -> list[str]:
    return [sys.executable, "-m", "supervise", "run", "-n", str(RANKS), *words]


def _torchrun(python: Path) -> list[str]:
    return [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]


def _spawn(folder: Path, words: list[str], python: Path) -> list[str]:
    script = folder / "spawn.py"
    script.write_text(_SPAWN)
    return [str(python), str(script), *words]


def _mpirun(_folder: Path, words: list[str], program: str) -> list[str]:
    return [program, "--allow-run-as-root", "--oversubscribe", "-n", str(RANKS), sys.executable, *words]


def _honcho(folder: Path, words: list[str], program: str) -> list[str]:
    file = folder / "Procfile"
    command = " ".join([sys.executable, *words])
    file.write_text("".join(f"p{number}: exec {command}\n" for number in range(RANKS)))
    return [program, "-f", str(file), "start"]


def _circus(folder: Path, words: list[str], program: str) -> list[str]:
    file = folder / "circus.ini"
    command = " ".join([sys.executable, *words])
    sockets = "".join(f"{name} = ipc://{folder}/{name}\n" for name in ("endpoint", "pubsub_endpoint", "stats_endpoint"))
    watchers = "".join(
        f"[watcher:p{number}]\ncmd = {command}\nrespawn = False\ncopy_env = True\n" for number in range(RANKS)
    )
    file.write_text(f"[circus]\n{sockets}{watchers}")
    return [program, str(file)]


def _supervisord(folder: Path, words: list[str], program: str) -> list[str]:
    file = folder / "supervisord.conf"
    command = " ".join([sys.executable, *words])
    programs = "".join(
        f"[program:p{number}]\ncommand={command}\nautorestart=false\nstartsecs=0\n" for number in range(RANKS)
    )
    paths = f"logfile={folder}/log\npidfile={folder}/pid\nchildlogdir={folder}\n"
    file.write_text(f"[supervisord]\nnodaemon=true\n{paths}{programs}")
    return [program, "-c", str(file)]
