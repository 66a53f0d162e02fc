"""Binding of each rank to the CPUs near its GPU, with PyTorch's options and the topology in sysfs.

The number of a rank is the index of its GPU. GPUs are numbered in the order of their PCI addresses (CUDA's
``CUDA_DEVICE_ORDER=PCI_BUS_ID``), as far as ``CUDA_VISIBLE_DEVICES`` shows them. The result is a set of CPUs for each
rank. This module accesses no GPU.
"""

from __future__ import annotations

import contextlib
import logging
import os
from enum import Enum
from typing import TYPE_CHECKING, Any

from supervise._record import record
from supervise.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from supervise._process.launch.program import Launched

log = logging.getLogger("supervise")

SYSFS = "/sys"
"""Mount point of sysfs. Tests replace it by a folder that describes another machine."""

_DISPLAY_CLASS = "0x03"
_VENDORS = {"0x10de", "0x1002"}  # NVIDIA, AMD. The onboard graphics chip of a server is of another vendor


class AffinityMode(str, Enum):  # noqa: UP042 - its text is PyTorch's
    """The CPUs that a rank gets, relative to the NUMA node of its GPU."""

    NODE = "node"
    """All CPUs of the node."""
    SOCKET = "socket"
    """All CPUs of every node on the same socket."""
    EXCLUSIVE = "exclusive"
    """A share of the node's cores. The shares of the GPUs of a node are disjoint."""
    CORE_COMPLEX = "core-complex"
    """The cores that share one last-level cache.

    The GPUs of a node get different caches, as far as possible.
    """


@record(kw_only=False)
class NumaOptions:
    """Options of the binding. PyTorch's own object is accepted, too."""

    affinity_mode: AffinityMode
    """The CPUs that a rank gets."""
    should_fall_back_if_binding_fails: bool = False
    """Whether a rank that cannot be bound runs unbound, with a warning. Otherwise it fails the start."""


def cpus_of_ranks(ranks: Iterable[int], options: Any) -> dict[int, frozenset[int]]:
    """Return the CPUs of each rank.

    The result lacks a rank that cannot be bound and may run unbound.

    Args:
        ranks: Local ranks.
        options: A `NumaOptions`, or any object with the same attributes; None binds no rank.

    Raises:
        SpecError: A rank cannot be bound; the text names the rank and the cause.
    """
    found: dict[int, frozenset[int]] = {}
    for rank in ranks if options is not None else ():
        try:
            found[rank] = _cpus(rank, _mode(options))
        except (SpecError, OSError, ValueError) as error:
            if not getattr(options, "should_fall_back_if_binding_fails", False):
                raise SpecError(f"rank {rank} cannot be bound to the CPUs of its GPU: {error}") from error
            log.warning("rank %d runs without NUMA binding: %s", rank, error)
    return found


