"""Planted bugs of durable streams.

Not planted, for it does no harm: that who opens a fork looks for appends in its source's ledgers,
too (`PartitionOpener._appends` without `shared`). A fork knows all before where it began from the
moment it is made (`StreamState.upto`), and what is shared lies before that. That readers are told
of an end before it is durable is planted once, for a test (tested_partition_bugs.py).
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
        """What an append says of its producer lies in the batch that it stores, and the state
        ledger has it as of some offset. The edit passes over producers behind that, so
        a repeat of what the owner before had acked is stored again, or refused as a gap.""",
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
        """The new owner has the stream in memory, and serves it. Its own state ledger begins with a
        snapshot, and who takes over from it finds a topic that is no stream: whoever was acked is
        answered 404.""",
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
        """Its answer says that it is closed, for it asked for that. The edit lets the state go on:
        others append behind it.""",
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
        """Higher or equal reads like an order, and lets a request that came twice in twice.""",
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
