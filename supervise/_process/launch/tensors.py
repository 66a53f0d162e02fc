"""Tensors as return values. The memory of a storage is a buffer outside of the pickle and is not copied.

PyTorch's own pickling calls `torch.save` for each storage. With this module, tensors that share a storage still share
it in the host, and a view transfers its whole storage. The module is used only if the worker has already imported
PyTorch.
"""

from __future__ import annotations

import importlib
import pickle
from typing import Any


class StoragePickler(pickle.Pickler):
    """Pickler that passes the memory of CPU storages as buffers, and leaves nearly all else to PyTorch."""

    def __init__(self, file: Any, **options: Any) -> None:
        """Make a pickler, with the arguments of its base."""
        super().__init__(file, **options)
        storage: Any = importlib.import_module("torch.storage")
        self._typed, self._untyped = storage.TypedStorage, storage.UntypedStorage
        self._tensor = importlib.import_module("torch").Tensor
        self._new_dtypes = frozenset(getattr(storage, "_new_dtypes", tuple)())

    def reducer_override(self, obj: Any) -> Any:
        """Return how to rebuild a CPU storage or a tensor of a new type; NotImplemented for all other objects."""
        kind = type(obj)
        if kind is self._untyped and obj.device.type == "cpu":
            return untyped, (pickle.PickleBuffer(_memory(obj)),)
        if kind is self._typed and obj._untyped_storage.device.type == "cpu":  # noqa: SLF001 - as torch.save does
            return typed, (obj._untyped_storage, obj.dtype)  # noqa: SLF001
        if isinstance(obj, self._tensor) and obj.dtype in self._new_dtypes:  # such as float8_e4m3fn
            make, args, *more = obj.__reduce_ex__(5)
            if type(args[0]) is self._untyped:  # PyTorch rebuilds such a tensor only from a typed storage
                args = (typed(args[0], importlib.import_module("torch").uint8), *args[1:])
            return (make, args, *more)
        return NotImplemented


def _memory(storage: Any) -> Any:
    """Return the memory of a storage.

    The result holds a reference to the storage, whose tensor may be freed before the write.
    """
    import ctypes

    memory: Any = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    memory.storage = storage
    return memory


def untyped(buffer: Any) -> Any:
    """Return a storage over a received buffer."""
    torch: Any = importlib.import_module("torch")
    if not len(buffer):
        return torch.UntypedStorage(0)
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def typed(storage: Any, dtype: Any) -> Any:
    """Return the typed storage from which PyTorch rebuilds a tensor."""
    torch: Any = importlib.import_module("torch.storage")
    return torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
