"""Of what the host has open, a program gets its three streams and the lifeline, however it is started."""

import os
import signal
from pathlib import Path

import pytest

from tests.processes.gangs import faulty, without_glibc

TELLS = """
found = []
for name in os.listdir("/proc/self/fd"):
    try:
        found.append((int(name), os.readlink(f"/proc/self/fd/{name}")))
    except FileNotFoundError:  # the listing's own
        pass
say(repr(found))
"""


@pytest.mark.parametrize(
    "how",
    [
        "as it is",
        "a signal ignored",
        "a working directory",
        "another C library",
        "another C library, a working directory",
    ],
)
def test_a_program_has_its_streams_the_lifeline_and_nothing_else(tmp_path, monkeypatch, how):
    """Not even what the host has open to be inherited, at numbers below and above the lifeline's."""
    if "C library" in how:
        without_glibc(monkeypatch)
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN if how == "a signal ignored" else signal.SIG_DFL)
    secret = tmp_path / "secret"
    secret.touch()
    low = os.open(secret, os.O_RDONLY)
    high = os.dup2(low, 500)  # inheritable, as dup2 makes it
    os.set_inheritable(low, True)
    try:
        cwd = {"cwd": str(tmp_path)} if "a working directory" in how else {}
        with faulty(tmp_path, "binary", [TELLS], **cwd) as gang:
            found = eval(gang.hear()[0])
            gang.wait()
    finally:
        signal.signal(signal.SIGUSR1, before)
        for fd in (low, high):
            os.close(fd)
    others = [target for number, target in found if number > 2 and "/proc/" not in target]
    assert len(others) == 1, found
    assert others[0].startswith("pipe:")
    assert Path(dict(found)[1]).name == "stdout.log"
