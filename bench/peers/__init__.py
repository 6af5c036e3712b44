"""B-peers: Octavo beside Kafka and NATS JetStream, on one machine and in one run.

    make bench-peers                                  # everything, in some 9 minutes
    python -m bench.peers --systems octavo,kafka-flush --rounds 1 --messages 20000 --seconds 3

The servers of all systems are started once and stay up to the end, on free ports of the loopback
interface, with their data in a temporary folder. So whichever is measured, the others idle beside
it. Every workload is run twice by every system unmeasured and shorter, to warm both sides, and
what the idle servers then use of a core together is printed. Then, in each round, the systems take
turns at each workload, another one first in every round. Every client is a process of its own.
After each run what is still unwritten is written out (`sync`), so that nobody waits for another
one's data.

| system | copies | an acknowledgement says |
|---|---|---|
| `octavo` | 3, ack quorum 2 | two bookies' disks have it (`fdatasync`) |
| `kafka-flush` | 3, `min.insync.replicas=2`, `acks=all` | the in-sync replicas have synced it |
| `kafka` | the same | the in-sync replicas have it in memory |
| `nats` | 3, `sync_interval: always` | a majority's disks have it |

`kafka-flush` and `kafka` are topics with and without `flush.messages=1` on the same three brokers.

| workload | what is done, with messages of 100 B |
|---|---|
| `produce` | one Python program sends all to four partitions, and waits for every ack |
| `consume` | one Python program receives them all and acknowledges them |
| `batches` | bulk at full speed: Octavo 64 KB record batches over HTTP, Kafka its Java tool |
| `single` | 1,000 single messages a second to one partition, when due; ms since each was due |
| `single-5000` | the same, 5,000 a second |

What differs, and cannot be made the same: NATS knows no partitions (one stream) and has no bulk
path, and is given a sixth of the messages in `produce` and `consume`. In `consume`, Octavo's and
NATS's programs acknowledge every message, Kafka's commits its offsets once at the end. In `single`
Octavo's client speaks HTTP to the partition's owner, Kafka's and NATS's are their libraries.
In `produce` batches are as large as each library makes them by itself, and wait for 5 ms at most:
256 KB for Octavo, 1 MB for Kafka; NATS sends message by message, up to 1,000 of them not acked yet.
One setting of Kafka's consumer is not its default (`fetch.queue.backoff.ms`, 10 instead of 1,000):
with the default it rests for a second of every run of 300,000 messages, and makes 226,000/s.

A time of `produce` and `consume` is from the making of the client to the last ack. `first_ms` is
how long of it passed until the first message came (Kafka's consumer joins a group first). Server
time is the processor time of all of a system's servers while the client process lived, for each
message; at 1,000 messages a second much of it is what they use when idle.

The Java virtual machines are as fast as they get after a minute of load: a run shorter than the
default one shows that everything works, and nothing about Kafka's speed.

Who does what: `contract` says what a system is asked for, `fetch` brings jars and binaries,
`servers` starts processes and ends them, the modules called `…_peer` each run one cluster, those
called `…_client` are the programs that are measured, `figures` takes and reads their figures,
`table` makes what is printed, and `__main__` goes round.
"""
