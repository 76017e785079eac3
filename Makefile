# Every target sets up what it needs: a virtual environment with fedlib and its extras, pinned by constraints.txt.
PYTHON ?= python3
VENV ?= .venv
TABLES ?= i2pfl/table2
# Seeds that `make reproduce` trains again; FRESH=0,1,2 trains all of the mini tables. Records whose first round it trains again.
FRESH ?= 0
DRAW ?= 5
EXTRAS ?= test,book,clip,flower

PY := $(VENV)/bin/python
STEP := $(PYTHON) workflow/step.py
INSTALLED := $(VENV)/.fedlib-installed
BATCH := $(VENV)/.fedlib-batch-installed
MUTANTS := $(VENV)/.fedlib-mutants-installed
RESULTS := build/reproduced
# Training is renewed when what it depends on has changed: fedlib's sources, by content.
SOURCES := $(shell find fedlib data_scripts -type f \( -name '*.py' -o -name '*.toml' \) | LC_ALL=C sort | xargs cat | cksum | tr ' ' '-')
# What a step of pytest shows: what was skipped or failed, the ten slowest, the count.
TOLD := '^(SKIPPED|FAILED|ERROR) |^[0-9.]+s (call|setup|teardown) |^[0-9]+ (passed|failed|skipped|error|xfailed|xpassed|warning).* in [0-9.]+s'
PYTEST := OMP_NUM_THREADS=1 $(STEP) "Tests" --progress '\[ *([0-9]+%)\]' --show $(TOLD) -- \
  $(PY) -m pytest -q -rsfE -n logical --maxprocesses 8 --durations 10 --ignore tests/book/test_browser.py
# A page is looked at as it is built; where there is no browser this says so, and does not fail.
LOOK := $(STEP) "Look at the book in a browser" --progress '\[ *([0-9]+%)\]' \
  --show $(TOLD) -- $(PY) -m pytest -q -rsfE -n logical --maxprocesses 4 --dist loadgroup tests/book/test_browser.py
STAMP := build/stamps/$(SOURCES)

export JUPYTER_PREFER_ENV_PATH := 1

.PHONY: help reproduce test test-all book check-book pdf bench compare-speed gpu batch mutants lint address clean install
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile
	@echo "  make batch TABLE=i2pfl/table2 PROFILE=lite WHERE=laptop|gpu|slurm JOBS=4 TARGET=records|pages|book"
	@echo "  Another Python or place for the environment: make test PYTHON=python3.12 VENV=/path/to/venv"

reproduce: $(STAMP).trained ## train a mini table from scratch and drawn records' first rounds, show them beside the committed ones, build the book
	@for table in $(TABLES); do $(PY) -m fedlib check $(RESULTS) --table $$table || exit $$?; done
	@$(STEP) "Train records drawn today again" --show '^results/|^  round' -- $(PY) -m fedlib verify results --draw $(DRAW)
	@$(STEP) "Execute the notebooks and build the book" -- $(PY) book/build.py
	@echo "Executed notebooks:  build/book/notebooks"
	@echo "The book:            build/book/_build/html/index.html"

test: $(INSTALLED) ## check the style, run the quick tests, execute the pages that only read records
	@$(STEP) "Style" -- $(PY) -m ruff check .
	@$(PYTEST) --dist worksteal --quick tests

# A test goes to whichever core is free, a notebook's cells to one. WITHIN: minutes after which no slow test begins.
PART ?= tests notebooks
WITHIN ?=
test-all: $(INSTALLED) ## run every test, and every cell of every notebook; PART=notebooks: only these
	@$(STEP) "Style" -- $(PY) -m ruff check .
	$(if $(filter-out notebooks%,$(PART)),@$(PYTEST) --dist load --maxschedchunk 1 $(WITHIN:%=--within %) $(filter-out notebooks%,$(PART)))
	$(if $(filter notebooks%,$(PART)),@$(PYTEST) --dist loadscope --nbval-lax --nbval-current-env $(filter notebooks%,$(PART)))

check-book: $(INSTALLED) ## look at every page of the built book in headless Chromium
	@$(LOOK)

pdf: book ## build the book, then print it to one PDF with Chromium
	@$(STEP) "Print the book" -- $(PY) book/pdf.py
	@echo "The PDF: build/book/book.pdf"

book: $(INSTALLED) ## execute the notebooks and build the book from the committed records
	@$(STEP) "Execute the notebooks and build the book" -- $(PY) book/build.py
	@echo "The book: build/book/_build/html/index.html"

bench: $(INSTALLED) ## measure what a round costs, beside its floor and a plain loop
	@OMP_NUM_THREADS=1 $(PY) -m fedlib bench

