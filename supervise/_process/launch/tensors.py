"""Tensors as return values: a storage's memory is a buffer, which need not be copied into the pickle.

PyTorch's own pickling is a `torch.save` for each storage. Here tensors that share a storage still share
it when they arrive; a view brings the whole of it. Only for PyTorch that the worker has already loaded.
"""

from __future__ import annotations

import importlib
import pickle
from typing import Any

from supervise._process.files import LEAST_BYTES


class StoragePickler(pickle.Pickler):
    """Gives the memory of large CPU storages as buffers; smaller ones travel as PyTorch has it."""

    def __init__(self, file: Any, **options: Any) -> None:
        """Make it, with the arguments of its base."""
        super().__init__(file, **options)
        storage: Any = importlib.import_module("torch.storage")
        self._typed, self._untyped = storage.TypedStorage, storage.UntypedStorage

    def reducer_override(self, obj: Any) -> Any:
        """Say how a storage is made again; everything else is left to itself."""
        kind = type(obj)
        if kind is self._untyped and _is_large(obj):
            return untyped, (pickle.PickleBuffer(_memory(obj)),)
        if kind is self._typed and _is_large(obj._untyped_storage):  # noqa: SLF001 - as torch.save does
            return typed, (obj._untyped_storage, obj.dtype)  # noqa: SLF001
        return NotImplemented


def _is_large(storage: Any) -> bool:
    return storage.device.type == "cpu" and int(storage.nbytes()) >= LEAST_BYTES


def _memory(storage: Any) -> Any:
    """Return the storage's memory; it keeps the storage, whose tensor may be gone when the memory is written."""
    import ctypes

    memory: Any = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    memory.storage = storage
    return memory


def untyped(buffer: Any) -> Any:
    """Return a storage over a buffer that arrived."""
    torch: Any = importlib.import_module("torch")
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def typed(storage: Any, dtype: Any) -> Any:
    """Return what PyTorch rebuilds a tensor from."""
    torch: Any = importlib.import_module("torch.storage")
    return torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
