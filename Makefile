# Every target sets up what it needs by itself, once: virtual environment, wheels, package, jars.
# Stamps in .venv remember what is done, so the second time costs nothing.

PYTHON ?= $(firstword $(foreach name,python3 python3.11 python3.12 python3.13,\
	$(shell $(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name))))
BIN := .venv/bin
ADVICE_PYTHON := oncehouse needs Python 3.11 or newer as python3; set PYTHON=/path/to/python3.11 if it stands elsewhere
ADVICE_VENV := The virtual environment could not be made; on Debian or Ubuntu: apt install python3-venv
ADVICE_CHROMIUM := the browser tests need Chromium: apt install chromium, as root
ADVICE_JAVA := oncehouse needs Java 17 or 21; on Debian or Ubuntu: apt install openjdk-17-jre-headless, or set JAVA_HOME

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo cluster-demo shops test chromium browser versions check chaos soak fuzz bench bench-full docs coverage dist sizes audit lock clean java
MAKEFLAGS += --no-print-directory

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: java .venv/.jars ## virtual environment, wheels, package and jars

demo: setup ## a million events with duplicates, a crash and a lost answer; ends well only with nothing lost or doubled
	@$(BIN)/python examples/demo/demo.py

cluster-demo: setup ## the same on a Spark cluster with PostgreSQL and S3: an executor, a machine and the driver are killed
	@$(BIN)/python examples/demo/cluster_demo.py

shops: .venv/.package ## a Django and a SQLAlchemy shop, synced under random changes; ends well only with dashboards that are equal
	@$(BIN)/python examples/django-shop/run.py
	@$(BIN)/python examples/sqlalchemy-shop/run.py

test: setup ## checks and tests on real servers, with the short chaos scenarios
	@$(MAKE) check
	@$(BIN)/python -m pytest -n 2 --dist worksteal

check: .venv/.package ## ruff, mypy, import-linter
	@$(BIN)/ruff check --no-cache --quiet
	@$(BIN)/ruff format --check --quiet || { echo "ruff format would change these files:"; $(BIN)/ruff format --check; exit 1; } >&2
	@out=$$($(BIN)/mypy 2>&1) || { echo "$$out"; exit 1; } >&2
	@out=$$($(BIN)/lint-imports 2>&1) || { echo "$$out"; exit 1; } >&2

chaos: setup ## every crash and fault scenario, or SCENARIO="its name" alone
	@$(BIN)/python -m pytest --all-chaos $(if $(SCENARIO),--scenario "$(SCENARIO)",-n 2 --dist worksteal)

soak: setup ## full load for 20 minutes and more while everything is killed at random; nothing lost or doubled, nothing leaks
	@mkdir -p build
	@$(BIN)/python tools/soak.py

chromium: ## the browser that the dashboard's tests need, installed on Debian where it is missing
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null \
		|| { [ "$$(id -u)" = 0 ] && apt-get update -q >/dev/null && apt-get install -y -q chromium >/dev/null; } \
		|| { echo "$(ADVICE_CHROMIUM)"; exit 1; } >&2

browser: .venv/.package chromium ## the dashboard in a real Chromium; SCREENSHOTS=1 makes those of the docs anew
	@ONCEHOUSE_BROWSER=required $(BIN)/python -m pytest tests/browser $(if $(SCREENSHOTS),--write-screenshots)

fuzz: .venv/.package ## decoders, times and types against far more random and damaged inputs than in the tests
	@FUZZ_FACTOR=50 $(BIN)/python -m pytest tests/unit -m fuzz --timeout 3600

bench: setup ## speed on this machine beside others, in about ten minutes; figures go to build/bench.json, plots beside it
	@$(BIN)/python benchmarks/run.py

bench-full: setup ## the same at full length, with all peers and a billion keys: more than an hour
	@$(BIN)/python benchmarks/run.py --full

