# `make` alone teaches. Every version comes from requirements.lock, everything is installed into .venv.

.DEFAULT_GOAL := help
.PHONY: help demo test lint docs lock clean
.PHONY: .programs .pytest .umap # parts of `test`

PYTHON := .venv/bin/python
UV := .venv/bin/uv
# Only recipes that run the project get this: venv.sh must see the machine's own python3.
IN_VENV := PATH="$(CURDIR)/.venv/bin:$$PATH"

export DVC_NO_ANALYTICS := 1
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := true
export NO_MKDOCS_2_WARNING := true
# The largest wheels take minutes on a slow line; uv gives up after 30 silent seconds otherwise.
export UV_HTTP_TIMEOUT ?= 300

help:
	@echo "Patchwork needs Python 3.11 or newer, git and make, on Linux. The first of these commands that you run"
	@echo "installs the rest into .venv (7 GB, the versions of requirements.lock); the others use it, too."
	@echo
	@echo "  make demo     run the whole workflow on small bundled data, on a CPU, and print the tables"
	@echo "                (stopped half-way? run it again: it continues where it was)"
	@echo "  make test     lint, then all tests; only as root on Debian, it installs SLURM and Chromium with apt-get,"
	@echo "                if they are missing; otherwise the tests that need them are skipped"
	@echo "  make lint     ruff, snakefmt and mypy; changes nothing"
	@echo "  make docs     build the manual, results/manual/index.html, which opens without a network or a server"
	@echo "  make lock     resolve pyproject.toml into requirements.lock again, keeping versions that still fit;"
	@echo "                make lock UPGRADE=1 takes the newest versions"
	@echo "  make clean    remove .venv and caches, never results"

# Scripts in .venv name its Python by the full path: where the project was moved or copied, all is installed again.
ifneq ($(filter-out $(realpath .venv),$(shell cat .venv/.installed 2>/dev/null)),)
.PHONY: .venv/.installed
endif

# The stamp comes last, so an interrupted install is taken up again; sync also removes what left the lock.
# Two packages are published as source only: the constraints make their build tools come from the lock too.
# Compiled here once, for half a minute: where Python may not write bytecode (PYTHONDONTWRITEBYTECODE, a folder of
# somebody else), each of the many short processes would compile torch anew and start several times slower. Left out
# is what nobody imports: the tests of libraries, some of which are no Python at all, most of transformers' models, and
# large packages that others bring along. A fifth of the time is saved so.
UNUSED := /tests/|/transformers/models/(?!(auto|bert|gpt2)/)|/sympy/(physics|stats)/|/numba/cuda/|/playwright/async_api/
UNUSED := $(UNUSED)|/site-packages/(databricks|pip|mypyc?|setuptools|docutils|asyncssh|fontTools|celery|kombu|graphql)/
UNUSED := $(UNUSED)|/site-packages/(prompt_toolkit|imageio|tifffile|gunicorn)/
.venv/.installed: requirements.lock pyproject.toml workflow/setup/venv.sh
	@sh workflow/setup/venv.sh
	@echo "setup: installing requirements.lock into .venv"
	@$(UV) pip sync -q --python $(PYTHON) --require-hashes --build-constraints requirements.lock requirements.lock
	@$(UV) pip install -q --python $(PYTHON) --no-deps --no-build-isolation -e .
	@$(PYTHON) -m compileall -qq -j 0 -x '$(UNUSED)' .venv/lib pipeline workflow || true
	@(cd .venv && pwd -P) > $@

demo: .venv/.installed
	@echo "demo: running the workflow"
	@$(IN_VENV) snakemake demo

# Debian's packages are downloaded and unpacked while Python's are. Then UMAP, which compiles itself for half a minute
# when it is first used in a new .venv, does so on the core that linting leaves idle; tests need it minutes later.
test:
	@$(MAKE) --no-print-directory -j3 .pytest .umap

.pytest: lint .programs
	@echo "test: running pytest"
	@$(IN_VENV) python -m pytest -n auto --shuffle

.programs:
	@sh workflow/setup/chromium.sh
	@PATH="$$PATH:/usr/sbin:/sbin" sh workflow/setup/slurm.sh

.umap: .venv/.installed
	@$(IN_VENV) python -c "import numpy, pipeline.evals.positions.embedding_pictures as it; it.projected(numpy.eye(9), 3, 0.1, 0)"

lint: .venv/.installed
	@$(IN_VENV) ruff check -q .
	@$(IN_VENV) ruff format --check -q .
	@[ ! -e Snakefile ] || message=$$($(IN_VENV) snakefmt --check Snakefile workflow 2>&1) || \
		{ echo "$$message"; echo "lint: .venv/bin/snakefmt Snakefile workflow puts this right"; exit 1; }
	@$(IN_VENV) mypy --no-error-summary
	@echo "lint: clean"

docs: .venv/.installed
	@$(IN_VENV) mkdocs build -q --strict
	@echo "docs: open $(CURDIR)/results/manual/index.html"

lock:
	@sh workflow/setup/venv.sh
	@echo "lock: resolving pyproject.toml"
	@$(UV) pip compile pyproject.toml --extra dev --extra docs --universal --generate-hashes --python-version 3.11 \
		--no-annotate --no-header $(if $(UPGRADE),--upgrade) -q -o requirements.lock
	@! grep -nE '://|^-' requirements.lock || \
		{ echo "lock: found the addresses above, expected versions and hashes alone; do not commit this"; exit 1; }

clean:
	@rm -rf .venv .snakemake .pytest_cache .ruff_cache .mypy_cache *.egg-info
	@find . -name __pycache__ -type d -not -path './results/*' -prune -exec rm -rf {} +
	@echo "clean: removed .venv and caches; results/ is left as it is"
