# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# What JAX compiled, for the next time.
JAX_CACHE := JAX_COMPILATION_CACHE_DIR=$(VENV)/jax JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
	JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1

.PHONY: demo test test-all lint format bench clean

demo: $(VENV)/.plots
	$(BIN)/python examples/demo.py --output demo

# Both backends at once, as much of either is waiting; what JAX's part says comes at the end. `make test` leaves out what is
# marked as slow, and most of JAX's turn: there it tries the contract of every layer and the Transformer, while a test of both
# backends compares searches; `make test-all` leaves out nothing. A test runs what XLA compiles once or twice: the compiling
# is to be quick, not the program.
JAX_ALWAYS := tests/test_masks.py tests/test_schedules.py tests/test_losses.py tests/test_metrics.py
test: CHOSEN = not slow
test: JAX_TESTS = $(JAX_ALWAYS) tests/layers/test_contracts.py tests/layers/test_decoder.py tests/models/test_transformer.py
test-all: CHOSEN = slow or not slow
test-all: JAX_TESTS = $(JAX_ALWAYS) tests/layers tests/models tests/decoding
test test-all: export XLA_FLAGS ?= --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true
test test-all: $(VENV)/.test
	@KERAS_BACKEND=jax $(JAX_CACHE) $(BIN)/python -m pytest -q -p no:cacheprovider --durations 15 \
		-m 'not tensorflow and ($(CHOSEN))' $(JAX_TESTS) >$(VENV)/jax.log 2>&1 & jax=$$!; \
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --durations 15 -m '$(CHOSEN)'; tensorflow=$$?; \
	wait $$jax; jax=$$?; cat $(VENV)/jax.log; \
	test $$tensorflow = 0 && test $$jax = 0

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.test
	$(BIN)/python benchmarks/training.py

clean:
	rm -rf $(VENV) demo build dist *.egg-info

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)

# One mark for each set of extras, renewed when the needs change.
$(VENV)/.%: setup.cfg pyproject.toml | $(VENV)/bin/python
	@echo "Installing the library and what it needs into $(VENV) (a minute or two) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@
