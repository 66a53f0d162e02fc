"""The environment variables that torchelastic promises to a rank."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import Worker, WorkerGroup


def rank_environment(group: WorkerGroup, worker: Worker, restarts: int) -> dict[str, str]:
    """Return the variables of one rank, name to value.

    Args:
        group: The ranks of this node, after the rendezvous.
        worker: The rank.
        restarts: How often the ranks were restarted after a failure.

    Raises:
        ValueError: With virtual local ranks, ``CUDA_VISIBLE_DEVICES`` has fewer devices than there are ranks.
    """
    spec, handler = group.spec, group.spec.rdzv_handler
    return {
        "RANK": str(worker.global_rank),
        "WORLD_SIZE": str(worker.world_size),
        "LOCAL_WORLD_SIZE": str(spec.local_world_size),
        "GROUP_RANK": str(group.group_rank),
        "GROUP_WORLD_SIZE": str(group.group_world_size),
        "ROLE_NAME": spec.role,
        "ROLE_RANK": str(worker.role_rank),
        "ROLE_WORLD_SIZE": str(worker.role_world_size),
        "MASTER_ADDR": group.master_addr,
        "MASTER_PORT": str(group.master_port),
        "TORCHELASTIC_RUN_ID": handler.get_run_id(),
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": str(handler.use_agent_store),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        **_devices(worker.local_rank, virtual=getattr(spec, "virtual_local_rank", False)),
    }


def _devices(local_rank: int, *, virtual: bool) -> dict[str, str]:
    """Return the local rank, and for a virtual local rank also the only device that the rank sees, as its device 0."""
    if not virtual:
        return {"LOCAL_RANK": str(local_rank)}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": str(local_rank)}
    devices = visible.split(",")
    if local_rank >= len(devices):
        raise ValueError(f"local rank {local_rank} has no device in CUDA_VISIBLE_DEVICES={visible}")
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": devices[local_rank].strip()}
