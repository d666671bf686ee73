# What people and CI run. `make help` lists the targets; PYTHON=python3.12 chooses the interpreter of .venv.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
CONSTRAINTS := requirements/constraints.txt
# The Python part of full TensorRT, whose libraries are elsewhere: tests compare the code with its classes.
BINDINGS := 10=tensorrt-cu12-bindings==10.16.1.11 11=tensorrt-cu13-bindings==11.4.0.106
# ONNX Runtime's provider for TensorRT-RTX: a test of make test-all reads graphs with it.
SECOND_READER := onnxruntime-ep-nv-tensorrt-rtx-cu13==0.5.0
EXTRAS ?= export,cpu,rtx,cuda,plot,serve,dev
JOBS ?= 2
PYTEST_ARGS ?=
FUZZ_SCALE ?= 100
# Fuzz targets write a small file a run: in memory where the system has such a folder.
FUZZ_FOLDER ?= $(if $(wildcard /dev/shm/.),/dev/shm,$(or $(TMPDIR),/tmp))/hybridge-fuzz
BENCH ?=
ARTIFACT ?=
HW_CHECK ?=
HW_VENV := build/hw-venv
# TensorRT-RTX where this Python has no tensorrt.
HW_EXTRAS = cpu,cuda$(shell $(PYTHON) -c 'import tensorrt' 2>/dev/null || echo ',rtx')

CHECKPOINT := examples/checkpoints/tiny-nemotron-h
DEMO := build/demo
PRESET ?= rtx-ada
PROMPT ?= The President of the United States

# The first interpreter on PATH that Hybridge supports.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.10; do \
	"$$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1 \
	&& { echo "$$python"; break; }; done)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-all fuzz lint docs kernels bench hw-check wheel clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv and install the tested versions

$(STAMP): pyproject.toml $(CONSTRAINTS)
	@if [ -z "$(PYTHON)" ]; then echo "error: expected Python 3.10 to 3.13 on PATH, found none: install one or pass PYTHON=..." >&2; exit 2; fi
	@if [ ! -x $(BIN)/python ]; then echo "creating $(VENV) with $(PYTHON)"; "$(PYTHON)" -m venv $(VENV); fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) --editable '.[$(EXTRAS)]'
	@for entry in $(BINDINGS); do \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --upgrade \
			--target $(VENV)/tensorrt-bindings/$${entry%%=*} $${entry#*=} \
			|| echo "no $${entry#*=} for this platform: the tests that need it are skipped" >&2; \
	done
	@touch $@

demo: setup ## export, verify, build an engine and generate text with the checkpoint that ships
	@mkdir -p $(DEMO)
	$(BIN)/hybridge export $(CHECKPOINT) $(DEMO)/artifact --overwrite
	$(BIN)/hybridge verify $(CHECKPOINT) $(DEMO)/artifact
	$(BIN)/hybridge build-engine $(DEMO)/artifact --target $(PRESET)
	$(BIN)/hybridge run $(DEMO)/artifact --prompt "$(PROMPT)" --max-new-tokens 80
	$(BIN)/hybridge export $(CHECKPOINT) $(DEMO)/int4 --quantize int4 --overwrite
	$(BIN)/hybridge evaluate $(DEMO)/artifact $(DEMO)/int4 --text examples/text/heldout.txt --windows 4
	$(BIN)/hybridge run $(DEMO)/int4 --prompt "$(PROMPT)" --max-new-tokens 80

test: setup ## run the tests of a push
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

test-all: setup $(VENV)/second-reader ## run every test: also those marked slow, and all examples of property tests
	HYBRIDGE_TEST_EFFORT=all PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "slow or not slow" $(PYTEST_ARGS)

$(VENV)/second-reader: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --upgrade \
		--target $@ $(SECOND_READER) && touch $@ \
		|| echo "no $(SECOND_READER) for this platform: the tests that need it are skipped" >&2

fuzz: setup ## fuzz the parsers of untrusted input; FUZZ_SCALE=1000 runs longer
	HYBRIDGE_TEST_EFFORT=fuzz HYBRIDGE_FUZZ_SCALE=$(FUZZ_SCALE) $(BIN)/python -m pytest -n $(JOBS) -m fuzz \
		-o timeout=0 --basetemp=$(FUZZ_FOLDER) $(PYTEST_ARGS)

lint: setup ## ruff, the formatter and mypy, over every folder
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: setup ## write the reference pages from the code: docs/reference/cli.md, build/docs/api.md
	$(BIN)/python tools/reference_pages.py

kernels: setup ## compile every CUDA kernel for every architecture; no GPU needed
	$(BIN)/python -m hybridge.trt_plugins.kernels.check --jobs $(JOBS)

bench: setup ## measure; BENCH=NAME for one of those that python -m benchmarks --help names
	$(BIN)/python -m benchmarks $(BENCH)

# With ARTIFACT no torch is installed, and TensorRT may be the system's.
hw-check: ## build, run, verify and measure engines on this machine's GPU (ARTIFACT=..., HW_CHECK="--form paged-plugins")
ifeq ($(ARTIFACT),)
	$(MAKE) setup
	$(BIN)/python tools/hw_check.py $(HW_CHECK)
else
	$(PYTHON) -m venv --system-site-packages $(HW_VENV)
	$(HW_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) --editable '.[$(HW_EXTRAS)]'
	$(HW_VENV)/bin/python tools/hw_check.py $(ARTIFACT) $(HW_CHECK)
endif

wheel: setup ## build dist/hybridge-*.whl
	$(BIN)/python -m build --wheel --no-isolation --outdir dist

clean: ## remove what was built, but not .venv
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## remove .venv too
	rm -rf $(VENV)
