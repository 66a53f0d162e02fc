"""A program that embeds a gang with a control socket: ``host.py SOCKET WHAT``."""

import os
import signal
import sys

from supervise import Role, Start, Supervisor

SLEEP = {"entrypoint": "/bin/sleep", "args": {0: ("1000",)}}

if __name__ == "__main__":
    web = Role(name="web", entrypoint="/bin/sleep", args=dict.fromkeys(range(2), ("1000",)))
    ranks = {"roles": [web, Role(name="worker", **SLEEP)]} if sys.argv[2] == "roles" else SLEEP
    gang = Supervisor.start(name="host", control=sys.argv[1], **ranks)
    gang.ask(Start(), timeout=30)
    if sys.argv[2] == "forks" and not os.fork():
        print(os.getpid(), flush=True)
        signal.pause()
    if sys.argv[2] == "exits":
        sys.exit()
    if sys.argv[2] in ("waits", "roles"):
        print(os.getpid(), flush=True)
    signal.pause()
