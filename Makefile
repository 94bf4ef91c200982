# `make serve`, `make test` and `make check` set up the environment by themselves: they depend on
# the stamp file, which is made when what is locked in requirements/ has changed.
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

# torch for CPUs is far smaller than torch for CUDA. It is not on PyPI: pip finds it in
# TORCH_INDEX, or where its own settings say. Without it, and for GPUs, PyPI's torch is installed.
TORCH_INDEX ?=
INSTALL := $(BIN)/python -m pip install --quiet --require-hashes
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-emit-index-url --custom-compile-command 'make lock'
WITHOUT_TORCH := --excludes requirements/cuda.in --no-emit-package torch
# A link or an anchor that leads nowhere is an error. The variable turns off an advertisement.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

CLIENTS := build/clients
NODE_CLIENTS := ai @ai-sdk/openai @ai-sdk/openai-compatible @ai-sdk/anthropic \
	@anthropic-ai/claude-code

.PHONY: serve test test-clients test-gpu check docs audit sbom lock format clean redis chromium

serve: $(STAMP)
	$(BIN)/ratoon serve

# Two workers at a time, each with runs of tests that are neighbours and share what they started;
# who has none left takes half of what the other still has. Tests start some hundred processes:
# torch has one thread in each, and bytecode is kept even where the environment says not to.
test: $(STAMP) redis chromium
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

# The frameworks that people use before a running gateway: the newest of each, since that is what
# they install, in a directory of their own. Node's are left out where there is no npm.
test-clients: $(STAMP)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --target $(CLIENTS) -r requirements/clients.in
	if command -v npm >/dev/null; then \
		npm install --silent --no-fund --prefix $(CLIENTS)/node $(NODE_CLIENTS); fi
	OMP_NUM_THREADS=1 CLIENTS_NODE_MODULES=$(CURDIR)/$(CLIENTS)/node \
		PYTHONPATH=$(CURDIR)/$(CLIENTS) \
		$(BIN)/python -m pytest -n 2 tests/clients

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MKDOCS) --quiet

# The pages of docs/ as a site in build/site; those of docs/reference are made from the code first.
docs: $(STAMP)
	$(BIN)/python -m docs.generate
	$(MKDOCS)

# Known vulnerabilities of everything that is locked. Fails for one; a package that the service
# does not know is named and passed over.
audit: $(STAMP)
	$(BIN)/pip-audit --progress-spinner off --disable-pip --require-hashes \
		$(patsubst %,-r requirements/%.txt,gateway engine dev torch)

# What the engine's image contains, as CycloneDX, in build/ratoon.cdx.json.
sbom: $(STAMP)
	mkdir -p build
	cat requirements/engine.txt requirements/torch.txt | $(BIN)/python -W ignore -m cyclonedx_py \
		requirements --pyproject pyproject.toml --output-file build/ratoon.cdx.json -

# Everything that is installed, by version and hash. `make lock UPGRADE=--upgrade` takes what is new.
# torch is kept apart, because there is one for CPUs and one for CUDA; torch-cpu.txt is kept by hand.
lock: $(STAMP)
	$(LOCK) $(UPGRADE) --extra engine --extra dev $(WITHOUT_TORCH) \
		-o requirements/dev.txt pyproject.toml
	$(LOCK) -c requirements/dev.txt --extra engine $(WITHOUT_TORCH) \
		-o requirements/engine.txt pyproject.toml
	$(LOCK) -c requirements/dev.txt -o requirements/gateway.txt pyproject.toml
	$(LOCK) -c requirements/dev.txt -o requirements/build.txt requirements/build.in
	$(LOCK) -c requirements/dev.txt $(UPGRADE) -o requirements/torch.txt requirements/torch.in

# Tests of the Redis code start a real server.
redis:
	@command -v redis-server >/dev/null || { \
		as_root=$$([ "$$(id -u)" = 0 ] || echo sudo); \
		$$as_root apt-get update --quiet >/dev/null && \
		$$as_root env DEBIAN_FRONTEND=noninteractive \
			apt-get install --quiet --yes --no-install-recommends redis-server >/dev/null; }

# Tests of the operator's page drive a real Chromium: Debian's package, or what is there already.
chromium:
	@command -v chromium chromium-browser google-chrome >/dev/null || { \
		as_root=$$([ "$$(id -u)" = 0 ] || echo sudo); \
		$$as_root apt-get update --quiet >/dev/null && \
		$$as_root env DEBIAN_FRONTEND=noninteractive \
			apt-get install --quiet --yes --no-install-recommends chromium >/dev/null; }

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(STAMP): pyproject.toml $(wildcard requirements/*.txt)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -r requirements/dev.txt
	{ ! command -v nvidia-smi && $(INSTALL) --no-deps $(TORCH_INDEX:%=--index-url %) \
		-r requirements/torch-cpu.txt; } || $(INSTALL) -r requirements/torch.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
