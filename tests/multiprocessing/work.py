"""What the processes of these tests run: at the top level of a module, so that it can be pickled."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from supervise import multiprocessing as mp


def say(ear, text):
    """Tell the test a line through its named pipe."""
    with Path(ear).open("w") as file:
        file.write(f"{text}\n")


def hear(gate):
    """Wait for a word of the test's."""
    with Path(gate).open() as file:
        return file.readline().strip()


def block():
    while True:
        signal.pause()


def tell_all(index, ear, *args):
    me = multiprocessing.current_process()
    say(ear, f"{index} {args} {me.name} {me.daemon} {multiprocessing.parent_process().pid}")


def tell_environment(index, ear):
    say(ear, f"{os.environ.get('OF_THE_HOST')} {'TORCHELASTIC_ERROR_FILE' in os.environ}")


def return_lambda(index):
    return lambda: index


def run(index, sources):
    """Do what is written for this index."""
    exec(sources[index], {**globals(), "index": index})


def measure(index, ear, data):
    say(ear, f"{index} {len(data)}")


def put(index, queue, event, lock):
    assert event.wait(30)
    with lock:
        queue.put(index)


def nested(index, ear):
    """Start processes in a process, and see one fail."""
    try:
        mp.spawn(run, ({0: "sys.exit(7)"},))
    except mp.ProcessExitedException as error:
        say(ear, f"{index} {error.exit_code}")


def nested_unjoined(index, ear, gate):
    """End without joining: the interpreter's exit does."""
    mp.spawn(wait_and_say, (ear, gate), join=False)
    say(ear, "ending")


def wait_and_say(index, ear, gate):
    say(ear, f"{os.getpid()}")
    hear(gate)
    say(ear, "done")


def leave_grandchild(index, ear, code):
    """Fork a process that holds every descriptor, and end."""
    pid = os.fork()
    if pid == 0:
        try:
            block()
        finally:
            os._exit(0)
    say(ear, str(pid))
    if code:
        sys.exit(code)


class Unpicklable:
    def __reduce__(self):
        raise TypeError("not by pickle")


__all__ = ["signal", "subprocess", "threading"]  # used by what `run` runs


def say_identity(index, ear):
    """Say the identity of this process and the name that a process of it would have."""
    me = multiprocessing.current_process()
    say(ear, f"{index} {me.name} {me._identity} {multiprocessing.get_context('fork').Process(target=print).name}")
