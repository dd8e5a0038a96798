# Every target works from a bare clone: it makes .venv and installs what it needs into it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TESTED := $(VENV)/.installed-for-tests
# One process takes a whole file, those with slow tests first: tests/conftest.py says why.
PARALLEL ?= -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

.PHONY: demo test quick lint check docs bench clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@echo "make demo   train on the embedded data set and write a report"
	@echo "make test   the whole test suite        make quick  the same without slow tests"
	@echo "make check  lint, types, quick tests    make lint   lint and types alone"
	@echo "make docs   the documentation site      make bench  speed and memory, as ratios"

# torch first and alone: an unpinned torch would pull a different, far larger build.
$(STAMP): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch torchvision
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[baselines]"
	touch $(STAMP)

# Every extra, and the servers that the tests of stores start: the demonstration does without.
$(TESTED): $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[baselines,index,postgres,milvus,serve,tune,export,hub,heic,map,tensorboard,wandb,mlflow,servers,docs,dev]"
	touch $(TESTED)

demo: $(STAMP)
	$(BIN)/python -m recollect demo

test: $(TESTED)
	$(BIN)/python -m pytest $(PARALLEL)

quick: $(TESTED)
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and not shared_data"

lint: $(TESTED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint quick

docs: $(TESTED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo build/site/index.html

bench: $(TESTED)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
