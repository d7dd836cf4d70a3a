# Every command of the repository; `make` alone lists them. Each one sets up what it needs in .venv.

# The versions in constraints.txt are resolved for 3.11; any newer Python will do.
PYTHON ?= $(shell command -v python3.11 || echo python3)

VENV := .venv
PY := $(VENV)/bin/python

# For recipes that start Spark: the machine's Java if it will do, else the one in .venv.
WITH_JAVA = JAVA_HOME="$$($(PY) tools/java_home.py)" && export JAVA_HOME &&

# The same for tests and the demo: their Spark sessions are short, and start faster with some options
# of Java.
WITH_TEST_JAVA = JAVA_HOME="$$($(PY) tools/quick_java.py)" && export JAVA_HOME &&

# pytest in more processes than the two cores of CI, since many tests wait for disks and servers.
# Modules that share a session run in one of them.
PYTEST = $(PY) -m pytest --dist loadfile

# The tests start hundreds of processes, and each would compile Airflow from its source.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## List these commands
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name what; do printf '  make %-12s %s\n' "$$name" "$$what"; done

.PHONY: demo
demo: venv ## Neglected tables in, maintained tables out, the health page; DEMO=--serve keeps it running
	@$(WITH_TEST_JAVA) $(PY) demo/run.py $(DEMO)

.PHONY: test
test: check ## The checks, then every short test and a sample of the long ones
	$(WITH_TEST_JAVA) $(PYTEST) -n 4 --choose sample

.PHONY: test-all
test-all: venv ## The tests that make test leaves out
	$(WITH_TEST_JAVA) $(PYTEST) -n 4 --choose rest

.PHONY: quick
quick: python ## In two minutes: lint, types, and short tests that start nothing; it prints what it skips
	@folder=$$($(PYTHON) tools/make_venv.py --quick) && \
	$(MAKE) --no-print-directory --jobs 2 VENV=$$folder quick-types quick-tests

.PHONY: quick-types quick-tests
# The types of the orchestrators need their packages, which only .venv has.
quick-types:
	$(PY) -m mypy $(if $(filter %-quick,$(VENV)),-p delta_maintenance)
	$(if $(filter %-quick,$(VENV)),,$(PY) -m mypy tools)

quick-tests:
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	DELTA_MAINTENANCE_PLAY=few $(PYTEST) -n 2 --choose quick

.PHONY: nightly
nightly: venv ## What make test leaves out: every case, make fuzz, the other supported versions; NIGHTLY=PART
	$(PY) tools/nightly.py $(NIGHTLY)

.PHONY: durations
durations: venv ## The whole test suite; writes tests/durations.json, by which runs are divided
	$(WITH_TEST_JAVA) $(PYTEST) -n 4 --record-durations

.PHONY: check
check: venv ## Lint, formatting, types, import contracts, conformance document, documentation site
	@$(MAKE) --no-print-directory --jobs 2 check-types check-lint check-documents
	@$(PY) tools/weight.py

.PHONY: check-types check-lint check-documents
check-types:
	$(PY) -m mypy
	$(PY) -m mypy tools
	MYPYPATH=tests/operations/exercise $(PY) -m mypy -p delta_touch

check-lint:
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(VENV)/bin/lint-imports --no-logo

check-documents:
	$(PY) -m pytest -qq --conformance=check
	$(PY) tools/build_docs.py

.PHONY: docs
docs: venv ## Build the documentation site in build/docs/site; warnings are errors
	$(PY) tools/build_docs.py

.PHONY: fuzz
fuzz: venv ## Every verb on 10,000 damaged tables; FUZZ="--first N --cases N" plays some of them
	$(PY) -m tests.fuzz $(FUZZ)

.PHONY: conformance
conformance: venv ## Write docs/conformance.md anew from the marks on the tests
	$(PY) -m pytest -qq --conformance=write

.PHONY: bench
bench: venv ## The benchmark: every figure a ratio against a peer in the same run
	@$(WITH_JAVA) $(PY) -m benchmarks.run $(BENCH)

.PHONY: log-store
log-store: venv ## Build the jar with the log store for Delta Spark from its source
	$(WITH_JAVA) $(PY) tools/log_store.py

.PHONY: constraints
constraints: python ## Resolve the newest versions that fit pyproject.toml into constraints.txt
	$(PYTHON) tools/constraints.py > constraints.new
	mv constraints.new constraints.txt

.PHONY: clean
clean: ## Remove everything that these commands made, .venv included
	rm -rf $(VENV) .venv-quick .java-home .demo dist build constraints.new
	rm -rf .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf spark-warehouse metastore_db derby.log
	find plugin operators dags tests tools benchmarks demo -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

.PHONY: venv
venv: python
	@$(PYTHON) tools/make_venv.py > /dev/null

.PHONY: python
python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "$(PYTHON) is not a Python 3.11 or newer: install one, or name it: make PYTHON=/path/to/python" >&2; \
	  exit 1; }
