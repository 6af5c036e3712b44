"""Planted bugs of durable streams."""

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
        "closed-before-it-is-durable",
        0,
        "broker/partition/stream.py",
        "readers are told of the end before the state ledger has it",
        """A close without a batch is in memory first. The edit shows it from then on: a reader goes
        home with all there will ever be, the owner dies, and the next one appends.""",
        "X20",
        "a close, and an owner that dies before it is written",
        (
            Edit(
                "octavo.broker.partition.stream:PartitionStream.is_closed",
                "state.closed and not self._pending",
                "state.closed",
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
        "repeat-is-answered-before-it-is-durable",
        0,
        "broker/partition/publisher.py",
        "a repeat of an append that is under way is answered at once",
        """It is known, so it is a repeat; that it is stored nobody knows yet. The edit has the
        repeat wait for the first message instead of its own: it is acked, and gone when the
        owner's ledger fails.""",
        "X20",
        "a producer that repeats before it is answered, and a ledger that fails",
        (
            Edit(
                "octavo.broker.partition.publisher:Publisher._is_repeat",
                "job.first_offset = end - 1",
                "job.first_offset = 0",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "fork-knows-its-sources-writers",
        0,
        "broker/partition/opening.py",
        "who opens a fork takes the source's appends for its own",
        """A fork shares ledgers with its source, and its batches name the source's producers and
        its close. The edit looks through them as well: a fork of a closed stream is closed.""",
        "X20",
        "a fork of a stream with producers, and a take-over",
        (
            Edit(
                "octavo.broker.partition.opening:PartitionOpener._appends",
                "appended = not (segment.bulk_loaded or segment.shared)",
                "appended = not segment.bulk_loaded",
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
