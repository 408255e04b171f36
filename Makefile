# Two commands on a fresh machine with Python and make: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Under CI every test of the suite must run: NSYSDDP_REQUIRE_ALL=1 turns a skip for a missing component into a failure.
CORE := nsysddp/model/*.py,nsysddp/ingest/*.py,nsysddp/join/*.py,nsysddp/dependencies/*.py,nsysddp/questions/*.py

.PHONY: demo reference docs test lint types imports quick unit coverage mutants format clean

demo: $(VENV)/.demo
	$(BIN)/nsysddp demo

test: lint types imports unit coverage mutants

$(VENV)/.base:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	touch $@

$(VENV)/.demo: $(VENV)/.base pyproject.toml
	$(BIN)/python -m pip install -q -e .
	touch $@

$(VENV)/.quick: $(VENV)/.demo pyproject.toml
	$(BIN)/python -m pip install -q -e '.[dev,store,perfetto]'
	touch $@

$(VENV)/.test: $(VENV)/.demo pyproject.toml
	$(BIN)/python -m pip install -q 'torch==2.13.0'
	$(BIN)/python -m pip install -q -e '.[dev,docs,store,perfetto,mcp,workloads]'
	touch $@

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.test
	$(BIN)/mypy

imports: $(VENV)/.test
	$(BIN)/lint-imports

unit: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist loadfile --cov --cov-report= --durations=15

# Under two minutes on two cores, without torch and browser; what it leaves out, and why: FULL_ONLY in tests/conftest.py.
quick: $(VENV)/.quick
	$(BIN)/python -m pytest --quick -n 2 --dist loadfile

coverage: $(VENV)/.test
	$(BIN)/coverage report --include='$(CORE)' --fail-under=92

mutants: $(VENV)/.test
	$(BIN)/python tests/planted_mistakes.py

docs: $(VENV)/.demo
	$(BIN)/python -m pip install -q -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

reference: $(VENV)/.demo
	$(BIN)/python docs/reference/make.py
	$(BIN)/python docs/results/scale.py
	$(BIN)/python docs/images/make.py

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage nsysddp-demo site
