"""The private parts of multiprocessing that functions stand on. Where a test fails, a new Python has changed them."""

import io
import itertools
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
from multiprocessing import (
    context,
    forkserver,
    popen_fork,
    popen_forkserver,
    popen_spawn_posix,
    process,
    resource_tracker,
    spawn,
    util,
)

import pytest

from tests.patience import PATIENCE_S

NEW = "multiprocessing has changed: "


def run(source: str, *flags: str) -> str:
    """Return what a fresh interpreter prints."""
    command = [sys.executable, *flags, "-c", source]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout


# The fork server


def test_the_fork_server_has_a_list_of_modules_to_preload_and_a_pid():
    server = forkserver._forkserver
    assert isinstance(server._preload_modules, list), NEW + "the list of modules to preload"
    assert server._forkserver_pid is None or isinstance(server._forkserver_pid, int), NEW + "the server's pid"


PRELOAD = """
from multiprocessing import forkserver
class Names(list):
    def __repr__(self):
        return "(__import__('os').write(1, b'evaluated') and [])"
forkserver._forkserver._preload_modules = Names(["json"])
forkserver.ensure_running()
forkserver._forkserver._stop()
"""


def test_the_fork_server_evaluates_the_text_of_the_list():
    """And does that behind its own imports: so it can be told of `sys.path`."""
    assert run(PRELOAD) == "evaluated", NEW + "how the fork server is told what to preload"


class Answer:
    """Unpickled by the fork server's child, where it gives what is called there."""

    def __reduce__(self):
        return _Called, ()


class _Called:
    _config: dict[str, object] = {}  # noqa: RUF012 - read by spawn

    def _bootstrap(self, parent_sentinel):
        inherited = forkserver.get_inherited_fds()
        os.write(inherited[0], b"called" if isinstance(inherited, list) and parent_sentinel >= 0 else b"wrong")
        return 7


def test_the_fork_server_forks_for_descriptors_and_pickles_and_tells_pid_and_code():
    """Two pickles: what to prepare, and whose `_bootstrap` to call. Two native 64-bit numbers come back."""
    read, write = os.pipe()
    status, data = forkserver.connect_to_new_process([write])
    os.close(write)
    os.write(data, pickle.dumps({"sys_path": sys.path}) + pickle.dumps(Answer()))
    os.close(data)
    assert os.read(read, 100) == b"called", NEW + "what the fork server's child calls"
    told = os.read(status, 8) + os.read(status, 8)
    pid, code = struct.unpack("qq", told)
    assert pid > 1
    assert code == 7, NEW + "what the fork server tells"
    os.close(read)
    os.close(status)


# The resource tracker


def test_the_resource_tracker_has_a_descriptor_that_can_be_handed_on():
    resource_tracker.ensure_running()
    assert resource_tracker._resource_tracker._fd == resource_tracker.getfd() >= 0, NEW + "the tracker's descriptor"


@pytest.mark.skipif(not hasattr(resource_tracker, "_fork_intent"), reason="every fork keeps the tracker")
@pytest.mark.parametrize("keeps", [True, False])
def test_a_fork_keeps_the_tracker_if_this_thread_says_so(keeps):
    source = f"""
import os
from multiprocessing import resource_tracker
resource_tracker.ensure_running()
assert not getattr(resource_tracker._fork_intent, "preserve_fd", False)
resource_tracker._fork_intent.preserve_fd = {keeps}
if os.fork() == 0:
    os.write(1, str(resource_tracker._resource_tracker._fd is not None).encode())
    os._exit(0)
os.wait()
"""
    assert run(source, "-W", "ignore") == str(keeps), NEW + "what a fork does to the tracker"


# What travels, and what a child is told


def test_a_process_that_is_being_spawned_duplicates_descriptors():
    assert popen_forkserver._DupFd(3).ind == 3, NEW + "a descriptor that travels to the fork server"
    assert popen_spawn_posix._DupFd(3).fd == 3, NEW + "a descriptor that travels to a spawned process"
    assert {"DupFd", "duplicate_for_child"} <= set(dir(popen_spawn_posix.Popen)), NEW + "what pickling asks for"
    popen = object()
    context.set_spawning_popen(popen)
    assert context.get_spawning_popen() is popen
    context.set_spawning_popen(None)


