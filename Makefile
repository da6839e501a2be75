# Bare `make` lists the targets. Everything happens in .venv; delete that folder to start afresh.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test quick lint types check samples reliability fuzz bench-cpu bench-gpu bench-batch man clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/installed ## install, compress and restore the sample checkpoints, and compare every byte
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash sample_data/demo.sh

test: $(VENV)/developing ## run the whole test suite (a few minutes)
	$(BIN)/python -m pytest -n auto

quick: $(VENV)/developing ## run the tests that take little time
	$(BIN)/python -m pytest -n auto -m "not slow"

lint: $(VENV)/developing ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The folders are mapped to nvckpt.* in pyproject.toml, which mypy cannot see: links show them to it.
types: $(VENV)/developing ## check types, strictly
	@rm -rf .typing && mkdir -p .typing/nvckpt
	@ln -s ../../cli ../../codecs ../../formats ../../api/integrations .typing/nvckpt/
	@for file in api/*.py api/py.typed; do ln -s ../../$$file .typing/nvckpt/; done
	MYPYPATH=.typing $(BIN)/mypy --explicit-package-bases --namespace-packages -p nvckpt

check: lint types test ## all of the above checks

samples: $(VENV)/developing ## train the sample models anew (about two minutes; other bits on another machine)
	$(BIN)/python sample_data/make_samples.py

reliability: $(VENV)/developing ## kill 200 runs, fill 50 disks, and time many tensors and files (some minutes)
	$(BIN)/python tests/reliability.py --kills 200 --disks 50
	$(BIN)/python tests/scale.py

fuzz: $(VENV)/developing ## fuzz every reader and the container for a quarter of an hour
	$(PIP) --editable '.[fuzz]'
	$(BIN)/python tests/fuzz_run.py

bench-cpu: $(VENV)/developing ## measure the float codec on this CPU against what else is installed in .venv
	$(BIN)/python sample_data/bench_cpu.py

bench-gpu: $(VENV)/developing ## measure the float codec on this machine's GPU against nvCOMP (needs the cu12 or cu13 extra)
	$(BIN)/python sample_data/bench_gpu.py --gib 4 --nvcomp --out bench-gpu.json

bench-batch: $(VENV)/developing ## measure batches of small files: time a file, and how it grows
	$(BIN)/python sample_data/bench_batch.py

man: $(VENV)/installed ## make the manual page, cli/nvckpt.1, from the commands
	$(BIN)/python -m nvckpt.cli.manual > cli/nvckpt.1.new
	mv cli/nvckpt.1.new cli/nvckpt.1

clean: ## remove what the other targets made
	rm -rf $(VENV) .typing .demo build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable .
	@touch $@

$(VENV)/developing: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/installed
