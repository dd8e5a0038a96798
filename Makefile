# Every target works from a bare clone: it makes .venv and installs what it needs into it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TESTED := $(VENV)/.installed-for-tests
# Locked versions; `make lowest` takes the lowest that pyproject.toml allows.
LOCKED := constraints.txt
# What users can install and what the tests need; then what developers use besides.
EXTRAS := baselines index postgres milvus serve tune export hub heic map lora tensorboard wandb mlflow cars196 servers test
TOOLS  := docs dev
# Tests write names of files that a plain C locale cannot.
export PYTHONUTF8 := 1
# One process takes a whole file, those with slow tests first: tests/conftest.py says why.
PARALLEL ?= -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

.PHONY: demo test release quick lowest lowest-versions lint check docs bench mutants clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@echo "make demo   train on the embedded data set and write a report"
	@echo "make test   the test suite, 5 minutes   make quick  the same without slow tests"
	@echo "make release  what make test leaves out: tutorials as written, the demonstration twice"
	@echo "make check  lint, types, quick tests    make lint   lint and types alone"
	@echo "make docs   the documentation site      make bench  speed and memory, as ratios"
	@echo "make lowest quick tests with the lowest versions that pyproject.toml allows"
	@echo "make mutants  300 small changes of the code, and which of them no test notices (half an hour or more)"

# torch first and alone: an unpinned torch would pull a different, far larger build.
$(STAMP): pyproject.toml $(LOCKED)
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c $(LOCKED) torch torchvision
	$(BIN)/python -m pip install --quiet -c $(LOCKED) -e ".[baselines]"
	touch $(STAMP)

# Every extra, and the servers that the tests of stores start: the demonstration does without.
$(TESTED): $(STAMP)
	$(BIN)/python -m pip install --quiet -c $(LOCKED) -e ".[$(shell echo $(EXTRAS) $(TOOLS) | tr ' ' ,)]"
	touch $(TESTED)

demo: $(STAMP)
	$(BIN)/python -m recollect demo

test: $(TESTED)
	$(BIN)/python -m pytest $(PARALLEL) -m "not release"

release: $(TESTED)
	$(BIN)/python -m pytest $(PARALLEL) -m release

quick: $(TESTED)
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and not release and not shared_data"

lowest:
	$(MAKE) quick VENV=.venv-lowest LOCKED=constraints-lowest.txt TOOLS=

# After a change of pyproject.toml. uv sees a torch with packages of CUDA, which the torch that is installed may not need.
lowest-versions: $(STAMP)
	$(BIN)/python -m pip install --quiet uv
	head -2 constraints-lowest.txt > $(VENV)/lowest.txt
	grep -E '^(torch|torchvision)==' constraints.txt | $(BIN)/uv pip compile --quiet --no-header --no-annotate \
	  --resolution lowest-direct --python-version 3.11 --constraints - $(EXTRAS:%=--extra %) pyproject.toml \
	  | grep -vE '^(nvidia|cuda|triton)' >> $(VENV)/lowest.txt
	mv $(VENV)/lowest.txt constraints-lowest.txt

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

mutants: $(TESTED)
	$(BIN)/python tools/mutants.py

clean:
	rm -rf $(VENV) .venv-lowest build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
