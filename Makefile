# Two commands: `make demo` and `make test`. Both need only Python 3.11 (or newer), make and the package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
DENO := DENO_DIR=$(VENV)/deno DENO_NO_UPDATE_CHECK=1 $(BIN)/deno
USABLE := $(VENV)/.usable
TESTABLE := $(VENV)/.testable

.PHONY: demo test docs soak browser format clean

# torch first and alone: everything else then takes the build that is there.
$(USABLE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[plots,report]'
	touch $@

$(TESTABLE): $(USABLE)
	$(PIP) -e '.[dev]'
	touch $@

demo: $(USABLE)
	$(BIN)/fssl run demo --out demo --jobs 2 --resume
	$(BIN)/fssl compare demo --png demo/curves.png
	$(BIN)/fssl report demo --out demo/report.html

test: $(TESTABLE) browser
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/mypy
	$(DENO) fmt --check
	$(DENO) lint
	$(DENO) check src/fssl/report/page/page.js
	$(BIN)/pytest -n auto

# The pages as a site, build/site/index.html. Set, the variable leaves out the theme's word on its successor.
docs: $(TESTABLE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Hours instead of minutes: strange settings, damaged files, kills, faults. SOAK="--help" tells more.
soak: $(TESTABLE)
	PYTHONPATH=tests:tests/soak:tests/deploy $(BIN)/python tests/soak/soak.py $(SOAK)

# The report's tests open it in Chromium, a Debian package; where it cannot be had they are skipped and say so.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null \
	|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get -qq update \
	     && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
	        chromium chromium-driver >/dev/null; } \
	|| echo "no Chromium and no way to install it: the tests of the report in a browser are skipped"

format: $(TESTABLE)
	$(BIN)/ruff format src tests
	$(BIN)/ruff check --fix src tests
	$(DENO) fmt
	$(DENO) lint --fix

clean:
	rm -rf $(VENV) build
