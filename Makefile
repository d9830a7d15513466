# Each target sets up what it needs in .venv and says what it is doing.
PYTHON ?= python3
# Where Python may keep nothing that it compiles, every process would compile torch and transformers again.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
# PyPI's torch for Linux brings CUDA. For its CPU build:
# make TORCH_INDEX=https://download.pytorch.org/whl/cpu demo
TORCH := torch==2.13.0
TORCH_INDEX ?=
# What the three pyproject.toml ask for to build: read from there, so that builds need no environment of their own.
BUILD_REQUIRES := $(shell sed -n 's/^requires = \[\(.*\)\]/\1/p' pyproject.toml aie/pyproject.toml lab/pyproject.toml | tr , ' ')
SOURCES := pyproject.toml CMakeLists.txt $(shell find src -name '*.cpp' -o -name '*.hpp' -o -name 'CMakeLists.txt')
AIE_SOURCES := aie/pyproject.toml aie/CMakeLists.txt $(shell find aie/src -name '*.cpp' -o -name '*.hpp')
PYTHON_FOLDERS := src lab aie models tests benchmarks tools
SANITIZED := build/sanitized
# Templates are no C++ before they are filled in.
CXX_FILES := $(shell find src aie lab tests benchmarks \( -name '*.cpp' -o -name '*.hpp' -o -name '*.c' -o -name '*.h' \) -not -path '*/templates/*')

.PHONY: demo test slow bench coverage docs lint format sanitize wheel clean

# The first half needs no torch.
demo: $(VENV)/.search
	@echo "== demo: search by meaning"
	$(BIN)/hccs demo --part search
	@$(MAKE) --no-print-directory $(VENV)/.lab
	@echo "== demo: convert a model"
	$(BIN)/hccs demo --part convert

# Two workers on two cores: threads of their own would only wait for each other.
test: $(VENV)/.dev
	@$(MAKE) --no-print-directory -j2 lint $(VENV)/.imported
	@echo "== tests"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 tests/backends/triton_interpreter

# Lint keeps one core busy; meanwhile the other compiles what both workers would import at once. What fails to
# import fails again in the tests, which tell why.
$(VENV)/.imported: $(VENV)/.dev
	@echo "== importing what the tests import"
	@-$(BIN)/python -m pytest --collect-only -q > $(VENV)/imported.log 2>&1
	@touch $@

# A report, not a gate: which branches of the package no test takes. Native code and Triton kernels do not count.
coverage: $(VENV)/.dev
	@echo "== tests, with the branches they take"
	@rm -rf build/coverage && mkdir -p build/coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile --cov --cov-report=term --cov-report=html

# The product's wheel is tried in an environment that has NumPy and nothing else.
wheel: $(VENV)/.dev
	@echo "== building wheels into dist/"
	@rm -rf dist build/wheel && mkdir -p build
	$(BIN)/pip wheel -q --no-build-isolation --no-deps -w dist . ./aie ./lab ./models/minilm-l6
	@ls -l dist
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/pip install -q dist/hccs-*.whl
	build/wheel/bin/python -I tools/check_installed.py README.md

docs: $(VENV)/.dev
	@echo "== the site, into build/site"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q

bench: $(VENV)/.bench
	@echo "== benchmarks: close other programs, they share the cores"
	$(BIN)/python benchmarks/softmax_cpu.py --json build/softmax_cpu.json
	$(BIN)/python benchmarks/attention_cpu.py --json build/attention_cpu.json
	$(BIN)/python benchmarks/linear_cpu.py --json build/linear_cpu.json
	$(BIN)/python benchmarks/encoder_cpu.py --json build/encoder_cpu.json
	$(BIN)/python benchmarks/onnx_program_cpu.py --json build/onnx_program_cpu.json
	$(BIN)/python benchmarks/calibration.py --json build/calibration.json

