"""Lets the tests of this folder import what makes summaries and records for them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode adds no folder by itself
