# Everything happens in .venv; each target sets up what it needs and does nothing twice.
#   make demo   the whole job on examples/handbook with the embedded defaults, then a search
#   make test   lint, types, tests          make soak   the long tests
#   make lint   format check, lint, types   make lock   resolve the dependencies anew into cpu.lock

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/.installed
TORCH := torch==2.13.0+cpu
TORCH_INDEX := https://download.pytorch.org/whl/cpu
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test soak lint lock clean
.DELETE_ON_ERROR:

# The lock is complete, so --no-deps: what is left out on purpose (torchvision and the like) stays out. The CPU build of
# torch is in no lock, because its own index serves it; pip takes it from wherever it finds it.
$(INSTALLED): cpu.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	  { echo "cpu.lock is for Python 3.11; install it, or run make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "installing into .venv (4 GB; some minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -c 'import torch' 2>/dev/null || \
	  $(BIN)/pip install -qq --no-deps --retries 0 --extra-index-url $(TORCH_INDEX) "$(TORCH)"
	@$(BIN)/pip install -qq --no-deps --require-hashes -r cpu.lock
	@$(BIN)/pip install -qq --no-deps --no-build-isolation -e .
	@touch $@

demo: $(INSTALLED)
	$(BIN)/situate refresh examples/handbook.yaml
	$(BIN)/situate search corpora/handbook "How far ahead must I announce my parental leave?" -k 3

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Two at a time, whole files each: most of them wait for Java, Ray or a model to start.
test: lint
	$(BIN)/pytest -m "not soak" -n 2 --dist loadfile --no-loadscope-reorder

soak: $(INSTALLED)
	$(BIN)/pytest -m soak

lock: $(INSTALLED)
	$(BIN)/python .ci/lock.py "$(TORCH)" "$(TORCH_INDEX)"

clean:
	rm -rf .venv corpora
