"""The names of ``torch.distributed.elastic.multiprocessing.redirects``."""

from supervise._streams.redirects import (
    IS_MACOS,
    IS_WINDOWS,
    get_libc,
    redirect,
    redirect_stderr,
    redirect_stdout,
)

__all__ = ["IS_MACOS", "IS_WINDOWS", "get_libc", "redirect", "redirect_stderr", "redirect_stdout"]
