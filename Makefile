# `make demo` and `make test` are the two commands; each does its own set-up.
# Needs: Python 3.11 or newer, pip, make. uv is used where it is present.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CLOUD ?= eks
KEEP ?= 0
STAMP := $(VENV)/.installed
# One more than there are cores, since whole migrations wait for one another's processes; eight are enough for all files.
JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((n < 7 ? n + 1 : 8)))

# Where it is set, each of the many processes that a test starts would compile the whole project again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test lint types contracts bench setup test-kill test-migrations test-faults test-fuzz test-statistics \
	test-payloads control-plane operators test-real test-real-all karpenter clean

help:
	@echo "make demo               a migration refused, the same one passing: simulated, on loopback (CLOUD=gke, KEEP=1)"
	@echo "make test               everything that needs neither Go nor patience"
	@echo "make lint types contracts"
	@echo "make bench              figures as ratios, each in one run"
	@echo "make test-kill          kill -9 at every step boundary and at random moments (KILLS, DRAIN_KILLS, SEED)"
	@echo "make test-migrations    the long migrations: rollback, swaps, held, cancelled and interrupted runs"
	@echo "make test-fuzz          mutated tool outputs against the readers (N=1000000)"
	@echo "make test-faults        200 drains under faults of the server, budgets watched (SEEDS=200)"
	@echo "make test-statistics    how often the step-time interval misses the truth, by simulation"
	@echo "make test-payloads      the probe payloads for real: torch under gloo, fio (installs the payloads extra)"
	@echo "make test-real          the same behaviour on a real control plane, 1.36 (Go, or KUBEBUILDER_ASSETS)"
	@echo "make operators          build JobSet, LeaderWorkerSet, MPI, Kueue, training, KubeRay for test-real-all (Go)"
	@echo "make test-real-all      on 1.36 and 1.34, with whole migrations and kill -9 at every boundary"

demo: $(STAMP)
	@$(BIN)/poolshift demo --cloud $(CLOUD) $(if $(filter 1,$(KEEP)),--keep,)

test: $(STAMP)
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not slow and not real" $(ARGS)

setup: $(STAMP)

INSTALL = $(if $(shell command -v uv),VIRTUAL_ENV=$(abspath $(VENV)) uv pip install --quiet,$(BIN)/python -m pip install --quiet --disable-pip-version-check)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=python3.11"; exit 1; }
	@if command -v uv >/dev/null 2>&1; then \
	  test -x $(BIN)/python || uv venv --quiet --python $(PYTHON) $(VENV); \
	else \
	  test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip; \
	fi
	@echo "installing (a minute or two, once)"
	@$(INSTALL) --editable . --group dev
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
	PYTHONPATH=. $(BIN)/python tests/bench/blockers_bench.py
	PYTHONPATH=. $(BIN)/python tests/bench/plan_bench.py
	PYTHONPATH=. $(BIN)/python tests/bench/audit_bench.py
	PYTHONPATH=. $(BIN)/python tests/bench/fallback_cost.py
	@test -z "$(KUBEBUILDER_ASSETS)" || PYTHONPATH=. $(BIN)/python -u tests/bench/real_drain_bench.py

# Optional peer of `make bench` on the real control plane; once, into the cache.
karpenter: $(STAMP)
	PYTHONPATH=. $(BIN)/python tests/bench/karpenter/build.py

# Real operators for tests/real/test_operators*.py; once, into the cache.
operators: $(STAMP)
	PYTHONPATH=. $(BIN)/python tests/real/binaries/build_operators.py $(OPERATORS)

KILLS ?= 24
DRAIN_KILLS ?= 60
SEED ?= 1
test-kill: $(STAMP)
	KILLS=$(KILLS) DRAIN_KILLS=$(DRAIN_KILLS) SEED=$(SEED) $(BIN)/pytest -n $(JOBS) -m slow tests/migration tests/drain/test_kills_at_random.py $(ARGS)

test-migrations: $(STAMP)
	$(BIN)/pytest -n $(JOBS) -m slow tests/migration -k "not kill" $(ARGS)

test-faults: $(STAMP)
	DRAIN_FAULT_SEEDS=$(or $(SEEDS),200) $(BIN)/pytest -m slow tests/drain/test_faults_on_api.py $(ARGS)

test-statistics: $(STAMP)
	$(BIN)/pytest -m slow tests/evidence $(ARGS)

# PyTorch is 5 GB with what it brings; it runs on the CPU here.
test-payloads: $(STAMP)
	@$(BIN)/python -c 'import torch' 2>/dev/null || { echo "installing PyTorch (minutes, once)"; $(INSTALL) --editable '.[payloads]'; }
	$(BIN)/pytest tests/payloads $(ARGS)

N ?= 1000000
test-fuzz: $(STAMP)
	PYTHONPATH=. $(BIN)/python tests/readers/campaign.py $(N)

# Builds once, into a cache outside the checkout; a folder named by KUBEBUILDER_ASSETS is used as it is.
REAL ?= 1.36
control-plane: $(STAMP)
	PYTHONPATH=. $(BIN)/python tests/real/binaries/build.py $(REAL)

ON_REAL = POOLSHIFT_REAL_API=1 POOLSHIFT_REAL_VERSION=$(REAL) $(BIN)/pytest
test-real: control-plane
	$(ON_REAL) -m "real and not slow" tests/real tests/conformance $(ARGS)

test-real-all:
	$(MAKE) test-real REAL=1.36
	$(MAKE) test-real REAL=1.34
	POOLSHIFT_REAL_API=1 POOLSHIFT_REAL_VERSION=1.36 $(BIN)/pytest -m "real and slow" tests/real $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
