# `make demo` and `make test` are all a newcomer needs; both make the environment first.
# Another torch or Triton: `make env TORCH=torch==2.9.0 TRITON=triton==3.7.0`. Pip's usual variables choose the index.

PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= torch==2.13.0
TRITON ?= triton==3.6.0

# Pip says nothing unless it fails.
PIP    = pip_install() { $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-input "$$@" \
           >$(VENV)/pip.log 2>&1 || { cat $(VENV)/pip.log >&2; return 1; }; }; pip_install
STAMP := $(VENV)/.tritonprobe-installed
HAS    = $(VENV)/bin/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("$(1)") is None)'

.DEFAULT_GOAL := help
.PHONY: help env demo test lint format clean

help:
	@echo "make demo    what compile, autotune and cache misses cost a small LLM server, as one report"
	@echo "make test    the test suite"
	@echo "make lint    ruff, mypy --strict and import-linter"
	@echo "make format  ruff's formatter"
	@echo "make env     only the environment, in $(VENV)"
	@echo "make clean   removes $(VENV) and what the demo and the tests left"

env: $(STAMP)

# torch first: a CUDA build of torch brings the Triton that belongs to it, which is then kept.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "make: Python 3.10 or newer is needed, and $(PYTHON) is not; try make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(VENV)/bin/python && $(VENV)/bin/python -c 'import pip' 2>/dev/null || { \
	  echo "environment: $(VENV) with $$($(PYTHON) --version)"; \
	  $(PYTHON) -m venv $(VENV) || { \
	    echo "make: $(PYTHON) -m venv failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }; }
	@$(call HAS,torch) || { echo "environment: $(TORCH) (a large download)"; $(PIP) "$(TORCH)" numpy; }
	@$(call HAS,triton) || { echo "environment: $(TRITON)"; $(PIP) "$(TRITON)"; }
	@echo "environment: tritonprobe and its tools"
	@$(PIP) -e '.[dev]'
	@touch $@

demo: env
	@$(VENV)/bin/tritonprobe demo

test: env
	@$(VENV)/bin/python -m pytest -q

lint: env
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

format: env
	@$(VENV)/bin/ruff check --fix-only --quiet .
	@$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) .build out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build *.egg-info
