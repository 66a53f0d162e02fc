"""Entry point of ``python -m supervise``, the same as the command ``supervise``."""

from __future__ import annotations

import sys

from supervise.cli import main

if __name__ == "__main__":  # not when a spawned worker imports its main module
    sys.exit(main())
