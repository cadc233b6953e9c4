"""`vitscale env`: what this machine has."""

from __future__ import annotations


def env() -> None:
    """Show versions and devices."""
