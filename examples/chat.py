"""A chat server as a supervision tree: two actors, a gang of functions and a service, each of which may fail.

    python examples/chat.py --failures 20

makes one child after the other fail at random, waits until the tree has restarted it, says something in the room, and
prints how many restarts there were. The tree is stopped at the end, and nothing of it is left.
"""

import argparse
import queue
import random
import signal
import time
from functools import partial
from typing import Any

import pykka

from supervise import (
    ActorSupervisor,
    ChildDown,
    ChildRestarting,
    ChildSpec,
    ChildStarted,
    RestartPolicy,
    Signal,
    Start,
    Status,
    Subscribe,
    Supervisor,
    TreeStatus,
)

PATIENCE_S = 30


class Room(pykka.ThreadingActor):
    """Keeps what was said."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def on_receive(self, message: Any) -> int:
        """Add a line, and answer how many there are; any other message is a failure."""
        self.lines.append(message.strip())
        return len(self.lines)


class Door(pykka.ThreadingActor):
    """Lets users in: it finds the room by the tree, since a restarted room is another actor."""

    def __init__(self, tree: pykka.ActorRef[ActorSupervisor]) -> None:
        super().__init__()
        self.tree = tree

    def on_receive(self, message: Any) -> Any:
        """Hand a line on to the room."""
        user, line = message
        return say(self.tree, "room", f"{user}: {line}")


class Log(pykka.ThreadingActor):
    """Hands on what the tree tells."""

    def __init__(self, told: "queue.Queue[object]") -> None:
        super().__init__()
        self.told = told

    def on_receive(self, message: Any) -> None:
        """Keep it."""
        self.told.put(message)


def status(tree: pykka.ActorRef[Any]) -> TreeStatus:
    """Return who lives."""
    found: TreeStatus = tree.ask(Status(), block=True, timeout=PATIENCE_S)
    return found


def say(tree: pykka.ActorRef[Any], name: str, message: Any) -> Any:
    """Ask the actor that a child is now."""
    ref = status(tree).children[name].ref
    return None if ref is None else ref.ask(message, timeout=PATIENCE_S)


def index(shard: int) -> None:
    """Stand for a rank that indexes a part of what is said, until a signal ends it."""
    while True:
        time.sleep(3600 + shard)


def start_tree() -> pykka.ActorRef[ActorSupervisor]:
    """Start the chat."""
    gang = partial(Supervisor.start, grace=5.0)
    policy = RestartPolicy(max_restarts=1000, within_s=60.0, backoff=0.0, restart="permanent")
    tree = ActorSupervisor.start(
        name="chat",
        strategy="rest_for_one",
        restart_policy=policy,
        children=[
            ChildSpec(id="room", start=Room.start),
            ChildSpec(id="service", start=partial(gang, name="service", entrypoint="sleep", args={0: (3600,)})),
            ChildSpec(id="index", start=partial(gang, name="index", entrypoint=index, args={0: (0,), 1: (1,)})),
            ChildSpec(id="door", start=lambda: Door.start(tree)),
        ],
    )
    tree.ask(Start(), timeout=PATIENCE_S)
    return tree


def break_child(tree: pykka.ActorRef[Any], name: str) -> None:
    """Make a child fail, by SIGKILL or by a message that its handler rejects."""
    ref = status(tree).children[name].ref
    if name in {"index", "service"}:
        say(tree, name, Signal(sig=signal.SIGKILL))
    elif ref is not None:
        ref.tell(None)  # neither a line nor a pair: the handler raises


def until(told: "queue.Queue[Any]", kind: type[Any], name: str) -> Any:
    """Take what the tree has told, up to this message about this child."""
    while True:
        message = told.get(timeout=PATIENCE_S)
        if isinstance(message, kind) and message.id == name:
            return message


def main() -> None:
    """Break children at random, and count."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--failures", type=int, default=8, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of what is random")
    given = parser.parse_args()
    chance, told = random.Random(given.seed), queue.Queue[object]()  # noqa: S311 - nothing is kept secret
    log, tree = Log.start(told), start_tree()
    try:
        tree.ask(Subscribe(ref=log), timeout=PATIENCE_S)
        until(told, ChildStarted, "door")
        for number in range(given.failures):
            name = chance.choice(list(status(tree).children))
            break_child(tree, name)
            print(f"{number + 1}: {until(told, ChildDown, name).id} is down")
            until(told, ChildRestarting, name)
            until(told, ChildStarted, "door")  # the last child
            say(tree, "door", ("anna", "hello?"))
        print(status(tree).restarts_total, "restarts")
    finally:
        tree.stop(timeout=PATIENCE_S)
        log.stop(timeout=PATIENCE_S)


if __name__ == "__main__":
    main()
