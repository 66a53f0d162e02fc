"""Only ever type-checked: PyTorch's names outside of `__all__` that users import, from the modules that have them."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import signal
from logging import getLogger
from typing import assert_type

from supervise import elastic
from supervise.elastic import api, errors, redirects, tail_log
from supervise.elastic.api import (
    IS_MACOS,
    NumaOptions,
    SubprocessHandler,
    TailLog,
    _get_default_signal,
    _get_kill_signal,
    _terminate_process_handler,
    _validate_full_rank,
    _wrap,
    get_subprocess_handler,
    record,
    redirect_stdout,
)
from supervise.elastic.errors import error_handler
from supervise.elastic.errors.handlers import ErrorHandler
from supervise.elastic.subprocess_handler import subprocess_handler

assert_type(_get_default_signal(), signal.Signals)
assert_type(_get_kill_signal(), signal.Signals)
LOGGERS = [getLogger(), api.logger, errors.logger, error_handler.logger, redirects.logger, tail_log.logger]
OTHERS = [
    IS_MACOS,
    ErrorHandler,
    NumaOptions,
    SubprocessHandler,
    TailLog,
    _terminate_process_handler,
    _validate_full_rank,
    _wrap,
    elastic._validate_full_rank,
    get_subprocess_handler,
    record,
    redirect_stdout,
    subprocess_handler._get_default_signal,
]
