# Everything runs in .venv, which is made from nothing on first use. `make help` lists the targets.

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
# Tests in one xdist_group share what a fixture compiled or started; all others go to whoever is free.
PYTEST := -n $(JOBS) --dist loadgroup
# What works on torch itself has folders of its own.
QUICK := tests/unit tests/verdicts tests/test_architecture.py tests/test_public_api.py tests/test_readme.py \
  $(addprefix --ignore=tests/unit/,capture measure subjects)

# Tests start many processes; without cached bytecode each of them would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
# Two workers share the processors with what they start: a thread of torch that has nothing to do must not keep one busy.
export OMP_WAIT_POLICY := passive

.DEFAULT_GOAL := help
.PHONY: help install compiler demo quick test test-all coverage check format house notebooks golden answers atlas images site gpu-wheels

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv and install layoutdoctor with its test tools into it

demo: $(STAMP) compiler ## diagnose examples/conv3d_stack.py
	$(BIN)/python -m layoutdoctor examples/conv3d_stack.py

quick: $(STAMP) ## run the tests that need no compiler and no second each: a minute
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not compile and not slow and not thorough" $(QUICK)

test: $(STAMP) compiler ## run the tests but those that take long, a few compiles among them
	$(BIN)/python -m pytest $(PYTEST) -m "not slow"

# The callbacks of docs/profile.md are tried with the libraries that they are for.
test-all: $(STAMP) compiler ## run all tests; .ci/sweep runs some over many more cases
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[callbacks]'
	$(BIN)/python -m pytest $(PYTEST)

coverage: $(STAMP) compiler ## run the tests under coverage and show what no test reaches
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest -m "not slow" -q
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --skip-covered --show-missing

check: $(STAMP) ## lint, formatting, types, and the size of the house
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=benchmarks:tests $(BIN)/mypy benchmarks
	@$(BIN)/python .ci/house.py --check

format: $(STAMP) ## format the code and sort its imports
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

house: ## print modules and lines of each part beside their budget
	@$(PYTHON) .ci/house.py

golden: $(STAMP) ## write the golden files and copies of the schema again; review the difference
	$(BIN)/python -m pytest -m "not slow" tests/unit tests/verdicts --update-golden -q

notebooks: $(STAMP) compiler ## execute the notebooks in place
	$(BIN)/python notebooks/run.py

answers: $(STAMP) compiler ## run the commands of docs/answers again and put what they print into the pages
	$(BIN)/python .ci/answers.py

atlas: $(STAMP) compiler ## lower the networks of docs/atlas.md that are not done with this torch, and write the page again
	$(BIN)/python benchmarks/atlas.py --resume

images: $(STAMP) ## make the pictures of docs/images again (needs chromium)
	$(BIN)/python .ci/images.py

site: $(STAMP) ## build the documentation as a site in .site, with a page for each rule
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[site]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir .site

# Only what a machine with Python 3.12, torch and numpy lacks; newer wheels take the place of older ones.
gpu-wheels: ## put wheels of the dependencies into .whl, for a machine with a GPU that cannot fetch any
	@rm -rf .whl && mkdir .whl
	@sed -n '/^dependencies = /,/^]/s/^  "\([a-z].*\)",$$/\1/p' pyproject.toml | grep -vE '^(torch|triton|numpy|networkx|jinja2)\b' > .whl/needed.txt
	@printf 'pytest\npytest-timeout\n' >> .whl/needed.txt  # for tests/gpu
	$(PYTHON) -m pip download --quiet --disable-pip-version-check --only-binary=:all: --implementation cp --python-version 3.12 \
	  $(foreach n,12 17 24 27 28 34,--platform manylinux_2_$(n)_x86_64) --platform manylinux2014_x86_64 \
	  --dest .whl --requirement .whl/needed.txt
	@du -cb .whl/*.whl | awk '{print $$1, $$2}'; echo "$$(git ls-files -z | xargs -0 du -cb | tail -n 1 | cut -f 1) bytes in tracked files"

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
