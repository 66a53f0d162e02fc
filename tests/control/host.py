"""A program that embeds a gang with a control socket: ``host.py SOCKET WHAT``."""

import os
import signal
import sys

from supervise import Start, Supervisor

if __name__ == "__main__":
    gang = Supervisor.start(name="host", entrypoint="/bin/sleep", args={0: ("1000",)}, control=sys.argv[1])
    gang.ask(Start(), timeout=30)
    if sys.argv[2] == "forks" and not os.fork():
        print(os.getpid(), flush=True)
        signal.pause()
    if sys.argv[2] == "exits":
        sys.exit()
    if sys.argv[2] == "waits":
        print(os.getpid(), flush=True)
    signal.pause()
