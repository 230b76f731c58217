# `make demo`, `make check` and `make test` need only Linux, Python 3.11 (or newer), make and the package index.
PYTHON ?= python3
# Neither Ray nor PyTorch's compiler works in an environment below a path with a space: there it lies in the user's cache.
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/fssl
VENV := $(if $(word 2,$(CURDIR)),$(CACHE)/env-$(firstword $(shell echo '$(CURDIR)' | cksum)),.venv)
# `-m`, since entry scripts do not start below every path; versions are those of constraints.txt, of build tools, too.
RUN := $(VENV)/bin/python -m
LOCKED := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	UV_CONSTRAINT=constraints.txt UV_BUILD_CONSTRAINT=constraints.txt
PIP := $(LOCKED) $(RUN) pip --disable-pip-version-check install --no-compile
UV := $(LOCKED) $(RUN) uv pip install --python $(VENV)/bin/python
DENO := DENO_DIR=$(VENV)/deno DENO_NO_UPDATE_CHECK=1 $(RUN) deno
INSTALLER := $(VENV)/.installer
TORCH := $(VENV)/.torch
USABLE := $(VENV)/.usable
TESTABLE := $(VENV)/.testable

# Python compiles a package when it is first imported. Without, each start of PyTorch takes two seconds longer.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo style check test docs soak tools format lock clean

$(INSTALLER): constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	|| { echo "$(PYTHON) is not Python 3.11 or newer; name one that is: make PYTHON=python3.11"; exit 2; }
	@echo "set-up: an environment in $(VENV)"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --quiet uv || true
	@touch $@

# By pip, which sees builds that lie on this machine; uv and pip then leave it alone.
$(TORCH): $(INSTALLER)
	@echo "set-up: PyTorch, the largest part"
	@$(PIP) torch
	@touch $@

$(USABLE): EXTRAS = plots,report
$(TESTABLE): EXTRAS = dev
$(USABLE) $(TESTABLE): pyproject.toml constraints.txt $(TORCH)
	@echo "set-up: fssl with what its extras '$(EXTRAS)' need"
	@$(UV) --quiet -e '.[$(EXTRAS)]' \
	|| { echo "set-up: uv failed; pip takes its place, a minute slower"; $(PIP) --quiet -e '.[$(EXTRAS)]'; }
	@touch $@

# Pin every package for every supported Python; `make lock NEW=--upgrade` takes the newest versions. The packages of
# PyTorch's CUDA build are pinned, too: nothing installs them with a CPU build.
lock: $(INSTALLER)
	UV_CUSTOM_COMPILE_COMMAND='make lock' $(RUN) uv pip compile pyproject.toml --all-extras \
		--universal --python-version 3.11 --no-annotate --quiet $(NEW) --output-file constraints.txt

demo: TITLE = Unlabeled images help: three methods learn from them, FedAvg from 30 labeled digits alone
demo: $(USABLE)
	$(RUN) fssl run demo --out demo --jobs 2 --resume
	$(RUN) fssl compare demo --png demo/curves.png --title "$(TITLE)"
	$(RUN) fssl report demo --out demo/report.html

style: $(TESTABLE)
	$(RUN) ruff format --check src tests examples
	$(RUN) ruff check src tests examples
	$(RUN) mypy
	$(DENO) fmt --check
	$(DENO) lint
	$(DENO) check docs/tables.js src/fssl/reports/page/page.js

# One more worker than cores: slow tests wait for processes and for the disk; a worker without tests takes another's.
WORKERS := -n $(shell expr $$(nproc) + 1) --dist worksteal

# What is quick: style, types, and all tests but the slow ones.
check: style
	$(RUN) pytest -n auto --dist worksteal -m 'not slow and not deploy'

test: style tools
	$(RUN) pytest $(WORKERS)

# The pages as a site, build/site/index.html. Set, the variable leaves out the theme's word on its successor.
docs: $(TESTABLE)
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict

# Hours instead of minutes: strange settings, damaged files, kills, faults. SOAK="--help" tells more.
soak: $(TESTABLE)
	PYTHONPATH=tests $(RUN) helpers.soak $(SOAK)

# Real servers and sites, in processes of their own: minutes.
.PHONY: deployments
deployments: $(TESTABLE)
	$(RUN) pytest -m deploy

# Debian packages that tests use: a browser for the report, and strace to hear what commands call.
tools:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null && command -v strace >/dev/null \
	|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get -qq update \
	     && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
	        chromium chromium-driver strace >/dev/null; } \
	|| echo "Chromium or strace cannot be installed here: the tests that need them are skipped"

format: $(TESTABLE)
	$(RUN) ruff format src tests examples
	$(RUN) ruff check --fix src tests examples
	$(DENO) fmt
	$(DENO) lint --fix

# Everything that is generated from the source: facts, tables, golden rounds and costs of new methods. METHODS="uda sage"
# makes those of these methods anew.
.PHONY: regenerate
regenerate: $(TESTABLE)
	PYTHONPATH=tests $(RUN) helpers.regenerate $(METHODS)

# Would the tests notice a mistake in the lines that changed? MUTANTS="--help" tells more.
.PHONY: mutants
mutants: $(TESTABLE)
	PYTHONPATH=tests $(RUN) helpers.mutants $(MUTANTS)

clean:
	rm -rf $(VENV) build
