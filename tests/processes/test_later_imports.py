"""Threads of supervise import nothing and leave no lock behind: a host may fork at any moment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

ROOT = str(Path(__file__).parents[2])

RECORDER = r"""
import sys, threading
sys.path.insert(0, {root!r})

class Recorder:
    '''Reports each import of a thread that is not the main thread, and of a loop on the main thread.'''

    def find_spec(self, name, path=None, target=None):
        frames, frame, loops = [], sys._getframe(1), False
        while frame is not None:
            code = frame.f_code
            loops = loops or (code.co_filename.endswith("_runtime/loop.py") and code.co_name == "run")
            if "importlib" not in code.co_filename:
                frames.append(f"{{code.co_filename}}:{{frame.f_lineno}} {{code.co_name}}")
            frame = frame.f_back
        thread = threading.current_thread()
        if loops or (thread is not threading.main_thread() and thread.name != "of the test"):
            print(name, "is imported by", thread.name, *frames, sep="\n  ", flush=True)

sys.meta_path.insert(0, Recorder())
import os, select, signal
import supervise
from supervise import (
    Close, DefaultLogsSpecs, Pids, Poll, RestartPolicy, RestartRanks, Signal, Stacks, Start, Status, Std, Supervisor,
    TerminateRanks, Wait,
)

def start(**settings):
    gang = Supervisor.start(**{{"name": "g", "grace": 2.0, **settings}})
    gang.ask(Start())
    return gang

def programs(*sources):
    return {{"entrypoint": "sh", "args": {{rank: ("-c", source) for rank, source in enumerate(sources)}}}}

def end(gang):
    gang.ask(Close())
    gang.stop()

def pause():
    select.select([], [], [], 0.1)  # longer than the delay of the OOM counters

def value():
    return b"x" * 100_000

def fail():
    raise ValueError("a failure")

