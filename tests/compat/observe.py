"""Runs cases against one implementation, and tells what was observed as JSON.

``python -m tests.compat.observe torch|supervise --to FILE [--mutation NAME] < ids``. The implementations differ by the
import prefix only. The library is imported once; each case then has a host process of its own, a fork of this one.
"""

import argparse
import gc
import importlib
import json
import logging
import os
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.compat import work
from tests.compat.case import Case, all_cases
from tests.compat.normal import Normal, shown_text
from tests.compat.oracle import DIED
from tests.compat.tell import kind

PREFIXES = {"torch": "torch.distributed.elastic.multiprocessing", "supervise": "supervise.elastic"}
HERE = Path(__file__).parent
PATIENCE_S = 60.0
_SHELLS_OWN = {"PWD", "OLDPWD", "SHLVL", "_"}


class Hosts:
    """Runs each case in a fork, a few at once."""

    def __init__(self, lib: ModuleType, *, jobs: int) -> None:
        self._lib = lib
        self._jobs = jobs
        self._running: dict[int, tuple[str, str, float]] = {}
        self.seen: dict[str, Any] = {}

    def run(self, ids: list[str]) -> None:
        """Fill `seen` with the observation of each case."""
        for name in ids:
            while len(self._running) >= self._jobs:
                self._collect()
            folder = tempfile.mkdtemp(prefix="compat_")
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                _host(self._lib, name, folder)
            self._running[pid] = name, folder, time.monotonic() + PATIENCE_S
        while self._running:
            self._collect()

    def _collect(self) -> None:
        """Wait for one host to end."""
        ends = {os.pidfd_open(pid): pid for pid in self._running}
        left = min(until for _, _, until in self._running.values()) - time.monotonic()
        ready, _, _ = select.select(list(ends), [], [], max(0.0, left))
        for fd, pid in ends.items():
            os.close(fd)
            name, folder, until = self._running[pid]
            if fd not in ready and time.monotonic() < until:
                continue
            del self._running[pid]
            if fd not in ready:
                _kill_tree(pid)
            os.waitpid(pid, 0)
            told = Path(folder, "observation.json")
            self.seen[name] = json.loads(told.read_text()) if told.exists() else DIED
            import shutil

            shutil.rmtree(folder, ignore_errors=True)


def _kill_tree(pid: int) -> None:
    import psutil

    top = psutil.Process(pid)
    for process in [*top.children(recursive=True), top]:
        process.kill()


def _host(lib: ModuleType, name: str, folder: str) -> None:
    """Be the host of one case; never return."""
    os.setsid()
    shown = [os.open(f"{folder}/host.{stream}", os.O_CREAT | os.O_RDWR, 0o600) for stream in ("stdout", "stderr")]
    for fd, target in zip(shown, (1, 2), strict=True):
        os.dup2(fd, target)
    sys.stdout, sys.stderr = (os.fdopen(fd, "w", buffering=1, encoding="utf-8", closefd=False) for fd in (1, 2))
    logging.disable(logging.CRITICAL)  # what a library logs is its own
    warnings.simplefilter("ignore")
    seen: Any
    try:
        case = all_cases().get(name)
        if case is None:
            families = importlib.import_module("tests.compat.families")
            seen = families.observe(name, lib, folder)
        else:
            seen = observe(case, lib, folder)
    except BaseException:
        seen = {"observer failed": traceback.format_exc()}
    Path(folder, "observation.tmp").write_text(json.dumps(seen))
    Path(folder, "observation.tmp").rename(Path(folder, "observation.json"))
    os._exit(0)


