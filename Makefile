# Each target does its own set-up: the first run makes .venv, later runs find it ready.
# `make PYTHON=python3.12 test` takes another interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
POSTERIORS_VENV := build/posteriors-venv

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install demo needs-npm page page-check test test-library test-experiments test-posteriors test-full fuzz lint format
.PHONY: types figures docs notebooks notebooks-check dist wheel release-check api clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /|/' | awk -F'|' '{ printf "make %-16s %s\n", $$1, $$2 }'

$(READY): pyproject.toml experiments/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]' -e ./experiments
	touch $@

install: $(READY) ## Set up .venv with the library and the experiments
	@echo "Ready: $(BIN)/python has the library and the experiments. 'make help' lists what to run."

demo: $(READY) ## Check three LeNets against Monte Carlo, and write reports into demo/
	$(BIN)/momentprop demo

needs-npm:
	@command -v npm > /dev/null || { echo "The page needs npm, which comes with Node.js 18 or newer."; exit 1; }

page: needs-npm $(READY) ## Build the page to play with, one file that works from disk; needs npm
	$(BIN)/python -m page.build

page-check: $(READY) ## Check the page in Chromium against Python; needs npm and Chromium
	OMP_NUM_THREADS=1 $(BIN)/pytest -m '' -rs tests/page

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

figures: $(READY) ## Draw the figures of the documentation's concepts anew
	$(BIN)/python tools/figures.py

docs: $(READY) ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# `make notebooks NOTEBOOKS=quick_start` takes one of them.
notebooks: $(READY) ## Execute the notebooks and write their outputs back
	$(BIN)/python tools/notebooks.py run $(NOTEBOOKS)

notebooks-check: $(READY) ## Execute the notebooks, and fail on any error or warning
	$(BIN)/python tools/notebooks.py check $(NOTEBOOKS)

dist: $(READY) ## Build wheels and sdists of both packages into dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m build --no-isolation --outdir dist experiments

wheel: dist ## Build the same, and try the library's wheel in a clean environment
	$(BIN)/python tools/release_check.py --brief --python $(PYTHON)

# `make release-check RELEASE=--cuda` also tries Pythons for which torch brings CUDA, some gigabytes.
release-check: dist ## Try all that a release publishes, on the oldest and newest Python here; all notebooks and the page
	$(BIN)/python tools/release_check.py $(RELEASE)
	$(MAKE) --keep-going notebooks-check page-check

api: $(READY) ## Renew tests/api.txt, the list of the public names and their signatures
	$(BIN)/python -m tests.api

clean: ## Remove everything that make has made
	rm -rf $(VENV) build dist site demo page/node_modules .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src experiments tests tools docs -name __pycache__ -type d -prune -exec rm -rf {} +
