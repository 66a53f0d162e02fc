"""Run by test_reply: asks for answers while a raising handler strikes at random moments."""

import _thread
import json
import os
import random
import signal
import sys
import threading
from collections import deque

from supervise._runtime.future import Reply


class StruckError(Exception):
    """Raised by the handler."""


armed = False
asked = deque()
bell = os.eventfd(0)
beat = threading.Event()


def strike(signum, frame):
    global armed  # noqa: PLW0603 - a handler and the main thread
    if armed:
        armed = False
        raise StruckError


def answer():
    """Stands for a gang's loop: sets each reply."""
    while True:
        os.eventfd_read(bell)
        while asked:
            one = asked.popleft()
            if one is None:
                beat.set()
            else:
                one.set(1)


def ask_until_struck(odd):
    """Return only by an exception: a strike on the jump of a loop inside a `try` can miss its `except`."""
    global armed  # noqa: PLW0603
    armed = True
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 3e-4))
    while armed:
        reply = Reply()
        asked.append(reply)
        os.eventfd_write(bell, 1)
        if reply.get(timeout=40) != 1:
            odd.append("wrong answer")


def main(rounds):
    global armed  # noqa: PLW0603
    signal.signal(signal.SIGALRM, strike)
    _thread.start_new_thread(answer, ())
    interrupts, odd, wedged = 0, [], False
    for _ in range(rounds):
        try:
            ask_until_struck(odd)
        except StruckError:
            interrupts += 1
        except BaseException as error:
            odd.append(repr(error))
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
    beat.clear()
    asked.append(None)
    os.eventfd_write(bell, 1)
    wedged = not beat.wait(30)
    print(json.dumps({"interrupts": interrupts, "odd": odd, "wedged": wedged}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
