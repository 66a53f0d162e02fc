"""The names of ``torch.distributed.elastic.multiprocessing.errors.error_handler``."""

from supervise._lazy import names
from supervise.recording import ErrorHandler

__all__ = ["ErrorHandler"]

TYPE_CHECKING = False  # instead of importing typing into every worker
if TYPE_CHECKING:
    from logging import Logger

    logger: Logger
else:
    __getattr__, __dir__ = names(__name__, globals(), {"logger": "events:log"})
