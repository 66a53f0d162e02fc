"""What a program that configures logging sees of `spawn`: no error that the caller does not get as an exception."""

import logging
import os
import queue
import signal

import pytest

from supervise import multiprocessing as mp
from tests.multiprocessing import work
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
STAYS = "say(ear, 'ready'); block()"


@pytest.fixture
def events():
    """Return what gives the events up to the gang's last, with their levels; events come by the package's logger."""
    heard = queue.SimpleQueue()

    class Listener(logging.Handler):
        def emit(self, record):
            if isinstance(getattr(record, "supervise", None), dict):
                heard.put((record.levelname, record.supervise))

    logger, listener, level = logging.getLogger("supervise"), Listener(), logging.getLogger("supervise").level
    logger.addHandler(listener)
    logger.setLevel(logging.DEBUG)

    def until_finished():
        found = []
        while not found or found[-1][1]["event"] != "supervise.gang.finished":
            found.append(heard.get(timeout=PATIENCE_S))
        return found

    yield until_finished
    logger.removeHandler(listener)
    logger.setLevel(level)


def named(found, name):
    return {event.get("local_rank"): (level, event) for level, event in found if event["event"] == name}


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_ranks_that_are_stopped_because_another_failed_are_no_failures(events, ear, gate, method):
    """The one that failed is, and the caller gets it as an exception: nothing is logged as an error."""
    fails = f"hear({gate.path!r}); os._exit(3)"
    sources = [f"ear = {ear.path!r}; {source}" for source in (STAYS, fails, STAYS)]
    context = mp.start_processes(work.run, (sources,), nprocs=3, join=False, start_method=method)
    assert [ear.hear(), ear.hear()] == ["ready", "ready"]
    gate.tell()
    with pytest.raises(mp.ProcessExitedException, match="process 1 terminated with exit code 3"):
        context.join(PATIENCE_S)
    found = events()
    exits = named(found, "supervise.process.exited")
    assert {rank: event["spontaneous"] for rank, (_, event) in exits.items()} == {0: False, 1: True, 2: False}
    ((_, failed),) = named(found, "supervise.gang.failed").values()
    assert (failed["root_cause_rank"], failed["failed_ranks"]) == (1, [1])
    assert {level for level, _ in found} == {"INFO"}


def test_all_that_failed_before_the_others_were_stopped_are_failures(events, ear, gate):
    """Two are dead by then, and only one was told to the caller."""
    fails = f"os.read(os.open({gate.path!r}, os.O_RDONLY), 3); os._exit(index)"
    sources = [f"ear = {ear.path!r}; {STAYS}", fails, fails]
    context = mp.start_processes(work.run, (sources,), nprocs=3, join=False, start_method="fork")
    assert ear.hear() == "ready"
    gate.tell()
    gate.tell()
    for process in context.processes[1:]:
        process.join(PATIENCE_S)
    with pytest.raises(mp.ProcessExitedException):
        context.join(PATIENCE_S)
    ((_, failed),) = named(events(), "supervise.gang.failed").values()
    assert sorted(failed["failed_ranks"]) == [1, 2]


def test_a_process_that_the_caller_kills_has_failed(events, ear):
    """As with PyTorch: `join` raises."""
    context = mp.start_processes(work.run, ([f"ear = {ear.path!r}; {STAYS}"],), join=False, start_method="fork")
    assert ear.hear() == "ready"
    os.kill(context.processes[0].pid, signal.SIGKILL)
    with pytest.raises(mp.ProcessExitedException, match="SIGKILL"):
        context.join(PATIENCE_S)
    ((level, failed),) = named(events(), "supervise.gang.failed").values()
    assert (level, failed["failed_ranks"]) == ("INFO", [0])
