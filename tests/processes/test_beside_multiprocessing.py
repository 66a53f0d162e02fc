"""What changes from Python to Python beside us: the fork server, the resource tracker, warnings at a fork."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.processes.gangs import each_function
from tests.processes.hosts import Host

ROOT = str(Path(__file__).parents[2])

SHARED = """
import sys
from multiprocessing.shared_memory import SharedMemory
from supervise import DefaultLogsSpecs, Start, Supervisor, Wait

def look(name):
    shared = SharedMemory(name)
    found = bytes(shared.buf[:3])
    shared.close()
    return found

if __name__ == "__main__":
    shared = SharedMemory(create=True, size=100)
    shared.buf[:3] = b"abc"
    gang = Supervisor.start(
        name="shared", entrypoint=look, args={0: (shared.name,), 1: (shared.name,)}, start_method=sys.argv[1],
        logs_specs=DefaultLogsSpecs("logs"),
    )
    gang.ask(Start(), timeout=40)
    print(gang.ask(Wait(), timeout=40).return_values)
    gang.stop(timeout=40)
    print(look(shared.name))
    shared.close()
    shared.unlink()
"""

MAIN = """
import os, pathlib, sys
from supervise import DefaultLogsSpecs, Start, Std, Supervisor, Wait

print("imported with", os.environ.get("MARK"), flush=True)
if sys.argv[1:] == ["raise"] and __name__ != "__main__":
    raise ZeroDivisionError("on purpose")

def work():
    return os.environ["MARK"]

if __name__ == "__main__":
    gang = Supervisor.start(
        name="main", entrypoint=work, args={0: (), 1: ()}, envs={0: {"MARK": "rank 0"}, 1: {"MARK": "rank 1"}},
        start_method="forkserver", logs_specs=DefaultLogsSpecs("logs", redirects=Std.ALL),
    )
    gang.ask(Start(), timeout=40)
    result = gang.ask(Wait(), timeout=40)
    print(result.outcome, sorted(result.return_values.values()))
    for rank, path in sorted(result.stdouts.items()):
        print(pathlib.Path(path).read_text().strip())
    for failure in result.failures.values():
        print(str(failure.message).splitlines()[0])
    gang.stop(timeout=40)
"""


def host(folder: Path, source: str, *arguments: str, flags: tuple[str, ...] = ("-W", "error"), cwd: Path | None = None):
    """Return what a program prints, and how it ended."""
    (folder / "host.py").write_text(source)
    return subprocess.run(
        [sys.executable, *flags, folder / "host.py", *arguments],
        check=False,
        capture_output=True,
        cwd=cwd or folder,
        env=os.environ | {"PYTHONPATH": ROOT},
        text=True,
        timeout=PATIENCE_S,
    )


@each_function
def test_shared_memory_of_the_host_outlives_the_ranks_that_attach_to_it(tmp_path, kind):
    """A rank uses the host's resource tracker: one of its own would destroy at the rank's end what the rank knew of."""
    done = host(tmp_path, SHARED, kind, flags=())
    assert (done.stdout.splitlines(), done.stderr) == (["{0: b'abc', 1: b'abc'}", "b'abc'"], "")


def test_l9_a_main_module_is_imported_by_the_rank_with_its_environment_and_streams(tmp_path):
    """Not by the fork server, which has neither."""
    done = host(tmp_path, MAIN)
    said = ["imported with None", "succeeded ['rank 0', 'rank 1']", "imported with rank 0", "imported with rank 1"]
    assert (done.stdout.splitlines(), done.stderr) == (said, "")


def test_l9_a_main_module_that_raises_is_a_failure_of_its_ranks(tmp_path):
    """It does not end the fork server, of which the ranks would say only that it is gone."""
    done = host(tmp_path, MAIN, "raise")
    assert "ZeroDivisionError: on purpose" in done.stdout, done


PRELOADS = """
import multiprocessing, os
from supervise import DefaultLogsSpecs, Start, Supervisor, Wait

if __name__ == "__main__":
    multiprocessing.set_forkserver_preload(["raises"])
    gang = Supervisor.start(
        name="preload", entrypoint=os.getpid, args={0: ()}, start_method="forkserver",
        logs_specs=DefaultLogsSpecs("logs"),
    )
    try:
        gang.ask(Start(), timeout=40)
    except OSError as error:
        print("OSError:", error)
    except BaseException as error:
        print(repr(error))
    gang.stop(timeout=40)
"""


def test_a_preloaded_module_that_raises_is_named_as_a_reason_for_the_end_of_the_fork_server(tmp_path):
    (tmp_path / "raises.py").write_text("raise ZeroDivisionError('on purpose')")
    done = host(tmp_path, PRELOADS)
    assert "rank 0 did not start: ChildProcessError: the fork server ended" in done.stdout, done
    assert "preload" in done.stdout
    assert "ZeroDivisionError: on purpose" in done.stderr


STOPPED = """
    from multiprocessing import forkserver
    from supervise._process.launch.fork_server import ensure_server

    ensure_server()
    server = forkserver._forkserver._forkserver_pid
    os.kill(server, signal.SIGSTOP)
    gang = make_gang("forkserver", ["say(os.getpid())"] * 2, grace=1.0)
    start = gang.ask(Start(), block=False)
    try:
        print("close:", gang.ask(Close(timeout=1), timeout=40).outcome, flush=True)
    finally:
        os.kill(server, signal.SIGCONT)
        gang.stop(timeout=40)
        forkserver._forkserver._stop()
    print("ended", flush=True)
