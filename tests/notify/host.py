"""A host with notify sockets and ranks that are real processes, without the rest of a gang."""

import queue
import subprocess
import sys
from pathlib import Path

from supervise._gang.notify_protocol import new_address, variables, without_host_variables
from supervise._gang.notify_sockets import NotifySockets
from supervise._runtime.loop import Loop
from tests.patience import PATIENCE_S

ROOT = str(Path(__file__).parents[2])

RAW = """
import os, select, socket, sys
ADDRESS = os.environ["NOTIFY_SOCKET"].replace("@", chr(0), 1)
def pause(seconds):
    select.select([], [], [], seconds)
def say(text, flags=0):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(text.encode(), flags, ADDRESS)
"""
"""What a rank begins with that sends datagrams of its own."""


class Host:
    """Notify sockets on a loop; what is told goes into a queue."""

    def __init__(self, environ, *, watchdog_s=None):
        self.errors = queue.SimpleQueue()
        self.told = queue.SimpleQueue()
        self.loop = Loop("notified", lost=self.errors.put)
        self.loop.start()
        self.sockets = self.call(lambda: NotifySockets(self.loop, self.hear))
        self.watchdog_s = watchdog_s
        self.environ = without_host_variables(environ)
        self.processes = []

    def hear(self, *told):
        self.told.put(told)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait(PATIENCE_S)
            for stream in (process.stdin, process.stdout):
                stream.close()
        self.call(self.sockets.close_all)
        self.loop.post(self.loop.end)
        assert self.loop.join(PATIENCE_S)
        assert self.errors.empty()

    def call(self, function, *args, **kwargs):
        """Call something on the loop's thread, and return what it returns or raise what it raises."""
        answer = queue.SimpleQueue()

        def work():
            try:
                answer.put((function(*args, **kwargs), None))
            except BaseException as error:
                answer.put((None, error))

        self.loop.post(work)
        value, error = answer.get(timeout=PATIENCE_S)
        if error is not None:
            raise error
        return value

    def start(self, rank, argv, **more):
        """Open a socket and start a program as a rank is started, in a session of its own; nothing is read yet."""
        address = new_address()
        self.call(self.sockets.open, rank, address)
        process = subprocess.Popen(
            argv,
            env={**self.environ, "PYTHONPATH": ROOT, **variables(address, self.watchdog_s)},
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **more,
        )
        self.processes.append(process)
        return process

    def launch(self, rank, argv, *, awaits_ready=True, **more):
        """Start a program, and read its socket."""
        process = self.start(rank, argv, **more)
        self.call(self.sockets.launched, rank, process.pid, awaits_ready=awaits_ready)
        return process

    def python(self, rank, source, **more):
        """Launch a rank that runs this source."""
        return self.launch(rank, [sys.executable, "-c", source], **more)

    def next(self):
        """Return the next that is told, as ``(rank, what, usec)``."""
        return self.told.get(timeout=PATIENCE_S)

    def state(self, rank):
        return self.call(self.sockets.state, rank)

    def after_exit(self, process, rank):
        """Wait for the exit of a rank, read what it has left, and return what it has said."""
        assert process.wait(PATIENCE_S) == 0
        self.call(self.sockets.read_now, rank)
        return self.state(rank)
