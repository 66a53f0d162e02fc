"""The kernel kills a rank for want of memory: the cause says so, and no other SIGKILL does."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from supervise._process.containment import cgroup
from supervise._process.containment.cgroup import tree
from tests.patience import PATIENCE_S
from tests.processes.gangs import each_kind, faulty
from tests.processes.stubborn import OBEDIENT

LIMIT_BYTES = 256 << 20
"""Enough for a Python that starts, and soon taken."""
GREEDY = """
with open(os.environ["LIMITED"], "w") as procs:
    procs.write("0")
hoard = []
while True:
    hoard.append(b"x" * (1 << 22))
"""
"""Enters the limited cgroup, then takes what it can get."""


APART = ("sh", "-c", '"$@"; exit "$?"', "sh")
"""Forks a host of its own. A program's peak memory is known only if it is above that of its host, and the kernel counts
the peak of the process that forks (here a shell, not a worker of pytest, which may be large) as that of the host."""
LOADS = """
import os, time, supervise
supervise.notify(status="loading")
while not os.path.exists("counted"):
    time.sleep(0.01)
"""
UNREADY = f"""
import sys
import supervise
from supervise._process.containment import cgroup
baseline = cgroup.baseline
def counted():
    baseline()
    open("counted", "w").close()
cgroup.baseline = counted
envs = {{0: {{"LIMITED": sys.argv[1]}}}}
try:
    supervise.start_processes("w", sys.executable, {{0: ("-c", {LOADS + GREEDY!r})}}, envs, ready="notify")
except supervise.SpawnError as error:
    print(error)
