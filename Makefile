# Two commands: `make demo` sets up a fresh machine and runs a small study on real images, which ends in a report;
# `make test` checks everything.
# `make ... VENV=` uses the active environment (it must have torch); a second `make` installs nothing.

VENV ?= .venv
PYTHON ?= python3
export TORCH_EXTENSIONS_DIR ?= $(CURDIR)/.cache/torch_extensions

ifeq ($(VENV),)
BIN :=
STAMP := .cache/active-environment
else
BIN := $(VENV)/bin/
STAMP := $(VENV)/installed
endif

.PHONY: demo test lint types imports tests slow build docs clean

demo: $(STAMP)
	$(BIN)vitscale study digits-demo --device cpu --out runs/demo

test: lint types imports tests build

lint: $(STAMP)
	$(BIN)ruff check .
	$(BIN)ruff format --check .

types: $(STAMP)
	$(BIN)mypy

imports: $(STAMP)
	$(BIN)lint-imports

tests: $(STAMP)
	$(BIN)python -m pytest

slow: $(STAMP)
	$(BIN)python -m pytest -m slow

build: $(STAMP)
	$(BIN)python -m build --wheel --no-isolation --outdir .cache/dist

docs: $(STAMP)
	$(BIN)python -c 'import furo, myst_parser, sphinx' 2>/dev/null || $(BIN)python -m pip install --quiet -e '.[docs]'
	$(BIN)python -m sphinx -W --keep-going -q -b html docs docs/_build
	@echo "wrote docs/_build/index.html"

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "vitscale needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

ifneq ($(VENV),)
$(STAMP): pyproject.toml | $(VENV)/bin/python
	$(BIN)python -m pip install --quiet --upgrade pip
	$(BIN)python -m pip install --quiet -e '.[dev]'
	touch $@
else
$(STAMP): pyproject.toml
	python -c 'import torch' || { echo "VENV= uses the active environment, which has no torch"; exit 2; }
	python -m pip install --quiet -e '.[dev]'
	mkdir -p .cache && touch $@
endif

clean:
	rm -rf .cache docs/_build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache dist build
