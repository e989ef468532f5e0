# Tandem: `make up` starts a cluster on this machine, `make test` runs everything that needs no accelerator.
# `make up ARGS="--decode-pp 3 --port 0"` passes flags. TORCH_INDEX=URL: an extra package index for torch.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: up test check lint format golden chart screenshots bench sim matrix soak clean pure model processes ui gpu

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
TOOLS := prometheus nftables libnftables1 libnftnl11 libxtables12 libjansson4 libgmp10 libedit2 libbsd0 libmd0 libmnl0
export DEBIAN_FRONTEND := noninteractive

up: $(STAMPS)/tandem
	exec $(BIN)/tandem up $(ARGS)

test: check pure model processes ui

# By weight, the light ones first: no sockets of a cluster and no torch; torch in one process; real processes; and those
# with a browser in front.
pure: $(STAMPS)/test
	$(BIN)/python -m pytest tests/unit tests/sim tests/check tests/chart -n 2

model: $(STAMPS)/test
	$(BIN)/python -m pytest tests/model

processes: $(STAMPS)/test
	$(BIN)/python -m pytest tests/processes

ui: $(STAMPS)/browser
	$(BIN)/python -m pytest tests/ui

# The kernels of --engine flashinfer; skipped where there is no GPU. Needs the extra: pip install -e .[gpu]
gpu: $(STAMPS)/test
	$(BIN)/python -m pytest tests/gpu

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

# What the chart has from the code: the schema of its values, by the flags of the command line, and its dashboards.
chart: $(STAMPS)/tandem
	$(BIN)/python -m k8s.schema
	$(BIN)/python -m k8s.dashboards

screenshots: $(STAMPS)/browser
	$(BIN)/python -m pytest tests/ui --rewrite

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
	command -v c++ >/dev/null || tools/apt-install g++ || true  # without a compiler torch computes, which is slower
	touch $@

$(STAMPS)/test: requirements-test.lock $(STAMPS)/tandem
	$(PIP) install --no-deps -r requirements-test.lock
	command -v ip >/dev/null || tools/apt-install iproute2 || true  # tests of network namespaces are skipped without
	tools/apt-unpack $(VENV)/debian $(TOOLS) || true  # so are those with Prometheus, and those of NetworkPolicies
	touch $@

$(STAMPS)/browser: $(STAMPS)/test
	command -v chromium >/dev/null || tools/apt-install chromium fonts-dejavu-core
	touch $@
