# `make help` lists the targets. PYTHON picks the interpreter that the virtual environment is made from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help audit test-contract test-slurm setup setup-test demo run test lint types bench-up bench-simulator bench-sizing bench-alarms bench-autoscale bench-rollouts bench-web chaos bench-placement bench-agents bench-router bench-goodput chaos-router chaos-agents lock clean pictures slack-docs command-docs

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.runtime: requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing denv into $(VENV) (about half a minute)"
	@$(BIN)/pip install -qq --disable-pip-version-check -r requirements.lock
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.runtime requirements-dev.lock
	@echo "installing what the tests need"
	@$(BIN)/pip install -qq --disable-pip-version-check -r requirements-dev.lock
	@for name in chromium chromedriver curl jq; do command -v $$name >/dev/null || { sh .ci/install-debian || exit 1; break; }; done
	@touch $@

setup: $(VENV)/.runtime  ## install denv into .venv

setup-test: $(VENV)/.test  ## install what the tests need too (Chromium, curl and jq from Debian)

demo: setup  ## start all of denv with simulated fleets, a model and traffic
	@$(BIN)/denv up --demo

run: setup  ## start all of denv
	@$(BIN)/denv up

test: setup-test lint types  ## everything that must hold: lint, types, tests
	$(BIN)/pytest --numprocesses 2 --dist loadscope

test-vllm: setup-test  ## denv with real vLLM engines on this machine's CPU (2.7 GB into build/vllm)
	@sh tests/vllm/setup.sh build/vllm
	DENV_TEST_VLLM_FORM=full $(BIN)/pytest -s --durations=12 tests/vllm tests/integration/test_engine_contract.py

test-slurm: setup-test  ## the Slurm launcher against a slurmctld and slurmd of its own (root; Debian's slurm-wlm and munge)
	@command -v slurmctld >/dev/null || { echo "Slurm is not installed: apt-get install slurm-wlm munge"; exit 1; }
	DENV_TEST_SLURM=1 $(BIN)/pytest -q tests/slurm

lint: setup-test  ## ruff, import rules, missing migrations
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python manage.py makemigrations --check --dry-run

types: setup-test  ## mypy, strict
	$(BIN)/mypy

bench-up: setup-test  ## measure start, idle memory and size on disk
	$(BIN)/python -m tests.bench.up

bench-alarms: setup-test  ## how often alarms are wrong, and how soon they see a bad release
	$(BIN)/python -m tests.bench.alarms

bench-placement: setup-test build/bench  ## measure plans of 100,000 GPUs, and packing beside an exact solver
	PYTHONPATH=build/bench $(BIN)/python -m tests.bench.placement

# The exact solver weighs a quarter of a gigabyte, so it stays out of the environment that runs the tests.
build/bench: pyproject.toml
	@echo "installing the exact solver into $@"
	@$(BIN)/pip install -qq --disable-pip-version-check --no-warn-conflicts --upgrade --target $@ $$($(BIN)/python -c \
		"import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['bench'])")
	@touch $@

bench-simulator: setup-test  ## how fast the simulator is: a million requests, and 100,000 GPUs
	$(BIN)/python -m tests.bench.simulator

bench-sizing: setup-test  ## what is foretold beside what was measured, and beside aiconfigurator (850 MB into build/aiconfigurator)
	@test -x build/aiconfigurator/bin/aiconfigurator || { echo "installing aiconfigurator into build/aiconfigurator (half a minute, 850 MB)" \
		&& $(PYTHON) -m venv build/aiconfigurator && build/aiconfigurator/bin/pip install -qq --disable-pip-version-check aiconfigurator==0.12.0; } \
		|| echo "aiconfigurator cannot be installed: going on without it"
	$(BIN)/python -m tests.bench.sizing

bench-autoscale: setup-test  ## the scaling policy on recorded traces, beside every static shape and a planner by means
	$(BIN)/python -m tests.bench.autoscale

bench-rollouts: setup-test  ## how soon an alarm and a click reach the routers, and what 500 rollouts take
	$(BIN)/python -m tests.bench.rollouts

bench-web: setup-test  ## measure pages with 200 stages and 30 days of data, the lag of live events, and the first chart
	$(BIN)/python -m tests.bench.web

bench-agents: setup-test  ## 1,000 nodes against one web process, and how soon one that dies is noticed (as root; SECONDS=60 is shorter)
	$(BIN)/python -m tests.bench.agents $(if $(SECONDS),--seconds $(SECONDS))

pictures: setup-test  ## take pictures of every page, light and dark, wide and narrow, into docs/images/pages
	$(BIN)/pytest -q -s tests/e2e/pictures.py

slack-docs: setup-test  ## write the page about what denv sends to Slack, with pictures, from the code
	$(BIN)/pytest -q -s tests/docs/write_slack.py

command-docs: setup-test  ## write the page about the command, from the command
	$(BIN)/python -m tests.docs.command_page

chaos: setup-test  ## ten minutes of rollouts under traffic while everything is broken at random; SEED=7 is the same again
	$(BIN)/python -m tests.chaos.run $(if $(SEED),--seed $(SEED))

test-contract: setup-test  ## send the running API all that its OpenAPI document allows, and more (Schemathesis, in a venv of its own)
	@test -x .venv-contract/bin/schemathesis || { $(PYTHON) -m venv .venv-contract && .venv-contract/bin/pip install --quiet "schemathesis>=4.9,<5"; }
	$(BIN)/python -m tests.contract --schemathesis .venv-contract/bin/schemathesis

bench-router: setup-test  ## the router beside vllm-router, sglang-router and smg: CPU, TTFT, memory
	@$(BIN)/python -m tests.bench.router

bench-goodput: setup-test  ## requests within TTFT and ITL limits through the router and its peers, on simulated engines and a recorded trace
	$(BIN)/python -m tests.bench.goodput $(if $(LOADS),--loads $(LOADS)) $(if $(CAPACITY),--capacity $(CAPACITY)) --rows build/goodput.jsonl --picture build/goodput.svg

chaos-router: setup-test  ## ten minutes of clients and engines that misbehave; then nothing may be left
	$(BIN)/python -m tests.integration.router_chaos --seconds $(if $(SECONDS),$(SECONDS),600)

chaos-agents: setup-test  ## six minutes of killed agents, stopped engines, cut cables and a web process that is away, under traffic (as root)
	$(BIN)/python -m tests.chaos.agents

lock:  ## write the lock files anew from pyproject.toml
	sh .ci/lock $(PYTHON)

audit:  ## look for known vulnerabilities in everything that is locked (pip-audit; needs pypi.org, or DENV_AUDIT_SERVICE=osv)
	@sh .ci/audit $(PYTHON)

clean:  ## remove what make made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
