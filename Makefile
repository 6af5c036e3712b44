# The commands of this project. `make demo` and `make test` do all the set-up they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Hundreds of processes start in the tests, and a dozen in the demo: without byte code, as some
# environments want it, each of them would compile all of Octavo again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: apache attack audit containers docs help demo demo-pipeline test test-all test-failed test-long test-medium check install fmt interop bench bench-peers bench-spark bench-storage sim sim-digest sim-many mutants kills spark-kills spark-matrix model crash-states fault-sweep io-errors engine-model network-matrix sbom take-over

help:
	@echo 'make demo        a cluster on real data that loses a bookie and two brokers, then fencing explained'
	@echo 'make install     set up .venv; the other targets do it when needed'
	@echo 'make check       format, lint, types, layers'
	@echo 'make test        the same, and 14,000 tests, of every suite a short form: about 8 minutes'
	@echo 'make test-medium the 2,800 tests that take longer, which CI always runs too: about 13 minutes'
	@echo 'make test-all    the same, and the long tests'
	@echo 'make test-failed what failed in the last run, one test at a time'
	@echo 'make fmt         format, and repair what can be repaired'
	@echo 'make sim         one simulated seed: SEED=7 [VERBOSE=1]; sim-many: N=300 [START=0] [JOBS=2] [PROFILE=all]'
	@echo 'make bench       benchmarks on this machine: 10 minutes'
	@echo 'make docs        a page for each module, in dist/api'
	@echo
	@echo 'Each suite alone: docs/testing.md. Other benchmarks: docs/performance.md. All targets: this Makefile.'

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo 'Octavo needs Python 3.11 or newer; set PYTHON=/path/to/python3.11' >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

install: $(VENV)/installed

demo: install
	$(BIN)/octavo demo
	$(BIN)/octavo demo fencing

# The flights through Spark, each result checked: needs Java 17.
demo-pipeline: install
	$(BIN)/octavo demo pipeline $(if $(DATA),--data $(DATA))

WORKERS ?= 3
PYTEST = $(BIN)/pytest --numprocesses $(WORKERS) --dist loadgroup

# Three tiers: what is cheap, of every suite; what CI always runs as well; what CI runs as time allows.
# tests/medium.txt lists the second tier, by what its tests take; the mark `long` stands at the third's.
test: install
	@echo 'First the checks: format, lint, types, layers. Then the tests, whose dots begin after their collection.'
	@$(MAKE) --no-print-directory --jobs 2 --output-sync check $(VENV)/compiled
	$(PYTEST) -m 'not medium and not long'

test-medium: install
	$(PYTEST) -m 'medium and not long'

# Have pytest compile the tests during the first checks, and not in each worker. Later a worker
# compiles the few that were edited.
$(VENV)/compiled: $(VENV)/installed
	@$(BIN)/pytest --collect-only -qq >/dev/null || true
	@touch $@

test-all: test test-medium test-long

test-long: install
	THOROUGH=1 $(PYTEST) -m 'long or property' --durations 20

# What failed last, alone on the machine: does it fail by itself, or only next to others?
test-failed: install
	$(BIN)/python -m tests.support.failed_again

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Load the names that octavo loads lazily, because pdoc shows only loaded names.
docs: install
	$(BIN)/python -c 'import octavo, pdoc.__main__; [getattr(octavo, name) for name in octavo.__all__]; pdoc.__main__.cli()' \
	    --no-show-source --output-directory dist/api \
	    octavo octavo.client $(addprefix octavo.,protocol metadata ledger bookie broker)

# One line of JSON ends each; `python -m bench.b1_one_bookie --help`. Without Java there is no B6.
bench: install
	$(BIN)/python -m bench.b1_one_bookie
	$(BIN)/python -m bench.b2_three_bookies --seconds 3
	$(BIN)/python -m bench.b3_publish --seconds 4
	$(BIN)/python -m bench.b3_client
	$(BIN)/python -m bench.b4_single --seconds 5
	$(BIN)/python -m bench.b5_reads --rounds 1 --seconds 3
	$(BIN)/python -m bench.b6_take_over --rounds 5
	$(BIN)/python -m bench.b7_standalone --starts 3
	$(BIN)/python -m bench.b8_growth
	$(BIN)/python -m bench.b10_fan_out --kinds events
	$(BIN)/python -m bench.b11_slow_bookie --seconds 8
	$(BIN)/python -m bench.b12_noisy --seconds 8

# Compared with Kafka, Pulsar, RocketMQ, NATS, BookKeeper: 15 minutes [SYSTEMS=octavo,kafka-flush] [ROUNDS=3].
# Fetches them; without a network, Java (and Maven) or Go it continues with the others.
# PAGE=1 puts the table into docs/performance.md, also that of an earlier run: FROM=its-output.
bench-peers: install
	@$(BIN)/pip install --quiet --editable '.[dev,peers]' \
	    || echo 'the clients of Kafka, NATS and Pulsar could not be installed' >&2
	$(BIN)/python -m bench.peers $(if $(SYSTEMS),--systems $(SYSTEMS)) \
	    $(if $(WORKLOADS),--workloads $(WORKLOADS)) $(if $(ROUNDS),--rounds $(ROUNDS)) \
	    $(if $(MESSAGES),--messages $(MESSAGES)) $(if $(SECONDS),--seconds $(SECONDS)) \
	    $(if $(PAGE),--page) $(if $(FROM),--from $(FROM))

