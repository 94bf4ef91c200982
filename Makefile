# `make serve`, `make test` and `make check` set up the environment by themselves: they depend on
# the stamp file, which is made when pyproject.toml has changed.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

HOST ?= 127.0.0.1
PORT ?= 8000
DATA_DIR ?= .ratoon
MODEL ?= handbook
export RATOON_HOST ?= $(HOST)
export RATOON_PORT ?= $(PORT)
export RATOON_DATA_DIR ?= $(DATA_DIR)
export RATOON_MODEL ?= $(MODEL)

.PHONY: serve test test-gpu check format clean redis

serve: $(STAMP)
	$(BIN)/ratoon serve

# Two workers at a time, each with runs of tests that are neighbours and share what they started;
# who has none left takes half of what the other still has. Tests start some hundred processes:
# torch has one thread in each, and bytecode is kept even where the environment says not to.
test: $(STAMP) redis
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tests of the Redis code start a real server.
redis:
	@command -v redis-server >/dev/null || { \
		as_root=$$([ "$$(id -u)" = 0 ] || echo sudo); \
		$$as_root apt-get update --quiet >/dev/null && \
		$$as_root env DEBIAN_FRONTEND=noninteractive \
			apt-get install --quiet --yes --no-install-recommends redis-server >/dev/null; }

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet 'torch>=2.11,<2.14'
	$(BIN)/python -m pip install --quiet --editable '.[engine,dev]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
