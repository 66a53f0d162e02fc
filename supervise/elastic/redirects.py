"""The names of ``torch.distributed.elastic.multiprocessing.redirects``."""

from supervise._lazy import names
from supervise._torch.redirects import IS_MACOS, IS_WINDOWS, get_libc, redirect, redirect_stderr, redirect_stdout

__all__ = ["IS_MACOS", "IS_WINDOWS", "get_libc", "redirect", "redirect_stderr", "redirect_stdout"]

TYPE_CHECKING = False  # instead of importing typing into every worker
if TYPE_CHECKING:
    from logging import Logger

    logger: Logger
else:
    __getattr__, __dir__ = names(__name__, globals(), {"logger": "events:log"})
