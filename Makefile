# Everything runs in .venv, which is made from nothing on first use. `make help` lists the targets.

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

.DEFAULT_GOAL := help
.PHONY: help install compiler demo test test-all coverage check format house notebooks golden

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv and install layoutdoctor with its test tools into it

demo: $(STAMP) compiler ## diagnose examples/conv3d_stack.py
	$(BIN)/python -m layoutdoctor examples/conv3d_stack.py

test: $(STAMP) compiler ## run the tests without the slow ones
	$(BIN)/python -m pytest -m "not slow" -n $(JOBS) --dist loadfile

test-all: $(STAMP) compiler ## run all tests, the long sweeps too
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

coverage: $(STAMP) compiler ## run the tests under coverage and hold it: all branches below the torch line, 90 % above it
	$(BIN)/python .ci/coverage.py

check: $(STAMP) ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## format the code and sort its imports
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

house: ## print the shape of the house: modules, lines, imports, circles, longest functions
	@$(PYTHON) .ci/house.py

golden: $(STAMP) ## write the golden files and copies of the schema again; review the difference
	$(BIN)/python -m pytest -m "not slow" tests/unit --update-golden -q

notebooks: $(STAMP) compiler ## execute the notebooks in place
	$(BIN)/python notebooks/run.py

compiler:
	@command -v "$${CXX:-g++}" >/dev/null || { \
	  echo "error: torch.compile needs a C++ compiler on a CPU, and '$${CXX:-g++}' was not found;" \
	       "install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++) or set CXX" >&2; exit 1; }

# Made again when the dependencies change; constraints.txt holds the versions that are tested.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "error: layoutdoctor needs Python 3.10 or newer; name one with make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test]'
	@touch $(STAMP)
