"""Imported by every benchmark before anything of the project, which need not be installed: a checkout is enough."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(1, str(ROOT))  # after the folder of the benchmark itself
