"""The number of ranks, the environment of each, and a master port that no other run uses."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass

_LOOPBACK = "127.0.0.1"
_MAX_TRIES = 100
_MOST_DIGITS = 18
_STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")
"""The folder of the `sitecustomize` that records uncaught exceptions in ranks."""


def worker_count(text: str) -> int:
    """Return the number of ranks for a number, ``auto``, ``cpu`` or ``gpu``.

    Raises:
        ValueError: `text` has another form, or no GPU was found; the text has the accepted values.
    """
    if text == "cpu":
        return _cpus()
    if text == "auto":
        return _gpus()[0] or _cpus()
    if text == "gpu":
        count, reason = _gpus()
        if not count:
            raise ValueError(f"'gpu': {reason}; give a number, or cpu")
        return count
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and int(text) > 0):
        raise ValueError(f"{text!r} is not a valid number of ranks; give 1 or more, or auto, cpu or gpu")
    return int(text)


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _gpus() -> tuple[int, str]:
    """Return the number of GPUs that the ranks would see and, if it is 0, why."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        shown = [word.strip() for word in visible.split(",")]
        hidden = next((at for at, word in enumerate(shown) if not word or word.startswith("-")), len(shown))
        if not hidden:
            return 0, f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU"
    import ctypes

    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2():
            return 0, "the GPU library libnvidia-ml.so.1 finds no driver"
    except (OSError, AttributeError):
        return 0, "the GPU library libnvidia-ml.so.1 is not installed here"
    count = ctypes.c_uint()
    failed = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    nvml.nvmlShutdown()
    if failed or not count.value:
        return 0, "the GPU library libnvidia-ml.so.1 sees no GPU"
    return (count.value if visible is None else min(hidden, count.value)), ""


@dataclass(frozen=True, slots=True)
class Master:
    """The address at which rank 0 listens."""

    address: str
    port: str
    claim: socket.socket | None = None
    """Prevents other runs from choosing the same port; closed at the end of the run."""


def choose_master() -> Master:
    """Return ``MASTER_ADDR`` and ``MASTER_PORT`` of the environment; by default 127.0.0.1 and a free port."""
    address = os.environ.get("MASTER_ADDR") or _LOOPBACK
    if given := os.environ.get("MASTER_PORT"):
        return Master(address, given)
    for _ in range(_MAX_TRIES):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("", 0))
            port: int = probe.getsockname()[1]
        if sys.platform != "linux":
            return Master(address, str(port))
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # A bound port would make a rank fail that binds it without SO_REUSEADDR, so bind an abstract name instead.
            claim.bind(f"\0supervise-master-port-{port}")
        except OSError:  # another run has chosen the port, and its rank 0 does not listen yet
            claim.close()
        else:
            return Master(address, str(port), claim)
    raise OSError(f"no free master port in {_MAX_TRIES} tries; set MASTER_PORT")


def environments(
    nproc: int, *, run_id: str, role: str, master: Master, max_restarts: int = 0, record: bool = False
) -> dict[int, dict[str, str]]:
    """Return the variables to add to each rank's environment: torchrun's, for one node, and two defaults.

    The log specs add ``TORCHELASTIC_ERROR_FILE``. With `record`, for ranks that run under this Python, there are two
    more variables, which the ranks remove before any user code runs.
    """
    size = str(nproc)
    common = {
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": size,
        "ROLE_NAME": role,
        "MASTER_ADDR": master.address,
        "MASTER_PORT": master.port,
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
    }
    if "PYTHONUNBUFFERED" not in os.environ:
        common["PYTHONUNBUFFERED"] = "1"
    if record and os.pathsep not in _STARTUP:
        given = os.environ.get("PYTHONPATH")
        common["PYTHONPATH"] = f"{_STARTUP}{os.pathsep}{given}" if given else _STARTUP
        common["SUPERVISE_RECORD"] = f"{os.getpid()} {int(given is not None)}"
    if limits_threads(nproc):
        common["OMP_NUM_THREADS"] = "1"
    return {
        rank: {**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_RANK": str(rank)} for rank in range(nproc)
    }


def limits_threads(nproc: int) -> bool:
    """Return whether each rank gets ``OMP_NUM_THREADS=1``, so that it does not start a thread for every CPU."""
    return nproc > 1 and "OMP_NUM_THREADS" not in os.environ