"""


def test_close_is_answered_while_the_fork_server_is_stopped(tmp_path):
    """Nothing on the loop waits for it, and no rank runs when it goes on."""
    ear = tmp_path / "ear"
    ear.touch()
    with Host(STOPPED, ear=str(ear)) as host:
        assert host.hear() == "close: stopped"
        assert host.hear() == "ended"
        assert host.exit_code() == 0
    assert ear.read_text() == ""


FORKS = """
import os, sys, threading, warnings
from supervise import DefaultLogsSpecs, Start, Supervisor, Wait

if __name__ == "__main__":
    for round in range(3):
        gang = Supervisor.start(
            name="fork", entrypoint=os.getpid, args={0: (), 1: ()}, start_method="fork",
            logs_specs=DefaultLogsSpecs("logs"),
        )
        gang.ask(Start(), timeout=40)
        print(gang.ask(Wait(), timeout=40).outcome)
        gang.stop(timeout=40)
        warnings.simplefilter("error")
    gate = threading.Event()
    threading.Thread(target=gate.wait, daemon=True).start()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    print([warning.category.__name__ for warning in found])
"""


def test_a_host_for_which_warnings_are_errors_forks_beside_its_threads(tmp_path):
    """Python 3.15 raises that warning when the child exists already. The host is still warned of its own forks."""
    done = host(tmp_path, FORKS)
    of_its_own = ["DeprecationWarning"] if sys.version_info >= (3, 12) else []
    assert (done.stdout.splitlines(), done.stderr) == (["succeeded"] * 3 + [str(of_its_own)], "")


FOREIGN = "import os; open(os.environ['MARK_FILE'], 'a').write('imported')"


def test_the_fork_server_imports_ours_from_where_the_host_does(tmp_path, monkeypatch):
    """Not from a folder of that name in the current directory, which `python -c`, the server, has first in its path."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "supervise").mkdir(parents=True)
    (elsewhere / "supervise" / "__init__.py").write_text(FOREIGN)
    monkeypatch.setenv("MARK_FILE", str(tmp_path / "mark"))
    source = MAIN.replace("rank 0", "there").replace("rank 1", "there")
    done = host(tmp_path, source, cwd=elsewhere)
    assert "succeeded ['there', 'there']" in done.stdout, done
    assert not (tmp_path / "mark").exists()


LATE = """
import os, sys, threading, time
from supervise import Start, Supervisor

def wait_for_end(pid):
    while os.path.exists(f"/proc/{pid}"):
        time.sleep(0.01)

def start():
    gang = Supervisor.start(name="late", entrypoint="sleep", args={0: ("1000",)})
    return gang.ask(Start(), timeout=40)[0]

def join_later(pid):
    assert "multiprocessing" not in sys.modules or threading._SHUTTING_DOWN
    from multiprocessing import get_context
    get_context("fork").Process(target=wait_for_end, args=(pid,)).start()

def after_main(pid):
    threading.main_thread().join()
    while not threading._SHUTTING_DOWN:
        time.sleep(0.01)
    join_later(pid or start())

if __name__ == "__main__":
    pid = start() if "before" in sys.argv[1] else None
    if "thread" in sys.argv[1]:
        threading.Thread(target=after_main, args=(pid,)).start()
    else:
        join_later(pid)
"""


@pytest.mark.parametrize("when", ["before", "before a thread", "in a thread"])
def test_the_exit_closes_the_gangs_before_multiprocessing_joins_its_processes(tmp_path, when):
    """Whenever multiprocessing is imported after the start of the gang: its process waits for the end of a rank."""
    done = host(tmp_path, LATE, when, flags=("-W", "ignore"))  # of a fork beside threads
    if "thread" in when and "at interpreter shutdown" in done.stderr:
        pytest.skip("this Python, as 3.12, starts no thread and no process when the exit has begun")
    assert (done.returncode, done.stderr) == (0, "")


AT_EXIT = """
import atexit, sys
from supervise import start_processes

if __name__ == "__main__":
    if "multiprocessing" in sys.argv:
        import multiprocessing.util
    context = start_processes("g", "sh", {0: ("-c", "sleep 0.1")}, {0: {}})
    atexit.register(lambda: print(context.wait().outcome))
"""


@pytest.mark.parametrize("beside", ["nothing", "multiprocessing"])
def test_an_exit_function_of_the_application_still_has_the_gangs_that_were_started_before_it(tmp_path, beside):
    """It is called first, as Python promises: it may wait for the gang, or close the gang in its own way."""
    done = host(tmp_path, AT_EXIT, beside)
    assert (done.stdout, done.stderr) == ("succeeded\n", "")
