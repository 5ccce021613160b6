# From a fresh clone: `make demo` or `make test`. Both install into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INPUTS := pyproject.toml constraints.txt

# What `make test-oldest` asks pip for; empty: a build of torch 2.6.0 for the CPU.
TORCH ?=

.PHONY: demo test test-long test-oldest lint docs bench clean

demo: $(VENV)/.demo
	$(BIN)/forde demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto -m "not long"

test-long: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto -m long

test-oldest:
	$(PYTHON) tests/oldest.py --torch '$(TORCH)' $(OPTIONAL)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python -m pytest -q tests/test_docs.py tests/test_docs_commands.py tests/test_site.py

bench: $(VENV)/.dev
	$(BIN)/forde bench step

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(INPUTS) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(INPUTS) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) $(VENV)-oldest build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