def test_what_a_child_is_told_has_these_names():
    popen = popen_fork.Popen.__new__(popen_fork.Popen)
    data = spawn.get_preparation_data("name")
    assert {"name", "authkey", "log_to_stderr", "sys_path", "sys_argv", "orig_dir", "dir", "start_method"} <= set(data)
    assert set(data) <= {
        *("name", "authkey", "log_to_stderr", "log_level", "sys_path", "sys_argv", "orig_dir", "dir", "start_method"),
        *("init_main_from_name", "init_main_from_path"),
    }, NEW + "a child is told more"
    context.set_spawning_popen(popen)
    try:
        pickle.dump(data["authkey"], io.BytesIO())  # refuses where nothing is spawned
    finally:
        context.set_spawning_popen(None)


def test_a_child_gets_the_flags_of_its_interpreter():
    source = "from multiprocessing import util; print(util._args_from_interpreter_flags())"
    assert "-Werror" in run(source, "-W", "error"), NEW + "the flags of an interpreter"


# The process object


class _Process(process.BaseProcess):
    def run(self):
        self.called = self._target(*self._args)


def test_a_process_object_is_made_and_lives_where_it_is():
    """As ours does in a child, here in a process of its own, since it takes over."""
    source = """
import os
from tests.contracts.test_multiprocessing import _Process
made = _Process(target=lambda number: number + 1, name="made", args=(1,), daemon=True)
made._start_method, made._parent_pid, made._parent_name = "spawn", 5, "MainProcess"
read, write = os.pipe()
code = made._bootstrap(read)
from multiprocessing import current_process, parent_process, process
assert (code, made.called, current_process().name, current_process().daemon) == (0, 2, "made", True)
assert (parent_process().pid, parent_process().name) == (5, "MainProcess")
print("lived")
"""
    assert run(source).strip() == "lived", NEW + "the life of a process object"


def test_a_process_object_can_take_the_current_one_s_place():
    assert isinstance(process._process_counter, type(itertools.count())), NEW + "the numbers of processes"
    assert isinstance(process._children, set), NEW + "the children of a process"
    assert process._current_process is process.current_process(), NEW + "the current process"
    assert process._parent_process is process.parent_process(), NEW + "the parent process"
    parent = process._ParentProcess("name", 5, 0)
    assert (parent.name, parent.pid) == ("name", 5)
    assert process.current_process()._identity == (), NEW + "what stands before the number of a process"
    assert callable(context._force_start_method), NEW + "how a child is told its start method"


def test_a_child_ends_with_an_exit_function():
    """Which it calls itself before Python 3.13, and has registered from then on."""
    assert callable(util._exit_function), NEW + "the exit function"


# The rest


def test_the_fork_of_multiprocessing_itself_runs_exit_functions_from_3_13_on():
    import inspect

    launch = inspect.getsource(popen_fork.Popen._launch)
    assert ("_run_exitfuncs" in launch) == (sys.version_info >= (3, 13)), NEW + "the end of a forked child"
    bootstrap = inspect.getsource(process.BaseProcess._bootstrap)
    assert ("util._exit_function()" in bootstrap) == (sys.version_info < (3, 13)), NEW + "who calls the exit function"
    assert "threading._shutdown()" in bootstrap, NEW + "who waits for threads"


def test_the_fork_server_is_started_with_sigchld_as_its_starter_has_it():
    """It does not unblock that itself, and would never tell of an end."""
    source = """
import os, signal
from multiprocessing import forkserver
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
forkserver.ensure_running()
for fd in forkserver.connect_to_new_process([]):
    os.close(fd)
status = open(f"/proc/{forkserver._forkserver._forkserver_pid}/status").read()
blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
print(bool(blocked >> (signal.SIGCHLD - 1) & 1))
forkserver._forkserver._stop()
"""
    assert run(source).strip() == "True", NEW + "the mask of the fork server: it need not be seen to any more"


def test_a_worker_that_imports_the_main_module_is_known_by_an_attribute():
    import inspect

    assert "'_inheriting'" in inspect.getsource(spawn._check_not_importing_main), NEW + "a missing main guard"


def test_the_main_thread_waits_for_others_by_a_private_function():
    assert callable(threading._shutdown)
    assert threading.Thread(daemon=True)._daemonic is True, "threading has changed: how a thread is a daemon"
    assert signal.SIGCHLD in signal.valid_signals()
