"""A sample of the cases, both libraries live: what is stored is what PyTorch does, here too."""

import os
import random
import sys

import pytest

from tests.compat import oracle

SIZES = {
    "function-fork": 10,
    "binary": 10,
    "function-spawn": 2,
    "function-forkserver": 1,
    "recorded": 1,
    "families": 20,
}
"""How many of each group are drawn."""
pytestmark = pytest.mark.timeout(600)


def test_pytorch_does_the_same_live(torch_python, tmp_path):
    """Another sample each time; ``SUPERVISE_COMPAT_SEED`` repeats one."""
    seed = os.environ.get("SUPERVISE_COMPAT_SEED") or str(random.SystemRandom().randrange(10**6))
    drawn = random.Random(seed)
    ids = [name for group, ids in oracle.groups().items() for name in drawn.sample(ids, SIZES.get(group, 0))]
    theirs = oracle.run(torch_python, "torch", ids, tmp_path / "torch.json", timeout_s=500)
    ours = oracle.run(sys.executable, "supervise", ids, tmp_path / "ours.json")
    found = [f"{name} {line}" for name in ids for line in oracle.differences(theirs[name], ours[name])]
    assert not found, f"SUPERVISE_COMPAT_SEED={seed}\n" + "\n".join(found)
