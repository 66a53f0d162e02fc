"""The resources of a host: their check, Ray's options for them, and the reason why a cluster lacks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from supervise.errors import SpecError

STRATEGIES = ("STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK")
_MOST_NODES = 8


def bundle_of(resources_per_node: object, nproc_per_node: int) -> dict[str, float]:
    """Return the resources of one host by Ray's names; by default one CPU for each rank.

    Raises:
        SpecError: A resource is not valid; the text names it and its value.
    """
    if resources_per_node is None:
        return {"CPU": float(nproc_per_node)}
    if not isinstance(resources_per_node, Mapping) or not resources_per_node:
        raise SpecError(
            f"resources_per_node is {resources_per_node!r}; give a mapping of resource to amount, such as {{'GPU': 8}}"
        )
    for name, amount in resources_per_node.items():
        is_number = isinstance(amount, (int, float)) and not isinstance(amount, bool)
        if not isinstance(name, str) or not is_number or not 0 < amount < float("inf"):
            raise SpecError(f"resources_per_node has {name!r}: {amount!r}; give a name of Ray's and an amount above 0")
    return {name: float(amount) for name, amount in resources_per_node.items()}


def options(bundle: Mapping[str, float]) -> dict[str, Any]:
    """Return the options that make a host actor take the whole bundle."""
    others = {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU", "memory")}
    found: dict[str, Any] = {"num_cpus": bundle.get("CPU", 0), "num_gpus": bundle.get("GPU", 0), "resources": others}
    if "memory" in bundle:
        found["memory"] = int(bundle["memory"])
    return found


def missing(
    count: int, bundle: Mapping[str, float], strategy: str, timeout_s: float, nodes: Sequence[Mapping[str, Any]]
) -> str:
    """Return the reason why a cluster has no room for `count` hosts with these resources each.

    Args:
        count: Number of hosts.
        bundle: Resources that each host needs.
        strategy: Ray's placement strategy.
        timeout_s: Seconds for which the cluster had no room.
        nodes: The nodes of the cluster, as `ray.nodes` returns them.
    """
    wanted = ", ".join(f"{name} {amount:g}" for name, amount in bundle.items())
    alive = [node for node in nodes if node.get("Alive")]
    fitting = [node for node in alive if all(_total(node, name) >= amount for name, amount in bundle.items())]
    spread = " on different nodes" if strategy == "STRICT_SPREAD" else ""
    text = f"no room for {count} hosts with {wanted} each{spread} within {timeout_s:g} s ({strategy}): "
    text += f"{len(alive)} nodes are alive, and {len(fitting)} of them have that much in all"
    lacking = [f"{_name(node)} has {_totals(node, bundle)}" for node in alive if node not in fitting][:_MOST_NODES]
    if lacking:
        text += f" ({'; '.join(lacking)})"
    if strategy != "STRICT_SPREAD" or len(fitting) >= count:
        return f"{text}; others use the resources, or wait for them. Free them, or ask for less in resources_per_node"
    return f"{text}. Add nodes, or lower nnodes or resources_per_node"


def _total(node: Mapping[str, Any], name: str) -> float:
    return float(node.get("Resources", {}).get(name, 0))


def _totals(node: Mapping[str, Any], bundle: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_total(node, name):g}" for name in bundle)


def _name(node: Mapping[str, Any]) -> str:
    return str(node.get("NodeManagerAddress") or node.get("NodeID"))
