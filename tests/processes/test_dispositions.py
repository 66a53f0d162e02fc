"""Workers start with default dispositions and an empty mask, whatever the host does with signals."""

import signal
from pathlib import Path

import pytest

from tests.processes.gangs import each_kind
from tests.processes.hosts import Host

BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
"""Ignored by every Python interpreter itself."""

HOSTS = {
    "blocks": ("signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())", set()),
    "ignores": ("ignore = [SIGTERM, SIGINT, SIGPIPE, SIGUSR1, SIGQUIT]", set()),
    "ignores SIGHUP": ("ignore = [SIGHUP]", {signal.SIGHUP}),
    "does both": (
        "ignore = [SIGTERM, SIGINT, SIGPIPE, SIGHUP]; signal.pthread_sigmask(signal.SIG_BLOCK, ignore)",
        {signal.SIGHUP},
    ),
    "handles": ("handled = [SIGTERM, SIGINT, SIGHUP, SIGUSR1]", set()),
    "does neither": ("", set()),
}

PROGRAM = """
from signal import SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGUSR1, SIG_IGN
from supervise import DefaultLogsSpecs, Std

ignore = handled = []
{setting}
for sig in ignore:
    signal.signal(sig, SIG_IGN)
for sig in handled:
    signal.signal(sig, lambda *args: None)

def start():
    logs = DefaultLogsSpecs(ear, redirects=Std.ALL)
    if kind == "binary":
        gang = Supervisor.start(name="g", entrypoint="cat", args={{0: ["/proc/self/status"]}}, logs_specs=logs)
        gang.ask(Start(), timeout=40)
    else:
        gang = start_gang(kind, ["print(open('/proc/self/status').read())"], logs_specs=logs)
    result = gang.ask(Wait(), timeout=40)
    print(result.outcome, result.stdouts[0], flush=True)
    gang.stop(timeout=40)

if {in_thread}:
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
else:
    start()
"""


@each_kind
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(
    "in_thread", [False, pytest.param(True, marks=pytest.mark.stress)], ids=["main thread", "other thread"]
)
def test_g6_workers_start_with_default_signals(tmp_path, kind, host, in_thread):
    """Nothing that the host blocks or ignores is inherited, but for an ignored SIGHUP: that is what nohup means."""
    setting, passed_on = HOSTS[host]
    with Host(PROGRAM.format(setting=setting, in_thread=in_thread), kind, str(tmp_path)) as program:
        outcome, _, path = program.hear().partition(" ")
        assert program.exit_code() == 0
    assert outcome == "succeeded"
    status = dict(line.split(":\t", 1) for line in Path(path).read_text().splitlines() if ":\t" in line)
    assert _signals(status["SigBlk"]) == set()
    assert _signals(status["SigIgn"]) == passed_on | (set() if kind == "binary" else BY_PYTHON)


def _signals(mask: str) -> set[int]:
    """Return those in a mask of /proc, without two that are glibc's own: its posix_spawn ignores them."""
    return {number for number in range(1, 65) if int(mask, 16) >> (number - 1) & 1} - {32, 33}
