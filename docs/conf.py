"""Sphinx's settings: Markdown pages by MyST, the furo theme. Build with `make docs`."""

from importlib.metadata import version as installed_version

project = "vitscale"
author = "The vitscale developers"
copyright = "2026, the vitscale developers"
version = release = installed_version("vitscale")

extensions = ["myst_parser"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"vitscale {release}"
