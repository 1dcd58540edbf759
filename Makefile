# Two commands do everything on a fresh machine: `make verify` and `make test`.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: verify workers test lint docs docs-check bench wheel-check clean

verify: $(READY)
	$(BIN)/skill-run worker setup
	$(BIN)/skill-run verify

workers: $(READY)
	$(BIN)/skill-run worker setup core-0.16.1
	$(BIN)/skill-run worker setup cpu-0.6.2

test: $(READY)
	$(BIN)/python -m pytest -p no:cacheprovider

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	for skill in skills/*/; do $(BIN)/agentskills validate $$skill || exit 1; done

docs: $(READY)
	$(BIN)/python docs/generate.py
	$(BIN)/python scripts/package_clients.py

docs-check: $(READY)
	$(BIN)/python docs/generate.py --check
	$(BIN)/python scripts/package_clients.py --check

bench: $(READY)
	$(BIN)/python bench/run.py
	$(BIN)/python bench/assign_packs.py
	$(BIN)/python bench/pack_files.py

wheel-check: $(READY)
	bash tests/wheel/check.sh $(abspath $(BIN)/python)

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "skill-run needs Python 3.11 or newer on PATH"; exit 3; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $(READY)

clean:
	rm -rf $(VENV) dist build
