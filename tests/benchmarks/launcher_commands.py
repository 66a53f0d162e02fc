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

_RAY_TRAIN = """
import runpy
import sys

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def work(words):
    sys.argv = list(words)
    runpy.run_path(words[0], run_name="__main__")

if __name__ == "__main__":
    words = sys.argv[2:]
    ray.init(num_cpus=4, include_dashboard=False)
    scaling = ScalingConfig(num_workers=3, resources_per_worker={"CPU": 0.5})
    config = RunConfig(storage_path=sys.argv[1])
    TorchTrainer(work, train_loop_config=words, scaling_config=scaling, run_config=config).fit()
"""

_MONARCH = """
import runpy
import sys

from monarch.actor import Actor, endpoint, this_host

class Worker(Actor):
    @endpoint
    def work(self, words):
        sys.argv = list(words)
        runpy.run_path(words[0], run_name="__main__")

if __name__ == "__main__":
    workers = this_host().spawn_procs({"ranks": 3}).spawn("workers", Worker)
    workers.work.call(sys.argv[1:]).get()
"""


@dataclass(frozen=True)
class Launcher:
    """A program that starts others."""

    name: str
    version: str
    command: Callable[[Path, list[str]], list[str]]
    """From an empty folder for its files, and the words of the program after the interpreter."""


def installed(
    tools: Path, torch_python: Path | None, ray_python: Path | None, monarch_python: Path | None
) -> list[Launcher]:
    """Return the launchers of this machine: of a folder with programs, and of interpreters."""
    found = [Launcher("supervise run", _version([sys.executable, "-m", "supervise", "--version"]), _supervise)]
    if torch_python is not None:
        version = _version([torch_python, "-c", "import torch; print(torch.__version__)"])
        found += [
            Launcher("torchrun", version, lambda _, words: [*_torchrun(torch_python), *words]),
            Launcher("torch.multiprocessing.spawn", version, lambda at, words: _spawn(at, words, torch_python)),
        ]
    if ray_python is not None:
        version = _version([ray_python, "-c", "import ray; print(ray.__version__)"])
        found.append(Launcher("Ray Train", version, lambda at, words: _ray_train(at, words, ray_python)))
    if monarch_python is not None:
        code = "import importlib.metadata as m; print(m.version('torchmonarch'))"
        version = _version([monarch_python, "-c", code])
        found.append(Launcher("Monarch", version, lambda at, words: _monarch(at, words, monarch_python)))
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


def _ray_train(folder: Path, words: list[str], python: Path) -> list[str]:
    script = folder / "ray_train.py"
    script.write_text(_RAY_TRAIN)
    return [str(python), str(script), str(folder), *words]


def _monarch(folder: Path, words: list[str], python: Path) -> list[str]:
    script = folder / "monarch_program.py"
    script.write_text(_MONARCH)
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
