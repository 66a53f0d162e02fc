"""What process trees use, read from real processes."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from supervise._views.usage import Usage, trees
from tests.patience import PATIENCE_S

MB = 1 << 20
PARENT = """
import os, sys, subprocess
{0}
print("there", flush=True)
sys.stdin.read()
"""
CHILD = """
child = subprocess.Popen([sys.executable, "-c", '''
import sys
held = bytearray(100 << 20)
print("there", flush=True)
sys.stdin.read()
'''], stdout=subprocess.PIPE)
child.stdout.readline()
"""


@contextmanager
def leader(code: str) -> Iterator[int]:
    """A process that leads a group and has run `code`; it ends with its children at the end of its stdin."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
    )
    with process:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], PATIENCE_S)[0]
        assert process.stdout.readline() == b"there\n"
        yield process.pid


def test_a_tree_has_the_memory_of_its_children() -> None:
    with leader("") as alone, leader(CHILD) as parent:
        found = trees({0: alone, 7: parent})
    assert found[0].processes == 1
    assert found[0].rss_bytes < 50 * MB
    assert found[7].processes == 2
    assert found[7].rss_bytes > 100 * MB
    assert found[7].pid == parent


def test_a_child_that_has_left_the_group_still_counts() -> None:
    with leader(CHILD.replace("stdout=subprocess.PIPE)", "stdout=subprocess.PIPE, start_new_session=True)")) as parent:
        assert trees({0: parent})[0].processes == 2


def test_processor_time_counts_children_that_were_waited_for() -> None:
    spin = "import time\\nwhile time.process_time() < 0.3: pass"
    with leader(f'subprocess.run([sys.executable, "-c", "{spin}"])') as parent:
        found = trees({0: parent})[0]
    assert 0.25 <= found.cpu_s < PATIENCE_S  # the kernel counts whole ticks
    assert found.processes == 1


def test_a_member_of_the_group_counts_when_its_parent_has_ended() -> None:
    orphan = 'subprocess.run(["sh", "-c", "cat <&3 & exit"], pass_fds=[3])'
    with leader(f"os.dup2(0, 3); {orphan}") as parent:
        assert trees({0: parent})[0].processes == 2


def test_a_rank_without_a_process_is_missing() -> None:
    with leader("") as ended:
        pass
    assert trees({0: ended}) == {}


def test_zombies_do_not_count() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {}, setpgroup=0)
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert trees({3: pid}) == {}
    finally:
        os.waitpid(pid, 0)


def test_without_ranks_there_is_no_usage() -> None:
    assert trees({}) == {}


def test_the_fields_are_those_of_the_file() -> None:
    assert Usage._fields == ("pid", "cpu_s", "rss_bytes", "processes")
