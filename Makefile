# Everything a contributor or CI does. `make` alone says what there is.
# Needed on the machine: Python 3.11 or newer with pip and venv, and make.

VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# The oldest supported Python first: the pinned requirements were taken there. Another one: make setup PYTHON=python3.13
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
# A worker has its own torch, about 1 GB; one that is done takes over tests from another.
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

ORACLES := curvlinops-for-pytorch==3.0.1 backpack-for-pytorch==1.7.1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint types layers check bench wheel clean

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

setup: $(READY) ## prepare .venv: the pinned requirements, and trimtab itself, editable

$(READY): requirements.txt pyproject.toml
	@test -x $(BIN)/python || test -n "$(PYTHON)" || \
		{ echo "make: no Python 3.11 or newer found; name one: make setup PYTHON=/path/to/python" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null 2>&1 || \
		{ echo "make: preparing $(VENV) with $(PYTHON), once; this takes a few minutes"; "$(PYTHON)" -m venv --clear $(VENV); }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@# What tests of curvature compare with. It asks for torchvision without using it, and torchvision does not import beside a CPU build.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(ORACLES)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

demo: $(READY) ## the main job on real data
	$(BIN)/trimtab demo

test: $(READY) ## the fast tier of the tests
	$(PYTEST)

test-all: $(READY) ## both tiers, before a closing note
	$(PYTEST) -m ''

lint: $(READY) ## ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY) ## mypy, strict on src
	$(BIN)/mypy

layers: $(READY) ## rooms look only down
	$(BIN)/lint-imports

check: lint types layers test ## what every change must pass

bench: $(READY) ## every benchmark, one after the other
	@for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python "$$file" || exit 1; done

wheel: $(READY) ## dist/: source archive and wheel
	$(BIN)/python -m build

clean: ## remove what the targets above have left, but not .venv
	rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache trimtab-demo
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
