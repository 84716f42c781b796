# Each target does its own set-up: the first run makes .venv, later runs find it ready.
# `make PYTHON=python3.12 test` takes another interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
WHEEL_VENV := build/wheel-venv
POSTERIORS_VENV := build/posteriors-venv

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install demo test test-library test-experiments test-posteriors test-full fuzz lint format types docs wheel clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /|/' | awk -F'|' '{ printf "make %-16s %s\n", $$1, $$2 }'

$(READY): pyproject.toml experiments/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]' -e ./experiments
	touch $@

install: $(READY) ## Set up .venv with the library and the experiments

demo: $(READY) ## Check three LeNets against Monte Carlo, and write reports into demo/
	$(BIN)/momentprop demo

# One torch thread in each worker: pytest-xdist already uses every core.
test: $(READY) ## Run the test suite and the doctests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

test-library: $(READY) ## Run the part of it that is about the library
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal tests src README.md docs

test-experiments: $(READY) ## Run the part of it that is about the experiments
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal experiments

$(POSTERIORS_VENV)/ready: constraints.txt tests/posteriors/requirements.txt
	$(PYTHON) -m venv $(POSTERIORS_VENV)
	$(POSTERIORS_VENV)/bin/pip install --quiet -c constraints.txt torch numpy scipy tqdm pytest
	$(POSTERIORS_VENV)/bin/pip install --quiet --no-deps -r tests/posteriors/requirements.txt
	touch $@

test-posteriors: $(POSTERIORS_VENV)/ready ## Run the tests of posteriors with laplace-torch, blitz and bayesian-torch
	OMP_NUM_THREADS=1 $(POSTERIORS_VENV)/bin/python -m pytest -p no:cacheprovider tests/posteriors

test-full: $(READY) ## Run the test suite with the slow, wide checks, and that of the rules with built kernels
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal -m ''
	MOMENTPROP_KERNELS=wait OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal \
		tests/kernels tests/rules tests/correlation tests/calibration

# `make fuzz FUZZ='--seed 7 --only models'` passes options on; `python -m tests.fuzz --help` lists them.
fuzz: $(READY) ## Try random inputs, programs, models and interrupts for ten minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz $(FUZZ)

lint: $(READY) ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY) ## Repair style and formatting where that is automatic
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY) ## Check the types of both packages
	$(BIN)/mypy

docs: $(READY) ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: $(READY) ## Build the wheel into dist/ and try it in a clean environment
	rm -rf dist $(WHEEL_VENV)
	$(BIN)/python -m build --wheel --no-isolation --outdir dist .
	$(PYTHON) -m venv $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/pip install --quiet -c constraints.txt dist/*.whl
	$(WHEEL_VENV)/bin/python -I tools/smoke.py
	OMP_NUM_THREADS=1 $(WHEEL_VENV)/bin/python -I tools/doc_examples.py
	$(WHEEL_VENV)/bin/pip install --quiet -c constraints.txt "$$(ls dist/*.whl)[cli]"
	$(WHEEL_VENV)/bin/python -I tools/smoke.py --commands
	rm -rf $(WHEEL_VENV)

clean: ## Remove everything that make has made
	rm -rf $(VENV) build dist site demo .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src experiments tests tools docs -name __pycache__ -type d -prune -exec rm -rf {} +
