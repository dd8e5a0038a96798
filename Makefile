# Every target works from a bare clone: it makes .venv and installs what it needs into it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PARALLEL ?= -n auto --maxprocesses 8

.PHONY: demo test quick check bench clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@echo "make demo   train on the embedded data set and open what came of it"
	@echo "make test   the whole test suite        make quick  the same without slow tests"
	@echo "make check  lint, types, quick tests    make bench  speed and memory, as ratios"

# torch first and alone: an unpinned torch would pull a different, far larger build.
$(STAMP): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch torchvision
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[glyphs,baselines,index,postgres,milvus,serve,tune,export,heic,servers,dev]"
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m recollect demo

test: $(STAMP)
	$(BIN)/python -m pytest $(PARALLEL)

quick: $(STAMP)
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and not shared_data"

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and not shared_data"

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
