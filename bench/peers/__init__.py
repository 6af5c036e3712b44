"""B-peers: Octavo and other systems, on the same machine and in the same run.

    make bench-peers                                  # everything, in some 15 minutes
    make bench-peers PAGE=1                           # and its table into docs/performance.md
    python -m bench.peers --systems octavo,kafka-flush --rounds 1 --messages 20000 --seconds 3

Workloads in topics, then in ledgers. The servers of all systems of a kind run from its beginning to
its end, with Java heaps of 1 GB: starting each for its turn would measure cold Java. First every
system runs shorter workloads to warm up; then they take turns, with another system first in every
round. Every client is a new process, and `sync` follows each run. The idle use of the other systems
and of the rest of the machine is printed.

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

| workload | the work, with messages of 100 B |
|---|---|
| `produce` | a Python program sends all to four partitions, and waits for every ack |
| `consume` | a Python program receives them all and acknowledges them |
| `batches` | bulk at full speed: Octavo 64 KB record batches over HTTP, the others Java clients |
| `single` | 1,000 single messages a second to a partition, when due; ms since each was due |
| `single-5000` | the same, 5,000 a second |
| `ledger` | a writer adds entries of 100 B to a ledger, E = Qw = 3, Qa = 2, at full speed |
| `ledger-1k`, `ledger-64k` | the same, entries of 1 KB and 64 KB |

Differences that cannot be removed:
- NATS has neither partitions nor a bulk path, and gets a sixth of the messages.
- In `consume`, Kafka's program commits its offsets once at the end; the others ack every message.
- RocketMQ lacks `produce` and `consume`, and uses Java in `single`: its Python library needs a
  proxy.
- In `produce` each library chooses its batches (256 KB for Octavo, 1 MB for Kafka, 1,000 messages
  for Pulsar, wait at most 5 ms); NATS sends single messages, up to 1,000 unacked.

Settings other than the defaults, with which the measurement would fail or pause: Kafka's
`fetch.queue.backoff.ms` 10; RocketMQ refuses messages after 10 s; BookKeeper's bookies accept a
million waiting adds; Pulsar's bookies have write caches of 64 MB; all bookies look for deleted
ledgers every 5 s.

The time of `produce` and `consume` is from the making of the client to the last ack; `first_ms` is
its part until the first message. Server time is the processor time of all servers of a system,
divided by the messages. Java reaches full speed after a minute of load: a run shorter than the
default only shows that everything works.
"""
