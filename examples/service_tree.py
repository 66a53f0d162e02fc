"""A service tree: a store, and a tree of workers that need it. What is killed comes back, with what depends on it.

    python examples/service_tree.py

    app                tree, rest_for_one: after a failure of the store, the workers restart as well
    ├── store          gang of one function, a service: it counts lines, and says when it is ready
    └── workers        tree, one_for_one, with at most two restarts: after one more failure it gives up
        ├── east       gang of two functions that send lines to the store
        └── west       the same

The program kills one rank after the other, and prints which gangs have new processes. The third failure of a worker is
one too many for the tree of the workers, so the tree above restarts all of them.
"""

import os
import signal
import socket
import socketserver
import tempfile
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pykka

from supervise import ActorSupervisor, ChildSpec, Pids, RestartPolicy, Start, Status, Supervisor, TreeStatus, notify

PATIENCE_S = 30.0
GANGS = ("east", "store", "west")


def serve(folder: Path) -> None:
    """Count the lines that come, also those of earlier lives: the rank of the store."""
    total, lock = folder / "total", threading.Lock()
    address = folder / "store"
    address.unlink(missing_ok=True)  # of an earlier life, which SIGKILL has ended

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with suppress(ConnectionError):  # the worker has ended
                for _ in self.rfile:
                    self.wfile.write(b"%d\n" % self.add())

        def add(self) -> int:
            with lock:
                count = int(total.read_text()) + 1
                total.with_suffix(".new").write_text(str(count))
                total.with_suffix(".new").replace(total)
            return count

    with socketserver.ThreadingUnixStreamServer(str(address), Handler) as server:
        server.daemon_threads = True
        notify(ready=True)
        server.serve_forever()


def work(folder: Path, name: str) -> None:
    """Send lines to the store until a signal ends the process: a rank of the workers."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(folder / "store"))
        with link.makefile("rw") as lines:
            notify(ready=True)
            while True:
                lines.write(f"{name}\n")
                lines.flush()
                if not lines.readline():
                    raise ConnectionError("the store has closed the connection")
                time.sleep(0.01)


def start(folder: Path) -> pykka.ActorRef[ActorSupervisor]:
    """Start the tree."""
    (folder / "total").write_text("0")
    gang = partial(Supervisor.start, grace=5.0, ready="notify")
    workers = [
        ChildSpec(id=name, start=partial(gang, name=name, entrypoint=work, args={0: (folder, name), 1: (folder, name)}))
        for name in ("east", "west")
    ]
    below = partial(
        ActorSupervisor.start,
        name="workers",
        strategy="one_for_one",
        restart_policy=RestartPolicy(max_restarts=2, within_s=600.0, backoff=0.0, restart="permanent"),
        children=workers,
    )
    app = ActorSupervisor.start(
        name="app",
        strategy="rest_for_one",
        restart_policy=RestartPolicy(max_restarts=10, within_s=600.0, backoff=0.0, restart="permanent"),
        children=[
            ChildSpec(id="store", start=partial(gang, name="store", entrypoint=serve, args={0: (folder,)})),
            ChildSpec(id="workers", start=below),
        ],
    )
    app.ask(Start(), timeout=PATIENCE_S)
    return app


def children(tree: pykka.ActorRef[Any]) -> dict[str, pykka.ActorRef[Any]]:
    """Return the actors of the children that are ready now."""
    status: TreeStatus = tree.ask(Status(), block=True, timeout=PATIENCE_S)
    return {name: child.ref for name, child in status.children.items() if child.ref and child.state == "ready"}


def processes(app: pykka.ActorRef[ActorSupervisor]) -> dict[str, frozenset[int]]:
    """Return the processes of each gang that runs now."""
    gangs = children(app)
    if (workers := gangs.pop("workers", None)) is not None:
        gangs |= children(workers)
    pids = {name: gang.ask(Pids(), block=True, timeout=PATIENCE_S) for name, gang in gangs.items()}
    return {name: frozenset(found.values()) for name, found in pids.items()}


def kill(app: pykka.ActorRef[ActorSupervisor], name: str) -> None:
    """Kill a rank of a gang, wait until every gang runs again, and print which of them have new processes."""
    before, give_up_s = processes(app), time.monotonic() + PATIENCE_S
    os.kill(min(before[name]), signal.SIGKILL)
    after = before
    while len(after) < len(GANGS) or after[name] == before[name]:
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"{name} did not come back")
        time.sleep(0.02)
        try:
            after = processes(app)
        except pykka.ActorDeadError:  # an actor has ended between two questions
            after = {}
    print(f"{name} was killed; new processes:", *(gang for gang in GANGS if after[gang] != before[gang]))


def main() -> None:
    """Kill, and look."""
    with tempfile.TemporaryDirectory(prefix="tree-") as folder:
        app = start(Path(folder))
        try:
            for name in ("west", "east", "east", "store"):
                kill(app, name)
            print("lines were counted:", int((Path(folder) / "total").read_text()) > 0)
        finally:
            app.stop(timeout=PATIENCE_S)


if __name__ == "__main__":
    main()