lint: $(VENV)/.dev
	@echo "== lint: ruff, clang-format, mypy, import-linter"
	$(BIN)/ruff check $(PYTHON_FOLDERS)
	$(BIN)/ruff format --check -q $(PYTHON_FOLDERS)
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix -q $(PYTHON_FOLDERS)
	$(BIN)/ruff format -q $(PYTHON_FOLDERS)
	$(BIN)/clang-format -i $(CXX_FILES)

# Needs compilers and emulators that no target installs; those that are missing are named, and their tests skipped.
.PHONY: mcu
mcu: $(VENV)/.dev
	@echo "== the embedded BERT-tiny on a Cortex-M3 and a RISC-V in QEMU, and its whole dev set in C"
	@for tool in arm-none-eabi-gcc qemu-system-arm riscv64-unknown-elf-gcc qemu-system-riscv32; do \
	  command -v $$tool > /dev/null || echo "missing: $$tool. On Debian: apt install gcc-arm-none-eabi qemu-system-arm gcc-riscv64-unknown-elf qemu-system-misc"; done
	$(BIN)/python -m pytest -q -m mcu tests/export

# Clients and engines too heavy for every environment, in environments that borrow the rest from .venv.
.PHONY: clients ray
clients: build/clients/.made
	build/clients/bin/python -m pytest -q -p no:cacheprovider -W ignore tests/serving -k client
ray: build/ray/.made
	build/ray/bin/python -m pytest -q -p no:cacheprovider -m ray tests/corpus
# Every Triton that hccs[cuda] allows: its kernels compiled, started on a driver that does nothing, and interpreted.
.PHONY: triton-versions
TRITONS := 3.6 3.7 3.8 3.9
triton-versions: $(TRITONS:%=build/triton-%/.made)
	@set -e; for version in $(TRITONS); do \
	  echo "== Triton $$version"; \
	  run() { build/triton-$$version/bin/python -m pytest -q -n 2 -p no:cacheprovider "$$@"; }; \
	  run -m 'slow or not slow' tests/backends/test_launch_plan.py tests/backends/test_program_compiles.py tests/backends/test_pipelined.py; \
	  ( export TRITON_INTERPRET=1 OMP_NUM_THREADS=1; run tests/backends/triton_interpreter ); \
	done
