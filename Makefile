# The commands of this project. `make demo` and `make test` do all the set-up they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check install fmt interop

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

install: $(VENV)/installed

test: install check
	$(BIN)/pytest

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Beside a real Apache BookKeeper, fetched by Maven: needs a JDK (17 or newer) and Maven.
interop: install
	$(BIN)/python tests/interop/run.py $(if $(SAY),--say)
