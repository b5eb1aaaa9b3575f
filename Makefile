# `make` alone lists the targets. Everything runs in .venv, which is created when it is missing.
PYTHON  ?= python3
ARGS    ?=
WORKERS ?= 2
SELECT  ?= not slow
LARGE   := --model llama-3.1-405b --cluster 2048x8xH100-SXM5-80GB --global-batch 2048

BIN   := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help setup compiled search estimate profile gpu validate fit calibrate train test frameworks check bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with the product and its development tools

# No constraints file: the newest versions differ between Python 3.11 and 3.12, so exact pins would
# hold on one of them only. The lower bounds in pyproject.toml are what keeps an old install out.
# What pip says goes to stderr, so that `make search ARGS=--json` prints only the document.
$(STAMP): pyproject.toml
	@echo "Setting up .venv (once; it takes about 1.1 GB on disk)" >&2
	@$(PYTHON) -m venv .venv >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' >&2
	@echo "Compiling what searches need (once)" >&2
	@$(MAKE) --no-print-directory compiled
	@touch $@

# Part of setting up, so that a first search does not wait: a small search, a large one, and the
# kernels that only mixed devices need.
compiled:
	@NUMBA_OPT=1 $(BIN)/python -c 'import apss_jax.partitioning.detour_kernels, apss_jax.partitioning.portfolio_kernels, apss_jax.policy.lattice, apss_jax.policy.reach' >&2
	@$(BIN)/python -m apss_jax.search --json >/dev/null
	@$(BIN)/python -m apss_jax.search $(LARGE) --json >/dev/null

search: $(STAMP) ## rank plans on shipped defaults, or with ARGS="--model gpt2 --cluster 4x8xH100-SXM5-80GB"
	@$(BIN)/python -m apss_jax.search $(ARGS)

estimate: ARGS = --model llama-3.1-8b --cluster 1x8xH100-SXM5-80GB --global-batch 64 --tp 2 --pp 2 --dp 2
estimate: $(STAMP) ## time, memory and legality of one plan; ARGS replaces the example
	@$(BIN)/python -m apss_jax.estimate $(ARGS)

profile: $(STAMP) ## measure the devices and links at hand: writes cluster_profile.json, for --cluster of a search
	@$(BIN)/python -m profiler $(ARGS)

# Eight minutes and a fifth of them stay below ten. ARGS="--resume --out ..." goes on with a file.
gpu: export CUDA_VISIBLE_DEVICES ?= 0
gpu: $(STAMP) ## measure one GPU within ten minutes: layers of llama-2-7b, memory, clocks; writes gpu_profile.json
	@$(BIN)/python -m profiler --minutes 8 --model llama-2-7b --out gpu_profile.json $(ARGS)

validate: $(STAMP) ## predictions against measured runs: the published ones, or ARGS="--runs FILE.csv"
	@$(BIN)/python -m apss_jax.validate $(ARGS)

calibrate: $(STAMP) ## a stack file from a few runs of your own: ARGS="--runs FILE.csv --out STACK.json"
	@$(BIN)/python -m apss_jax.calibrate $(ARGS)

fit: $(STAMP) ## the library's constants from measured runs, half an hour (ARGS=--dry-run: only look)
	@$(BIN)/python -m apss_jax.cli.fit $(ARGS)

train: $(STAMP) ## train the partitioning network again, up to 40 minutes, into out/dpsn (ARGS="--seed 1")
	@$(BIN)/python -m apss_jax.train $(ARGS)

test: $(STAMP) ## run the tests (SELECT=slow: the longer ones)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "$(SELECT)"

# Their own readers check our exports (tests/exporters); what they depend on is not needed for that.
frameworks: $(STAMP) ## packages of Megatron core, torchtitan and DeepSpeed, for the tests of exports
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	  --target .venv/frameworks megatron-core==0.16.1 torchtitan==0.3.0 deepspeed==0.19.8 >&2

check: $(STAMP) ## lint, format, types and import layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py

bench: $(STAMP) ## run every benchmark
	@set -e; for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file; done

clean: ## remove .venv, caches and build output
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
