"""What a worker need not load or change before its function is called."""

import os
import subprocess
import sys

import pytest

from supervise import DefaultLogsSpecs, Start, Supervisor, Wait
from tests.patience import PATIENCE_S

HEAVY = {"dataclasses", "inspect", "typing", "pykka", "psutil", "structlog", "json", "logging", "tempfile"}

SERVER = """\
import sys
from multiprocessing import forkserver, set_forkserver_preload
sys.path.insert(0, sys.argv[1])
from supervise import DefaultLogsSpecs, Start, Supervisor, Wait
import users_own
set_forkserver_preload(["users_own"])
kept = forkserver._forkserver._preload_modules
gang = Supervisor.start(
    name="w", entrypoint=users_own.seen, args={0: ()}, start_method="forkserver",
    logs_specs=DefaultLogsSpecs(sys.argv[1]),
)
gang.ask(Start())
print(gang.ask(Wait()).return_values[0], forkserver._forkserver._preload_modules is kept)
gang.stop()
"""
USERS_OWN = """\
import os, sys
imported_by = os.getpid()
def seen():
    return imported_by == os.getppid(), "pkgutil" in sys.modules
"""
CALLS = """\
import collections, sys, tempfile, threading
from supervise import DefaultLogsSpecs, start_processes
closes = sys.argv[2] == "close"
program, args = ("/bin/sleep", ("100",)) if closes else ("/bin/true", ())
def calls(nprocs):
    counts = collections.Counter(call=0, c_call=0)
    count = lambda frame, event, arg: counts.update((event,))
    logs = DefaultLogsSpecs(tempfile.mkdtemp(dir=sys.argv[1]))
    threading.setprofile(count); sys.setprofile(count)
    gang = start_processes("g", program, {i: args for i in range(nprocs)}, {i: {} for i in range(nprocs)}, logs)
    if closes:
        counts.update(call=-counts["call"], c_call=-counts["c_call"])
    else:
        gang.wait()
    gang.close()
    sys.setprofile(None); threading.setprofile(None)
    return counts
calls(2)
few, many = calls(8), calls(64)
print(*[(many[kind] - few[kind]) // 56 for kind in ("call", "c_call")])
"""


def run(*args: str, **more: str) -> str:
    """Return what a program of Python prints."""
    env = {**os.environ, **more}
    done = subprocess.run([sys.executable, "-c", *args], check=True, stdout=-1, text=True, timeout=PATIENCE_S, env=env)
    return done.stdout.strip()


def test_a_spawned_worker_loads_nothing_heavy_of_ours():
    """All that a new interpreter imports for a function's sake, up to the call, is this."""
    heavy = HEAVY | {"multiprocessing", "pickle", "re", "socket", "subprocess"}
    ours = "import sys, supervise._process.launch.bootstrap, supervise._process.launch.bootstrap_spawn"
    assert run(f"{ours}\nprint(sorted({heavy!r} & set(sys.modules)))") == "[]"


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("supervise", "start_processes, DefaultLogsSpecs, Std"),
        ("supervise.elastic", "start_processes, DefaultLogsSpecs, Std, SignalException"),
    ],
)
def test_a_main_module_that_names_ours_loads_nothing_heavy(module, names):
    """Every spawned worker imports it again, and uses none of it."""
    heavy = HEAVY | {"multiprocessing", "pickle", "re", "socket", "subprocess"}
    assert run(f"import sys\nfrom {module} import {names}\nprint(sorted({heavy!r} & set(sys.modules)))") == "[]"


def test_a_forked_worker_loads_nothing_heavy_of_ours():
    """The same for what it needs beside multiprocessing."""
    imports = (
        "import sys, multiprocessing.spawn; before = set(sys.modules)\nimport supervise._process.launch.multiprocessing"
    )
    ours = f"import supervise._process.launch.bootstrap\nprint(sorted({HEAVY!r} & (set(sys.modules) - before)))"
    assert run(f"{imports}\n{ours}") == "[]"


def test_the_supervisor_is_imported_without_multiprocessing():
    """A gang needs it; a main module that a worker imports again, and that only names `Supervisor`, does not."""
    assert run("import sys, supervise; supervise.Supervisor; print('multiprocessing' in sys.modules)") == "False"


def test_a_fork_server_of_ours_has_loaded_what_each_worker_needs(tmp_path):
    """It imports that once for all workers, beside what the user has it preload; the user's list is as it was."""
    (tmp_path / "users_own.py").write_text(USERS_OWN, encoding="utf-8")
    assert run(SERVER, str(tmp_path), PYTHONPATH=str(tmp_path)) == "(True, True) True"


@pytest.mark.parametrize("kind", ["fork", "forkserver"])
def test_a_forked_worker_has_the_environment_of_the_gang_and_no_more(tmp_path, monkeypatch, kind):
    """What the host set, changed or removed after the gang was made is not seen, though a fork copies it."""
    monkeypatch.setenv("CHANGED", "before")
    monkeypatch.setenv("REMOVED", "before")
    gang = Supervisor.start(
        name="w",
        entrypoint=environment,
        args={0: ()},
        start_method=kind,
        envs={0: {"OWN": "yes"}},
        logs_specs=DefaultLogsSpecs(str(tmp_path)),
    )
    monkeypatch.setenv("CHANGED", "after")
    monkeypatch.setenv("ADDED", "after")
    monkeypatch.delenv("REMOVED")
    gang.ask(Start())
    result = gang.ask(Wait(timeout=PATIENCE_S))
    gang.stop()
    assert result.return_values[0] == {"CHANGED": "before", "REMOVED": "before", "ADDED": None, "OWN": "yes"}


def environment() -> dict[str, str | None]:
    """Return what this process sees, in Python and for what it would exec."""
    names = ("CHANGED", "REMOVED", "ADDED", "OWN")
    shown = run("import os, sys; print(*(os.environ.get(name) for name in sys.argv[1:]))", *names).split()
    assert shown == [str(os.environ.get(name)) for name in names]
    return {name: os.environ.get(name) for name in names}


@pytest.mark.parametrize(("until", "most"), [("result", (200, 150)), ("close", (80, 58))])
def test_a_rank_costs_few_calls(tmp_path, until, most):
    """From launch to result, in the host: PyTorch makes 348 calls of Python and 450 of C. And in a close: 59 and 46."""
    of_python, of_c = map(int, run(CALLS, str(tmp_path), until, SUPERVISE_WITHOUT="").split())
    assert (of_python <= most[0], of_c <= most[1]) == (True, True), (of_python, of_c)
