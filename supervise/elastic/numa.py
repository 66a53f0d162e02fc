"""The names of ``torch.numa.binding``."""

from supervise._process.launch.numa import AffinityMode, NumaOptions

__all__ = ["AffinityMode", "NumaOptions"]
