# Works on a clean clone with Python >= 3.11 and make; everything else comes from pip into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What `run` needs; with it everything that abstim can use; with that what its developers use
RUN := $(VENV)/installed
ALL := $(VENV)/installed-all
STAMP := $(VENV)/installed-dev
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-compile
# Of the libraries only what a command imports is compiled, and kept even where the environment says otherwise: without
# bytecode every command takes a second more
export PYTHONDONTWRITEBYTECODE :=
COMPILE := $(BIN)/python -m compileall -q -j 0 abstim configs functional precharacterize sampling \
    && $(BIN)/abstim --help > /dev/null

.PHONY: run all test types tests fast nightly fuzz docs clean

run: $(RUN)
	$(BIN)/abstim run hotspot --gpu gtx480 --gpu rtx3070

all: $(ALL)

# The type checker has one core, so it runs beside the tests
test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) -j 2 types tests

types: $(STAMP)
	$(BIN)/mypy

tests: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --durations 20

fast: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --durations 20 -m "not slow"

nightly: $(STAMP)
	ABSTIM_NIGHTLY=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --hypothesis-profile random
	$(MAKE) fuzz SEED=$$(date +%s)

TRIES ?= 1000
SEED ?= 0
fuzz: $(STAMP)
	nice $(BIN)/python tests/fuzz.py $(TRIES) $(SEED)

docs: $(STAMP)
	$(BIN)/python tests/command_page.py
	$(BIN)/python tests/results_page.py

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Python >= 3.11 is needed; say which with make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(RUN): pyproject.toml | $(BIN)/python
	$(PIP) -e .
	$(COMPILE)
	@touch $@

$(ALL): pyproject.toml | $(BIN)/python
	$(PIP) -e '.[all]'
	$(COMPILE)
	@touch $(RUN) $@

$(STAMP): pyproject.toml | $(BIN)/python
	$(PIP) -e '.[dev]'
	$(COMPILE)
	@touch $(RUN) $(ALL) $@

clean:
	rm -rf $(VENV) build *.egg-info