build/triton-%/.made: PACKAGES = '$(subst -,==,$*).*'
build/clients/.made: PACKAGES := langchain-openai chromadb
build/ray/.made: PACKAGES := 'ray[data]'
build/%/.made: $(VENV)/.dev
	$(PYTHON) -m venv --without-pip build/$*
	$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" > "$$(build/$*/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/borrowed.pth"
	$(BIN)/pip --python build/$*/bin/python install -q $(PACKAGES)
	@touch $@

# Needs clang with lld (or ziglang), node and Chromium with chromedriver; what is missing is named.
.PHONY: wasm
wasm: $(VENV)/.dev
	@echo "== the shipped encoder as WebAssembly: 1,000 texts and the page, in node and in Chromium"
	$(BIN)/python -m pytest -q -m wasm tests/export

# HCCS_DATA names a folder of data sets (DIR/*.tsv), HCCS_GPT2 one with GPT-2's encoder.json and vocab.bpe.
.PHONY: tokenizer
tokenizer: $(VENV)/.dev
	@echo "== tokenizers in C against the package tokenizers: every line of the data sets, 100,000 texts"
	$(BIN)/python -m pytest -q -n 2 -m tokenizer tests/export

.PHONY: fuzz
fuzz: $(VENV)/.dev
	@echo "== 100,000 damaged files: each loads or is refused"
	$(BIN)/python -m pytest -q -rP -m fuzz tests/files tests/program

.PHONY: generations
generations: $(VENV)/.dev
	@echo "== 1,000 texts: the same tokens on every executor, in every batch, on 1 to 4 threads"
	$(BIN)/python -m pytest -q -rP -m generations tests/program

# What takes too long for every change: the slow benchmarks once, and the native code under the sanitizers.
slow: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow
	@$(MAKE) --no-print-directory sanitize

# The tests of the native code once more, on a build that traps every access outside an array and all undefined behaviour.
# Its environment holds the sanitized package and borrows everything else from .venv.
sanitize: $(SANITIZED)/.built
	@echo "== tests of the native code under the address and undefined-behaviour sanitizers"
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
	$(SANITIZED)/bin/python -m pytest -q -n 2 -p no:cacheprovider \
	  tests/ops/test_softmax.py tests/ops/test_refusals.py tests/backends/test_quantise.py tests/backends/test_linear.py tests/ops/test_attention.py \
	  tests/ops/test_attention_refusals.py tests/ops/test_attention_few_queries.py tests/program/test_engine.py tests/calibration/test_statistics.py tests/calibration/test_forged.py tests/calibration/test_scale.py

$(SANITIZED)/.built: $(VENV)/.dev $(SOURCES)
	@echo "== building the sanitized kernels"
	$(PYTHON) -m venv --without-pip $(SANITIZED)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > "$$($(SANITIZED)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/borrowed.pth"
	$(BIN)/pip --python $(SANITIZED)/bin/python install -q --no-deps --no-build-isolation --force-reinstall \
	  -C cmake.define.HCCS_SANITIZE=ON -C build-dir=build/sanitized-cmake .
	@touch $@

$(VENV)/.pip:
	@echo "== making .venv"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q $(BUILD_REQUIRES) cmake ninja
	@touch $@

# Python compiles a module when it is first imported: the demo imports a small part of torch.
$(VENV)/.torch: $(VENV)/.pip
	$(BIN)/pip install -q --no-compile $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	@touch $@

$(VENV)/.native: $(VENV)/.pip $(SOURCES)
	$(BIN)/pip install -q --no-build-isolation --no-deps -e .
	@touch $@

$(VENV)/.aie: $(VENV)/.pip $(AIE_SOURCES)
	$(BIN)/pip install -q --no-build-isolation --no-deps -e ./aie
	@touch $@

$(VENV)/.search: $(VENV)/.pip $(SOURCES) lab/pyproject.toml models/minilm-l6/pyproject.toml
	@echo "== building hccs (half a minute the first time)"
	@$(MAKE) --no-print-directory $(VENV)/.native
	$(BIN)/pip install -q --no-compile --no-build-isolation -e ./models/minilm-l6
	$(BIN)/pip install -q --no-build-isolation --no-deps -e ./lab
	@touch $@

# hccs-lab asks for `hccs[hf]`, and so brings all that the demo needs. The kernels are compiled meanwhile.
$(VENV)/.lab: $(VENV)/.search
	@echo "== installing PyTorch and transformers (a minute or two the first time)"
	@$(MAKE) --no-print-directory $(VENV)/.torch
	$(BIN)/pip install -q --no-compile --no-build-isolation -e ./lab
	@touch $@

$(VENV)/.tools: $(VENV)/.lab
	$(BIN)/pip install -q --no-compile 'hccs[dev]'
	@touch $@

# Compilers and downloads wait for different things: they run side by side.
$(VENV)/.dev: $(VENV)/.pip $(SOURCES) $(AIE_SOURCES) lab/pyproject.toml models/minilm-l6/pyproject.toml
	@echo "== building hccs and installing what the tests need (two minutes the first time)"
	@$(MAKE) --no-print-directory -j2 $(VENV)/.native $(VENV)/.torch
	@$(MAKE) --no-print-directory -j2 $(VENV)/.tools $(VENV)/.aie
	@touch $@

$(VENV)/.bench: $(VENV)/.lab
	@echo "== installing the peers that the benchmarks compare with (ONNX Runtime, OpenVINO with NNCF, LiteRT)"
	$(BIN)/pip install -q 'hccs[onnx]' 'hccs-lab[peers]'
	@touch $@

clean:
	rm -rf $(VENV) build dist