folder = {folder!r}
"""

CASES = {
    "output, a failure, a restart": """
    import logging
    specs = DefaultLogsSpecs(folder, redirects=Std.ALL, tee=Std.ALL)
    more = {"log_max_bytes": 65536, "duplicate_stdout_filters": ["x"], "event_sink": lambda event: None}
    policy = RestartPolicy(1, backoff=0.01)
    gang = start(**programs("echo x; exit 3", "sleep 60"), logs_specs=specs, restart_policy=policy, **more)
    logging.basicConfig(stream=open(os.devnull, "w"))
    gang.ask(Wait())
    end(gang)
    """,
    "requests, and a rank that is killed": """
    gang = start(**programs("sleep 60", "sleep 60"), control=folder + "/socket")
    pause()
    gang.ask(Signal(sig=signal.SIGCONT))
    pids = gang.ask(Pids())
    os.kill(pids[1], signal.SIGSTOP)
    for message in (Status(), Poll(), Wait(timeout=0.1), Status()):
        gang.ask(message)
    gang.proxy().stacks().get()
    gang.ask(Stacks())
    from supervise._control.client import ControlClient
    with ControlClient(folder + "/socket") as client:
        for name in ("status", "stacks"):
            client.request(name, timeout_s=30.0)
    os.kill(pids[0], signal.SIGKILL)
    gang.ask(Wait())
    end(gang)
    """,
    "a stop of ranks that ignore it, and of what they leave behind": """
    gang = start(**programs("trap '' TERM; sleep 60", "setsid sleep 60 & sleep 60"), grace=0.3, containment="sweep")
    gang.stop()
    """,
    "roles, a service, readiness": """
    from supervise import Role
    ready = (sys.executable, {0: ("-c", "import supervise; supervise.notify(ready=True, status='up')")})
    roles = [
        Role(name="a", entrypoint="sleep", args={0: ("60",)}, service=True),
        Role(name="b", entrypoint=ready[0], args=ready[1], ready="notify"),
        Role(name="c", entrypoint=value, args={0: ()}),
    ]
    gang = start(roles=roles, rank_variables=True)
    gang.ask(Wait())
    end(gang)
    """,
    "a watchdog": """
    from supervise import Watchdog
    specs = DefaultLogsSpecs(folder, redirects=Std.ALL)
    watchdog = Watchdog(output_timeout_s=0.2, action="fail")
    gang = start(**programs("echo x; sleep 60", "sleep 60"), watchdog=watchdog, logs_specs=specs)
    gang.ask(Wait())
    end(gang)
    """,
    "probes": """
    import http.server, threading
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, name="of the test", daemon=True).start()
    specs = DefaultLogsSpecs(folder, redirects=Std.ALL)
    port, more = server.server_port, {"logs_specs": specs, "alive_interval_s": 0.05}
    probes = [f"tcp:localhost:{port}", "exec:true", f"file:{folder}", "log:x"]
    gang = start(**programs("echo x; sleep 60"), ready=probes, alive=f"http://localhost:{port}/", **more)
    pause()
    end(gang)
    for probe in (f"https://localhost:{port}/", f"http://localhost:{port}/", "tcp:localhost:1", "exec:false", "unix:x"):
        try:
            start(**programs("sleep 60"), ready=probe, ready_timeout_s=1.0, **more)
        except supervise.SpawnError:
            pass
    """,
    "a timeout, behind a gate, elsewhere": """
    gang = start(**programs("sleep 60", "sleep 60"), timeout=5.0, gate=True, cwd="/")
    gang.ask(Wait())
    end(gang)
    """,
    "a start that fails, and a crash": """
    for settings in ({"entrypoint": "/etc/passwd", "args": {0: ()}}, {**programs("sleep 60")}):
        gang = Supervisor.start(name="g", **settings)
        gang.tell(object())
        try:
            gang.ask(Start())
        except Exception:
            pass
        gang.stop()
    """,
    "a context": """
    specs = DefaultLogsSpecs(folder, tee=Std.ALL)
    context = supervise.start_processes("g", "sh", {0: ("-c", "echo x")}, {0: {}}, specs)
    context.wait()
    context.close()
    """,
    "a context with readiness and a watchdog": """
    from supervise import Watchdog
    ready = "import supervise; supervise.notify(ready=True)"
    more = {"ready": "notify", "watchdog": Watchdog(heartbeat_timeout_s=60.0)}
    context = supervise.start_processes("g", sys.executable, {0: ("-c", ready)}, {0: {}}, DefaultLogsSpecs(), **more)
    context.wait()
    context.close()
    """,
    "below a tracer, elsewhere": """
    traced = os.posix_spawn
    os.posix_spawn = lambda *args, **kwargs: traced(*args, **kwargs)
    gang = start(**programs("exit 0"), cwd="/")
    gang.ask(Wait())
    end(gang)
    """,
    "a tree": """
    from supervise import ActorSupervisor, ChildSpec
    def gang(**settings):
        return lambda: Supervisor.start(**{"name": "g", **programs("sleep 60"), **settings})
    function = {"entrypoint": value, "args": {0: ()}}
    specs = DefaultLogsSpecs(folder, redirects=Std.ALL, tee=Std.ALL)
    gangs = [
        gang(control=folder + "/socket", logs_specs=specs, log_max_bytes=65536, rank_variables=True),
        gang(watchdog=supervise.Watchdog(heartbeat_timeout_s=60.0), restart_policy=RestartPolicy()),
        *(gang(**function, start_method=method) for method in ("spawn", "fork", "forkserver")),
        gang(**function, hold_returned=True),
    ]
    children = [ChildSpec(id=str(n), start=each, restart="transient") for n, each in enumerate(gangs)]
    tree = ActorSupervisor.start(name="t", children=children)
    tree.ask(Start())
    tree.ask(Status())
    tree.stop()
    """,
}
for method in ("spawn", "fork", "forkserver"):
    CASES[f"functions: {method}"] = f"""
    for function in (value, fail):
        gang = start(entrypoint=function, args={{0: (), 1: ()}}, start_method={method!r})
        gang.ask(Wait())
        end(gang)
    policy = RestartPolicy(1, backoff=0.01)
    more = {{"start_method": {method!r}, "strategy": "one_for_one", "restart_policy": policy}}
    gang = start(entrypoint=signal.pause, args={{0: (), 1: ()}}, **more)
    gang.ask(RestartRanks(frozenset({{0}})))
    gang.ask(TerminateRanks(frozenset({{1}})))
    end(gang)
    """
    CASES[f"run: {method}"] = f"""
    supervise.run(value, n=2, start_method={method!r})
    """


@pytest.mark.parametrize("case", CASES)
def test_k8_no_thread_of_a_gang_imports_a_module(tmp_path, case):
    """A child that is forked during such an import could not import the module any more, and its gangs would hang."""
    source = RECORDER.format(root=ROOT, folder=str(tmp_path)) + 'if __name__ == "__main__":' + CASES[case]
    (tmp_path / "program.py").write_text(source)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert "is imported by" not in done.stdout, done.stdout
    assert done.returncode == 0, done.stderr


LOCKED = """
import multiprocessing.forkserver, multiprocessing.resource_tracker, os, sys, threading
sys.path.insert(0, {root!r})
import pykka, supervise

