# The commands of the README. Each sets up what it needs, once: a virtual environment with the pinned versions.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo check test test-all format clean

demo: $(INSTALLED)
	$(BIN)/twofold study run demo

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check
	$(BIN)/pytest -m "not system and not slow" -n auto --maxprocesses 4

# Adds what takes long, and what needs system packages, Chromium or Chrome for pages and images, or is large: Triton.
test-all: test
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,images,triton,browser]'
	$(BIN)/pytest -m "system or slow"

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch comes first and by its pinned version, so that no other package draws in another build of it.
$(INSTALLED): pyproject.toml constraints.txt setup.py $(wildcard src/twofold/kernels/csrc/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
