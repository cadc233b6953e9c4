"""Lets the tests of this folder import engine_making.py, which the ranks get by PYTHONPATH."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))
