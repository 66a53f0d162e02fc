"""The states that a search has visited, and the moves between them, in few bytes each: there are millions."""

from array import array
from collections.abc import Hashable, Iterable


class Graph:
    """States are numbers, in the order in which they were found; 0 is the first."""

    def __init__(self) -> None:
        self._parts: dict[Hashable, int] = {}
        """Equal parts of keys are kept once."""
        self._numbers: dict[bytes, int] = {}
        """Keys, packed: a tuple of ints takes twice as much."""
        self._parents = array("I")
        self._names: list[str] = []
        self._sources, self._targets, self._flags = array("I"), array("I"), bytearray()

    def __len__(self) -> int:
        """Return how many states there are."""
        return len(self._numbers)

    def part(self, value: Hashable) -> int:
        """Return a number that stands for this part of a key."""
        return self._parts.setdefault(value, len(self._parts))

    def visit(self, key: tuple[int, ...], parent: int, name: str) -> tuple[int, bool]:
        """Return the number of a state, and whether it is new: then `parent` and `name` are the way to it."""
        number = self._numbers.setdefault(array("I", key).tobytes(), len(self._numbers))
        new = number == len(self._parents)
        if new:
            self._parents.append(parent)
            self._names.append(name)
        return number, new

    def add_move(self, source: int, target: int, *, flag: bool) -> None:
        """Note that a move leads from one state to another."""
        self._sources.append(source)
        self._targets.append(target)
        self._flags.append(flag)

    def path(self, number: int) -> list[str]:
        """Return the names of the moves from the first state to this one."""
        names: list[str] = []
        while number:
            names.append(self._names[number])
            number = self._parents[number]
        return names[::-1]

    def leading_to(self, ends: Iterable[int], *, with_flagged: bool) -> bytearray:
        """Return for each state whether one of `ends` can be reached from it, perhaps without the flagged moves."""
        reached, stack = bytearray(len(self)), list(ends)
        for number in stack:
            reached[number] = True
        first, moves = self._by_target()
        while stack:
            target = stack.pop()
            for at in range(first[target], first[target + 1]):
                source = self._sources[moves[at]]
                if not reached[source] and (with_flagged or not self._flags[moves[at]]):
                    reached[source] = True
                    stack.append(source)
        return reached

    def _by_target(self) -> "tuple[array[int], array[int]]":
        """Return the moves sorted by target, and where those of each target begin."""
        first = array("I", bytes(4 * (len(self) + 2)))
        for target in self._targets:
            first[target + 2] += 1
        for number in range(2, len(first)):
            first[number] += first[number - 1]
        moves = array("I", bytes(4 * len(self._targets)))
        for move, target in enumerate(self._targets):
            moves[first[target + 1]] = move
            first[target + 1] += 1
        return first, moves