"""
"""A gang whose rank takes what it can get before it is ready, and after the gang has counted the kills."""


@pytest.fixture
def _alone() -> Iterator[None]:
    """The kills of a neighbour's cgroup may be counted as well: one test at a time, in all processes of the run."""
    with Path(tempfile.gettempdir(), f"supervise-memory-tests-{os.getuid()}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def limited(_alone: None) -> Iterator[Path]:
    """The ``cgroup.procs`` of a cgroup that has little memory.

    It is beside our own, where one can be made there: below it, its kills would be counted by the tests that run
    meanwhile, whose ranks somebody kills.
    """
    with ExitStack() as stack:
        for kind, limit in (("memory", "memory.limit_in_bytes"), ("unified", "memory.max")):
            found = tree(kind)
            own = None if found is None else found.own()
            if found is None or own is None:
                continue
            if not any(Path(own, name).exists() for name in ("memory.oom_control", "memory.events.local")):
                continue  # the neighbours count the kills of the whole machine, or of all that is below their own
            for above in ([] if own == os.path.normpath(found.mount) else [Path(own).parent]) + [Path(own)]:
                try:
                    folder = _small(stack, above, limit, enter=kind == "memory")
                except OSError:
                    stack.close()
                    continue
                cgroup.baseline()  # as an earlier gang of this process has; a new one's comes a moment after its start
                yield folder / "cgroup.procs"
                return
        pytest.skip("no memory limit can be set here: there is no cgroup below which one could be made")


def _small(stack: ExitStack, above: Path, limit: str, *, enter: bool) -> Path:
    """Make a cgroup with little memory; with `enter` below one that this process enters for the while.

    The first version shows the dead in no cgroup, so that only those below the host's own are looked at.

    Raises:
        OSError: It cannot be made, or has no limit: the controller is not passed on to there.
    """
    folder = above / f"test-memory-{os.getpid()}"
    folder.mkdir()
    stack.callback(folder.rmdir)
    if enter:
        back = Path(f"{tree('memory').own()}/cgroup.procs")
        (folder / "cgroup.procs").write_text(str(os.getpid()))
        stack.callback(back.write_text, str(os.getpid()))
        folder /= "limited"
        folder.mkdir()
        stack.callback(folder.rmdir)
    (folder / limit).lstat()
    (folder / limit).write_text(str(LIMIT_BYTES))
    return folder


@each_kind
def test_o11_the_cause_says_out_of_memory(tmp_path, kind, limited):
    """The rank that took too much is the cause; its message says what killed it."""
    envs = {rank: {"LIMITED": str(limited)} for rank in range(2)}
    with faulty(tmp_path, kind, [OBEDIENT, GREEDY], envs=envs) as gang:
        result = gang.wait()
    assert set(result.failures) == {1}
    assert result.failures[1].exitcode == -signal.SIGKILL
    assert "out of memory" in result.failures[1].message.lower()


def test_o11_a_rank_that_is_killed_before_it_is_ready(tmp_path, limited):
    """A start may last minutes, while the ranks load their data: its error says so as well."""
    words = [*APART, sys.executable, "-c", UNREADY, str(limited)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    why = "ended before it was ready: SIGKILL, out of memory suspected; its last status: loading"
    assert done.stdout == f"rank 0 {why}\n", done


@each_kind
def test_o11_another_kill_is_no_want_of_memory(tmp_path, kind, limited):
    """Somebody sent SIGKILL, and there had been a memory kill in that cgroup before."""
    enter = GREEDY.partition("hoard")[0]
    with faulty(tmp_path, kind, [GREEDY], envs={0: {"LIMITED": str(limited)}}) as gang:
        gang.wait()
    with faulty(tmp_path, kind, [enter + OBEDIENT], envs={0: {"LIMITED": str(limited)}}) as gang:
        gang.hear()
        os.kill(gang.pids[0], signal.SIGKILL)
        result = gang.wait()
    assert result.failures[0].exitcode == -signal.SIGKILL
    assert "memory" not in result.failures[0].message.lower()


# Against a made-up kernel, so that it is shown everywhere


class Kernel:
    """A /proc and a tree of cgroups as the kernel would show them."""

    def __init__(self, folder: Path, version: int) -> None:
        self.proc = folder / "proc"
        self._mount = folder / "a mount"
        self._version = version
        (self.proc / "self").mkdir(parents=True)
        mounted = str(self._mount).replace(" ", r"\040")
        kind = {0: "tmpfs tmpfs rw", 1: "cgroup cgroup rw,memory", 2: "cgroup2 none rw"}[version]
        (self.proc / "self" / "mountinfo").write_text(
            f"23 1 0:1 / / rw - tmpfs tmpfs rw\n30 23 0:26 /box {mounted} rw,relatime shared:9 - {kind}\n"
        )
        self.kills(0)

    def place(self, pid: int | str, path: str) -> None:
        """Show a process in a cgroup."""
        first = {1: f"4:cpu,memory:{path}\n0::/\n", 2: f"0::{path}\n"}.get(self._version, "")
        (self.proc / str(pid)).mkdir(exist_ok=True)
        (self.proc / str(pid) / "cgroup").write_text(f"5:pids:/\n{first}")

    def kills(self, count: int, path: str | None = None, file: str = "memory.events") -> None:
        """Show so many memory kills in a cgroup, or in the whole machine."""
        if path is None:
            (self.proc / "vmstat").write_text(f"nr_free_pages 1234\noom_kill {count}\n")
            return
        folder = self._mount / path.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        if self._version == 1:
            (folder / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n")
        else:
            (folder / file).write_text(f"low 0\noom {count + 3}\noom_kill {count}\noom_group_kill 9\n")


@pytest.mark.parametrize("version", [1, 2])
def test_each_kill_in_the_own_cgroup_explains_one_death(tmp_path, version):
    """Older kills explain none."""
    kernel = Kernel(tmp_path, version)
    kernel.place("self", "/box/job")
    kernel.place(7, "/box/job" if version == 2 else "/")
    kernel.kills(5, "/job")
    counters = cgroup.Counters(str(kernel.proc))
    counters.baseline()
    assert not counters.killed_for_memory(7)
    kernel.kills(7, "/job")
    assert [counters.killed_for_memory(7) for _ in range(3)] == [True, True, False]


def test_a_kill_below_the_own_cgroup_of_version_2_is_not_of_the_cgroup_itself(tmp_path):
    """The hierarchical counter has the kills of all below, which a rank of the host's cgroup does not explain."""
    kernel = Kernel(tmp_path, 2)
    kernel.place("self", "/box/job")
    kernel.place(7, "/box/job")
    kernel.kills(0, "/job", "memory.events.local")
    kernel.kills(0, "/job")
    counters = cgroup.Counters(str(kernel.proc))
    counters.baseline()
    kernel.kills(1, "/job")
    assert not counters.killed_for_memory(7)
    kernel.kills(1, "/job", "memory.events.local")
    assert counters.killed_for_memory(7)


@pytest.mark.parametrize("version", [1, 2])
def test_a_cgroup_that_came_later_counts_from_nothing(tmp_path, version):
    """A worker went, or was put, into one of its own; version 1 shows the dead in the root."""
    kernel = Kernel(tmp_path, version)
    kernel.place("self", "/box/job")
    kernel.kills(0, "/job")
    counters = cgroup.Counters(str(kernel.proc))
    counters.baseline()
    kernel.place(7, "/box/job/step" if version == 2 else "/")
    kernel.kills(1, "/job/step")
    assert counters.killed_for_memory(7)
    assert not counters.killed_for_memory(7)


def test_a_host_in_the_root_of_the_first_version_does_not_count_all_of_the_machine(tmp_path):
    """Every cgroup is below the root."""
    kernel = Kernel(tmp_path, 1)
    kernel.place("self", "/box")
    kernel.place(7, "/")
    for path in ("/", "/service"):
        kernel.kills(0, path)
    counters = cgroup.Counters(str(kernel.proc))
    counters.baseline()
    kernel.kills(1, "/service")
    assert not counters.killed_for_memory(7)
    kernel.kills(1, "/")
    assert counters.killed_for_memory(7)


def test_a_worker_elsewhere_is_judged_by_its_own_cgroup(tmp_path):
    """A job manager's, for one; the path may say that it is gone already."""
    kernel = Kernel(tmp_path, 2)
    kernel.place("self", "/box/job")
    kernel.place(7, "/box/other (deleted)")
    kernel.kills(0, "/job")
    kernel.kills(1, "/other")
    counters = cgroup.Counters(str(kernel.proc))
    counters.baseline()
    assert counters.killed_for_memory(7)
    assert not counters.killed_for_memory(8)  # of which nothing can be read


@pytest.mark.parametrize("version", [0, 2])
def test_without_a_cgroup_the_machine_s_counter_tells(tmp_path, version):
    """No cgroups, or the root, which has no counter."""
    kernel = Kernel(tmp_path, version)
    kernel.place("self", "/box")
    kernel.place(7, "/box")
    counters = cgroup.Counters(str(kernel.proc))
    counters.baseline()
    kernel.kills(1)
    assert [counters.killed_for_memory(7) for _ in range(2)] == [True, False]


def test_kills_of_before_the_first_look_are_nobody_s(tmp_path):
    """A rank that is killed at once cannot be told from them."""
    kernel = Kernel(tmp_path, 1)
    kernel.place("self", "/box/job")
    kernel.kills(5, "/job")
    counters = cgroup.Counters(str(kernel.proc))
    assert not counters.killed_for_memory(None)
    kernel.kills(6, "/job")
    assert counters.killed_for_memory(None)


def test_without_anything_to_read_nobody_is_suspected(tmp_path):
    """Another system, or a sandbox."""
    counters = cgroup.Counters(str(tmp_path))
    counters.baseline()
    assert not counters.killed_for_memory(7)


FORKS_MEANWHILE = """
import os, threading
import supervise
from supervise._process.containment import cgroup

begun, go_on = threading.Event(), threading.Event()

def slow():
    begun.set()
    go_on.wait()
    yield from ()

cgroup._counters._own_files = slow
counting = threading.Thread(target=cgroup.baseline)
counting.start()
begun.wait()
if (pid := os.fork()) == 0:
    del cgroup._counters._own_files
    with supervise.start_processes("w", "true", {0: ()}, {0: {}}) as context:
        os._exit(0 if context.wait(20) else 1)
_, status = os.waitpid(pid, 0)
go_on.set()
counting.join()
print(os.waitstatus_to_exitcode(status))
"""


def test_a_fork_while_the_kills_are_counted_does_not_block_the_child():
    """The host's thread holds the lock of the counters at the fork; the child has neither the thread nor its lock."""
    words = [sys.executable, "-W", "ignore", "-c", FORKS_MEANWHILE]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_the_folders_of_a_tree_are_those_of_a_walk(tmp_path):
    """Also in cgroups, whose link counts say which of them have none below."""
    for path in ("a/b/c", "a/d", "e"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "a" / "link").symlink_to(tmp_path / "e")
    assert sorted(cgroup._folders(str(tmp_path))) == sorted(path for path, _, _ in os.walk(tmp_path))
    assert list(cgroup._folders(str(tmp_path / "none"))) == [str(tmp_path / "none")]
