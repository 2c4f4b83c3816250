# make demo   train a ViT on handwritten digits, test it, predict, write a report
# make test   run the test suite
# make test-slow  its slowest tests, which compile or drive a browser
# make test-benchmarks  the tests of the programs in benchmarks/
# make test-spawn  the tests of worker processes, in every way that systems start these
# make test-avx2  the tests of precision and engines, as on a processor with AVX2 alone
# make test-fast  its fast half, in three minutes
# make test-newest  lint, types and the fast half with the newest Python here beside the default one
# make lint   formatting, lint, types
# make docs   build the site into site/; every warning is an error
# make vendor fetch, by npm, what the page of an exported model runs on
# make gpu    measure all on a GPU within nine minutes; again: go on with what is left
# make wheel  build a wheel with it into dist/
# All but gpu set up .venv first; PYTHON names another interpreter (3.11 to 3.14).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN ?= runs/demo
WORKERS := $(addprefix tests/,data evaluation/test_features.py evaluation/test_shards.py training/test_train.py)
# most rooms' quick tests; what trains whole runs, draws films or measures has more to do than time
SLOWER := $(addprefix tests/,test_adapters.py test_advice_lines.py data/test_holdout.py)
FAST := $(filter-out $(SLOWER),$(wildcard $(addprefix tests/,test_*.py client deploy pages measure objectives optim \
	data/test_*.py data/augment data/sources data/pictures evaluation/bias evaluation/paired evaluation/probes \
	evaluation/review on_gpu/test_stand_in.py typed recipes/test_[!a]*.py)))

.PHONY: demo test test-slow test-benchmarks test-spawn test-avx2 test-fast test-newest lint docs format vendor gpu wheel clean

demo: $(VENV)/.installed
	$(BIN)/vitlab train digits --out $(RUN) --resume
	$(BIN)/vitlab evaluate $(RUN) digits
	$(BIN)/python examples/digit_images.py $(RUN)/images
	$(BIN)/vitlab predict $(RUN) $(RUN)/images --top 3
	@echo "The report: $(RUN)/report.html"

test: $(VENV)/.tested
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal

test-slow: $(VENV)/.tested
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal -m slow

test-benchmarks: $(VENV)/.tested
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal -m 'benchmarks and not slow' tests/benchmarks

# as on macOS, and as on Linux from Python 3.14 on
test-spawn: $(VENV)/.tested
	for method in spawn forkserver; do \
		VITLAB_START_METHOD=$$method PYTHONPATH=$(CURDIR)/tests/start_method$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python -m pytest \
			-n auto --dist worksteal -m workers $(WORKERS) || exit 1; \
	done

# as on processors with AVX2 alone: the fallbacks of whatever the processor decides
test-avx2: $(VENV)/.tested
	ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 $(BIN)/python -m pytest -n auto --dist worksteal \
		tests/models/fast tests/test_precision.py tests/training/test_precision.py \
		tests/training/test_own_code.py tests/evaluation/test_compute.py tests/serve/test_fast_trunks.py

test-fast: $(VENV)/.tested
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal -m "not campaign and not slow and not workers" $(FAST)

# with a venv of its own, .venv-newest; where there is no other Python, a line says so
test-newest:
	@PYTHON=$(PYTHON) .ci/newest

lint: $(VENV)/.tested
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)/.documented
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
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
	rm -rf $(VENV) .venv-newest site .pytest_cache .ruff_cache .mypy_cache

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15) and "Python 3.11 to 3.14 is needed: make PYTHON=python3.12")'
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
