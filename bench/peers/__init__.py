"""B-peers: Octavo beside other systems, on one machine and in one run.

    make bench-peers                                  # everything, in some 15 minutes
    make bench-peers PAGE=1                           # and its table into docs/performance.md
    python -m bench.peers --systems octavo,kafka-flush --rounds 1 --messages 20000 --seconds 3

There are two kinds of workloads, in topics and in ledgers, and one kind is measured after the
other. The servers of all systems of a kind are started once and stay up to its end, on free ports
of the loopback interface, with their data in a temporary folder, Java's with heaps of 1 GB. So
whichever is measured, the others idle beside it: what idle servers use of a core is printed.
Starting each when it is its turn would measure cold Java, or would not measure in turns. Every
workload is run by every system unmeasured and shorter first, to warm both sides, but `single`, and
those that are short once more. Then, in each round, the systems take turns at each workload,
another one first in every round. Every client is a process of its own. After each run what is still
unwritten is written out (`sync`), so that nobody waits for another one's data. In the end it says
how much of a core everything else on the machine has used: beyond some tenths the machine was not
idle.

| system | copies | an acknowledgement says |
|---|---|---|
| `octavo` | 3, ack quorum 2 | two bookies' disks have it (`fdatasync`) |
| `kafka-flush` | 3, `min.insync.replicas=2`, `acks=all` | the in-sync replicas have synced it |
| `kafka` | the same | the in-sync replicas have it in memory |
| `pulsar` | 3, ack quorum 2 | two bookies' disks have it (`journalSyncData`) |
| `nats` | 3, `sync_interval: always` | a majority's disks have it |
| `rocketmq` | 1, `SYNC_FLUSH` | the one disk has it |
| `octavo-bookies` | 3, ack quorum 2 | two bookies' disks have it; no brokers, as in B2 |
| `bookkeeper` | the same | the same of Apache's bookies, asked by Apache's client |

`kafka-flush` and `kafka` are topics with and without `flush.messages=1` on the same three brokers.
`pulsar` is its standalone: broker, three bookies and metadata in one process. `bookkeeper` is three
bookies and a ZooKeeper; its client speaks v2 frames, and its throttle (5,000 adds a second by
default) is off.

| workload | what is done, with messages of 100 B |
|---|---|
| `produce` | one Python program sends all to four partitions, and waits for every ack |
| `consume` | one Python program receives them all and acknowledges them |
| `batches` | bulk at full speed: Octavo 64 KB record batches over HTTP, the others Java clients |
| `single` | 1,000 single messages a second to one partition, when due; ms since each was due |
| `single-5000` | the same, 5,000 a second |
| `ledger` | one writer adds entries of 100 B to a ledger, E = Qw = 3, Qa = 2, at full speed |
| `ledger-1k`, `ledger-64k` | the same, entries of 1 KB and 64 KB |

What differs, and cannot be made the same: NATS knows no partitions (one stream) and has no bulk
path, and is given a sixth of the messages in `produce` and `consume`. In `consume`, Octavo's,
Pulsar's and NATS's programs acknowledge every message (Pulsar's library sends acks together),
Kafka's commits its offsets once at the end. In `single` Octavo's client speaks HTTP to the
partition's owner; Kafka's, Pulsar's and NATS's are their Python libraries, RocketMQ's is Java, for
its Python library needs a proxy beside the broker, which is also why it has no `produce` and
`consume`. In `produce` batches are as large as each library makes them by itself, and wait for 5 ms
at most: 256 KB for Octavo, 1 MB for Kafka, 1,000 messages for Pulsar; NATS sends message by
message, up to 1,000 of them not acked yet. In `batches` Kafka's tool and our small programs for
Pulsar and RocketMQ (`java/`) make batches of 64 KB; the first two wait for 5 ms for one to fill,
RocketMQ's sends 500 messages in a call, eight calls at a time. In `single` Pulsar's library waits
for 1 ms for others.

Settings that are not a system's defaults, beside copies, syncing and ports, because with the
defaults the measurement would end or rest: Kafka's consumer has `fetch.queue.backoff.ms` 10 instead
of 1,000 (it rests for a second of every run of 300,000 messages, and makes 226,000/s); RocketMQ's
broker refuses what waited for 10 s instead of 200 ms; BookKeeper's bookies take a million adds that
wait instead of 10,000 (beyond them its client closes the ledger and fails); Pulsar's bookies have
write caches of 64 MB instead of 4. Bookies of both kinds look every 5 s for ledgers that were
deleted, or a run would fill tens of GB of disk.

A time of `produce` and `consume` is from the making of the client to the last ack. `first_ms` is
how long of it passed until the first message came (Kafka's consumer joins a group first). Server
time is the processor time of all of a system's servers while the client process lived, for each
message; at 1,000 messages a second much of it is what they use when idle.

The Java virtual machines are as fast as they get after a minute of load: a run shorter than the
default one shows that everything works, and nothing about the speed of Kafka, Pulsar, RocketMQ and
BookKeeper.

Who does what: `contract` says what a system is asked for, `fetch` brings jars and binaries,
`servers` starts processes and ends them, `java` runs and compiles Java, the modules called
`…_peer` each run one cluster, those called `…_client` and what lies in `java/` are the programs
that are measured, `figures` takes and reads their figures, `table` makes what is printed, `page`
puts it into docs/performance.md, and `__main__` goes round.
"""
