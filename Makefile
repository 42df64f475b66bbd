# Two targets are all a fresh machine needs: `make demo` and `make test`.
# Both set up a virtual environment first, with exactly the versions that constraints.txt names.

# The first Python on the path that will do; `make test PYTHON=python3.12` takes another.
ifndef PYTHON
PYTHON := $(shell for python in python3 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& { echo "$$python"; exit; }; done; echo python3)
endif
VENV ?= .venv

VERSION := $(shell "$(PYTHON)" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install -qq --no-input --disable-pip-version-check -c constraints.txt

# A stamp says which Python the environment was made with, so that naming another makes it anew.
RUN_STAMP := $(VENV)/run-$(VERSION).stamp
TEST_STAMP := $(VENV)/test-$(VERSION).stamp

.DEFAULT_GOAL := help
.PHONY: help demo serve test bench wheel pins clean python

help:  ## say what there is
	@grep -hE '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):.*## (.*)/make \1\t\2/' | expand -t 16

demo: $(RUN_STAMP)  ## play the stories: real processes, on a plane made for them
	$(BIN)/leaseplane demo

serve: $(RUN_STAMP)  ## start the server on 127.0.0.1:7411
	$(BIN)/leaseplane serve

test: $(TEST_STAMP)  ## check everything: style, types, layers, tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest

bench: $(TEST_STAMP)  ## measure this machine
	$(BIN)/python -m bench

wheel: $(TEST_STAMP)  ## build the wheel into dist/
	$(BIN)/python -m hatchling build -t wheel

pins: | python  ## take the newest versions within the ranges of pyproject.toml into constraints.txt
	rm -rf $(VENV).pins
	"$(PYTHON)" -m venv $(VENV).pins
	$(VENV).pins/bin/python -m pip install --quiet --upgrade pip hatchling editables
	$(VENV).pins/bin/python -m pip install --quiet --no-build-isolation --group dev --editable .
	{ sed -n '/^#/p' constraints.txt; $(VENV).pins/bin/python -m pip freeze --all --exclude-editable \
	--exclude setuptools | tr 'A-Z_' 'a-z-' | LC_ALL=C sort; } > constraints.new
	mv constraints.new constraints.txt
	rm -rf $(VENV).pins

clean:  ## remove the environment and everything that was made
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# -- the environment ---------------------------------------------------------------------------

$(RUN_STAMP): pyproject.toml constraints.txt | python
	@echo "making $(VENV) with Python $(VERSION)"
	@rm -rf $(VENV)
	@"$(PYTHON)" -m venv $(VENV)
	@$(PIP_INSTALL) pip hatchling editables
	@$(PIP_INSTALL) --no-build-isolation --editable .
	@touch $@

$(TEST_STAMP): $(RUN_STAMP)
	@echo "adding what the tests need"
	@$(PIP_INSTALL) --group dev
	@touch $@

python:
	@case "$(VERSION)" in \
	3.11.*|3.12.*|3.13.*) ;; \
	"") echo "leaseplane: there is no '$(PYTHON)'; install Python 3.11, 3.12 or 3.13, or name one with make PYTHON=..." >&2; exit 1 ;; \
	*) echo "leaseplane: $(PYTHON) is Python $(VERSION), but 3.11, 3.12 or 3.13 is needed; name one with make PYTHON=..." >&2; exit 1 ;; \
	esac
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { \
	echo "leaseplane: $(PYTHON) has no venv module; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
