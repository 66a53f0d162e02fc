"""What `supervise run` says where the disk of its run directory is full."""

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.cli.command import Command, environment
from tests.patience import PATIENCE_S
from tests.processes.full_disk import FILL, on_small_disk


def test_l7_a_full_disk_under_a_log_is_one_line_that_names_the_file(supervise: Command):
    """The rank ignores the error and succeeds, and so does the run."""
    (supervise.tmp_path / "logs").mkdir()
    script = 'if [ "$RANK" = 1 ]; then yes 2>/dev/null | head -c 1000000 2>/dev/null; fi; exit 0'
    words = ("-n", "2", "-r", "3", "--log-dir", "logs", "--", "sh", "-c", script)
    done = supervise.run(*words, before=on_small_disk("logs"))
    assert done.returncode == 0
    [line] = [line for line in done.stderr.splitlines() if ": No space left on device; what the ranks" in line]
    assert line.startswith("supervise: stdout: ")
    assert line.endswith("/attempt_0/1/stdout.log'")


def test_l7_a_script_that_raises_on_a_full_disk_is_the_root_cause_on_the_screen(supervise: Command):
    """Its victim ends first, and the screen says why there is no traceback."""
    (supervise.tmp_path / "logs").mkdir()
    (supervise.tmp_path / "work.py").write_text(
        f"{FILL}\nimport atexit, os, threading\n"
        "if os.environ['RANK'] == '1':\n"
        "    fill('logs')\n"
        "    atexit.register(threading.Event().wait, 1000)\n"
        "    atexit.register(lambda: open('raised', 'w').close())\n"
        "    raise ValueError('the 7th shard is empty')\n"
        "while not os.path.exists('raised'):\n    threading.Event().wait(0.01)\n"
        "os._exit(7)\n"
    )
    done = supervise.run("-n", "2", "--log-dir", "logs", "work.py", before=on_small_disk("logs"))
    assert done.returncode == 1
    screen = done.stderr.partition("supervise: rank ")[2].splitlines()
    assert screen[0].startswith("1 of 2 failed: an exception without a readable record (host ")
    assert "error.json could not be written: no space was left on its disk, " in screen[2]
    assert "  rank 0: failed too: exit code 7" in screen
    assert done.stderr.count(": No space left on device; what the ranks") == 1


def test_l7_where_no_file_can_be_made_a_rank_says_that_its_exception_is_not_recorded(supervise: Command):
    """Without a free inode nothing can be left for the supervisor but a line on stderr."""
    (supervise.tmp_path / "logs").mkdir()
    (supervise.tmp_path / "work.py").write_text(
        "import os\n"
        "try:\n    for n in range(1000): open(f'logs/{n}', 'x').close()\n"
        "except OSError: raise ValueError('the 7th shard is empty') from None\n"
    )
    before = on_small_disk("logs", ",nr_inodes=30")
    done = supervise.run("-r", "3", "--log-dir", "logs", "work.py", before=before)
    assert done.returncode == 1
    screen = done.stderr.partition("supervise: rank 0 failed: ")[2]
    assert "    supervise: this exception could not be recorded: [Errno 28] No space left on device" in screen
    assert "    ValueError: the 7th shard is empty" in screen
    assert done.stderr.count(": No space left on device; what the ranks") == 1


SMALL_FILES = ("sh", "-c", 'ulimit -f 6; exec "$@"', "sh")
"""Blocks of 512 bytes: ``run.json`` has room, the events of some ranks have not."""
LOSES = """
import resource, sys
from supervise.cli.run.directory import EventFile
def limit(size_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))
events = EventFile()
events.open(sys.argv[1])
events.write({"event": "first"})
limit(30)  # in the middle of the next line
for number in range(3):
    events.write({"event": f"lost {number}"})
limit(resource.RLIM_INFINITY)
events.write({"event": "last"})
print(events.lost, events.error.strerror)
"""


def test_a_run_that_starts_on_a_full_disk_is_found_once_there_is_room(supervise: Command):
    (supervise.tmp_path / "logs").mkdir()
    fills = f"{FILL}fill('logs')\nimport sys\nos.execvp(sys.argv[1], sys.argv[1:])\n"
    full = (*on_small_disk("logs"), sys.executable, "-c", fills)
    makes_room = "rm logs/fill; until [ -e logs/*/run.json ]; do sleep 0.1; done"
    done = supervise.run("--log-dir", "logs", "--", "sh", "-c", makes_room, before=full)
    assert done.returncode == 0, done
    assert "supervise: no command finds this run until run.json is written: " in done.stderr


def test_events_that_cannot_be_written_are_counted_at_the_end(supervise: Command):
    """The run is not hindered."""
    # Python keeps a file of bytecode of which it could write a part only, and every later import of it fails
    done = supervise.run("-n", "8", "--no-prefix", "true", before=SMALL_FILES, PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 0
    assert re.search(r"^supervise: \d+ events? missing in events\.jsonl: File too large$", done.stderr, re.MULTILINE)


def test_the_file_of_events_tells_how_many_are_missing(tmp_path: Path):
    """A torn line stays one, and what follows is readable."""
    words = [sys.executable, "-c", LOSES, str(tmp_path)]
    env = environment(tmp_path, PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == "3 File too large\n"
    first, torn, lost, last = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(first)["event"] == "first"
    assert '{"event": "lost 0"}'.startswith(torn)
    found = json.loads(lost)
    assert (found["event"], found["count"]) == ("supervise.events.lost", 3)
    assert json.loads(last)["event"] == "last"
