"""Python source of workers that are hard to end. Each says ``ready``, its pid and those of its children, once it is so.

The sources use what `work.PREAMBLE` defines, and run as functions and as binaries alike.
"""

import threading
from typing import Any

FOR_EVER = """
while True:
    signal.pause()
"""

READY = "say(f'ready {os.getpid()}')\n"

OBEDIENT = READY + FOR_EVER

DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY + FOR_EVER

MASKED = "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n" + READY + FOR_EVER

IN_C = "import re\n" + READY + "re.match('(a+)+$', 'a' * 40 + 'b')\n"
"""Holds the GIL for ages: no Python code of any thread runs."""

_DEAF_CHILD = """
import subprocess
program = 'trap "" TERM; echo; while :; do sleep 1000; done'
with subprocess.Popen(['sh', '-c', program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
    child.stdout.readline()
    say(f'ready {os.getpid()} {child.pid}')
"""

PARENT = _DEAF_CHILD + "    signal.pause()\n"

LEAVES_CHILD = (
    _DEAF_CHILD
    + """
    wait_for_word()
    sys.stdout.flush()
    child.returncode = 0
"""
)
"""Ends well and leaves behind, in its group, a child that ignores SIGTERM."""

LEAVES_CHILD_AND_FAILS = LEAVES_CHILD + "raise SystemExit(3)\n"

PROGRAM = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.execvp("sh", ["sh", "-c", 'echo "ready $$" > "$EAR"; exec sleep 1000'])
"""
"""Becomes another program."""

STUBBORN = {"deaf": DEAF, "in_c": IN_C, "masked": MASKED, "parent": PARENT, "program": PROGRAM}

SLOW_VALUE = "from tests.processes.stubborn import Slow\nvalue = Slow()\n"

GATE = threading.Event()
"""In the host: lets go on who unpickles a `Slow`."""


def _wait_at_gate() -> bool:
    return GATE.wait(60)


class Slow:
    """A value that takes its time when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _wait_at_gate, ()
