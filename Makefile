# Works on a clean clone with Python >= 3.11 and make; everything else comes from pip into .venv.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/installed
BIN := $(VENV)/bin

.PHONY: run test fast fuzz docs clean

run: $(STAMP)
	$(BIN)/abstim run hotspot --gpu gtx480 --gpu rtx3070

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

fast: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow"

TRIES ?= 1000
SEED ?= 0
fuzz: $(STAMP)
	nice $(BIN)/python tests/fuzz.py $(TRIES) $(SEED)

docs: $(STAMP)
	$(BIN)/python -m abstim.cli.reference > docs/cli.md.new
	mv docs/cli.md.new docs/cli.md

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Python >= 3.11 is needed; say which with make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@$(BIN)/python -m compileall -q functional precharacterize abstim configs sampling
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build *.egg-info
