# Millrace. `make demo` and `make test` set up what they need; the other targets do too.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JOBS ?= 2

.PHONY: setup demo test check lint format types bench sim spark e2e clean

setup: $(READY)

$(READY): pyproject.toml setup.py tools/setup.sh $(wildcard src/millrace/kernels/*.c)
	@PYTHON=$(PYTHON) VENV=$(VENV) tools/setup.sh
	@touch $(READY)

demo: $(READY)
	@$(BIN)/millrace demo basic
	@$(BIN)/millrace demo failover

# Every change must pass this.
test: $(READY)
	@$(BIN)/pytest tests -m "not slow" -n $(JOBS) --dist loadfile

lint: $(READY)
	@$(BIN)/ruff check src tests
	@$(BIN)/ruff format --check src tests

types: $(READY)
	@$(BIN)/mypy

format: $(READY)
	@$(BIN)/ruff check --fix -q src tests
	@$(BIN)/ruff format src tests

check: lint types test

# The long ones: not part of every change.
e2e: $(READY)
	@$(BIN)/pytest tests -m slow

# Needs Java 17 or newer; installs PySpark on first use.
spark: $(READY)
	@$(BIN)/python -c 'import pyspark, pyarrow' 2>/dev/null || $(BIN)/pip install -q -e '.[spark]'
	@$(BIN)/pytest tests/spark

sim: $(READY)
	@$(BIN)/millrace sim --seeds 5000 --jobs $(JOBS) --resume sim-campaign.json
	@$(BIN)/millrace sim --mutation all --jobs $(JOBS)

bench: $(READY)
	@$(BIN)/millrace bench mqtt --against mosquitto,nats

clean:
	rm -rf $(VENV) build dist src/*.egg-info src/millrace/kernels/*.so
