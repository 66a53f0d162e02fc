"""Trains with DDP over gloo for a few steps, as anybody's script does. Arguments: the rank that fails once, if any."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel


@record
def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.full((2, 4), float(rank + step))).sum().backward()
        optimizer.step()
        if step == 1 and attempt == "0" and sys.argv[1:] == [str(rank)]:
            raise ArithmeticError(f"rank {rank} fails once")
    weights = [torch.empty(1, 4) for _ in range(dist.get_world_size())]
    dist.all_gather(weights, model.module.weight.detach())
    same = all(torch.equal(weights[0], other) for other in weights)
    print(f"trained rank={rank} of {dist.get_world_size()} attempt={attempt} same={same}")
    dist.barrier()
    dist.destroy_process_group()
    # Gloo's threads may still let go of a tensor when the interpreter ends, and abort the process (rarely even now).
    sys.stdout.flush()
    os._exit(0)


main()
