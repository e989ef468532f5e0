# Tandem: `make up` starts a cluster on this machine, `make test` runs everything that needs no accelerator.
# `make up ARGS="--decode-pp 3 --port 0"` passes flags. TORCH_INDEX=URL: an extra package index for torch.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: up test check lint format golden bench sim matrix soak clean pure model processes

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
TORCH := torch==2.13.0
ARGS ?=
SEEDS ?= 1000
MINUTES ?= 5

APT := libcurl4 libgomp1 libibverbs1 libnuma1
APT_VENV := python3 python3-venv
export DEBIAN_FRONTEND := noninteractive

up: $(STAMPS)/tandem
	exec $(BIN)/tandem up $(ARGS)

test: check pure model processes

# Three weights, the light one first: no sockets of a cluster and no torch; torch in one process; real processes.
pure: $(STAMPS)/test
	$(BIN)/python -m pytest tests/unit tests/sim tests/check -n 2

model: $(STAMPS)/test
	$(BIN)/python -m pytest tests/model

processes: $(STAMPS)/test
	$(BIN)/python -m pytest tests/processes

check: lint
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_tidy.py -q

lint: $(STAMPS)/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(STAMPS)/test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

golden: $(STAMPS)/test
	$(BIN)/python tests/model/make_goldens.py

bench: $(STAMPS)/tandem
	$(BIN)/tandem bench $(or $(ARGS),--all)

sim: $(STAMPS)/tandem
	$(BIN)/tandem sim --seeds $(SEEDS) $(ARGS)

# Any rank struck at any point: a quarter of an hour. ARGS="--only 'mid layer' --backend shm" for a part of it.
matrix: $(STAMPS)/tandem
	$(BIN)/python -m bench.faults.matrix $(ARGS)

# Random faults for so long, and figures.
soak: $(STAMPS)/tandem
	$(BIN)/python -m bench.faults.soak --minutes $(MINUTES) $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each stamp stands for one thing that is installed; the second run finds them all and starts at once.

$(STAMPS)/venv:
	@need=""; \
	for package in $(APT); do \
	  dpkg-query -W -f='$${Status}' $$package 2>/dev/null | grep -q ' installed$$' || need="$$need $$package"; \
	done; \
	python=$$(tools/find-python) || need="$$need $(APT_VENV)"; \
	if [ -n "$$need" ]; then tools/apt-install $$need; python=$$(tools/find-python); fi; \
	echo "using $$python"; \
	"$$python" -m venv $(VENV)
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/torch: | $(STAMPS)/venv
	$(PIP) install $(TORCH) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
	touch $@

$(STAMPS)/locked: requirements.lock $(STAMPS)/torch
	$(PIP) install --no-deps -r requirements.lock
	touch $@

$(STAMPS)/tandem: pyproject.toml $(STAMPS)/locked
	$(PIP) install --no-deps --no-build-isolation -e .
	touch $@

$(STAMPS)/test: requirements-test.lock $(STAMPS)/tandem
	$(PIP) install --no-deps -r requirements-test.lock
	command -v ip >/dev/null || tools/apt-install iproute2 || true  # tests of network namespaces are skipped without
	touch $@
