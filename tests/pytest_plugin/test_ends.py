"""Nothing is left of a test's ranks, however the test or pytest ends. `tests/conftest.py` looks for what is left."""

import os
import signal
import subprocess

import psutil
import pytest

from tests.patience import PATIENCE_S
from tests.pytest_plugin import deadlocks
from tests.pytest_plugin.running import QUIET, command, environment, run, write

HANGS = """
    import os, pathlib, signal, subprocess, threading
    import pytest
    from supervise.pytest_plugin import _gang

    assert _gang._STOP_S < 6
    _gang._STOP_S = 6.0  # the machine may stand still while the ranks tear down

    @pytest.fixture
    def cleaned(rank, gang_tmp_path):
        yield
        pathlib.Path({folder!r}, f"cleaned-{{rank}}").touch()

    @pytest.mark.ranks(3, timeout_s=0)
    def test_hangs(rank, rank_gather, cleaned):
        if rank == 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            subprocess.Popen(["sleep", "1000"], start_new_session=True)
        rank_gather()
        if rank == 0:
            os.write({fd}, b"!")
        threading.Event().wait()
"""


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_pytest_is_the_end_of_its_ranks(tmp_path, sig):
    """By Ctrl-C, after which ranks tear down their fixtures, and by SIGKILL; also of a rank that ignores SIGTERM."""
    read, write_end = os.pipe()
    write(tmp_path, test_it=HANGS.format(folder=str(tmp_path), fd=write_end))
    process = subprocess.Popen(
        command(tmp_path, *QUIET),
        cwd=tmp_path,
        env=environment(),
        pass_fds=[write_end],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    os.close(write_end)
    with process:
        assert os.read(read, 1) == b"!"
        ranks = psutil.Process(process.pid).children(recursive=True)
        strays = [each for each in ranks if each.name() == "sleep"]
        assert len(ranks) == 4
        assert len(strays) == 1
        process.send_signal(sig)
        out, _ = process.communicate(timeout=PATIENCE_S)
    os.close(read)
    if sig == signal.SIGINT:
        assert process.returncode == 2, out
        assert "KeyboardInterrupt" in out
        assert {path.name for path in tmp_path.glob("cleaned-*")} == {"cleaned-0", "cleaned-2"}
    else:
        strays[0].kill()  # it has left the session of its rank, and pytest could not look for it
    _, alive = psutil.wait_procs(ranks, timeout=PATIENCE_S)
    assert not alive


def test_processes_that_a_rank_leaves_end_with_the_test(tmp_path):
    """In its group, and in a session of their own; the test passes."""
    write(
        tmp_path,
        test_it=f"""
        import pathlib, subprocess
        import pytest

        @pytest.mark.ranks(2)
        def test_it(rank):
            started = [subprocess.Popen(["sleep", "1000"], start_new_session=own) for own in (False, True)]
            pathlib.Path({str(tmp_path)!r}, f"pids-{{rank}}").write_text(" ".join(str(p.pid) for p in started))

        def test_after():
            import psutil
            for path in pathlib.Path({str(tmp_path)!r}).glob("pids-*"):
                for pid in path.read_text().split():
                    assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == "zombie"
        """,
    )
    done = run(tmp_path, *QUIET)
    assert done.of("test_it")["outcome"] == "passed", done.out
    assert done.of("test_after")["outcome"] == "passed", done.of("test_after")["text"]


def test_a_run_leaves_only_the_folders_of_tests(tmp_path):
    """The files of the gang itself are removed."""
    write(tmp_path, test_it="import pytest\n@pytest.mark.ranks(2)\ndef test_it(tmp_path):\n    pass\n")
    assert run(tmp_path, *QUIET, "-o", "tmp_path_retention_policy=all").code == 0
    (gang,) = (path for path in (tmp_path / "base").glob("test_it-ranks*") if not path.is_symlink())
    assert {path.name for path in gang.iterdir()} == {"shared", "rank-0", "rank-1"}


def test_every_deadlock_of_a_sample_ends_as_a_failure(tmp_path):
    """Also of ranks that ignore SIGTERM, are suspended, compute without end or have children."""
    assert deadlocks.run(tmp_path, 1, 8, 0, PATIENCE_S) == {"failed": 8}


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_every_deadlock_ends_as_a_failure(tmp_path):
    """Fifty of them; ``python -m tests.pytest_plugin.deadlocks --count 1000`` runs more."""
    assert deadlocks.run(tmp_path, 0, 50, 0, 500) == {"failed": 50}


@pytest.mark.stress
def test_a_thread_that_does_not_end_is_named(tmp_path):
    """The test has passed, and the process does not exit."""
    write(
        tmp_path,
        test_it="""
        import threading
        import pytest

        @pytest.mark.ranks(2)
        def test_it(rank):
            if rank:
                threading.Thread(target=threading.Event().wait).start()
        """,
    )
    text = run(tmp_path, *QUIET).of("test_it")["text"]
    assert text.startswith("rank 1: the test had passed, and the process did not exit")


def test_the_death_of_a_rank_ends_the_test_of_the_others(tmp_path):
    """It has written no failed phase; without a time limit, nothing else would end the wait of the other rank."""
    write(
        tmp_path,
        test_it="""
        import os, threading
        import pytest

        @pytest.mark.ranks(2, timeout_s=0, grace_s=0.2)
        def test_it(rank):
            if rank:
                threading.Event().wait()
            os._exit(7)
        """,
    )
    text = run(tmp_path, *QUIET).of("test_it")["text"]
    assert text.startswith("rank 0 exited with code 7"), text


def test_a_child_that_leaves_the_test_is_not_a_second_rank(tmp_path):
    """The test has forked it; its failure is its exit code, and no failure of the rank."""
    write(
        tmp_path,
        test_it="""
        import os
        import pytest

        @pytest.mark.ranks(1)
        @pytest.mark.parametrize("code", [0, 1])
        def test_it(code):
            child = os.fork()
            if not child:
                assert not code
                return
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
        """,
    )
    done = run(tmp_path, *QUIET)
    assert [done.of(f"test_it[{code}]")["outcome"] for code in (0, 1)] == ["passed", "passed"], done.out


def test_the_end_of_a_rank_ends_the_gather_of_the_others(tmp_path):
    """At once: its time limit is longer than that of this test."""
    write(
        tmp_path,
        test_it="""
        import time
        import pytest
        from supervise.pytest_plugin._gather import RankGatherError

        @pytest.mark.ranks(2, timeout_s=0)
        def test_it(rank, rank_gather, gang_tmp_path):
            if rank:
                with pytest.raises(RankGatherError, match="rank 0 ended before call number 1"):
                    rank_gather(timeout_s=10_000)
            else:
                while not (gang_tmp_path.parent / "value-0-1").exists():  # the other one waits
                    time.sleep(0.01)
        """,
    )
    assert run(tmp_path, *QUIET).of("test_it")["outcome"] == "passed"


def test_the_limit_of_a_test_holds_for_the_start_of_its_ranks(tmp_path):
    """Here, there is no reply to the start, and the one to the request for stacks is None, which hides nothing."""
    write(
        tmp_path,
        test_it="""
        import types
        import pytest, supervise
        from supervise.pytest_plugin import _gang

        subscriber = types.SimpleNamespace(actor_urn="odd", tell=id)
        _gang.Start, _gang.Stacks = supervise.Wait, lambda ranks: supervise.Subscribe(ref=subscriber)

        @pytest.mark.ranks(1, timeout_s=1)
        def test_it():
            pass
        """,
    )
    done = run(tmp_path, *QUIET)
    assert "timeout: rank 0 of 1 still running after" in done.of("test_it")["text"]
