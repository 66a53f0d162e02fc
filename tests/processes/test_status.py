"""How a rank ended is told truly, also in a host where others reap its children; what is not known is no success."""

import json
import os

import pytest

from tests.kernels import ARMS_PROGRAMS, HAS_PIDFD
from tests.processes.gangs import each_kind
from tests.processes.hosts import Host

THIEVES = {
    "ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "waitpid": """
def steal():
    while True:
        try:
            stolen.append(os.waitpid(-1, 0))
        except ChildProcessError:
            pause.wait(0.001)
threading.Thread(target=steal, daemon=True).start()
""",
    "active_children": """
import multiprocessing
def look():
    while True:
        multiprocessing.active_children()
        pause.wait(0.0001)
threading.Thread(target=look, daemon=True).start()
""",
    "nobody": "",
}

PROGRAM = """
import json
from supervise._process.exits import leader
pause, stolen = threading.Event(), []
if {forgetful}:
    leader.remembered = lambda pidfd: (None, False)
FATES = {{"0": "", "3": "raise SystemExit(3)", "-9": "die_of(9)"}}

def run(source):
    gang = make_gang(kind, [source] * 2)
    try:
        gang.ask(Start(), timeout=40)
        result = gang.ask(Wait(), timeout=40)
    finally:
        gang.stop(timeout=40)
    causes = [end for end in result.ends.values() if end.role != "bystander"]
    said = {{rank: str(failure.message) for rank, failure in result.failures.items()}}
    return [[result.outcome, end.exitcode, said.get(end.local_rank, "")] for end in causes]

if __name__ == "__main__":
    if kind == "forkserver":  # which must not be started under a thief
        from multiprocessing import forkserver
        forkserver.ensure_running()
    {thief}
    for code, source in FATES.items():
        for _ in range({rounds}):
            print(json.dumps([int(code), run(source)]), flush=True)
    print("done", len(stolen), flush=True)
    sys.stdout.flush()
    os._exit(0)
"""


def told(kind, thief, *, forgetful, rounds):
    """Yield for each rank that ended by itself: its true code, its gang's outcome, the code told, the message."""
    how = THIEVES[thief].replace("\n", "\n    ")
    with Host(PROGRAM.format(thief=how, forgetful=forgetful, rounds=rounds), kind) as host:
        while not (line := host.hear()).startswith("done"):
            assert line, "the host ended early"
            true, ends = json.loads(line)
            assert ends, "nobody ended by itself"
            for outcome, code, message in ends:
                yield true, outcome, code, message
        assert host.exit_code() == 0


once_or_often = pytest.mark.parametrize("rounds", [1, pytest.param(6, marks=pytest.mark.stress)])
"""A round is three gangs; each of the two tests has sixteen combinations."""


@each_kind
@once_or_often
@pytest.mark.parametrize("thief", THIEVES)
@pytest.mark.skipif(not HAS_PIDFD, reason="without a pidfd the kernel cannot be asked")
def test_o10_a_stolen_status_is_had_from_the_kernel(kind, thief, rounds):
    """Every code is exact, whoever reaps, where the kernel remembers it."""
    found = list(told(kind, thief, forgetful=False, rounds=rounds))
    lost = {end for end in found if end[2] is None}
    if lost and not _kernel_remembers():
        pytest.skip("this kernel has no PIDFD_GET_INFO with the exit code (Linux 6.15)")
    if kind != "forkserver" and thief == "waitpid":
        # Of what was gone before it could be held, the kernel cannot be asked
        assert {outcome for _, outcome, code, _ in found if code is None} <= {"failed"}
        found = [end for end in found if end[2] is not None]
    assert {(true, code) for true, _, code, _ in found} <= {(0, 0), (3, 3), (-9, -9)}
    assert found or (thief, rounds) == ("waitpid", 1), "all were gone before they could be held"
    assert {outcome for true, outcome, _, _ in found if true} <= {"failed"}


@each_kind
@once_or_often
@pytest.mark.parametrize("thief", THIEVES)
def test_o10_a_status_that_nobody_can_tell_is_a_failure_and_never_a_guess(kind, thief, rounds):
    """The kernel does not remember: a code is exact or lost, lost is a failure, and only a theft makes it lost."""
    found = list(told(kind, thief, forgetful=True, rounds=rounds))
    for true, outcome, code, message in found:
        assert code in (true, None)
        if code is None:
            assert outcome == "failed"
            assert "exit status lost" in message
        elif true == 0 and outcome != "succeeded":
            assert any(end[2] is None for end in found)
    lost = sum(code is None for _, _, code, _ in found)
    if thief in ("active_children", "nobody") or kind == "forkserver":  # whose server alone reaps
        assert lost == 0
    elif thief == "ignored":
        assert lost == len(found)


SHORT = """
def reap(*_):
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass

def end():
    os._exit(3)

if __name__ == "__main__":
    from contextlib import suppress
    from tests.processes.hosts import NO_FILES
    signal.signal(signal.SIGCHLD, {handler})
    how = {{"entrypoint": "sh"}} if kind == "binary" else {{"entrypoint": end, "start_method": kind}}
    for _ in range({rounds}):
        args = {{0: ("-c", "exit 3") if kind == "binary" else ()}}
        gang = Supervisor.start(name="short", args=args, logs_specs=NO_FILES, **how)
        gang.ask(Start(), timeout=40)
        print(gang.ask(Wait(), timeout=40).ends[0].exitcode, flush=True)
        gang.stop(timeout=40)
"""


@pytest.mark.parametrize("kind", ["binary", "fork"])
@pytest.mark.parametrize("handler", ["signal.SIG_IGN", "reap"])
def test_o10_a_rank_that_lives_for_a_millisecond_is_not_reaped_before_it_is_held(kind, handler):
    """Neither by the kernel, of a host that ignores SIGCHLD, nor by its handler of SIGCHLD."""
    if not _kernel_remembers():
        pytest.skip("this kernel has no PIDFD_GET_INFO with the exit code (Linux 6.15)")
    if not HAS_PIDFD or (handler == "reap" and kind == "binary" and not ARMS_PROGRAMS):
        pytest.skip("without a pidfd the kernel cannot be asked; see the page of promises")
    with Host(SHORT.format(handler=handler, rounds=30), kind) as host:
        assert [host.hear() for _ in range(30)] == ["3"] * 30
        assert host.exit_code() == 0


def _kernel_remembers():
    """Whether the kernel tells the exit code of a process that is reaped."""
    return tuple(int(number) for number in os.uname().release.split("-")[0].split(".")[:2]) >= (6, 15)


PEAKS = """
import resource
if __name__ == "__main__":
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10  # which begins with what pytest has
    for source in ("", f"value = len(b'x' * ({own} + (200 << 20)))"):
        gang = make_gang(kind, [source])
        gang.ask(Start(), timeout=40)
        print(gang.ask(Wait(), timeout=40).ends[0].max_rss_bytes, flush=True)
        gang.stop(timeout=40)
"""


@each_kind
def test_the_hosts_own_memory_is_not_told_as_a_ranks(kind):
    """The kernel counts a program's peak from its host's: up to that it is not known, and never told too small."""
    with Host(PEAKS, kind) as host:
        small, large = host.hear(), host.hear()
        assert host.exit_code() == 0
    if kind == "forkserver":  # whose server alone gets the figures
        assert (small, large) == ("None", "None")
        return
    assert int(large) > 200 << 20
    assert (small == "None") == (kind != "fork")
