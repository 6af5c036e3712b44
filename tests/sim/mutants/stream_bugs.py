"""Planted bugs of durable streams.

A harmless change is not planted: an opener that looks for a fork's appends in its source's ledgers
too (`PartitionOpener._appends` without `shared`). A new fork knows all appends before its beginning
(`StreamState.upto`), and shared ledgers lie before that. An end that readers see before it is
durable is planted for a test (tested_partition_bugs.py).
"""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

PROFILE = "stream"

MUTANTS = (
    Mutant(
        "take-over-forgets-appends",
        0,
        "broker/state/stream.py",
        "a stream's take-over forgets the appends after the last snapshot",
        """The batches hold each append's producer and sequence; the state ledger has them up to
        some offset. The edit ignores later batches, so a repeat of an acked append is stored
        again or refused as a gap.""",
        "X20",
        "producers that repeat, and a take-over",
        (
            Edit(
                "octavo.broker.state.stream:StreamState.replay",
                "if end > self.upto:",
                "if end > self.upto and append.producer is None:",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "second-take-over-finds-no-stream",
        0,
        "broker/partition/opening.py",
        "after two take-overs a topic is no longer a stream",
        """The new owner has the stream in memory and serves it, but its state ledger begins with a
        snapshot without it. The next owner finds an ordinary topic, and answers producers with
        404.""",
        "X20",
        "two take-overs",
        (
            Edit(
                "octavo.broker.partition.opening:PartitionOpener._write_state",
                "state.stream, used_ms,",
                "None, used_ms,",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "closing-append-is-not-the-last",
        0,
        "broker/state/stream.py",
        "an append that closes the stream does not close it",
        """The answer says that the stream is closed, because the append asked for it. The edit
        leaves the state open, so others append behind it.""",
        "X20",
        "an append that closes, beside others",
        (
            Edit(
                "octavo.broker.state.stream:StreamState.accept",
                "if append.closes and not self.closed:",
                "if append.closes and append.producer is None and not self.closed:",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "stream-seq-may-come-twice",
        0,
        "broker/state/stream.py",
        "an append with the last `Stream-Seq` again is accepted",
        """"Higher or equal" looks like an order, but accepts a request that arrives twice.""",
        "X20",
        "writers with `Stream-Seq`, and requests that come twice",
        (
            Edit(
                "octavo.broker.state.stream:StreamState.check",
                "append.stream_seq <= last:",
                "append.stream_seq < last:",
            ),
        ),
        PROFILE,
    ),
)
