"""Runs the command line in a child, as people do; lets the tests of this folder import bad_input_making.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode adds no folder by itself


@pytest.fixture
def vitscale():
    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "vitscale.cli.main", *arguments]
        environment = {**os.environ, "COLUMNS": "100", **variables}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)

    return run