# B9: what the Spark source reads from closed ledgers, what the sink writes, and both beside Kafka's connector.
bench-spark: install
	@$(BIN)/pip install --quiet --editable '.[dev,peers]' \
	    || echo 'the client of Kafka could not be installed' >&2
	$(BIN)/python -m bench.b9_source --megabytes 100
	$(BIN)/python -m bench.b9_sink
	$(BIN)/python -m bench.b9_beside

# The storage engine: busy, restarts, index. 15 minutes, 25 GB of disk.
bench-storage: install
	$(BIN)/python -m bench.b1_busy
	$(BIN)/python -m bench.index
	$(BIN)/python -m bench.restart

# Against a real Apache BookKeeper, fetched by Maven: needs a JDK (17 or newer) and Maven.
interop: install
	$(BIN)/python -m tests.apache --only conversations

# Apache's software on Octavo's bookies, and the reverse: [ONLY=shell,move] [SHORT=1] [PAGE=1] [FROM="outputs"].
apache: install
	$(BIN)/python -m tests.apache $(if $(ONLY),--only $(ONLY)) $(if $(SHORT),--short) $(if $(PAGE),--page) \
	    $(if $(FROM),--from $(FROM))

# The simulator: a whole cluster in one thread and virtual time; docs/simulation.md.
START ?= 0
JOBS ?= 2

sim: SEED ?= 1
sim: install
	$(BIN)/python -m tests.sim run $(SEED) $(if $(VERBOSE),--verbose)

sim-many: N ?= 1000
sim-many: install
	$(BIN)/python -m tests.sim many $(N) --start $(START) --jobs $(JOBS) $(if $(PROFILE),--profile $(PROFILE))

# N seeds of every profile. Note it before a move or a rename, and compare after it.
sim-digest: N ?= 50
sim-digest: install
	@$(BIN)/python -m tests.sim digest $(N) --start $(START) --jobs $(JOBS)

# Known bugs, planted in our code one at a time, each found by seeds or by the test that it names:
# [ONLY=name]; docs/planted_bugs.md.
mutants: install
	$(BIN)/python -m tests.sim mutants --jobs $(JOBS) $(if $(ONLY),--only $(ONLY))

# Real processes under load, killed at random and before, during and after each persist step: [SEED=7].
kills: N ?= 500
kills: install
	$(BIN)/python -m tests.process.campaign --cycles $(N) \
	    $(if $(SEED),--seed $(SEED)) $(if $(ZOOKEEPER),--zookeeper)

# Unruly clients, next to a client that must not notice; minutes: [ONLY=text] [FUZZ_SECONDS=600] [SEED=7].
attack: install
	$(BIN)/python -m tests.attack $(if $(ONLY),--only '$(ONLY)') \
	    $(if $(FUZZ_SECONDS),--fuzz $(FUZZ_SECONDS)) $(if $(SEED),--seed $(SEED))

# What a user gets who installs Octavo alone, with versions (CycloneDX): dist/sbom.json.
sbom: install
	$(BIN)/python -m tests.supply_chain sbom

# Known vulnerabilities of that. REQUIRE_ADVISORIES=1: fail if no advisory database answers.
audit: sbom
	$(BIN)/python -m tests.supply_chain audit

# A streaming query from topic to topic, killed at random and at its commits: each row comes out once.
spark-kills: N ?= 100
spark-kills: install
	$(BIN)/python -m tests.spark.kills --cycles $(N) $(if $(SEED),--seed $(SEED)) \
	    $(if $(COMMIT),--commit $(COMMIT))

# The Spark tests' short form on every supported Spark, each fetched once (430 MB); minutes:
# [VERSIONS="oldest 4.1.4"] [WHOLE=1].
spark-matrix: install
	$(BIN)/python -m tests.spark.matrix $(if $(WHOLE),--whole) $(VERSIONS)

# Every state that the production state machines can reach, within bounds: [MODEL="M1 M6"] [STORY=1];
# docs/model_check.md.
model: install
	$(BIN)/python -m tests.model $(MODEL) $(if $(STORY),--story)

# Every disk that a power failure may leave, after each four operations; minutes to an hour.
crash-states: install
	$(BIN)/python -m tests.crash_states --length 4 --kills 2 --jobs $(JOBS)

# Every block of every file of a bookie damaged in turn: real files of a bookie of three, then simulated
# disks.
fault-sweep: install
	$(BIN)/python -m tests.single_fault --jobs $(JOBS)

# EIO and ENOSPC at every call to the disk.
io-errors: install
	$(BIN)/python -m tests.io_errors

# The storage engine against a model of 60 lines, 100,000 steps, with deaths at any moment; minutes.
engine-model: install
	$(BIN)/python -m tests.engine_model --jobs $(JOBS)

# The network cut in 20 ways and slow in 4: docs/partitions.md. 15 minutes; needs root, Java, iptables.
network-matrix: install
	$(BIN)/python -m tests.network $(if $(CASES),--cases $(CASES)) $(if $(JSON),--json $(JSON))

# From the kill of a broker to the first ack of each of its partitions: docs/partitions.md.
take-over: install
	$(BIN)/python -m tests.network.take_over --rounds $(or $(ROUNDS),20) $(if $(JSON),--json $(JSON))

# Containers of this work tree's image, killed, paused, cut off, restarted; needs Docker.
containers: install
	CONTAINERS_LONG=1 $(BIN)/pytest tests/containers -s --durations=0
