"""The syntax of probes, and the settings that have them."""

from typing import Any

import pytest

from supervise import DefaultLogsSpecs, Role, SpecError, Std, Supervisor
from supervise._gang.attempt import prepared
from supervise._gang.probing import delay_s
from supervise._probes import parse

VARIABLES = {"PORT": "8000", "ROLE_RANK": "1", "TEXT": "a.b", "WORDS": "two words", "HOST": "::1"}
TARGETS: dict[str, Any] = {
    "tcp:8000": ("localhost", 8000),
    "tcp:db:5432": ("db", 5432),
    "tcp:[${HOST}]:${PORT}": ("::1", 8000),
    "tcp:800${ROLE_RANK}": ("localhost", 8001),
    "unix:run/app.sock": "run/app.sock",
    "unix:@name": "@name",
    "file:/run/${ROLE_RANK}.pid": "/run/1.pid",
    "exec:pg_isready -h '${WORDS}' \"a b\"": ("pg_isready", "-h", "two words", "a b"),
}


@pytest.mark.parametrize("text", TARGETS)
def test_what_is_probed(text: str):
    """Variables are replaced within a word of a command, and in every other probe."""
    assert parse(text, VARIABLES).target == TARGETS[text]
    parse(text)


def test_the_delay_between_tries_grows_to_a_second():
    """Also after hours of tries."""
    assert [round(delay_s(tries), 2) for tries in (1, 2, 3, 100, 100_000)] == [0.1, 0.12, 0.14, 1.0, 1.0]


def test_the_parts_of_a_url():
    """Its port may be a variable."""
    found = parse("http://localhost:${PORT}/health?deep=1", VARIABLES).target
    assert (found.hostname, found.port, found.path, found.query) == ("localhost", 8000, "/health", "deep=1")


def test_the_value_of_a_variable_is_not_a_pattern():
    """In a pattern, a variable stands for its text."""
    pattern = parse("log:^on ${TEXT}$", VARIABLES).target
    assert pattern.search("on a.b")
    assert not pattern.search("on axb")


def test_the_values_of_a_command_are_not_shown():
    """They may be secrets; those of an address help to find a mistake."""
    assert parse("exec:check ${TEXT}", VARIABLES).text == "exec:check ${TEXT}"
    assert parse("tcp:${PORT}", VARIABLES).text == "tcp:8000"


def refused(**settings: Any) -> str:
    """Return the complaint about the settings of a gang of one rank."""
    gang = {"name": "a", "entrypoint": "true", "args": {0: ()}, "logs_specs": DefaultLogsSpecs(redirects=Std.ALL)}
    with pytest.raises(SpecError) as caught:
        prepared({**gang, **settings})
    return str(caught.value)


@pytest.mark.parametrize(
    ("ready", "complaint"),
    [
        ("nptify", "ready is 'nptify'; it is one of exec, notify, exit; a probe is tcp:[HOST:]PORT, unix:PATH, http"),
        ("nptify", "file:PATH, exec:COMMAND, or for ready log:REGEX"),
        ("tcp:", "ready is 'tcp:'; a probe is tcp:[HOST:]PORT"),
        ("tcp:http", "ready is 'tcp:http'; 'http' is not a port; give a number from 1 to 65535"),
        ("tcp:70000", "'70000' is not a port"),
        ("tcp:1,tcp:2", "'1,tcp' is not a host; give tcp:HOST:PORT"),
        ("udp:53", "ready is 'udp:53'; a probe is"),
        ("http:/localhost", "give a URL, such as http://127.0.0.1:8000/health"),
        ("http://localhost:x/", "ready is 'http://localhost:x/'; "),
        ("log:(", "its pattern is not a regular expression"),
        ("exec: ", "ready is 'exec: '; a probe is tcp:"),
        ("exec:sh -c 'echo", "No closing quotation; close each quotation, and double a backslash at the end"),
        ("exec:sh \\", "No escaped character; close each quotation, and double a backslash at the end"),
        ("http://localhost:99999/", "health, with a port from 1 to 65535"),
        ("http://me:secret@localhost/", "with a port from 1 to 65535, without a password"),
        ("http://[::1/", "give a URL, such as http://127.0.0.1:8000/health"),
        ([], "ready is []; give a text or a list of texts"),
        (["notify", 3], "ready is ['notify', 3]; give a text or a list of texts"),
        (8000, "ready is 8000; give a text or a list of texts"),
        (["exit", "file:x"], "give exit alone"),
        ("tcp:${PRT}", "rank 0: ready is 'tcp:${PRT}'; PRT is not a variable of the rank; set it, or write its value"),
        ("tcp:${NAME}", "rank 0: ready is 'tcp:${NAME}'; 'web' is not a port"),
        ("exec:no-such-program", "rank 0: ready is 'exec:no-such-program'; No such file or directory"),
    ],
)  # fmt: skip
def test_a_wrong_condition_is_refused(ready: Any, complaint: str):
    """Before any process is started, by the setting, the value and the remedy."""
    assert complaint in refused(ready=ready, envs={0: {"NAME": "web"}})


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"alive": "log:x"}, "alive is 'log:x'; give one probe other than log:"),
        ({"alive": "exit"}, "alive is 'exit'; a probe is tcp:"),
        ({"alive": ["tcp:1"]}, "alive is ['tcp:1']; give one probe"),
        ({"alive": "tcp:1", "alive_interval_s": 0}, "alive_interval_s is 0; it is a number of seconds above 0"),
        (
            {"alive": "tcp:1", "alive_failures": 0},
            "alive_failures is 0; it is a number of times, 1 or more",
        ),
        ({"alive": "tcp:1", "alive_failures": True}, "alive_failures is True; it is a number of times"),
    ],
)
def test_a_wrong_probe_of_life_is_refused(settings: dict[str, Any], complaint: str):
    """A line of the log and an exit say nothing about a rank that runs."""
    assert complaint in refused(**settings)


def test_the_role_of_a_wrong_condition_is_named():
    """A role refuses a wrong syntax itself; a gang refuses an unknown variable of a rank."""
    with pytest.raises(SpecError, match=r"^role 'web': ready is 'tcp:x'; 'x' is not a port"):
        Role(name="web", entrypoint="true", args={0: ()}, ready="tcp:x")
    role = Role(name="web", entrypoint="true", args={0: (), 1: ()}, ready=["tcp:8000", "file:${A}"])
    assert "role 'web': rank 0: ready is 'file:${A}'; A is not" in refused(entrypoint=None, args=None, roles=[role])


def test_a_log_that_is_not_written_is_refused():
    """Output that goes to the stream of the host cannot be searched."""
    with pytest.raises(SpecError) as caught:
        Supervisor.start(name="a", entrypoint="true", args={0: ()}, ready="log:up")
    assert str(caught.value) == (
        "rank 0: ready has a probe of its log, and its output is not written to a file; redirect it or tee it"
    )
