"""The grace of programs that speak PyTorch's words only: a variable of the environment."""

import os

import pytest

from supervise import DefaultLogsSpecs, SpecError, multiprocessing, start_processes
from tests.multiprocessing import work
from tests.processes.gangs import Fifo, Stopwatch
from tests.processes.hosts import Host

DEAF = 'trap "" TERM; echo deaf > "$EAR"; while :; do sleep 1000; done'
INTERRUPTED = f"""
import logging
from supervise import DefaultLogsSpecs, SignalException, start_processes

class Interrupt(logging.Handler):
    def emit(self, record):
        if "process.started" in record.getMessage() and "local_rank=0 " in record.getMessage():
            open(os.environ["GATE"]).readline()  # until the rank ignores SIGTERM
            os.kill(os.getpid(), signal.SIGTERM)

logging.getLogger("supervise").setLevel("DEBUG")
logging.getLogger("supervise").addHandler(Interrupt())
try:
    start_processes("grace", "sh", dict.fromkeys(range(2), ("-c", {DEAF!r})), logs_specs=DefaultLogsSpecs(os.devnull))
except SignalException as error:
    print(error.sigval, flush=True)
"""


def test_s10_the_variable_bounds_a_start_that_a_signal_interrupts(tmp_path, monkeypatch):
    """Half a second, and not the 30 that a kubelet waits before its SIGKILL."""
    ear, gate = Fifo(tmp_path / "ear"), Fifo(tmp_path / "gate")
    monkeypatch.setenv("EAR", ear.path)
    monkeypatch.setenv("GATE", gate.path)
    monkeypatch.setenv("SUPERVISE_GRACE", "0.5")
    try:
        with Host(INTERRUPTED, "binary", ear.path) as host:
            assert ear.hear() == "deaf"
            with Stopwatch() as taken:
                gate.tell()
                assert host.hear() == "15"
                assert host.exit_code() == 0
        assert 0.4 < taken.seconds < 15
    finally:
        ear.close()
        gate.close()


def test_s10_the_variable_bounds_the_stop_after_a_failure(tmp_path, monkeypatch):
    """In a gang, and in processes of spawn, whose PyTorch knows no grace at all."""
    monkeypatch.setenv("SUPERVISE_GRACE", "0.5")
    ear = Fifo(tmp_path / "ear")
    fails = f"read -r _ < {ear.path}; exit 3"
    args = {0: ("-c", DEAF), 1: ("-c", fails)}
    deaf = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); say({ear.path!r}, 'deaf'); block()"
    try:
        with Stopwatch() as taken:
            envs = {rank: {"EAR": ear.path} for rank in args}
            with start_processes("grace", "sh", args, envs, logs_specs=DefaultLogsSpecs(os.devnull)) as context:
                assert context.wait().failures[1].exitcode == 3
            with pytest.raises(multiprocessing.ProcessExitedException, match="exit code 3"):
                multiprocessing.spawn(work.run, ({0: deaf, 1: f"hear({ear.path!r}); sys.exit(3)"},), 2)
        assert 0.9 < taken.seconds < 30  # the usual grace of the gang; PyTorch's processes would have none at all
    finally:
        ear.close()


def test_a_given_grace_counts_more_than_the_variable_and_an_empty_one_says_nothing(monkeypatch):
    for text, given in (("nonsense", 0.5), ("", None)):
        monkeypatch.setenv("SUPERVISE_GRACE", text)
        with start_processes("grace", "true", {0: ()}, logs_specs=DefaultLogsSpecs(os.devnull), grace=given) as context:
            assert context.wait().outcome == "succeeded"


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", "30s"])
def test_a_variable_that_is_no_number_of_seconds_is_refused_by_its_name(monkeypatch, text):
    monkeypatch.setenv("SUPERVISE_GRACE", text)
    with pytest.raises(SpecError, match=f"SUPERVISE_GRACE is '{text}'; it is a number of seconds"):
        start_processes("grace", "true", {0: ()})
    with pytest.raises(SpecError, match=f"SUPERVISE_GRACE is '{text}'"):
        multiprocessing.spawn(work.run, ({0: ""},))


@pytest.mark.parametrize(("given", "words"), [(0.5, ()), (1000.0, (None, 0.5))], ids=["of the gang", "of the call"])
def test_s10_a_close_without_a_timeout_has_the_grace_of_the_gang(tmp_path, given, words):
    """A rank that ignores SIGTERM; PyTorch's default would wait 30 s."""
    ear = Fifo(tmp_path / "ear")
    try:
        envs, logs = {0: {"EAR": ear.path}}, DefaultLogsSpecs(os.devnull)
        context = start_processes("grace", "sh", {0: ("-c", DEAF)}, envs, logs_specs=logs, grace=given)
        assert ear.hear() == "deaf"
        with Stopwatch() as taken:
            context.close(*words)
        assert 0.4 < taken.seconds < 15
    finally:
        ear.close()
