"""Many cycles, and many ranks: nothing grows, and nothing is left. The figures are printed; see them with ``-rP``."""

import json
import resource
import signal

import pytest

from supervise import SpecError, Start
from tests.processes.hosts import Host, make_gang

pytestmark = pytest.mark.timeout(300)  # 500 cycles take 12 s alone, and a minute beside searches of the model

CYCLES = """
import gc, json, pykka, supervise, time
from supervise import DefaultLogsSpecs, Std
from tests.processes import work

folder, tell = sys.argv[2], os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the console of the gangs

def cycle(number):
    what = ("binary", "fork", "tee", "closed", "unstartable")[number % 5]
    logs = DefaultLogsSpecs(f"{folder}/{number}" if what == "tee" else os.devnull, tee=Std.ALL)
    if what == "fork":
        gang = make_gang("fork", ["raise SystemExit(3)", "signal.pause()"], logs_specs=logs, grace=5.0)
    else:
        program = ("sh", "-c") if what != "unstartable" else ("/not/there",)
        last = "exec sleep 1000" if what == "closed" else "echo going; exit 3"
        entry, *flags = program
        args = {0: (*flags, last), 1: (*flags, "echo here; exec sleep 1000")}
        gang = Supervisor.start(name="cycle", entrypoint=entry, args=args, logs_specs=logs, grace=5.0)
    try:
        gang.ask(Start(), timeout=30)
    except FileNotFoundError:
        assert what == "unstartable"
    else:
        if what != "closed":
            result = gang.ask(Wait(timeout=30), timeout=40)
            assert (result.outcome, result.failures[0].exitcode) == ("failed", 3), result
        gang.ask(Close(), timeout=40)
    gang.stop(timeout=30)

def measure():
    for thread in threading.enumerate()[1:]:  # of gangs that have said that they are stopped
        thread.join(20)
    gc.collect()
    pause, until = threading.Event(), time.monotonic() + 20
    while True:  # before Python 3.13, a thread that was joined may not have ended yet
        status = open("/proc/self/status").read()
        if int(status.partition("Threads:")[2].split()[0]) <= threading.active_count() or time.monotonic() > until:
            break
        pause.wait(0.01)
    return {
        "fds": len(os.listdir("/proc/self/fd")),
        "threads": int(status.partition("Threads:")[2].split()[0]),
        "actors": len(pykka.ActorRegistry.get_all()),
        "children": len(open(f"/proc/self/task/{os.getpid()}/children").read().split()),
        "rss_kib": int(status.partition("VmRSS:")[2].split()[0]),
    }

for number in range(1, 501):
    cycle(number)
    if number % 100 == 0:
        os.write(tell, (json.dumps(measure()) + "\\n").encode())
"""


@pytest.mark.stress
def test_e1_500_cycles_of_start_fail_and_close_leave_nothing_behind(tmp_path):
    """Programs and functions, shown or not, failing, closed or not even startable, in one host."""
    with Host(CYCLES, ear=str(tmp_path)) as host:
        figures = [json.loads(host.hear()) for _ in range(5)]
        assert host.exit_code() == 0
    print("after 100, 200 ... 500 cycles:", *figures, sep="\n")
    for name in ("fds", "threads", "actors", "children"):
        assert len({found[name] for found in figures}) == 1, figures
    assert figures[0]["actors"] == figures[0]["children"] == 0
    assert figures[-1]["rss_kib"] - figures[0]["rss_kib"] < 1024, figures


THOUSAND = """
import json, resource, supervise, time
from supervise._runtime.wakeup import bell_for_this_thread

size, soft = int(sys.argv[2].partition(" ")[0]), int(sys.argv[2].partition(" ")[2] or 0)
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (soft or hard, hard))
no_files = supervise.DefaultLogsSpecs(os.devnull)

def gang_of(size):
    sleep = {rank: ("100000",) for rank in range(size)}
    return Supervisor.start(name="many", entrypoint="/bin/sleep", args=sleep, logs_specs=no_files)

def settle():
    for thread in threading.enumerate()[1:]:
        thread.join(20)

def look():
    status = open("/proc/self/status").read()
    return len(os.listdir("/proc/self/fd")), int(status.partition("VmRSS:")[2].split()[0])

assert bell_for_this_thread()  # what the first wait opens for good; a small gang may be too fast for one
warm = gang_of(2)
warm.ask(Start(), timeout=30)
warm.stop(timeout=30)
settle()
fds, rss_kib = look()
begun = time.monotonic()
gang = gang_of(size)
pids = gang.ask(Start(), timeout=120)
started = time.monotonic()
most_fds, most_rss_kib = look()
os.kill(pids[size // 2], signal.SIGKILL)
killed = time.monotonic()
result = gang.ask(Wait(), timeout=120)
over = time.monotonic()
alive = [pid for pid in pids.values() if os.path.exists(f"/proc/{pid}")]
gang.ask(Close(), timeout=120)
gang.stop(timeout=120)
left = time.monotonic()
settle()
print(json.dumps({
    "ranks": size, "alive": alive, "outcome": result.outcome, "root_cause": result.root_cause,
    "failures": {rank: failure.exitcode for rank, failure in result.failures.items()},
    "ends": sorted({end.exitcode for end in result.ends.values()}), "ended": len(result.ends),
    "threads": threading.active_count(), "fds_after": look()[0] - fds, "fds_a_rank": (most_fds - fds) / size,
    "rss_kib_a_rank": (most_rss_kib - rss_kib) / size,
    "start_s": started - begun, "fail_to_all_gone_s": over - killed, "close_s": left - over,
}), flush=True)
"""


def run_many(size: int, soft: int = 0) -> dict[str, object]:
    with Host(THOUSAND, ear=f"{size} {soft or ''}") as host:
        line = host.hear()
        assert host.exit_code() == 0
    found = json.loads(line)
    print({name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()})
    return found


def check(found: dict[str, object], size: int) -> None:
    """One is to blame, and no process, thread or descriptor is left."""
    assert (found["outcome"], found["root_cause"]) == ("failed", size // 2)
    assert found["failures"] == {str(size // 2): -signal.SIGKILL}
    assert (found["ended"], found["ends"]) == (size, [-signal.SIGTERM, -signal.SIGKILL])
    assert (found["alive"], found["threads"]) == ([], 1)
    assert found["fds_after"] == 0


@pytest.mark.stress
@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 1200, reason="1000 ranks need 1100 open files")
def test_e4_of_1000_ranks_one_is_killed_and_all_are_gone():
    """With two descriptors and no more than 20 KB of ours for each."""
    found = run_many(1000)
    check(found, 1000)
    assert found["fds_a_rank"] <= 2.01
    assert found["rss_kib_a_rank"] <= 20


@pytest.mark.stress
def test_e4_900_programs_run_within_the_usual_limit_of_1024_open_files():
    """Which is as many as one descriptor for each allows: the second, of the lifeline, is not kept there."""
    check(run_many(900, soft=1024), 900)


@pytest.mark.parametrize(("kind", "size", "soft"), [("binary", 1000, 1024), ("spawn", 600, 1024), ("fork", 600, 1024)])
def test_e4_a_limit_that_is_too_low_is_refused_before_any_start(no_launch, kind, size, soft):
    """With its name, its value and what it takes."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))  # the gang is refused when it is made, too
    gang = make_gang(kind, ["pass"] * size)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, limits[1]))
    try:
        with pytest.raises(SpecError, match=rf"{size} ranks need .* soft limit RLIMIT_NOFILE is {soft}.*ulimit -n"):
            gang.ask(Start(), timeout=30)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        gang.stop(timeout=30)
