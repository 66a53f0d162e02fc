"""Puts our process layer where PyTorch's is: PyTorch's own agent and torchrun run on it, unmodified.

Run as a program it is torchrun. ``SHIM_REPORT`` names a file that says at the end what the agent really used, one JSON
object a line; with ``SHIM_REFERENCE`` set PyTorch's own layer stays, to see what it does.
"""

import atexit
import importlib
import json
import os
import sys
import threading
from pathlib import Path

THEIRS = "torch.distributed.elastic.multiprocessing"
OURS = "supervise.elastic"
SUBMODULES = (
    "",
    ".api",
    ".errors",
    ".errors.error_handler",
    ".errors.handlers",
    ".redirects",
    ".subprocess_handler",
    ".subprocess_handler.handlers",
    ".subprocess_handler.subprocess_handler",
    ".tail_log",
)


def install():
    """Alias every module, before anybody imports PyTorch's; report at the exit."""
    assert "torch.distributed" not in sys.modules, "too late"
    if not os.environ.get("SHIM_REFERENCE"):
        for name in SUBMODULES:
            sys.modules[THEIRS + name] = importlib.import_module(OURS + name)
    path = os.environ.get("SHIM_REPORT")
    if path:
        threads = []
        threading.setprofile(lambda *_: _note_thread(threads))
        atexit.register(_report, path, os.getpid(), threads)


def _note_thread(names):
    """Called when a new thread calls something: it is noted, and then left alone."""
    sys.setprofile(None)
    names.append(threading.current_thread().name)


def _report(path, pid, threads):
    if os.getpid() != pid:
        return
    agent = importlib.import_module("torch.distributed.elastic.agent.server.local_elastic_agent")
    folder = str(Path(sys.modules["torch.distributed.elastic"].__file__).parent / "multiprocessing")
    files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    for thread in threading.enumerate():
        if thread.name == "supervise-inotify":  # a close does not wait for the kernel, which takes up to 20 ms
            thread.join(20)
    seen = {
        "start_processes": agent.start_processes.__module__,
        "contexts": agent.PContext.__module__,
        "threads": sorted({name.split("-")[0] for name in threads}),
        "from_pytorch": sorted(file for file in files if file.startswith(folder)),
        "running": sorted(t.name for t in threading.enumerate() if t.name.startswith("supervise")),
    }
    with Path(path).open("a") as file:
        file.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    install()
    from torch.distributed.run import main

    main()
