# make test: sets everything up and passes the tests.   make train: sets up and trains (ARGS="task=cifar10 budget=10m" ...).
PYTHON ?= python3
ARGS ?= task=str budget=10m
BIN := .venv/bin

.PHONY: setup train test lint clean

setup: .venv/ready

# Again whenever the dependencies change; a half-finished set-up leaves no `ready` behind.
.venv/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "vitocr needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

train: setup
	$(BIN)/python train.py $(ARGS)

# Two at a time, a thread each: two processes of several threads get in each other's way.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
