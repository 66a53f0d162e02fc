"""Gangs on a Ray cluster. The methods, the result, the root cause and the guarantees are the same as on one host.

Ray is not imported before a `RayGang` is made. Install the extra: ``pip install 'supervise-gang[ray]'``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from supervise.ray.gang import RayGang as RayGang, RaySupervisor as RaySupervisor

__all__ = ["RayGang", "RaySupervisor"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from supervise.ray import gang

        return getattr(gang, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