# Each of the other systems lies in a folder of its own: what it asks for would change what fedlib runs on. One without a
# package is cloned: the list of what it needs begins with its address, a commit, and the folder with its code.
build/others/%/installed: workflow/others/%.txt $(INSTALLED)
	@$(STEP) "Install $*" -- $(PY) -m pip install --target $(@D) -r $<
	@sed -n 's/^# git: //p' $< | while read -r url commit folder; do \
	    git clone -q --filter=blob:none --no-checkout --sparse $$url $(@D)/code && cd $(@D)/code && \
	    git sparse-checkout set $$folder && git checkout -q $$commit || exit 1; done
	@touch $@

OTHERS := $(patsubst workflow/others/%.txt,build/others/%/installed,$(wildcard workflow/others/*.txt))
compare-speed: $(OTHERS) ## whole runs beside a plain loop and other systems, each with its own loop
	@OMP_NUM_THREADS=1 $(PY) -m fedlib bench --whole --others workflow/others

# `make gpu` in pieces: each goes on where the last one stopped.
PIECE ?= 8m
RUNS ?= 10
KNOWN := results/mini_digits/FedAvg-*.json
gpu: $(INSTALLED) ## on a GPU: compare it with a CPU's record, count launches and waits, try graphs, measure it, train tables of the papers; PIECE=8m RUNS=10
	@$(PY) -m fedlib verify $$(ls $(KNOWN) | head -1) --device cuda
	@PYTHONPATH=tests:. $(PY) tests/gpu/test_launches.py results
	@PYTHONPATH=tests:tests/gpu:. $(PY) tests/gpu/test_graphs.py
	@$(PY) -m fedlib bench --device cuda
	@FEDLIB_GRAPHS=1 $(PY) -m fedlib campaign workflow/gpu.toml --device cuda --jobs $(RUNS) --time-budget $(PIECE)
	@$(PY) -m fedlib status workflow/gpu.toml

# More of Snakemake's options: make batch ... ARGS="-n"
ifneq ($(filter batch,$(MAKECMDGOALS)),)
$(if $(TABLE),,$(error name the table: make batch TABLE=i2pfl/table2))
endif
PROFILE ?= mini
WHERE ?= laptop
TARGET ?= pages
batch: $(BATCH) ## train what a table lacks and execute its pages, with Snakemake
	@$(PY) -m snakemake $(TARGET) -s workflow/Snakefile --profile workflow/profiles/$(WHERE) $(if $(JOBS),--jobs $(JOBS)) \
	  --config table=$(TABLE) profile=$(PROFILE) where=$(WHERE) $(if $(SEEDS),seeds=$(SEEDS)) $(CONFIG) $(ARGS)

mutants: $(MUTANTS) ## change the code that decides, place by place, and see whether the tests notice
	@OMP_NUM_THREADS=1 $(STEP) "Mutants" --progress '^» (.*)' --show '^(fedlib/|  line |    [-+] |[0-9]+ of )' -- $(PY) workflow/mutants.py $(ARGS)

lint: $(INSTALLED) ## check the style only
	@$(PY) -m ruff check .

address: ## write the repository's address wherever a file carries it: REPO=owner/name, or REPO=none
	@$(PYTHON) workflow/address.py $(REPO)

clean: ## remove build/ and caches; the virtual environment stays
	@rm -rf build .pytest_cache .ruff_cache .hypothesis *.egg-info
	@find . -name __pycache__ -not -path './.git/*' -not -path './.venv/*' -prune -exec rm -rf {} +

install: $(INSTALLED) ## only set up the virtual environment

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "fedlib needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) -V 2>/dev/null || echo 'not there'); choose one: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(PY) || $(STEP) "Make a virtual environment in $(VENV)" -- sh -c '$(PYTHON) -m venv $(VENV) || \
	  { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(PY) install pip; }'
	@$(STEP) "Install fedlib and what it needs" --progress '^ *(Collecting [^ ]+|Downloading [^ ]+|Installing)' -- \
	  $(PY) -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

$(BATCH): $(INSTALLED)
	@$(STEP) "Install Snakemake" -- \
	  $(PY) -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt -e '.[batch]'
	@touch $@

$(MUTANTS): $(INSTALLED)
	@$(STEP) "Install cosmic-ray" -- \
	  $(PY) -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt -e '.[mutants]'
	@touch $@

# A run that was stopped continues where it was; other sources start an empty folder.
$(STAMP):
	@rm -rf build/stamps $(RESULTS)
	@mkdir -p build/stamps $(RESULTS)
	@touch $@

$(STAMP).trained: $(STAMP) | $(INSTALLED)
	@for table in $(TABLES); do \
	  $(STEP) "Train $$table" -- $(PY) -m fedlib run $$table --profile mini --device cpu --seeds $(FRESH) --results $(RESULTS) || exit $$?; done
	@touch $@
