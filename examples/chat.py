"""A chat server as a supervision tree: two actors, a gang of functions and a service, each of which may fail.

    python examples/chat.py --failures 20

makes one child after the other fail at random, waits until the tree has restarted it, says something in the room, and
prints how many restarts there were. The tree is stopped at the end, and nothing of it is left.

    room       actor        keeps what was said, in a file: a restarted room knows it all
    moderator  service      examples/moderator.py, a program that masks rude words
    index      2 functions  count the words of the file, each rank a half of them
    door       actor        lets users in: each line goes through the moderator to the room

A child needs only those before it. So the strategy is `rest_for_one`: after a failure, the tree restarts the child and
all that come after it.
"""

import argparse
import json
import queue
import random
import signal
import socket
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
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
SHARDS = 2
MODERATOR = Path(__file__).with_name("moderator.py")
POLICY = RestartPolicy(max_restarts=1000, within_s=60.0, backoff=0.0, restart="permanent")


class Room(pykka.ThreadingActor):
    """Keeps what was said."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.file = folder / "transcript"

    def on_start(self) -> None:
        """Read what was said before a restart."""
        self.file.touch()
        self.lines = self.file.read_text().splitlines()

    def on_receive(self, message: Any) -> int:
        """Add a line, and answer how many there are; any other message is a failure."""
        line = message.strip()
        with self.file.open("a") as file:
            file.write(f"{line}\n")
        self.lines.append(line)
        return len(self.lines)


class Door(pykka.ThreadingActor):
    """Lets users in: it finds the room by the tree, since a restarted room is another actor."""

    def __init__(self, tree: pykka.ActorRef[ActorSupervisor], folder: Path) -> None:
        super().__init__()
        self.tree, self.folder = tree, folder

    def on_receive(self, message: Any) -> Any:
        """Hand a line on to the room; a message that is not a pair is a failure."""
        user, line = message
        return say(self.tree, "room", f"{user}: {moderated(line, self.folder)}")


class Log(pykka.ThreadingActor):
    """Hands on what the tree tells."""

    def __init__(self, told: "queue.Queue[object]") -> None:
        super().__init__()
        self.told = told

    def on_receive(self, message: Any) -> None:
        """Keep it."""
        self.told.put(message)


def moderated(line: str, folder: Path) -> str:
    """Return a line as the moderator lets it pass. The door starts after the moderator, which listens by then."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(str(folder / "moderator"))
        with connection.makefile("rw") as lines:
            lines.write(f"{line}\n")
            lines.flush()
            return lines.readline()


def index(folder: Path, shard: int) -> None:
    """Count the words of one shard, again and again, until a signal ends the process: a rank of the gang."""
    new, counts = folder / f"words-{shard}.new", folder / f"words-{shard}"
    while True:
        words = (folder / "transcript").read_text().split()
        mine = Counter(word for word in words if zlib.crc32(word.encode()) % SHARDS == shard)
        new.write_text(json.dumps(mine))
        new.replace(counts)  # a rank may be killed at any moment, and then leaves the counts whole
        time.sleep(0.05)


def word_counts(folder: Path) -> Counter[str]:
    """Return the counts of all shards, once they hold every word that was said so far."""
    give_up_s = time.monotonic() + PATIENCE_S
    total = len((folder / "transcript").read_text().split())
    while True:
        found = Counter[str]()
        for counts in folder.glob("words-?"):
            found.update(json.loads(counts.read_text()))
        if found.total() >= total:
            return found
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"{found.total()} of {total} words are counted")
        time.sleep(0.02)


def start_tree(
    folder: Path, policy: RestartPolicy = POLICY, event_sink: Callable[[dict[str, Any]], object] | None = None
) -> pykka.ActorRef[ActorSupervisor]:
    """Start the chat."""
    gang = partial(Supervisor.start, grace=5.0)
    service = partial(gang, name="moderator", entrypoint=sys.executable, ready="notify")
    serve = {0: (str(MODERATOR), str(folder / "moderator"))}
    shards = {shard: (folder, shard) for shard in range(SHARDS)}
    tree = ActorSupervisor.start(
        name="chat",
        strategy="rest_for_one",
        restart_policy=policy,
        event_sink=event_sink,
        children=[
            ChildSpec(id="room", start=partial(Room.start, folder)),
            ChildSpec(id="moderator", start=partial(service, args=serve)),
            ChildSpec(id="index", start=partial(gang, name="index", entrypoint=index, args=shards)),
            ChildSpec(id="door", start=lambda: Door.start(tree, folder)),
        ],
    )
    tree.ask(Start(), timeout=PATIENCE_S)
    return tree


def status(tree: pykka.ActorRef[Any]) -> TreeStatus:
    """Return who lives."""
    found: TreeStatus = tree.ask(Status(), block=True, timeout=PATIENCE_S)
    return found


def say(tree: pykka.ActorRef[Any], name: str, message: Any) -> Any:
    """Ask the actor that a child is now."""
    ref = status(tree).children[name].ref
    return None if ref is None else ref.ask(message, timeout=PATIENCE_S)


def break_child(tree: pykka.ActorRef[Any], name: str) -> None:
    """Make a child fail, by SIGKILL or by a message that its handler rejects."""
    ref = status(tree).children[name].ref
    if name in {"index", "moderator"}:
        say(tree, name, Signal(sig=signal.SIGKILL, ranks=frozenset({0})))
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
    parser.add_argument("--seed", type=int, default=1, help="of what is random")
    given = parser.parse_args()
    chance, told = random.Random(given.seed), queue.Queue[object]()  # noqa: S311 - nothing is kept secret
    with tempfile.TemporaryDirectory(prefix="chat-") as folder:
        log, tree = Log.start(told), start_tree(Path(folder))
        try:
            tree.ask(Subscribe(ref=log), timeout=PATIENCE_S)
            until(told, ChildStarted, "door")
            for number in range(given.failures):
                name = chance.choice(list(status(tree).children))
                break_child(tree, name)
                print(f"{number + 1}: {until(told, ChildDown, name).id} is down")
                until(told, ChildRestarting, name)
                until(told, ChildStarted, "door")  # the last child
                print(f"   {say(tree, 'door', ('anna', f'{name} is back, darn!'))} lines in the room")
            print("most frequent:", *(word for word, _ in word_counts(Path(folder)).most_common(4)))
            print(status(tree).restarts_total, "restarts")
        finally:
            tree.stop(timeout=PATIENCE_S)
            log.stop(timeout=PATIENCE_S)


if __name__ == "__main__":
    main()
