"""The logger of the whole package, which PyTorch's modules have as `logger`."""

import logging

logger: logging.Logger = logging.getLogger("supervise")