docs: .venv/.package build/docs/.wheels ## the documentation as a site in build/site; a warning is an error
	@$(BIN)/python tools/cli_options.py >build/options.md
	@out=$$(NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --strict 2>&1) || { echo "$$out" | grep -v '^INFO'; exit 1; } >&2
	@echo "build/site/index.html"

coverage: setup ## the tests of `make test` under coverage; fails below `fail_under` of pyproject.toml
	@rm -rf build/coverage
	@$(BIN)/coverage run -m pytest -n 2 --dist worksteal
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage html --quiet --fail-under=0
	@echo "build/coverage/html/index.html shows every line; covered, in percent:"
	@$(BIN)/coverage report --format=total

dist: .venv/.package ## wheel and sdist of this version, in dist/
	@rm -rf dist
	@$(BIN)/hatchling build

versions: .venv/.package ## model sync with every version of Django, SQLAlchemy and Python that it supports
	@$(BIN)/python tools/versions.py

sizes: .venv/.package ## what the core and each extra take on disk
	@$(BIN)/python tools/installed_size.py

audit: build/audit/.wheels ## known vulnerabilities, bandit, and a bill of materials in build/sbom.json
	@build/audit/bin/python tools/audit.py

lock: ## pin requirements anew, with hashes and without addresses
	@$(PYTHON) -m venv build/lock && build/lock/bin/pip install --quiet uv
	@for name in runtime dev redis audit docs django-clickhouse peers peer-quixstreams; do build/lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate \
		requirements/$$name.in -o requirements/$$name.txt || exit 1; done
	@for name in $(basename $(wildcard requirements/versions/*.in)); do build/lock/bin/uv pip compile --quiet --upgrade \
		--universal --python-version 3.12 --no-deps --generate-hashes --no-emit-index-url --no-emit-find-links --no-header \
		--no-annotate $$name.in -o $$name.txt || exit 1; done

clean: ## stop the dev stack and remove all that was made here, its data included
	@if [ -d .oncehouse/dev ] && [ -x $(BIN)/python ]; then \
		$(BIN)/python -c 'from oncehouse.devstack.stack import down; down()'; fi
	@rm -rf .venv .oncehouse build dist .mypy_cache .ruff_cache .import_linter_cache .hypothesis

java:
	@{ [ -n "$$JAVA_HOME" ] && [ -x "$$JAVA_HOME/bin/java" ]; } || command -v java >/dev/null \
		|| { echo "$(ADVICE_JAVA)"; exit 1; } >&2

.venv/.wheels: requirements/dev.txt requirements/redis.txt
	@[ -n "$(PYTHON)" ] || { echo "$(ADVICE_PYTHON)"; exit 1; } >&2
	@echo "setting up .venv (once)"
	@[ -x $(BIN)/pip ] || $(PYTHON) -m venv --clear .venv >/dev/null || { echo "$(ADVICE_VENV)"; exit 1; } >&2
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/redis.txt --no-deps --upgrade \
		--python-version 3.11 --only-binary :all: \
		--target $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	@touch $@

build/audit/.wheels: requirements/audit.txt
	@[ -n "$(PYTHON)" ] || { echo "$(ADVICE_PYTHON)"; exit 1; } >&2
	@$(PYTHON) -m venv --clear build/audit >/dev/null || { echo "$(ADVICE_VENV)"; exit 1; } >&2
	@build/audit/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/audit.txt
	@touch $@

build/docs/.wheels: requirements/docs.txt
	@[ -n "$(PYTHON)" ] || { echo "$(ADVICE_PYTHON)"; exit 1; } >&2
	@$(PYTHON) -m venv --clear build/docs >/dev/null || { echo "$(ADVICE_VENV)"; exit 1; } >&2
	@build/docs/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

.venv/.package: .venv/.wheels pyproject.toml
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.venv/.jars: .venv/.package src/oncehouse/devstack/jars.py
	@$(BIN)/python -m oncehouse.devstack.jars
	@touch $@
