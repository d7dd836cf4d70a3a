# Every command of the repository; `make` alone lists them. Each one sets up what it needs in .venv.

# The versions in constraints.txt are resolved for 3.11; any newer Python will do.
PYTHON ?= $(shell command -v python3.11 || echo python3)

VENV := .venv
PY := $(VENV)/bin/python

# For recipes that start Spark: the machine's Java if it will do, else the one in .venv.
WITH_JAVA = JAVA_HOME="$$($(PY) tools/java_home.py)" && export JAVA_HOME &&

# The tests start hundreds of processes, and each would compile Airflow from its source.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## List these commands
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name what; do printf '  make %-12s %s\n' "$$name" "$$what"; done

.PHONY: demo
demo: venv ## Neglected table in, checkpointed table out, the health page; DEMO=--serve keeps it running
	@$(WITH_JAVA) $(PY) demo/run.py $(DEMO)

.PHONY: test
test: check ## The whole test suite, after the checks
	$(WITH_JAVA) $(PY) -m pytest -n 2 --dist loadfile

.PHONY: check
check: venv ## Lint, formatting, types, import contracts, conformance document, documentation site
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	$(PY) -m mypy tools
	$(VENV)/bin/lint-imports --no-logo
	$(PY) -m pytest -qq --conformance=check
	$(PY) tools/build_docs.py

.PHONY: docs
docs: venv ## Build the documentation site in build/docs/site; warnings are errors
	$(PY) tools/build_docs.py

.PHONY: conformance
conformance: venv ## Write docs/conformance.md anew from the marks on the tests
	$(PY) -m pytest -qq --conformance=write

.PHONY: bench
bench: venv ## The benchmark: every figure a ratio against a peer in the same run
	@$(WITH_JAVA) $(PY) -m benchmarks.run

.PHONY: constraints
constraints: python ## Resolve the newest versions that fit pyproject.toml into constraints.txt
	$(PYTHON) tools/constraints.py > constraints.new
	mv constraints.new constraints.txt

.PHONY: clean
clean: ## Remove everything that these commands made, .venv included
	rm -rf $(VENV) .java-home .demo dist build constraints.new
	rm -rf .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf spark-warehouse metastore_db derby.log
	find plugin operators dags tests tools benchmarks demo -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

.PHONY: venv
venv: python
	@$(PYTHON) tools/make_venv.py

.PHONY: python
python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "$(PYTHON) is not a Python 3.11 or newer: install one, or name it: make PYTHON=/path/to/python" >&2; \
	  exit 1; }
