"""The most memory that this process has had: the kernel counts that of a program it starts from there on."""

from __future__ import annotations

_known_kb = 0
"""As it was when it was last looked at; it only grows."""


def is_within_ours(peak_kb: int) -> bool:
    """Whether a peak is no larger than our own."""
    global _known_kb  # noqa: PLW0603 - asked for once a rank: most are known to be smaller without a look
    if peak_kb <= _known_kb:
        return True
    import resource

    _known_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak_kb <= _known_kb
