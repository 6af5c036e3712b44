"""Planted bugs that a test has to find: decisions of pure modules, and what no seed comes by soon.

They are of no canon. Each is what a reviewer may overlook: a line that looks redundant and is left
out, a condition made simpler, an off-by-one, a similar name, an `and` for an `or`.
"""

from __future__ import annotations

from tests.sim.mutants.planting import Edit
from tests.sim.mutants.tested import TestedBug

BUGS = (
    TestedBug(
        "returned-not-counted",
        "a bookie that came back is sent what is missing, and its acks never count",
        """It missed entries that others confirmed, so it has to count anew from the last confirmed
        one. Without that line its acks are ranges that came too early, for ever: with Qa = Qw, or
        when another bookie fails, the writer stands still.""",
        "S8",
        "unit/ledger/test_writing.py",
        (
            Edit(
                "ledger.writing:Writing.returned",
                "        self.acks.join(position, self.lac)\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "second-failure-forgotten",
        "a bookie that failed while another was being replaced is not replaced itself",
        """The look at who is down by now seems redundant after a change that went well. The writer
        goes on as if all were live, also where no ack quorum is left.""",
        "S8",
        "unit/ledger/test_writing.py",
        (
            Edit(
                "ledger.writing:Writing._apply",
                "    if self.down:\n        return actions + self._choose()\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "early-acks-go-back",
        "acks that come twice take back how far a bookie has come",
        """A range that waited may end before what was acked meanwhile. Without the maximum the
        bookie owes again what it has stored.""",
        "S8, P13",
        "unit/ledger/test_quorum.py",
        (
            Edit(
                "ledger.quorum:Acks._absorb",
                "reached = max(reached, heappop(early)[1])",
                "reached = heappop(early)[1]",
            ),
        ),
    ),
    TestedBug(
        "length-not-taken",
        "a recovery that finds nothing above the LAC closes the ledger with length 0",
        """The confirmed entry is read for nothing but its length, so the early return seems to
        belong first.""",
        "S2 (the record says what the ledger holds)",
        "unit/ledger/test_recovering.py",
        (
            Edit(
                "ledger.recovering:Recovering._take",
                "    self._length = found.length\n    if entry_id <= self._start:\n",
                "    if entry_id <= self._start:\n",
            ),
            Edit(
                "ledger.recovering:Recovering._take",
                "    assert entry_id == self._decided + 1\n",
                "    self._length = found.length\n    assert entry_id == self._decided + 1\n",
            ),
        ),
    ),
    TestedBug(
        "gap-of-one",
        "a gap of a single entry is overlooked when copies are counted",
        """An off-by-one: the bookie vouches for a ledger of which one entry is missing.""",
        "P42, P53",
        "unit/ledger/test_copies.py",
        (Edit("ledger.copies:_gaps", "if start > first:", "if start > first + 1:"),),
    ),
    TestedBug(
        "cursor-load-below-floor",
        "acks below the mark-delete offset count as acked beyond it",
        """A chunk of a snapshot may begin below the floor. Without the mask its lower bits are
        counted: the backlog is too small by them for ever.""",
        "S9 (backlog)",
        "unit/broker/test_cursor.py",
        (
            Edit(
                "broker.cursor:Cursor.load",
                "        if base < self._floor:\n"
                "            bits = bits >> (self._floor - base) << (self._floor - base)\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "duplicate-proved-by-its-first",
        "a repeat is answered when the first of its messages is durable",
        """A repeat may span several batches, cut otherwise than before. Its answer waits for one
        offset; the first one does not prove the last.""",
        "S9, S1 (what is answered is durable)",
        "unit/broker/test_dedup.py",
        (
            Edit(
                "broker.dedup:_place",
                "return Duplicate(first_offset, last_offset, last_offset)",
                "return Duplicate(first_offset, last_offset, first_offset)",
            ),
        ),
    ),
    TestedBug(
        "extended-lease-ends",
        "a lease that was extended ends when the one that it was part of would have",
        """Both have one number, so `holds`, which is there already, looks like the right question.
        The message is delivered to two consumers at once.""",
        "S9",
        "unit/broker/test_dispatch.py",
        (
            Edit(
                "broker.dispatch:Dispatcher.expire",
                "if self._lease_of.get(offset) is lease:",
                "if self.holds(offset, lease.number):",
            ),
        ),
    ),
    TestedBug(
        "producers-keep-their-place",
        "a replay leaves a producer where it stood among the silent ones",
        """The table forgets whoever was silent for longest. Setting a key that is there keeps its
        place, so after a take-over the busiest producer may be forgotten first.""",
        "S9 (none twice)",
        "unit/broker/test_state_format.py",
        (
            Edit(
                "broker.state_format:State._apply",
                "                self.producers.pop(producer_id, None)\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "snapshot-of-what-is-not-confirmed",
        "what a producer has confirmed goes into the table of what it has sent",
        """Two tables with similar names: one as of what was accepted, one as of what is confirmed,
        which a snapshot holds.""",
        "S9 (none twice)",
        "unit/broker/test_publisher.py",
        (
            Edit(
                "broker.publisher:Publisher._confirm",
                "self.stored_producers.accept(*job.sequence, first)",
                "self._producers.accept(*job.sequence, first)",
            ),
        ),
    ),
    TestedBug(
        "any-copy-finishes",
        "a finished copy of another uuid is taken for one's own",
        """`finished` is repeated after a lost answer. Without the second half of the condition a
        copy that is still being made counts as whole.""",
        "X6",
        "unit/metadata/test_offloads.py",
        (Edit("metadata.offloads:finished", " and is_readable(found)", ""),),
    ),
    TestedBug(
        "whole-copy-begun-anew",
        "a ledger whose copy is whole is copied anew, and the record forgets the whole one",
        """A similar name: only a copy that is the *only* one is kept.""",
        "X6",
        "unit/metadata/test_offloads.py",
        (
            Edit(
                "metadata.offloads:begun",
                "if is_readable(link.offload):",
                "if is_only_copy(link.offload):",
            ),
        ),
    ),
    TestedBug(
        "size-trims-one-more",
        "retention by size removes a ledger that it still needs",
        """What is left afterwards has to hold the bytes to keep; the edit looks at what was there
        before.""",
        "retention",
        "unit/broker/test_chain.py",
        (
            Edit(
                "broker.chain:Chain._covered_from",
                "total - link.bytes >= policy.payload_bytes",
                "total >= policy.payload_bytes",
            ),
        ),
    ),
)
