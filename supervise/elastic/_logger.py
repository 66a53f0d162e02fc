"""The logger that PyTorch's modules have as `logger`: here it is the one of the whole package."""

import logging

logger = logging.getLogger("supervise")
