# Millrace. `make demo` and `make test` set up what they need; the other targets do too.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JOBS ?= 2

.PHONY: setup demo test check lint format types bench campaign sim spark e2e clean

setup: $(READY)

$(READY): pyproject.toml setup.py tools/setup.sh $(wildcard src/millrace/kernels/*.c)
	@PYTHON=$(PYTHON) VENV=$(VENV) tools/setup.sh
	@touch $(READY)

# The main job: devices, a cluster, Spark, kills, and a check. Without Java the cluster's part of it.
demo: $(READY)
	@command -v java >/dev/null && { $(BIN)/python -c 'import pyspark, pyarrow, matplotlib' 2>/dev/null \
		|| $(BIN)/pip install -q -e '.[spark]'; } || true
	@$(BIN)/millrace demo pipeline

# Every change must pass this.
test: $(READY)
	@$(BIN)/pytest tests -m "not slow" -n $(JOBS) --dist loadfile -rfEs

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
	@$(BIN)/millrace sim --mode cluster --seeds 200 --jobs $(JOBS) --resume sim-campaign.json
	@$(BIN)/millrace sim --mutation all --jobs $(JOBS)
	@$(BIN)/millrace sim --mode primary-backup --seeds 1000 --jobs $(JOBS)
	@$(BIN)/millrace sim --mode routed --seeds 2000 --jobs $(JOBS)
	@$(BIN)/millrace sim --mode leaderless --seeds 2000 --jobs $(JOBS)

# Real faults on real processes, in small (about 8 minutes); docs/operations.md has the long ones.
campaign: $(READY)
	@$(BIN)/python -m millrace.lab.campaign kills --count 20
	@$(BIN)/python -m millrace.lab.campaign stops --count 10
	@$(BIN)/python -m millrace.lab.campaign power --count 3
	@$(BIN)/python -m millrace.lab.campaign partitions --rounds 1
	@$(BIN)/python -m millrace.lab.campaign rejoin --megabytes 64
	@$(BIN)/python -m millrace.lab.campaign quiet --minutes 1
	@$(BIN)/python -m millrace.lab.campaign.routed --kills 6
	@$(BIN)/python -m millrace.lab.campaign.primary_backup --kills 3

bench: $(READY)
	@$(BIN)/millrace bench mqtt --against mosquitto,nats
	@$(BIN)/millrace bench cluster
	@$(BIN)/millrace bench routed --plot routed.svg
	@$(BIN)/millrace bench log

clean:
	rm -rf $(VENV) build dist src/*.egg-info src/millrace/kernels/*.so
