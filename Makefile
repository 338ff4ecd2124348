# `make demo` and `make test` are the two commands; each does its own set-up.
# Needs: Python 3.11 or newer, pip, make. uv is used where it is present.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CLOUD ?= eks
KEEP ?= 0
STAMP := $(VENV)/.installed
JOBS ?= 2

.PHONY: help demo test lint types contracts bench setup test-kill test-fuzz control-plane test-real clean

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

# Ratios against a peer or a limit, each in one run; absolute times on a shared machine mean little.
bench: $(STAMP)
	PYTHONPATH=. $(BIN)/python tests/readers/bench_nccl_log.py
	PYTHONPATH=. $(BIN)/python tests/bench/drain_bench.py
	@test -z "$(KUBEBUILDER_ASSETS)" || PYTHONPATH=. $(BIN)/python tests/bench/real_drain_bench.py

test-kill: $(STAMP)
	$(BIN)/pytest -n $(JOBS) -m slow tests/migration $(ARGS)

N ?= 1000000
test-fuzz: $(STAMP)
	PYTHONPATH=. $(BIN)/python tests/readers/campaign.py $(N)

# Builds once, into a cache outside the checkout; a folder named by KUBEBUILDER_ASSETS is used as it is.
control-plane: $(STAMP)
	PYTHONPATH=. $(BIN)/python tests/real/binaries/build.py

test-real: control-plane
	POOLSHIFT_REAL_API=1 $(BIN)/pytest -m "not slow" tests/real tests/conformance $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
