"""A sample of the cases, both libraries live: what is stored is what PyTorch does, here too."""

import os
import random
import subprocess
import sys

import pytest

from tests.compat import oracle
from tests.processes.hosts import ROOT

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


OF_TENSORS = """
import sys
import supervise.multiprocessing as ours
assert "torch" not in sys.modules
ours.set_sharing_strategy("file_system")
import torch.multiprocessing as theirs
print(theirs.get_sharing_strategy())
assert ours.get_all_sharing_strategies is theirs.get_all_sharing_strategies
assert ours.reductions is theirs.reductions
"""


def test_a_sharing_strategy_is_that_of_pytorch(torch_python):
    """The drop-in for torch.multiprocessing has its names for tensors, and imports it only for them."""
    command, env = [torch_python, "-c", OF_TENSORS], {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env)
    assert (done.returncode, done.stdout) == (0, "file_system\n"), done.stderr


VALUES = """
import sys, torch, supervise

KINDS = ["float32", "bool", "bfloat16", "uint16", "uint64", "float8_e4m3fn", "complex32"]
KINDS = [kind for kind in KINDS if hasattr(torch, kind)]
SIZES = (0, 200, 200_000)

def tensors():
    return [(torch.zeros(size, dtype=getattr(torch, kind)), kind, size) for kind in KINDS for size in SIZES]

def views():
    return [(whole, whole[:2]) for whole in map(torch.zeros, SIZES[1:])]

if __name__ == "__main__":
    for tensor, kind, size in supervise.run(tensors, n=1, start_method="fork")[0]:
        assert (str(tensor.dtype), len(tensor)) == (f"torch.{kind}", size)
        assert not tensor.to(torch.complex64).any()
    for whole, part in supervise.run(views, n=1, start_method="fork")[0]:
        whole[0] = 7
        print(part.tolist())
"""


def test_tensors_of_every_type_and_size_are_return_values_and_share_their_storages(torch_python, tmp_path):
    """Also those of types that plain pickle loses."""
    (tmp_path / "values.py").write_text(VALUES)
    command, env = [torch_python, "values.py"], {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False, env=env)
    assert (done.returncode, done.stdout) == (0, "[7.0, 0.0]\n" * 2), done.stderr
