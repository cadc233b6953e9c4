"""Lets the tests of this folder import engine_list.py and two_hosts.py beside them, and engine_making.py, which ranks get by path."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "engine")]
