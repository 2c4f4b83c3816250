# make demo   train a ViT on handwritten digits, test it, predict, write a report
# make test   run the whole test suite
# make lint   formatting, lint, types
# make docs   build the site into site/; every warning is an error
# make vendor fetch, by npm, what the page of an exported model runs on
# make gpu    measure all on a GPU within nine minutes; again: go on with what is left
# make wheel  build a wheel with it into dist/
# All but gpu set up .venv first; PYTHON names another interpreter (3.11 or newer).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN ?= runs/demo

.PHONY: demo test lint docs format vendor gpu wheel clean

demo: $(VENV)/.installed
	$(BIN)/vitlab train digits --out $(RUN) --resume
	$(BIN)/vitlab evaluate $(RUN) digits
	$(BIN)/python examples/digit_images.py $(RUN)/images
	$(BIN)/vitlab predict $(RUN) $(RUN)/images --top 3
	@echo "The report: $(RUN)/report.html"

test: $(VENV)/.tested
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal

lint: $(VENV)/.tested
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)/.documented
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The site: site/index.html"

format: $(VENV)/.tested
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

vendor: $(VENV)/.installed
	$(BIN)/python -c 'from vitlab.pages.runtime import vendor; vendor()'

# with the Python that has PyTorch for the GPU, timm and transformers: nothing is installed
gpu:
	$(PYTHON) benchmarks/gpu.py --out runs/gpu

wheel: vendor
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) site .pytest_cache .ruff_cache .mypy_cache

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.tested: $(VENV)/.made pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@ $(VENV)/.installed

$(VENV)/.documented: $(VENV)/.made pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@ $(VENV)/.installed
