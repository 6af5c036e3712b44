# The commands of this project. `make demo` and `make test` do all the set-up they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Hundreds of processes start in the tests, and a dozen in the demo: without byte code, as some
# environments want it, each of them would compile all of Octavo again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: apache attack audit compiled containers docs help demo demo-pipeline test test-all test-failed test-long check install fmt interop bench bench-peers bench-spark bench-storage sim sim-digest sim-many mutants kills spark-kills model crash-states fault-sweep io-errors engine-model network-matrix sbom take-over

help:
	@echo 'make demo      a cluster on real data, a bookie and two brokers killed; then fencing explained'
	@echo 'make demo-pipeline  the flights through Spark, each result checked (needs Java 17)'
	@echo 'make test      format, lint, types, layers, and every kind of test in a short form: some minutes'
	@echo 'make test-all  the same, then the long tests: more seeds, more kills, all of Spark'
	@echo 'make test-failed  what failed in the last run, one test at a time'
	@echo 'make check     the same without the tests'
	@echo 'make docs      a page for every module, made from its docstrings, in dist/api'
	@echo 'make fmt       format and mend what can be mended'
	@echo 'make bench     B1 to B8 and B10 to B12 of docs/performance.md on this machine; 10 minutes'
	@echo 'make bench-peers    beside Kafka, Pulsar, RocketMQ, NATS, BookKeeper; 15 minutes: [SYSTEMS=octavo,kafka-flush] [ROUNDS=3] [PAGE=1] (needs a JDK, Maven, Go)'
	@echo 'make bench-spark    B9: what the Spark source reads from closed ledgers, what the sink writes'
	@echo 'make bench-storage  the storage engine: busy, restarts, index; 15 minutes, 25 GB of disk'
	@echo 'make interop   beside a real Apache BookKeeper (needs a JDK and Maven)'
	@echo 'make apache    all of Apache on our bookies, and the other way: [ONLY=shell,move] [SHORT=1] [PAGE=1] [FROM="outputs"] (the same needs)'
	@echo 'make sim       one simulated seed: SEED=7 [VERBOSE=1]'
	@echo 'make sim-many  many of them: N=3000 [START=0] [JOBS=2] [PROFILE=all]'
	@echo 'make sim-digest  what 300 of them told, in a hash for each profile: the same before and after a move'
	@echo 'make mutants   bugs planted one at a time: the seeds, or the test, that find each [ONLY=name] [JOBS=2]'
	@echo 'make model     every state of the protocol, by its production code: [MODEL="M1 M6"] [STORY=1]'
	@echo 'make crash-states   every disk that a power failure may leave; minutes to an hour'
	@echo 'make fault-sweep    every block of a bookie'"'"'s disk damaged in turn, alone and among three'
	@echo 'make io-errors      EIO and ENOSPC at every call to the disk'
	@echo 'make containers     a cluster of containers killed, paused, cut off, restarted in turn; needs Docker'
	@echo 'make engine-model   the storage engine against a model: 100,000 steps; minutes'
	@echo 'make network-matrix   the network cut in 20 ways and slow in 4, in 3 phases each; root; 15 minutes'
	@echo 'make take-over  how long a killed broker is missed, and where the time goes: [ROUNDS=20]'
	@echo 'make attack    unruly clients against a real cluster, one after another: [ONLY=text] [FUZZ_SECONDS=600] [SEED=7]'
	@echo 'make sbom      what Octavo is made of, with versions (CycloneDX): dist/sbom.json'
	@echo 'make audit     known vulnerabilities of that; says so where no advisory database is in reach'
	@echo 'make kills     kill -9 real processes at random and at persist steps: N=500 [SEED=7]'
	@echo 'make spark-kills  kill -9 a streaming query on one checkpoint: N=100 [SEED=7] [COMMIT=producer]; needs Java 17'

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

demo-pipeline: install
	$(BIN)/octavo demo pipeline $(if $(DATA),--data $(DATA))

WORKERS ?= 3
PYTEST = $(BIN)/pytest --numprocesses $(WORKERS) --dist loadgroup

# Every kind of test, each in a short form; what is marked `long` is for the whole run.
test: install
	@$(MAKE) --no-print-directory --jobs 2 --output-sync check compiled
	$(PYTEST) -m 'not long'

# The tests as pytest rewrites them, once and beside the checks, and not in each worker.
compiled: install
	@$(BIN)/pytest --collect-only -qq >/dev/null || true

test-all: test test-long

test-long: install
	$(PYTEST) -m long --durations 20

