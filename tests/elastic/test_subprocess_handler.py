"""`SubprocessHandler`: one program by itself, with what callers use of it."""

import gc
import os
import signal
import subprocess
import sys

import psutil
import pytest

from supervise import SpecError
from supervise.elastic.subprocess_handler import SubprocessHandler, get_subprocess_handler
from tests.patience import PATIENCE_S

# A signal that comes just before pause() would not end it
READY = "import sys, time; print('ready', flush=True); sys.stdin.read(); [time.sleep(0.01) for _ in iter(int, 1)]"


def test_it_runs_with_arguments_environment_and_files(tmp_path):
    code = "import os, sys; print(sys.argv[1:], os.environ['KEY'], os.environ['HOME']); print('e', file=sys.stderr)"
    out, err = tmp_path / "out", tmp_path / "err"
    handler = get_subprocess_handler(sys.executable, ("-c", code, 1, [2]), {"KEY": 3}, str(out), str(err), 5)
    assert isinstance(handler, SubprocessHandler)
    assert handler.local_rank_id == 5
    assert handler.proc.wait(PATIENCE_S) == handler.proc.returncode == handler.proc.poll() == 0
    assert out.read_text() == f"['1', '[2]'] 3 {os.environ['HOME']}\n"
    assert err.read_text() == "e\n"


def test_an_earlier_file_is_moved_aside(tmp_path):
    out = tmp_path / "out"
    out.write_text("earlier\n")
    get_subprocess_handler("echo", "hello", {}, str(out), "", 0).proc.wait(PATIENCE_S)
    assert (out.read_text(), (tmp_path / "out.1").read_text()) == ("hello\n", "earlier\n")


@pytest.mark.parametrize("sig", [None, signal.SIGINT, signal.SIGKILL])
def test_close_signals_the_whole_group(tmp_path, sig):
    code = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {READY!r}], stdin=0); p.wait()"
    out = tmp_path / "out"
    os.mkfifo(out)
    reader = os.open(out, os.O_RDONLY | os.O_NONBLOCK)
    handler = get_subprocess_handler(sys.executable, ("-c", code), {}, str(out), os.devnull, 0)
    os.set_blocking(reader, True)
    with open(reader) as file:  # noqa: PTH123 - a descriptor
        assert file.readline() == "ready\n"
        (grandchild,) = psutil.Process(handler.proc.pid).children()
        assert os.getsid(grandchild.pid) == os.getpgid(grandchild.pid) == handler.proc.pid
        handler.close(sig)
        assert handler.proc.wait(PATIENCE_S) in {-(sig or signal.SIGTERM), 1}
        assert file.read() == "", "both have ended: nobody can write any more"
    handler.close()
    handler.close(signal.SIGKILL)


def test_a_program_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        get_subprocess_handler("no-such-program", (), {}, str(tmp_path / "out"), "", 0)
    with pytest.raises(SpecError, match="rank 3"):
        get_subprocess_handler("echo", ("a\0b",), {}, "", "", 3)


def test_a_handler_that_nobody_holds_lets_its_program_run(tmp_path):
    out = tmp_path / "out"
    handler = get_subprocess_handler("sh", ("-c", "read line; echo done"), {}, str(out), "", 0)
    proc = handler.proc
    del handler
    gc.collect()
    assert proc.wait(PATIENCE_S) == 0
    assert out.read_text() == "done\n"


def test_proc_is_a_popen():
    handler = get_subprocess_handler("sleep", (60,), {}, "", "", 0)
    assert isinstance(handler.proc, subprocess.Popen)
    with pytest.raises(subprocess.TimeoutExpired):
        handler.proc.wait(0.01)
    handler.close(signal.SIGTERM)
    assert handler.proc.wait(PATIENCE_S) == -signal.SIGTERM
