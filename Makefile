# Millrace. `make demo` and `make test` set up what they need; the other targets do too.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JOBS ?= 2
# Tests wait for nodes and browsers most of the time: on two cores four at once take less time than two.
TEST_JOBS ?= 4
# `make test` is for every change and takes minutes. CI runs what is long as well; `make e2e` runs all the rest.
QUICK := not slow and not long
LINTED := src tests tools

.PHONY: help setup dashboard screenshots jar demo docs reference cli-page test check lint format types e2e spark lakehouse sim fresh-seeds campaign fuzz fuzz-decoders fuzz-openapi bench audit \
	test-newest wheel-test release lock clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(READY) dashboard  ## make .venv from requirements-dev.lock, with the program at .venv/bin/millrace

$(READY): pyproject.toml setup.py requirements-dev.lock tools/setup.sh tools/packages.sh $(wildcard src/millrace/kernels/*.[ch])
	@PYTHON=$(PYTHON) VENV=$(VENV) tools/setup.sh
	@touch $(READY)

dashboard:  ## build the web dashboard into the package, if its sources changed; needs npm
	@tools/dashboard.sh

screenshots: dashboard  ## photographs of every page of the dashboard, in dashboard/screenshots and docs; needs Chromium
	@npm --prefix dashboard run -s screenshots
	@npm --prefix dashboard run -s pictures

jar: $(READY)  ## build the Spark source in Java into the package, if its sources changed; needs javac and PySpark
	@VENV=$(VENV) tools/jar.sh

demo: $(READY)  ## the main job: devices, a cluster, Spark, kills and a check; without Java the cluster's part of it
	@command -v java >/dev/null && { $(BIN)/python -c 'import pyspark, pyarrow, matplotlib' 2>/dev/null \
		|| { echo 'demo: installing PySpark, Arrow and matplotlib, about 900 MB on disk, once'; \
		$(BIN)/pip install --disable-pip-version-check -e '.[spark]'; }; } || true
	@$(BIN)/millrace demo pipeline

# In CI what fails runs once more, alone: see tests/UNSTEADY.md.
test: $(READY)  ## the tests that every change must pass
	@$(BIN)/$(if $(CI),python tools/ci_tests.py --jobs $(TEST_JOBS) --marker "not slow" tests,pytest tests -m "$(QUICK)" \
		-n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder -rfEs)

check: lint types audit test  ## lint, types, known faults of dependencies where they can be asked for, and tests

lint: $(READY)  ## look for faults of style and form
	@$(BIN)/ruff check $(LINTED)
	@$(BIN)/ruff format --check $(LINTED)

types: $(READY)  ## look for faults of types
	@$(BIN)/mypy
	@$(BIN)/mypy tools/*.py

# Needs a public database; where it cannot be reached it says so, and is no failure of the change.
audit: $(READY)  ## ask a public database about known faults of the dependencies
	@VENV=$(VENV) tools/audit.sh

format: $(READY)  ## mend the style and form that can be mended by a machine
	@$(BIN)/ruff check --fix -q $(LINTED)
	@$(BIN)/ruff format $(LINTED)

docs: $(READY)  ## build the documentation into build/site; REWRITE=1 first runs its commands and writes their outputs anew
	@$(BIN)/python -c 'import material' 2>/dev/null || $(BIN)/pip install -q --disable-pip-version-check -e '.[docs]'
	@$(if $(REWRITE),$(BIN)/pytest tests/docs --rewrite)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@$(BIN)/python tools/docs_check.py build/site
	@echo "docs: built; to read them: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000"

reference: $(READY) cli-page  ## write the pages of docs/reference that are made from the code
	@$(BIN)/python tools/python_page.py
	@$(BIN)/python tools/errors_page.py
	@$(BIN)/pytest tests/unit/config/test_settings_page.py --rewrite

cli-page: $(READY)  ## write docs/reference/cli.md from the commands
	@$(BIN)/python tools/cli_page.py

e2e: $(READY)  ## the long tests, which are not part of every change
	@$(BIN)/pytest tests -m "slow or long"

spark: $(READY)  ## the tests with Spark; needs Java 17 or newer, installs PySpark on first use
	@$(BIN)/python -c 'import pyspark, pyarrow' 2>/dev/null || $(BIN)/pip install -q -e '.[spark]'
	@VENV=$(VENV) tools/jar.sh
	@$(BIN)/pytest tests/spark
	@MILLRACE_SPARK_JAR=1 $(BIN)/pytest tests/spark

# Delta Lake has no build for the newest Spark yet.
lakehouse: $(READY)  ## the example with Delta Lake, on the PySpark that Delta Lake is built for; needs Java and mvn
	@[ -d build/pyspark-4.2/pyspark ] || $(BIN)/pip install -q --disable-pip-version-check --target build/pyspark-4.2 'pyspark==4.2.1'
	@$(BIN)/python -c 'import pyarrow, pandas' 2>/dev/null || $(BIN)/pip install -q -e '.[spark]'
	@PYTHONPATH=$(CURDIR)/build/pyspark-4.2 $(BIN)/pytest tests/spark/test_lakehouse.py -rs

sim: $(READY)  ## many seeds of the simulator in every mode, and the search for planted bugs
	@$(BIN)/millrace sim --seeds 5000 --jobs $(JOBS) --resume sim-campaign.json
	@$(BIN)/millrace sim --mode cluster --seeds 200 --jobs $(JOBS) --resume sim-campaign.json
	@$(BIN)/millrace sim --mutation all --jobs $(JOBS)
	@$(BIN)/millrace sim --mode primary-backup --seeds 1000 --jobs $(JOBS)
	@$(BIN)/millrace sim --mode routed --seeds 2000 --jobs $(JOBS)
	@$(BIN)/millrace sim --mode leaderless --seeds 2000 --jobs $(JOBS)

fresh-seeds: $(READY)  ## some seeds of every mode, chosen by the commit (SEED=N: another first seed)
	@VENV=$(VENV) JOBS=$(JOBS) tools/fresh_seeds.sh

# docs/evidence/campaigns.md has the long ones.
campaign: $(READY)  ## real faults on real processes, in small (about 20 minutes)
	@$(BIN)/python -m millrace.lab.campaign kills --count 20
	@$(BIN)/python -m millrace.lab.campaign stops --count 10
	@$(BIN)/python -m millrace.lab.campaign stalls --count 5
	@$(BIN)/python -m millrace.lab.campaign random-kills --minutes 1
	@$(BIN)/python -m millrace.lab.campaign power --of all --count 3
	@$(BIN)/python -m millrace.lab.campaign power --of one --count 10
	@$(BIN)/python -m millrace.lab.campaign partitions --rounds 1
	@$(BIN)/python -m millrace.lab.campaign single-faults --rounds 1
	@$(BIN)/python -m millrace.lab.campaign damage --count 20
	@$(BIN)/python -m millrace.lab.campaign members --count 10
	@$(BIN)/python -m millrace.lab.campaign rolling --rounds 1
	@$(BIN)/python -m millrace.lab.campaign rolling --upgrade
	@$(BIN)/python -m millrace.lab.campaign rejoin --megabytes 64
	@$(BIN)/python -m millrace.lab.campaign quiet --minutes 1
	@$(BIN)/python -m millrace.lab.campaign nightly --minutes 2 --clients foreign
	@$(BIN)/python -m millrace.lab.campaign churn --minutes 2
	@$(BIN)/python -m millrace.lab.campaign.routed --kills 6
	@$(BIN)/python -m millrace.lab.campaign.primary_backup --kills 3
	@$(BIN)/python -m millrace.lab.campaign.siege --idle 1000 --half-open 200 --seconds 5

fuzz: $(READY)  ## random and mutated input, 10 million packets without sockets, then against a live node (SECONDS=600 SEED=1)
	@PYTHONPATH=tests $(BIN)/python tests/fuzzing/doors.py --seed $(or $(SEED),1)
	@PYTHONPATH=tests $(BIN)/python tests/fuzzing/live.py --seconds $(or $(SECONDS),600) --seed $(or $(SEED),1)

fuzz-decoders: $(READY)  ## coverage-guided input for the decoders, by atheris: pip install -e '.[fuzz]' (SECONDS=600)
	@PYTHONPATH=tests $(BIN)/python tests/fuzzing/decoders.py -max_total_time=$(or $(SECONDS),600)

fuzz-openapi: $(READY)  ## requests that schemathesis makes of the OpenAPI document: pip install -e '.[fuzz]' (SECONDS=600 SEED=1)
	@PYTHONPATH=tests $(BIN)/python tests/fuzzing/openapi.py --seconds $(or $(SECONDS),600) --seed $(or $(SEED),1)

bench: $(READY)  ## the benchmarks, beside mosquitto and nats
	@$(BIN)/millrace bench mqtt --against mosquitto,nats
	@$(BIN)/millrace bench cluster
	@$(BIN)/millrace bench routed --plot routed.svg
	@$(BIN)/millrace bench log
	@$(BIN)/millrace bench scale

test-newest: $(READY)  ## the unit tests on the newest other Python at hand, if there is one
	@VENV=$(VENV) JOBS=$(JOBS) tools/newest_python_test.sh

wheel-test: $(READY)  ## build the wheel, install it outside the repository, use it there
	@PYTHON=$(PYTHON) VENV=$(VENV) tools/wheel_test.sh

release: $(READY) dashboard  ## build source distribution and wheel into dist/, install and try each; uploads nothing
	@PYTHON=$(PYTHON) VENV=$(VENV) tools/release.sh

lock:  ## write requirements-dev.lock anew, with the newest versions
	@PYTHON=$(PYTHON) tools/lock.sh

clean:  ## remove what set-up and builds have made
	rm -rf $(VENV) build dist src/*.egg-info src/millrace/kernels/*.so dashboard/node_modules \
		src/millrace/node/doors/http/assets/dashboard src/pyspark_millrace/jars
