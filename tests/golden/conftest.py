"""Lets the test import digits_losses.py, which also writes the file (importlib mode adds no folder by itself)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
