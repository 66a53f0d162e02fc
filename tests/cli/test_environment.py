"""What the ranks find in their environment."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from supervise._process.containment.cgroup import cpu_quota
from tests.cli.command import HANG, Command
from tests.cli.test_run_commands import until

SHOW = "import json, os; print(json.dumps(dict(os.environ)))"
WANTED = {
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "ROLE_WORLD_SIZE": "2",
    "ROLE_NAME": "default",
    "MASTER_ADDR": "127.0.0.1",
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "OMP_NUM_THREADS": "1",
}


def environments(supervise: Command, *words: str, **env: str) -> list[dict[str, str]]:
    done = supervise.run("--run_id", "job", "--no-prefix", *words, sys.executable, "-c", SHOW, **env)
    assert done.returncode == 0, done.stderr
    return sorted(map(json.loads, done.stdout.splitlines()), key=lambda found: int(found["RANK"]))


def test_torchruns_variables(supervise: Command):
    """Each rank gets all of them."""
    found = environments(supervise, "-n", "2")
    for rank, env in enumerate(found):
        own = {name: str(rank) for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")}
        assert env.items() >= (WANTED | own).items()
        assert env["TORCHELASTIC_ERROR_FILE"] == str(supervise.directory() / f"attempt_0/{rank}/error.json")
        assert 0 < int(env["MASTER_PORT"]) < 65536
    assert found[0]["MASTER_PORT"] == found[1]["MASTER_PORT"]


def test_the_users_own_settings_win(supervise: Command):
    """An address, a port or a number of threads that is set stays."""
    given = {"MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "4711", "OMP_NUM_THREADS": "8"}
    assert environments(supervise, "-n", "2", **given)[1].items() >= given.items()


def test_the_master_of_an_outer_run_is_not_that_of_an_inner_one(supervise: Command):
    """The ranks of two gangs on a machine would bind one port."""
    outer = {"MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "4711", "RANK": "1"}
    env = environments(supervise, **outer)[0]
    assert (env["MASTER_ADDR"], env["RANK"]) == ("127.0.0.1", "0")
    assert env["MASTER_PORT"] != "4711"


def test_one_rank_may_use_every_cpu(supervise: Command):
    """OMP_NUM_THREADS is limited only where several ranks share the machine; -v says so."""
    assert "OMP_NUM_THREADS" not in environments(supervise)[0]
    assert "OMP_NUM_THREADS" not in supervise.run("-v", "true").stderr
    assert supervise.run("-v", "-n", "2", "true").stderr.count("each rank gets OMP_NUM_THREADS=1") == 1


@pytest.mark.parametrize(("library", "told"), [("libgomp.so.1", True), ("libother.so.1", False)])
def test_the_limit_of_threads_is_told_once_a_rank_has_loaded_a_library_that_reads_it(
    supervise: Command, library: str, told: bool
):
    """Not for a program that starts no threads."""
    path = supervise.tmp_path / library
    path.write_bytes(b"x" * 4096)
    script = (
        f"import mmap, time\nfile = open({str(path)!r}, 'r+b')\nheld = mmap.mmap(file.fileno(), 0)\ntime.sleep(1000)"
    )
    with supervise.started("-n", "2", "--", sys.executable, "-c", script) as run:
        if told:
            run.hear_error("supervise: each rank gets OMP_NUM_THREADS=1; set it to use more threads in each")
        else:
            until(lambda: any(each.stat().st_size for each in supervise.tmp_path.glob("runs/*_*/samples.jsonl")))
        run.signal(signal.SIGTERM)
        assert "OMP_NUM_THREADS" not in run.end()[2]


CPU = Path(f"/sys/fs/cgroup/cpu/supervise-test-{os.getpid()}")


@pytest.fixture
def half_a_cpu() -> Iterator[Path]:
    """A control group with a quota of half a CPU, and another group below it."""
    inner = CPU / "inner"
    try:
        inner.mkdir(parents=True, exist_ok=True)
        (CPU / "cpu.cfs_quota_us").write_text("50000")
    except OSError as error:
        pytest.skip(f"no control groups of cpu can be made here: {error}")
    yield inner
    inner.rmdir()
    CPU.rmdir()


def test_a_quota_of_the_control_group_limits_ranks_and_threads(supervise: Command, half_a_cpu: Path):
    """Also that of a group above; a part of a CPU counts as one."""
    enter = ("sh", "-c", f'echo $$ > {half_a_cpu}/cgroup.procs; exec "$@"', "sh")
    done = supervise.run("-n", "cpu", "--", "sh", "-c", "echo $WORLD_SIZE $OMP_NUM_THREADS", before=enter)
    assert done.stdout == "[default0]:1 1\n"


QUOTAS = {
    "v2": ("0::/a/b", "cgroup2", {"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "max 100000\n"}, 1.5),
    "v2, the own one is less": ("0::/a/b", "cgroup2", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "1 2"}, 0.5),
    "v2, none": ("0::/a/b", "cgroup2", {"a/cpu.max": "max 100000"}, float("inf")),
    "v1": ("3:cpu,cpuacct:/a", "cgroup", {"a/cpu.cfs_quota_us": "250000", "a/cpu.cfs_period_us": "100000"}, 2.5),
    "v1, none": ("3:cpu:/a", "cgroup", {"a/cpu.cfs_quota_us": "-1", "a/cpu.cfs_period_us": "100000"}, float("inf")),
    "v1, of another container": ("3:cpu:/../x", "cgroup", {"cpu.cfs_quota_us": "3", "cpu.cfs_period_us": "2"}, 1.5),
    "no tree": ("", "tmpfs", {}, float("inf")),
}
"""Line of /proc/self/cgroup, type of the file system, files of the control groups, and the CPUs."""


@pytest.mark.parametrize(("line", "kind", "files", "cpus"), QUOTAS.values(), ids=QUOTAS)
def test_the_quota_is_the_least_of_all_groups_above(tmp_path: Path, line: str, kind: str, files: dict[str, str], cpus):
    """In both versions of control groups."""
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(f"{line}\n")
    (proc / "self/mountinfo").write_text(f"30 23 0:26 / {mount} rw - {kind} {kind} rw,cpu,cpuacct\n")
    for name, content in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(content)
    assert cpu_quota(str(proc)) == cpus


def test_as_many_ranks_as_cpus(supervise: Command):
    """cpu, and auto where there is no GPU."""
    count = len(os.sched_getaffinity(0))
    for word in ("cpu", "auto"):
        done = supervise.run("--nproc_per_node", word, "--", "sh", "-c", "echo $WORLD_SIZE", CUDA_VISIBLE_DEVICES="")
        assert len(done.stdout.splitlines()) == count
        assert done.stdout.splitlines()[0].endswith(f"]:{count}")


def test_two_runs_at_once_have_two_ports(supervise: Command):
    """Also where no rank listens yet."""
    ports = []
    show = ("--no-prefix", "--", "sh", "-c", f"echo $MASTER_PORT; {HANG}")
    with ExitStack() as stack:
        runs = [stack.enter_context(supervise.started(*show)) for _ in range(3)]
        for run in runs:
            ports += run.hear()
        for run in runs:  # killed at its rank's first word, one might not have its lifeline yet
            run.signal(signal.SIGTERM)
            run.end()
    assert len(set(ports)) == 3