def bind_this_process(cpus: frozenset[int]) -> None:
    """Bind the main thread, and every thread that has the same affinity as the main thread.

    Raises:
        OSError: None of these CPUs exists.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    for name in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # a thread that has ended
            if os.sched_getaffinity(int(name)) == before:
                os.sched_setaffinity(int(name), cpus)


@contextlib.contextmanager
def bound_thread(cpus: frozenset[int] | None) -> Iterator[None]:
    """Bind the calling thread during the block, so that a process that it starts inherits the CPUs.

    None binds nothing.

    Raises:
        OSError: None of these CPUs exists.
    """
    if cpus is None:
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:  # also if a sandbox refuses the call
        raise OSError(error.errno, f"sched_setaffinity: {error.strerror}") from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def launch_bound(launch: Callable[[], Launched], cpus: frozenset[int]) -> Launched:
    """Start a process by another launcher, and bind it from its first instruction on.

    Raises:
        OSError: The process could not be started; none is left.
    """
    with bound_thread(cpus):
        return launch()


class OnCpus:
    """Function that binds its process and then calls another function, for a process that the fork server forks."""

    def __init__(self, fn: Callable[..., Any], cpus: frozenset[int]) -> None:
        """Wrap `fn`, and take over its name."""
        self.fn = fn
        self.cpus = cpus
        self.__qualname__: str = getattr(fn, "__qualname__", repr(fn))

    def __call__(self, *args: Any) -> Any:
        """Bind this process, call the function, and return its value."""
        bind_this_process(self.cpus)
        return self.fn(*args)


# Topology


def _mode(options: Any) -> AffinityMode:
    asked = getattr(options, "affinity_mode", options)
    asked = getattr(asked, "value", asked)
    try:
        return AffinityMode(asked)
    except ValueError:
        raise SpecError(f"Affinity mode {asked} not supported.") from None


def _cpus(gpu: int, mode: AffinityMode) -> frozenset[int]:
    nodes = _nodes_of_gpus()
    if gpu not in nodes:
        raise SpecError(f"there is no GPU with index {gpu}; {len(nodes)} found (under {SYSFS}/bus/pci/devices)")
    node = nodes[gpu]
    neighbors = sorted(index for index, other in nodes.items() if other == node)
    turn = neighbors.index(gpu)
    try:
        allowed = os.sched_getaffinity(0)
    except OSError as error:  # a sandbox
        raise SpecError(f"sched_getaffinity: {error.strerror}") from None
    cpus = _node_cpus(node) & allowed
    if mode is AffinityMode.SOCKET:
        cpus = _socket_cpus(cpus) & allowed
    elif mode is AffinityMode.EXCLUSIVE:
        cpus = _share(_grouped(cpus, _core), turn, len(neighbors), node)
    elif mode is AffinityMode.CORE_COMPLEX and cpus:
        largest_first = sorted(_grouped(cpus, _last_level_cache), key=len, reverse=True)
        cpus = largest_first[turn % len(largest_first)]
    if not cpus:
        raise SpecError(f"this process may use none of the CPUs of NUMA node {node}")
    return frozenset(cpus)


def _share(cores: list[set[int]], turn: int, of: int, node: int) -> set[int]:
    """Return share number `turn` of `of` even shares. The first shares also get the remainder."""
    if len(cores) < of:
        raise SpecError(f"NUMA node {node} has {len(cores)} physical cores that may be used, fewer than its {of} GPUs")
    each, more = divmod(len(cores), of)
    start = turn * each + min(turn, more)
    return set[int]().union(*cores[start : start + each + (turn < more)])


def _grouped(cpus: Iterable[int], group_of: Callable[[int], set[int]]) -> list[set[int]]:
    """Return the CPUs in groups, sorted by the lowest CPU of each group. That CPU need not be in `cpus`."""
    groups: dict[int, set[int]] = {}
    for cpu in cpus:
        groups.setdefault(min(group_of(cpu)), set()).add(cpu)
    return [groups[first] for first in sorted(groups)]


def _read(*path: str) -> str:
    with open(os.path.join(SYSFS, *path), encoding="utf-8") as file:
        return file.read().strip()


def _node_cpus(node: int) -> set[int]:
    return _numbers(_read("devices/system/node", f"node{node}", "cpulist"))


def _core(cpu: int) -> set[int]:
    return _numbers(_read("devices/system/cpu", f"cpu{cpu}", "topology/thread_siblings_list"))


def _socket_cpus(cpus: set[int]) -> set[int]:
    """Return all CPUs of the nodes that are on the socket of `cpus`."""
    found: set[int] = set()
    if not cpus:
        return found
    socket = _socket(min(cpus))
    for node in _numbers(_read("devices/system/node/online")):
        of_node = _node_cpus(node)
        if of_node and _socket(min(of_node)) == socket:
            found |= of_node
    return found


def _socket(cpu: int) -> str:
    return _read("devices/system/cpu", f"cpu{cpu}", "topology/physical_package_id")


def _last_level_cache(cpu: int) -> set[int]:
    """Return the CPUs that share the last-level data cache of `cpu`."""
    folder = os.path.join("devices/system/cpu", f"cpu{cpu}", "cache")
    level, shared = -1, {cpu}
    for entry in os.listdir(os.path.join(SYSFS, folder)):
        if not entry.removeprefix("index").isdecimal() or _read(folder, entry, "type") == "Instruction":
            continue
        if (found := int(_read(folder, entry, "level"))) > level:
            level, shared = found, _numbers(_read(folder, entry, "shared_cpu_list"))
    return shared


def _nodes_of_gpus() -> dict[int, int]:
    """Return the NUMA node of each visible GPU, by its index."""
    try:
        addresses = sorted(os.listdir(os.path.join(SYSFS, "bus/pci/devices")))
    except OSError:
        return {}
    gpus = [address for address in addresses if _is_gpu(address)]
    nodes = (int(_read("bus/pci/devices", address, "numa_node")) for address in _visible(gpus))
    return {index: max(0, node) for index, node in enumerate(nodes)}  # many machines with one node show -1


def _is_gpu(address: str) -> bool:
    try:
        kind, vendor = (_read("bus/pci/devices", address, name) for name in ("class", "vendor"))
    except OSError:
        return False
    return kind.startswith(_DISPLAY_CLASS) and vendor in _VENDORS


def _visible(gpus: list[str]) -> list[str]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` lists, in its order, up to the first invalid index."""
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return gpus
    shown: list[str] = []
    for item in (item.strip() for item in asked.split(",")):
        if not item.isdecimal() or int(item) >= len(gpus):
            if item and not item.removeprefix("-").isdecimal():
                raise SpecError(f"CUDA_VISIBLE_DEVICES names {item!r}; only indices can be bound to CPUs")
            break
        shown.append(gpus[int(item)])
    return shown


def _numbers(ranges: str) -> set[int]:
    """Parse a list of the kernel, such as ``0-3,8``."""
    found: set[int] = set()
    for item in filter(None, (item.strip() for item in ranges.split(","))):
        first, _, last = item.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
