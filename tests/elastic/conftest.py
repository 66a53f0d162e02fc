"""What the tests of this folder share: the folder's own helpers are importable, and so are workers' functions."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
