"""The settings of a gang: one record, with the defaults that callers see."""

import dataclasses
import inspect
import os

import pytest

from supervise import DefaultLogsSpecs, Supervisor, start_processes
from supervise._gang.attempt import first_attempt
from supervise._gang.spec import GangSettings, GangSpec

DEFAULTS = {field.name: field.default for field in dataclasses.fields(GangSpec)}
INSIDE = {"grace": "grace_s", "timeout": "timeout_s"}


@pytest.mark.parametrize(
    ("function", "other"), [(Supervisor.__init__, {}), (start_processes, {"grace": None, "numa_options": None})]
)
def test_a_public_signature_shows_the_defaults_of_the_record(function, other):
    """But for the grace of `start_processes`, where None is what the environment says."""
    parameters = [each for each in inspect.signature(function).parameters.values() if each.default is not each.empty]
    assert {each.name for each in parameters} <= set(GangSettings.__annotations__)
    shown = {each.name: each.default for each in parameters}
    assert shown == {name: DEFAULTS.get(INSIDE.get(name, name)) for name in shown} | other


def test_a_setting_that_is_none_is_a_type_error():
    with pytest.raises(TypeError, match="a gang has no argument 'grace_s'"):
        first_attempt(name="a", entrypoint="true", args={0: ()}, grace_s=1.0)


def test_what_an_attempt_is_made_from_cannot_be_changed():
    """A restart makes the next attempt from the same settings."""
    args = {0: ["a"]}
    attempt = first_attempt(name="a", entrypoint="true", args=args, logs_specs=DefaultLogsSpecs(os.devnull))
    attempt.close()
    args[0].append("b")
    assert attempt.spec.args == {0: ("a",)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        attempt.spec.grace_s = 1.0


@pytest.mark.parametrize(
    ("start", "window"),
    [
        ({"entrypoint": "true"}, 1),
        ({"entrypoint": os.getcwd}, 1),
        ({"entrypoint": os.getcwd, "start_method": "fork"}, 8),
        ({"entrypoint": os.getcwd, "start_method": "forkserver"}, 32),
    ],
)
def test_forks_are_launched_in_a_row(start, window):
    """Not programs and spawned functions: the next launch of those waits for the process of the one before."""
    attempt = first_attempt(name="a", args={0: ()}, logs_specs=DefaultLogsSpecs(os.devnull), **start)
    attempt.close()
    assert attempt.window == window