def value():
    return 1

def main():
    assert supervise.run(value, n=1, start_method={method!r}) == [1]
    locks = [
        multiprocessing.forkserver._forkserver._lock,
        multiprocessing.resource_tracker._resource_tracker._lock,
        pykka.ActorRegistry._actor_refs_lock,
    ]
    held, over = threading.Event(), threading.Event()
    def hold():
        for lock in locks:
            lock.acquire()
        held.set()
        over.wait()
    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    pid = os.fork()
    if pid == 0:
        os._exit(supervise.run(value, n=1, start_method={method!r}) != [1])
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_k8_locks_that_a_thread_of_a_gang_may_hold_at_a_fork_are_new_in_the_child(tmp_path, method):
    """Those of multiprocessing and of pykka; the locks of supervise belong to one gang or are replaced as well."""
    (tmp_path / "program.py").write_text(LOCKED.format(root=ROOT, method=method))
    done = subprocess.run([sys.executable, str(tmp_path / "program.py")], check=False, timeout=PATIENCE_S)
    assert done.returncode == 0


HALF = """
import os, sys, types
sys.path.insert(0, {root!r})
os.environ["TORCHELASTIC_ERROR_FILE"] = "error.json"
import supervise, supervise.recording, supervise._process.launch.fork_server

def value():
    return 1

def record():
    try:
        supervise.recording.record(lambda: 1 / 0)()
    except ZeroDivisionError as error:
        os.remove("error.json")
        supervise.recording.record_uncaught(error, 1)

def fork():
    if os.fork() == 0:
        os._exit(0)
    os.wait()

if __name__ == "__main__":
    sys.modules[{name!r}] = types.ModuleType({name!r})
    {act}
"""
"""A program in which another thread is importing a module: the module is there, and still empty."""


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("subprocess", "assert supervise.run('true', n=1) == [None]"),
        ("multiprocessing.resource_tracker", "fork()"),
        ("multiprocessing.forkserver", "fork()"),
        ("supervise.errors", "record()"),
        ("supervise.notifying", "assert supervise.run(value, n=1, start_method='fork') == [1]"),
    ],
)
def test_k8_a_module_that_another_thread_is_importing_is_not_used(tmp_path, name, act):
    """It is one that supervise does not import itself, so its absence means that nothing has to be done about it."""
    (tmp_path / "program.py").write_text(HALF.format(root=ROOT, name=name, act=act))
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


IMPORTING = """
import faulthandler, os, sys, threading, warnings
sys.path.insert(0, {root!r})
import supervise

def fork_there(event, args):
    '''Let the program fork while the thread begins to execute a module, and waits.'''
    if event == "exec" and threading.current_thread() is importer:
        modules.append(args)
        if len(modules) == {position}:
            imports.set()
            forked.wait()

def value():
    return 1

def main():
    importer.start()
    assert imports.wait(20), f"{{len(modules)}} modules were imported"
    pid = os.fork()
    if pid == 0:
        faulthandler.dump_traceback_later(20, exit=True)
        os._exit(supervise.run(value, n=1, start_method="fork") != [1])
    try:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    finally:
        forked.set()
        importer.join()

imports, forked, modules = threading.Event(), threading.Event(), []
importer = threading.Thread(target=lambda: supervise.run(value, n=1, start_method="fork"))
sys.addaudithook(fork_there)
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("position", [4, 20, 60])
def test_k7_a_child_that_is_forked_during_the_first_imports_of_another_thread_has_gangs(tmp_path, position):
    """The child has the thread's locks of modules, but not the thread."""
    (tmp_path / "program.py").write_text(IMPORTING.format(root=ROOT, position=position))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(tmp_path / "program.py")],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
