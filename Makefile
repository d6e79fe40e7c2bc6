# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# JAX keeps compiled programs here for the next run.
JAX_CACHE := JAX_COMPILATION_CACHE_DIR=$(VENV)/jax JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
	JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1
# JAX compiles each shape: two cases of a product are enough there, the layers are the same `keras.ops`.
ON_JAX := KERAS_BACKEND=jax CASES=2 $(JAX_CACHE)
PYTEST := $(BIN)/python -m pytest -q -p no:cacheprovider --durations 10
PARALLEL := -n 2 --dist worksteal
# Tests that compare numbers: they run once more with the instructions of a CPU without AVX-512.
OTHER_CPU := tests/test_losses.py tests/layers tests/models/test_quantization.py tests/models/test_transformer.py \
	tests/models/test_model_contract.py tests/models/test_generation.py
# The contract of each layer, a decoder, and a model that writes: `make test` runs it on the JAX backend.
CONTRACTS := tests/test_masks.py tests/test_losses.py tests/layers/test_contracts.py::test_layer_keeps_the_contract \
	tests/layers/test_stacks.py::test_decoding_in_chunks_equals_one_pass \
	tests/models/test_transformer.py::test_logits_agree_with_numpy \
	tests/models/test_model_contract.py::test_generate_is_greedy_search_by_full_passes
# All tests of the core.
JAX_CORE := tests/test_masks.py tests/test_losses.py tests/test_metrics.py tests/test_schedules.py tests/layers tests/models \
	tests/decoding tests/training/test_optimizers.py::test_the_average_of_weights_outlives_an_evaluation
# Tests that run once more on the next version of Keras. Continuous integration takes the contracts alone.
NEXT_KERAS_TESTS := tests/test_masks.py tests/test_losses.py tests/test_metrics.py tests/test_schedules.py tests/layers tests/models

# The next minor version of Keras. Until 3.16 is released it is a nightly, which PyPI removes after some weeks: take a
# newer one then, as in `make test-next-keras NEXT_KERAS=keras-nightly`. After the release it is 'keras==3.16.*'.
NEXT_KERAS ?= keras-nightly==3.16.0.dev2026102704
# It lies in front of the environment's Keras, so that TensorFlow is not installed a second time.
WITH_NEXT_KERAS := PYTHONPATH=$(abspath $(VENV))/next-keras

# Python keeps the compiled tests for the next run: to compile them takes each worker four seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo course docs docs-quick check-pages slides test test-quick test-contracts test-core test-next-keras test-next-keras-quick next-keras test-slow test-all lint lock format bench clean

demo: $(VENV)/.plots
	$(BIN)/python examples/demo.py --output demo

# The first page of the site shows the demo's model.
demo/pictures/attention.html:
	$(MAKE) demo

# The chapters of the course executed into notebooks in course/_build. What did not change is kept.
LANGUAGES ?= en,ko
ONLY ?=
course: $(VENV)/.course
	$(BIN)/python course/execute.py --languages $(LANGUAGES) --only '$(ONLY)'

# The site, English and Korean, in docs/_build/html, with the chapters. Any warning, and any link inside the site that leads nowhere, is an error.
docs: course demo/pictures/attention.html $(VENV)/.docs
	$(BIN)/python docs/build_site.py

# The same site with the chapters that are executed already: the others have a page that says so.
docs-quick: $(VENV)/.docs
	$(BIN)/python docs/build_site.py --quick

# Every page of the site, opened in Chromium: errors, what is cut or too wide, and the rules of axe-core.
check-pages: $(VENV)/.pages
	$(BIN)/python docs/check_pages.py

# Slides of the executed chapters in docs/_build/slides: HTML, and PDF where Chromium is installed.
slides: course $(VENV)/.docs $(VENV)/.pages
	$(BIN)/python docs/build_slides.py

# Tests compile much and run little, so XLA compiles quickly.
test-quick test-contracts test-core test-next-keras test-next-keras-quick test-slow: export XLA_FLAGS ?= --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true
# The quick part: each public behaviour once, on both backends. The last lines are the results of both.
test:
	@rm -f $(VENV)/results.txt
	$(MAKE) test-quick test-contracts TEST_RESULTS=$(VENV)/results.txt
	@cat $(VENV)/results.txt

# The quick tests of some folders, as in `make test-quick TESTS='tests/layers tests/test_masks.py'`.
TESTS ?=
test-quick: $(VENV)/.test
	$(PYTEST) $(PARALLEL) -m 'not slow' $(TESTS)

test-contracts: $(VENV)/.test
	$(ON_JAX) $(PYTEST) $(PARALLEL) -m 'not tensorflow and not slow' $(CONTRACTS)

# The core on JAX (the same `keras.ops`, so without the slow tests), and numbers on a CPU without AVX-512.
test-core: $(VENV)/.test
	$(ON_JAX) $(PYTEST) $(PARALLEL) -m 'not tensorflow and not slow' $(JAX_CORE)
	@if grep -qs avx512f /proc/cpuinfo; then \
		ONEDNN_MAX_CPU_ISA=AVX2 $(PYTEST) $(PARALLEL) -m 'not slow' $(OTHER_CPU); \
	else echo "This CPU has no AVX-512: all tests ran without it already."; fi

# Layers and models on the next minor version of Keras.
test-next-keras: next-keras
	$(WITH_NEXT_KERAS) $(PYTEST) $(PARALLEL) -m 'not slow' $(NEXT_KERAS_TESTS)

test-next-keras-quick: next-keras
	$(WITH_NEXT_KERAS) $(PYTEST) $(PARALLEL) -m 'not slow' $(CONTRACTS) tests/models/test_quantization.py::test_lora_of_heads_has_its_rank

next-keras: $(VENV)/.test
	rm -rf $(VENV)/next-keras
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(VENV)/next-keras '$(NEXT_KERAS)'
	$(WITH_NEXT_KERAS) $(BIN)/python -c 'import keras; print("next Keras:", keras.__version__)'

# What `make test` leaves out.
test-slow: $(VENV)/.test
	$(PYTEST) $(PARALLEL) -m slow

test-all:
	$(MAKE) test
	$(MAKE) test-core
	$(MAKE) test-slow

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.test
	$(BIN)/python benchmarks/training.py

clean:
	rm -rf $(VENV) demo build dist docs/_build docs/reference/generated docs/learn/course course/_build *.egg-info

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)

# One mark for each set of extras, renewed when the needs change. The versions and the hashes of their files are those of
# requirements/, so that every machine gets the same.
$(VENV)/.%: requirements/%.txt setup.cfg pyproject.toml | $(VENV)/bin/python
	@echo "Installing the library and what it needs into $(VENV) (a minute or two) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements/$*.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# The newest versions that setup.cfg allows, for every system and Python: needs `pip install uv`.
COMPILE := uv pip compile setup.cfg --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header
lock: | $(VENV)/bin/python
	$(COMPILE) --all-extras --upgrade --output-file $(VENV)/all.txt
	for set in test plots course docs pages; do \
		$(COMPILE) --extra $$set --constraint $(VENV)/all.txt --output-file requirements/$$set.txt || exit 1; \
	done
