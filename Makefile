# `make demo` and `make test` are the two commands; each does its own set-up.
# Needs: Python 3.11 or newer, pip, make. uv is used where it is present.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CLOUD ?= eks
KEEP ?= 0
STAMP := $(VENV)/.installed
JOBS ?= 2

.PHONY: help demo test lint types contracts bench setup test-kill test-fuzz control-plane test-real test-real-all clean

help:
	@echo "make demo               a migration refused, the same one passing: simulated, on loopback (CLOUD=gke, KEEP=1)"
	@echo "make test               the whole suite"
	@echo "make lint types contracts"
	@echo "make bench              figures as ratios, each in one run"
	@echo "make test-kill          kill -9 at every step boundary, each from a fresh sandbox"
	@echo "make test-fuzz          mutated tool outputs against the readers (N=1000000)"
	@echo "make test-real          the same scenarios on a real control plane (Go, or KUBEBUILDER_ASSETS)"

demo: $(STAMP)
	@$(BIN)/poolshift demo --cloud $(CLOUD) $(if $(filter 1,$(KEEP)),--keep,)

test: $(STAMP)
	$(BIN)/pytest -n $(JOBS) --dist loadfile -m "not slow and not real" tests/migration tests $(ARGS)  # the longest first

setup: $(STAMP)

$(STAMP): pyproject.toml
	@if command -v uv >/dev/null 2>&1; then \
	  test -x $(BIN)/python || uv venv --quiet --python $(PYTHON) $(VENV); \
	  VIRTUAL_ENV=$(abspath $(VENV)) uv pip install --quiet --editable . --group dev; \
	else \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=python3.11"; exit 1; }; \
	  test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip; \
	  echo "installing (a minute or two, once)"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev; \
	fi
	@touch $(STAMP)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m tests.bench

test-kill: $(STAMP)
	$(BIN)/pytest -q -m slow tests/resume

N ?= 1000000
test-fuzz: $(STAMP)
	POOLSHIFT_FUZZ_INPUTS=$(N) $(BIN)/pytest -q -m slow tests/readers

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
