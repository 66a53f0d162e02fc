"""What a host of a Ray cluster takes, and what a cluster without room is said to lack; without a cluster."""

import pytest

from supervise import SpecError
from supervise.ray import resources


def test_a_host_takes_its_whole_bundle():
    """Ray has options of their own for CPUs, GPUs and memory; all others are custom resources."""
    bundle = resources.bundle_of({"CPU": 2, "memory": 5e9, "rack-7": 0.5}, 4)
    assert bundle == {"CPU": 2.0, "memory": 5e9, "rack-7": 0.5}
    assert resources.options(bundle) == {
        "num_cpus": 2.0,
        "num_gpus": 0,
        "resources": {"rack-7": 0.5},
        "memory": 5_000_000_000,
    }
    assert isinstance(resources.options(bundle)["memory"], int), "Ray takes whole bytes only"
    assert resources.options(resources.bundle_of(None, 4)) == {"num_cpus": 4.0, "num_gpus": 0, "resources": {}}


@pytest.mark.parametrize("given", [{}, [("GPU", 1)], {"GPU": 0}, {"GPU": True}, {"GPU": "1"}, {1: 1}, {"GPU": 1e400}])
def test_what_is_no_amount_of_a_resource_is_refused(given):
    with pytest.raises(SpecError, match="resources_per_node"):
        resources.bundle_of(given, 1)


def test_a_dead_node_has_no_room():
    """It is neither counted nor named."""
    nodes = [
        {"Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 4.0, "GPU": 8.0}},
        {"Alive": True, "NodeManagerAddress": "10.0.0.2", "Resources": {"CPU": 4.0}},
        {"Alive": False, "NodeManagerAddress": "10.0.0.3", "Resources": {"CPU": 4.0, "GPU": 8.0}},
    ]
    text = resources.missing(2, {"GPU": 8.0}, "STRICT_SPREAD", 30.0, nodes)
    assert "2 nodes are alive, and 1 of them have that much in all (10.0.0.2 has GPU 0)" in text
    assert text.endswith("Add nodes, or lower nnodes or resources_per_node")


def test_more_nodes_are_advised_only_for_hosts_on_different_nodes():
    """With another strategy, one node may take several hosts."""
    nodes = [{"Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {"GPU": 8.0}}]
    text = resources.missing(2, {"GPU": 8.0}, "PACK", 30.0, nodes)
    assert "on different nodes" not in text
    assert text.endswith("Free them, or ask for less in resources_per_node")


def test_nodes_that_are_in_use_are_no_reason_for_more_nodes():
    nodes = [{"Alive": True, "NodeManagerAddress": f"10.0.0.{n}", "Resources": {"GPU": 8.0}} for n in (1, 2)]
    text = resources.missing(2, {"GPU": 8.0}, "STRICT_SPREAD", 30.0, nodes)
    assert text.endswith("Free them, or ask for less in resources_per_node")
