"""B-peers: Octavo and other systems, on the same machine and in the same run.

    make bench-peers                                  # everything, in some 15 minutes
    make bench-peers PAGE=1                           # and its table into docs/performance.md
    python -m bench.peers --systems octavo,kafka-flush --rounds 1 --messages 20000 --seconds 3

There are two kinds of workloads, in topics and in ledgers, which are measured one after the other.
The servers of all systems of a kind run from its beginning to its end, on free ports of the
loopback interface, with their data in a temporary folder, and Java heaps of 1 GB. So while a system
is measured, the others idle; their idle use of a core is printed. Starting each system for its turn
would measure cold Java. First every system runs every workload except `single` unmeasured and
shorter, to warm up, the short workloads twice. Then the systems take turns at each workload, with
another system first in every round. Every client is a new process. After each run unwritten data
are written out (`sync`), so that no system waits for another system's data. At the end it prints
how much of a core the rest of the machine used: with more than some tenths the machine was not
idle.

| system | copies | an acknowledgement says |
|---|---|---|
| `octavo` | 3, ack quorum 2 | two bookies' disks have it (`fdatasync`) |
| `kafka-flush` | 3, `min.insync.replicas=2`, `acks=all` | the in-sync replicas have synced it |
| `kafka` | the same | the in-sync replicas have it in memory |
| `pulsar` | 3, ack quorum 2 | two bookies' disks have it (`journalSyncData`) |
| `nats` | 3, `sync_interval: always` | a majority's disks have it |
| `rocketmq` | 1, `SYNC_FLUSH` | the only disk has it |
| `octavo-bookies` | 3, ack quorum 2 | two bookies' disks have it; no brokers, as in B2 |
| `bookkeeper` | the same | the same, with Apache's bookies and Apache's client |

`kafka-flush` and `kafka` are topics with and without `flush.messages=1` on the same three brokers.
`pulsar` is its standalone: broker, three bookies and metadata in a single process. `bookkeeper` is
three bookies and a ZooKeeper; its client uses v2 frames, without its default throttle of 5,000 adds
a second.

| workload | the work, with messages of 100 B |
|---|---|
| `produce` | a Python program sends all to four partitions, and waits for every ack |
| `consume` | a Python program receives them all and acknowledges them |
| `batches` | bulk at full speed: Octavo 64 KB record batches over HTTP, the others Java clients |
| `single` | 1,000 single messages a second to a partition, when due; ms since each was due |
| `single-5000` | the same, 5,000 a second |
| `ledger` | a writer adds entries of 100 B to a ledger, E = Qw = 3, Qa = 2, at full speed |
| `ledger-1k`, `ledger-64k` | the same, entries of 1 KB and 64 KB |

Differences that cannot be removed: NATS has neither partitions (it uses a single stream) nor a bulk
path, and gets a sixth of the messages in `produce` and `consume`. In `consume`, the programs of
Octavo, Pulsar and NATS acknowledge every message (Pulsar's library groups acks), Kafka's commits
its offsets once at the end. In `single` Octavo's client uses HTTP to the partition's owner, and
Kafka, Pulsar and NATS their Python libraries; RocketMQ uses Java, because its Python library needs
a proxy. For the same reason RocketMQ lacks `produce` and `consume`. In `produce` each library
chooses its batches, which wait for at most 5 ms: 256 KB for Octavo, 1 MB for Kafka, 1,000 messages
for Pulsar; NATS sends single messages, up to 1,000 of them unacked. In `batches` Kafka's tool and
our programs for Pulsar and RocketMQ (`java/`) make batches of 64 KB; the first two wait up to 5 ms
for a batch to fill, RocketMQ's sends 500 messages in a call, eight calls at a time. In `single`
Pulsar's library waits for 1 ms for further messages.

Besides copies, syncing and ports, these settings differ from a system's defaults, with which the
measurement would fail or pause: Kafka's consumer has `fetch.queue.backoff.ms` 10 instead of 1,000
(else it pauses for a second in every run of 300,000 messages, and reaches 226,000/s); RocketMQ's
broker refuses messages that waited for 10 s instead of 200 ms; BookKeeper's bookies accept a
million waiting adds instead of 10,000 (with more its client closes the ledger and fails); Pulsar's
bookies have write caches of 64 MB instead of 4. All bookies look for deleted ledgers every 5 s, or
a run would fill tens of GB of disk.

The time of `produce` and `consume` is from the making of the client to the last ack. `first_ms` is
the part of it until the first message (Kafka's consumer joins a group first). Server time is the
processor time of all servers of a system during the client process, divided by the messages; at
1,000 messages a second much of it is idle use.

Java virtual machines reach full speed after a minute of load. So a run that is shorter than the
default only shows that everything works, not the speed of Kafka, Pulsar, RocketMQ and BookKeeper.

The modules: `contract` defines systems and workloads, `fetch` fetches jars and binaries, `servers`
starts and ends processes, `java` compiles and runs Java, each `…_peer` runs a cluster, each
`…_client` and `java/` are the measured programs, `figures` takes and reads their figures, `table`
makes the output, `page` writes it to docs/performance.md, and `__main__` runs the rounds.
"""
