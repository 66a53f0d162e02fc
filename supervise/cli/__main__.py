"""``python -m supervise.cli`` is the command ``supervise``."""

from __future__ import annotations

import sys

from supervise.cli import main

if __name__ == "__main__":
    sys.exit(main())
