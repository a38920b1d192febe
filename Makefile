# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo docs links compose test test-slow lint audit lock sbom format setup stubs clean

# Installs what a user needs, none of the developers' tools
demo: $(VENV)/.base
	$(BIN)/cafe demo --out runs/demo

# As whoever calls, but never as root: the results are theirs to remove
compose: export CAFE_USER ?= $(shell [ $$(id -u) = 0 ] && echo 1000:1000 || echo $$(id -u):$$(id -g))
compose:
	docker compose up --build --exit-code-from server; code=$$?; docker compose down --volumes; exit $$code

# The tests start many processes, each of which would compile our modules again where bytecode is not kept
test test-slow: export PYTHONDONTWRITEBYTECODE :=

# Three files at a time, as most of them wait for something now and then, the long ones first (tests/conftest.py); the
# containers have a line of their own in .ci/run
test: setup
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m 'not slow' --ignore tests/deploy/test_compose.py

# More of the same kind, which would take CI beyond its time
test-slow: setup
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m slow --ignore tests/deploy/test_compose.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive protos vfl server worker attacker

# The pinned packages against the public list of known faults, which needs a network
audit: setup
	$(BIN)/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

# What the image installs, with hashes; WHEELS names folders with wheels of your own that may be installed too
lock: setup
	$(BIN)/python deploy/lock.py $(WHEELS)

# What is installed here, as a CycloneDX bill of materials; the image has its own in /opt/cafe/sbom.cdx.json
sbom: setup
	mkdir -p build
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file build/sbom.cdx.json $(BIN)/python

# The pages as a site in build/site, without a network; a link that leads nowhere is an error
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Badges and links to the project's repository, from its address in pyproject.toml
links: setup
	$(BIN)/python deploy/links.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

stubs: setup
	$(BIN)/python -m protos.generate

setup: $(VENV)/.installed

INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable
define MAKE_VENV
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
endef

$(VENV)/.base: pyproject.toml constraints.txt
	$(MAKE_VENV)
	$(INSTALL) .
	touch $@

$(VENV)/.installed: pyproject.toml constraints.txt
	$(MAKE_VENV)
	$(INSTALL) '.[dev]'
	touch $(VENV)/.base $@

clean:
	rm -rf $(VENV) build runs *.egg-info
