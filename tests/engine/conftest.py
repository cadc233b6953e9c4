"""Lets the tests of this folder import engine_making.py (pytest's importlib mode adds no folder by itself)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