def observe(case: Case, lib: ModuleType, folder: str) -> dict[str, Any]:
    """Run one case in this process and return what was observed."""
    sync = f"{folder}/sync"
    Path(sync).mkdir()
    for rank in range(case.nprocs):
        os.mkfifo(f"{sync}/done.{rank}")
    envs = {rank: _env(case, rank) for rank in range(case.nprocs)}
    seen: dict[str, Any] = {}
    normal = Normal(folder, {})
    try:
        context = lib.start_processes(**_request(case, lib, envs, folder, sync))
    except Exception as error:
        return {"start raised": [kind(error), normal.text(str(error))]}
    pids = dict(context.pids())
    born = {rank: _born(pid) for rank, pid in pids.items()}
    normal = Normal(folder, pids)
    seen["context"] = type(context).__name__
    seen["pids"] = sorted(pids)
    if case.everybody:
        for rank in range(case.nprocs):
            Path(f"{sync}/done.{rank}").read_bytes()  # until the rank has done its work
    try:
        seen.update(_end(case, context, normal))
    except Exception as error:
        seen["raised"] = [kind(error), normal.text(str(error))]
    seen["same pids after the end"] = dict(context.pids()) == pids
    seen["gone"] = sorted(rank for rank, pid in pids.items() if born[rank] is None or _born(pid) != born[rank])
    seen["tails stopped"] = [tail.stopped() for tail in context._tail_logs]
    seen["environment"] = _environment(case, sync, normal)
    seen["given envs"] = {rank: {k: normal.text(v) for k, v in sorted(env.items())} for rank, env in envs.items()}
    seen["error files"] = {rank: normal.path(path) for rank, path in sorted(context.error_files.items())}
    del context
    gc.collect()
    seen["files"] = _files(folder, normal)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for name in ("stdout", "stderr"):
        text = Path(folder, f"host.{name}").read_bytes().decode("utf-8", "backslashreplace")
        seen[f"host {name}"] = shown_text(normal.plain(text))
    return _as_json(seen)


