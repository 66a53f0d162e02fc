"""The number of ranks: a given number, or the number of CPUs or GPUs of this machine."""

from __future__ import annotations

import os

_MOST_DIGITS = 18


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
    """Return the number of GPUs that the ranks would see. The text is the reason if the number is 0."""
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
