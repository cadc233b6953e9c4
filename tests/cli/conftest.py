"""Runs the command line in a child, as people do."""

import os
import subprocess
import sys

import pytest


@pytest.fixture
def vitscale():
    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "vitscale.cli.main", *arguments]
        environment = {**os.environ, "COLUMNS": "100", **variables}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)

    return run