def _born(pid: int) -> str | None:
    """Tell apart who had a number at different times: others may have it by now."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _as_json(seen: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(seen))


def _env(case: Case, rank: int) -> dict[str, str]:
    env = {"RANK": str(rank + 10), "LOCAL_RANK": str(rank), "EMPTY": "", "TEXT": "a b=ü\n'"}
    if case.extra == "attempt":
        env |= {"TORCHELASTIC_RUN_ID": "job7", "TORCHELASTIC_RESTART_COUNT": "2"}
    if case.extra == "shared":
        env |= {"HOME": "/elsewhere", "TORCHELASTIC_ERROR_FILE": "/nonexistent/replaced"}
    return env


def _streams(lib: ModuleType, choice: str, *, tee: bool) -> Any:
    std = lib.Std
    if choice == "map":
        return {0: std.ERR, 2: std.OUT} if tee else {0: std.OUT, 1: std.ERR, 2: std.ALL}
    return {"none": std.NONE, "out": std.OUT, "err": std.ERR, "all": std.ALL}[choice]


def _request(case: Case, lib: ModuleType, envs: dict[int, Any], folder: str, sync: str) -> dict[str, Any]:
    ranks = range(case.nprocs)
    entrypoint: Any = work.rank
    args: dict[int, tuple[Any, ...]] = {rank: (rank, case.nprocs, case.outcome, case.extra, sync) for rank in ranks}
    if case.kind == "binary":
        entrypoint = "/bin/sh"
        args = {rank: (HERE / "rank.sh", rank, case.nprocs, case.outcome, sync) for rank in ranks}
    if case.kind == "recorded":
        entrypoint = sys.executable
        args = {
            rank: ("-u", HERE / "recorded.py", lib.__name__, rank, case.nprocs, case.outcome, sync) for rank in ranks
        }
    request: dict[str, Any] = {
        "name": "job",
        "entrypoint": entrypoint,
        "args": args,
        "envs": envs,
        "logs_specs": lib.DefaultLogsSpecs(
            log_dir=os.devnull if case.extra == "devnull" else f"{folder}/logs",
            redirects=_streams(lib, case.redirect, tee=False),
            tee=_streams(lib, case.tee, tee=True),
            local_ranks_filter={0, 2} if case.extra == "ranks" else None,
        ),
    }
    if case.kind == "function":
        request["start_method"] = case.start_method
    if case.extra == "prefixes":
        request["log_line_prefixes"] = {0: "[zero] ", 2: ""}
    if case.extra == "filters":
        request |= {"duplicate_stdout_filters": ["KEEP", "first"], "duplicate_stderr_filters": ["0 raw"]}
    return request


def _end(case: Case, context: Any, normal: Normal) -> dict[str, Any]:
    """Bring the gang to its end, and return what the caller sees of it."""
    if case.outcome == "timeout":
        seen = {"wait(0)": context.wait(0), "wait": context.wait(timeout=0.05, period=0.05)}
        context.close()
        return seen
    if case.outcome.startswith("close"):
        death = {"close": signal.SIGTERM, "close-int": signal.SIGINT, "close-kill": signal.SIGKILL}[case.outcome]
        context.close(death, 30)
        if case.nprocs > 1:  # who is listed then is a difference of its own
            return {"failed": context.wait(period=0.05).is_failed()}
        return {"result": _result(context.wait(period=0.05), normal)}
    result = context.wait(period=0.05)
    seen = {"result": _result(result, normal), "is failed": result.is_failed()}
    context.close()
    return seen


def _result(result: Any, normal: Normal) -> dict[str, Any]:
    return {
        "return values": normal.any(result.return_values),
        "failures": {rank: failure_seen(failure, normal) for rank, failure in result.failures.items()},
        "stdouts": {rank: normal.path(path) for rank, path in result.stdouts.items()},
        "stderrs": {rank: normal.path(path) for rank, path in result.stderrs.items()},
    }


def failure_seen(failure: Any, normal: Normal) -> dict[str, Any]:
    """Return what is seen of a `ProcessFailure`."""
    return {
        "local_rank": failure.local_rank,
        "pid": normal.text(str(failure.pid)),
        "exitcode": failure.exitcode,
        "error_file": normal.path(failure.error_file),
        "error_file_data": normal.any(failure.error_file_data),
        "message": normal.any(failure.message),
        "timestamp": [type(failure.timestamp).__name__, abs(failure.timestamp - time.time()) < PATIENCE_S],
        "signal_name": failure.signal_name(),
    }


_OUR_MARKER = "SUPERVISE_WORKER"
"""The one variable that we add and PyTorch does not."""


def _environment(case: Case, sync: str, normal: Normal) -> dict[int, Any]:
    """Return, of each rank, what its environment has beyond its host's."""
    found = {}
    for rank in range(case.nprocs):
        path = Path(sync, f"env.{rank}")
        pairs = [item.partition("=") for item in path.read_text().split("\0") if item] if path.exists() else []
        found[rank] = {
            key: normal.text(value)
            for key, _, value in sorted(pairs)
            if key not in _SHELLS_OWN and key != _OUR_MARKER and os.environ.get(key) != value
        }
    return found


def _files(folder: str, normal: Normal) -> dict[str, Any]:
    """Return path to content of everything below the folder of logs; None is a directory."""
    found: dict[str, Any] = {}
    for path in sorted(Path(folder, "logs").rglob("*")):
        name = normal.path(str(path))
        if path.is_dir():
            found[name] = None
        elif path.name == "error.json":
            found[name] = normal.any(json.loads(path.read_bytes()))
        else:
            text = normal.text(path.read_bytes().decode("utf-8", "backslashreplace"))
            # The lines of different ranks may come in either order where they share a file.
            found[name] = sorted(text.splitlines(keepends=True)) if "filtered" in path.name else text
    return found


def main() -> None:
    """Observe the cases whose ids come by stdin."""
    parser = argparse.ArgumentParser()
    parser.add_argument("implementation", choices=sorted(PREFIXES))
    parser.add_argument("--to", required=True)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--mutation")
    given = parser.parse_args()
    ids = sys.stdin.read().split()
    if given.mutation:
        importlib.import_module("tests.compat.mutations").apply(given.mutation)
    lib = importlib.import_module(PREFIXES[given.implementation])
    for name in ("api", "errors", "redirects", "tail_log"):
        importlib.import_module(f"{lib.__name__}.{name}")
    hosts = Hosts(lib, jobs=given.jobs)
    hosts.run(ids)
    Path(given.to).write_text(json.dumps(hosts.seen, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
