# Two commands do everything:
#
#   make lab     build what is needed and open JupyterLab on examples/quickstart.ipynb
#   make test    install what the tests need and run every gate
#
# Both need Python >= 3.11, Node >= 20.19 and, for what is missing, Debian's apt-get. What they
# install stays in .venv/ and node_modules/; a second run starts at once. PYTHON=python3.12 chooses
# the interpreter, VENV=dir another directory.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
STAMPS := $(VENV)/stamps
export PYTHON
export PATH := $(abspath $(VENV))/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD := 1

FRONT_END := package.json tsconfig.json install.json \
  $(shell find labextension -type f -not -path '*/lib/*' -not -path '*/node_modules/*' -not -name '*.tsbuildinfo' 2>/dev/null)
DATA_FILES := $(shell find jupyter-config -type f 2>/dev/null)

.PHONY: help lab test lint pytest bench soak screenshots wheel clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile
	@echo "Also: lint, pytest (ARGS=...), bench, soak, screenshots, wheel, clean."

# --- the two commands ----------------------------------------------------------------------------

lab: $(STAMPS)/package
	@bash examples/lab.sh

test: lint pytest

# --- gates ---------------------------------------------------------------------------------------

lint: $(STAMPS)/test
	ruff check .
	ruff format --check .
	mypy
	lint-imports
	npm run --silent lint:check

pytest: $(STAMPS)/test
	pytest $(ARGS)

bench: $(STAMPS)/test
	pip install -q -e '.[bench]' --no-build-isolation
	python benchmarks/attach.py
	python benchmarks/kernel_start.py
	python benchmarks/nvidia_smi.py
	python benchmarks/viewers.py
	python benchmarks/daemon.py
	python benchmarks/sidebar.py
	python benchmarks/sampling.py

# The pictures of the documentation, and the tests that take them.
PICTURES := sidebar=story-1-shared-light popover=popover-light notification=toast-lease-notebook \
  history=history-device-light attach=attach-light

# MINUTES=2 is what `make test` does.
MINUTES ?= 10
soak: $(STAMPS)/test
	python benchmarks/soak.py --minutes $(MINUTES)

screenshots: $(STAMPS)/test
	pytest tests/browser/test_story.py tests/browser/test_around.py tests/browser/test_history.py \
	  tests/browser/test_form.py
	$(foreach one,$(PICTURES),cp .artifacts/screenshots/$(lastword $(subst =, ,$(one))).png \
	  docs/images/$(firstword $(subst =, ,$(one))).png;)

wheel: $(STAMPS)/labextension
	pip install -q build
	python -m build

clean:
	rm -rf genv_jupyter/labextension genv_jupyter/hub/static labextension/lib dist build .artifacts
	find . -name '*.tsbuildinfo' -not -path './node_modules/*' -delete
	rm -rf $(STAMPS)/labextension

# --- what they need, each made once --------------------------------------------------------------

$(STAMPS)/venv: tests/setup.sh
	bash tests/setup.sh base
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; say PYTHON=python3.12 make ...")'
	@node -e 'const [a, b] = process.versions.node.split(".").map(Number); if (!(a > 22 || (a === 22 && b >= 12) || (a === 20 && b >= 19))) { console.error("Node 20.19, 22.12 or newer is needed, not " + process.version); process.exit(1); }'
	$(PYTHON) -m venv $(VENV)
	pip install -q --upgrade pip
	mkdir -p $(STAMPS)
	touch $@

$(STAMPS)/build-tools: $(STAMPS)/venv
	pip install -q --group build
	touch $@

$(STAMPS)/node_modules: package-lock.json package.json $(wildcard .npmrc) | $(STAMPS)/venv
	npm ci --no-audit --no-fund
	touch $@

$(STAMPS)/labextension: $(STAMPS)/node_modules $(STAMPS)/build-tools $(FRONT_END)
	npm run --silent build:prod
	touch $@

# Editable: the Python code is used where it is; the data files, the front end among them, are
# copied, so a new front end means installing again. The hook is skipped: the line above built it.
$(STAMPS)/package: $(STAMPS)/labextension pyproject.toml $(DATA_FILES)
	SKIP_JUPYTER_BUILDER=1 pip install -q --no-build-isolation -e .
	touch $@

$(STAMPS)/test: $(STAMPS)/package
	bash tests/setup.sh test
	SKIP_JUPYTER_BUILDER=1 pip install -q --no-build-isolation -e '.[test,lint]'
	touch $@
