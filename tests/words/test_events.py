"""Events: silent until the application listens, then readable, structured and with its context."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
from structlog.testing import LogCapture

from supervise import events
from supervise.events import EventLog, otel_names

COMMON = {"gang": "trainer", "run_id": "7", "role": None}


@pytest.fixture
def unconfigured():
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture
def quiet(unconfigured, monkeypatch):
    """Nobody listens: pytest's own handlers are above our logger."""
    monkeypatch.setattr(events.log, "propagate", False)


def in_fresh_interpreter(code, *args):
    """Run code in a new interpreter; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


RUN = """
import sys
from supervise import Start, Wait
from supervise.testing import FakeGang
{before}
with FakeGang(2) as gang:
    gang.events.all
    gang.supervisor.ask(Start(), timeout=40)
    gang.processes[1].exit(3)
    assert gang.supervisor.ask(Wait(), timeout=40).root_cause == 1
{after}
"""


# Silence


def test_by_default_nothing_is_said_and_structlog_is_not_imported():
    out, err = in_fresh_interpreter(RUN.format(before="", after="assert 'structlog' not in sys.modules"))
    assert (out, err) == ("", "")


def test_while_nobody_listens_no_event_is_built_and_seq_has_no_hole(quiet):
    log = EventLog(COMMON)
    assert not log.listens()
    log.emit("supervise.gang.starting")
    seen = []
    log = EventLog(COMMON, sink=seen.append)
    assert log.listens()
    for _ in range(3):
        log.emit("supervise.gang.starting")
    assert [event["seq"] for event in seen] == [0, 1, 2]


def test_logging_alone_does_not_wake_what_is_below_its_level():
    before = "import logging; logging.basicConfig(level=logging.WARNING, format='%(levelname)s %(message)s')"
    _, err = in_fresh_interpreter(RUN.format(before=before, after=""))
    levels = [line.split()[0] for line in err.splitlines()]
    assert levels == ["ERROR", "ERROR"]  # the rank that failed, and the gang


# The standard library


def test_with_logging_configured_the_records_can_be_read_and_carry_the_event(unconfigured, caplog):
    with caplog.at_level(logging.INFO, logger="supervise"):
        EventLog(COMMON).emit("supervise.process.exited", "error", local_rank=1, exit_code=3, complaint=None)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("supervise", "ERROR")
    assert (
        record.getMessage() == "supervise.process.exited gang='trainer' run_id='7' attempt=0 local_rank=1 exit_code=3"
    )
    event = record.supervise
    assert (event["event"], event["local_rank"], event["schema_version"]) == ("supervise.process.exited", 1, 1)
    assert {"timestamp", "monotonic_ns", "host_name", "seq"} <= event.keys()


def test_a_percent_sign_in_a_field_is_no_format(unconfigured, caplog):
    with caplog.at_level(logging.INFO, logger="supervise"):
        EventLog(COMMON).emit("supervise.gang.finished", error="100%s of %d")
    assert "error='100%s of %d'" in caplog.text


def test_nothing_is_configured_by_us():
    after = """
import logging
assert logging.getLogger().handlers == [], logging.getLogger().handlers
assert [type(h) for h in logging.getLogger("supervise").handlers] == [logging.NullHandler]
assert logging.getLogger("supervise").level == logging.NOTSET
import structlog
assert not structlog.is_configured()
"""
    assert in_fresh_interpreter(RUN.format(before="", after=after)) == ("", "")


# structlog


def test_with_structlog_configured_the_application_s_processors_get_the_events(quiet):
    capture = LogCapture()
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, capture])
    structlog.contextvars.bind_contextvars(request="r1")
    EventLog(COMMON).emit("supervise.gang.failed", "error", root_cause_rank=2)
    (event,) = capture.entries
    assert (event["event"], event["log_level"], event["root_cause_rank"]) == ("supervise.gang.failed", "error", 2)
    assert (event["request"], event["gang"]) == ("r1", "trainer")


def test_an_application_s_json_lines():
    before = """
import structlog
structlog.configure(processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer()])
"""
    out, err = in_fresh_interpreter(RUN.format(before=before, after=""))
    told = [json.loads(line) for line in out.splitlines()]
    assert [event["event"] for event in told if "gang." in event["event"]] == [
        "supervise.gang.starting",
        "supervise.gang.started",
        "supervise.gang.stopping",
        "supervise.gang.failed",
        "supervise.gang.finished",
    ]
    assert err == ""


def test_context_variables_of_the_starting_thread_are_in_the_events(unconfigured, caplog):
    structlog.contextvars.bind_contextvars(job="night")
    log = EventLog(COMMON)
    structlog.contextvars.clear_contextvars()
    with caplog.at_level(logging.INFO, logger="supervise"):
        log.emit("supervise.gang.starting")
    assert caplog.records[0].supervise["job"] == "night"


# Listeners


def test_a_listener_that_raises_or_changes_its_event_harms_no_other(unconfigured, caplog):
    def broken(event):
        event.clear()
        raise ValueError("mine")

    with caplog.at_level(logging.INFO, logger="supervise"):
        EventLog(COMMON, sink=broken).emit("supervise.gang.starting", world_size=2)
    assert caplog.records[-1].supervise["world_size"] == 2


def test_otel_names():
    event = {"pid": 1, "exit_code": 3, "local_rank": 0, "event": "x", "exception_type": "ValueError"}
    assert otel_names(None, "info", event) == {
        "process.pid": 1,
        "process.exit.code": 3,
        "local_rank": 0,
        "event": "x",
        "exception.type": "ValueError",
    }
