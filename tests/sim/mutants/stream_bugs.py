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
        "who takes a stream over knows of its writers what the state ledger says, and no more",
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
        "a take-over writes a state without the stream",
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
        "an append that closes the stream is taken in without closing it",
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
        "close-passes-what-is-under-way",
        0,
        "broker/partition/stream.py",
        "a close does not wait for the appends that were let in before it",
        """They have their offsets and are on their way to the bookies. The edit has the end written
        where the stream ends at that moment, and readers told, while messages come behind it.""",
        "X20",
        "a close beside appends",
        (
            Edit(
                "octavo.broker.partition.stream:PartitionStream.close",
                "await publisher.confirmed_up_to(upto)",
                "pass",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "stream-seq-may-come-twice",
        0,
        "broker/state/stream.py",
        "a `Stream-Seq` that is the last one's is not refused",
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
    Mutant(
        "maker-plans-a-fork-anew",
        0,
        "broker/http/api/durable_making.py",
        "a fork that another broker has just made is made at another place",
        """The owner has not heard of it and asks the source, which has grown meanwhile. The first
        version was so: seed 20, without a fault.""",
        "X20",
        "a fork that is passed on to an owner who has not heard of it",
        (
            Edit(
                "octavo.broker.http.api.durable_making:_topic",
                "return await topics.newest(topic), None",
                "return await topics.newest(topic), plan if asked.fork else None",
            ),
        ),
        PROFILE,
    ),
)