# What failed last, alone on the machine: does it fail by itself, or beside others?
test-failed: install
	$(BIN)/pytest --last-failed --last-failed-no-failures none

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The names that octavo loads when they are first used are loaded first: pdoc shows what is there.
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

# The others are fetched; without a network, Java or Go, it goes on with those that are there.
# PAGE=1 puts the table into docs/performance.md, also that of an earlier run: FROM=its-output.
bench-peers: install
	@$(BIN)/pip install --quiet --editable '.[dev,peers]' \
	    || echo 'the clients of Kafka, NATS and Pulsar could not be installed' >&2
	$(BIN)/python -m bench.peers $(if $(SYSTEMS),--systems $(SYSTEMS)) \
	    $(if $(WORKLOADS),--workloads $(WORKLOADS)) $(if $(ROUNDS),--rounds $(ROUNDS)) \
	    $(if $(MESSAGES),--messages $(MESSAGES)) $(if $(SECONDS),--seconds $(SECONDS)) \
	    $(if $(PAGE),--page) $(if $(FROM),--from $(FROM))

bench-spark: install
	$(BIN)/python -m bench.b9_source --megabytes 100
	$(BIN)/python -m bench.b9_sink

bench-storage: install
	$(BIN)/python -m bench.b1_busy
	$(BIN)/python -m bench.index
	$(BIN)/python -m bench.restart

# Beside a real Apache BookKeeper, fetched by Maven: needs a JDK (17 or newer) and Maven.
interop: install
	$(BIN)/python -m tests.apache --only conversations

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

# Bugs of the field, and what a reviewer may overlook, planted in our code one at a time, each to be
# found by seeds or by the tests that it names; docs/planted_bugs.md.
mutants: install
	$(BIN)/python -m tests.sim mutants --jobs $(JOBS) $(if $(ONLY),--only $(ONLY))

# Real processes under load, killed at random and before, amid and after each persist step.
kills: N ?= 500
kills: install
	$(BIN)/python -m tests.process.campaign --cycles $(N) \
	    $(if $(SEED),--seed $(SEED)) $(if $(ZOOKEEPER),--zookeeper)

# Floods, bombs, nonsense, foreign pages, beside a client that must not notice; minutes.
attack: install
	$(BIN)/python -m tests.attack $(if $(ONLY),--only '$(ONLY)') \
	    $(if $(FUZZ_SECONDS),--fuzz $(FUZZ_SECONDS)) $(if $(SEED),--seed $(SEED))

# Of what a user gets who installs Octavo alone: dist/runtime. REQUIRE_ADVISORIES=1: an answer must come.
sbom: install
	$(BIN)/python -m tests.supply_chain sbom

audit: sbom
	$(BIN)/python -m tests.supply_chain audit

# A streaming query from topic to topic, killed at random and at its commits: each row comes out once.
spark-kills: N ?= 100
spark-kills: install
	$(BIN)/python -m tests.spark.kills --cycles $(N) $(if $(SEED),--seed $(SEED)) \
	    $(if $(COMMIT),--commit $(COMMIT))

# Every state that the production state machines can reach, within bounds: docs/model_check.md.
model: install
	$(BIN)/python -m tests.model $(MODEL) $(if $(STORY),--story)

# The storage engine alone: every life of four operations, power lost at every step of each.
crash-states: install
	$(BIN)/python -m tests.crash_states --length 4 --kills 2 --jobs $(JOBS)

# Every block of every file of a bookie hurt: real files of one of three, then simulated disks.
fault-sweep: install
	$(BIN)/python -m tests.single_fault --jobs $(JOBS)

io-errors: install
	$(BIN)/python -m tests.io_errors

# Any history of the storage engine, with deaths at any moment, against a model of 60 lines.
engine-model: install
	$(BIN)/python -m tests.engine_model --jobs $(JOBS)

# Hosts of network namespaces, links cut under load: docs/partitions.md. Needs root, Java, iptables.
network-matrix: install
	$(BIN)/python -m tests.network $(if $(CASES),--cases $(CASES)) $(if $(JSON),--json $(JSON))

# From the kill of a broker to the first ack of each of its partitions: docs/partitions.md.
take-over: install
	$(BIN)/python -m tests.network.take_over --rounds $(or $(ROUNDS),20) $(if $(JSON),--json $(JSON))

# Containers of this work tree's image: the tests of `make test`, and a larger cluster restarted.
containers: install
	CONTAINERS_LONG=1 $(BIN)/pytest tests/containers -s --durations=0
