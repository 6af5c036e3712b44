"""Bugs of v3 frames, and related bugs, that a test finds."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit
from tests.sim.mutants.tested import TestedBug

BUGS = (
    TestedBug(
        "deletion-denies-too-early",
        'a fence is answered "no such ledger" before the deletion is durable',
        """After "no such ledger" a recovery counts on this bookie. After a power failure the bookie
        has the ledger again, unfenced, and takes adds of its writer.""",
        "P23",
        "cluster/test_v3_frames.py",
        (
            Edit(
                "octavo.bookie.ledgers.control:LedgerControl.fence",
                "        await self.delete(ledger_id)\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "foreign-bookies-not-told",
        "Apache's bookies are not told the LAC of an idle ledger",
        """Apache's bookies take a LAC only in v3 frames. Without it only the writer knows that the
        last entries are confirmed: readers leave them out, and brokers answer 503.""",
        "what is confirmed can be read",
        "cluster/test_ledgers.py",
        (
            Edit(
                "octavo.ledger.write.ensemble_writer:EnsembleWriter._announce_lac",
                "self._client.spawn(self._tell_in_v3(bookie.bookie_id, lac))",
                "self._told[bookie.bookie_id] = None",
            ),
        ),
    ),
    TestedBug(
        "signature-of-a-lac-not-checked",
        "an explicit LAC from an Apache bookie is believed without its signature",
        "A flipped bit makes entries readable that were never confirmed.",
        "P2",
        "cluster/test_ledgers.py",
        (
            Edit(
                "octavo.protocol.entry:unpack_lac",
                ' and bytes(data[LAC_ALONE.size :]) == digest.compute(front, b"")',
                "",
            ),
        ),
    ),
    TestedBug(
        "v3-run-not-compared",
        "v3 adds of equal length are taken for consecutive ids",
        """Most are consecutive. When two writers share a connection, or an entry is sent again,
        answers name entries that no client sent.""",
        "answers are those to what was asked",
        "unit/protocol/test_frames.py",
        (
            Edit(
                "octavo.protocol.v3_runs:_count_alike",
                "for column, values in wanted:",
                "for column, values in wanted[:0]:",
            ),
        ),
    ),
    TestedBug(
        "v3-ids-believed",
        "the ids in a v3 request and in its entry may differ",
        """v2 has the ids once. In v3 they may differ, and the answer acks an entry that this bookie
        does not have.""",
        "S1",
        "cluster/test_v3_frames.py",
        (
            Edit(
                "octavo.bookie.wire.v3_adds:_refusal",
                "if (ledger_id, entry_id) != (add.ledger_id, add.entry_id):",
                "if False:",
            ),
        ),
    ),
    TestedBug(
        "deferred-recovery-adds",
        "a recovery add may be answered before it is synced",
        """A recovery closes the ledger at the last answered entry. If power then fails at all its
        bookies, no bookie has that entry.""",
        "P21, P5",
        "cluster/test_v3_frames.py::test_what_recovery_adds_is_synced_whatever_it_asks_for",
        (
            Edit(
                "octavo.bookie.wire.connection:_wishes",
                "flags & (_DEFERRED_SYNC | _RECOVERY_ADD) == _DEFERRED_SYNC",
                "bool(flags & _DEFERRED_SYNC)",
            ),
        ),
    ),
    TestedBug(
        "mark-stays-before-what-was-deferred",
        "a flush does not sync deferred adds, so the journal grows without end",
        """The entries are in the log, but the journal is never shortened: it fills the disk, and a
        start reads all of it.""",
        "P39, space",
        "unit/bookie/test_storage.py",
        (
            Edit(
                "octavo.bookie.write.flushing:Flushing.checkpoint",
                "        await self._journals.catch_up()",
                "        pass",
            ),
        ),
    ),
    TestedBug(
        "long-poll-of-the-gone-kept",
        "a long poll continues after its client has gone",
        """The number of long polls is bounded. Clients that connect, ask and leave occupy all of
        them for a minute.""",
        "S6, a bound",
        "unit/bookie/test_bounds_of_requests.py",
        (
            Edit(
                "octavo.bookie.wire.in_flight:InFlight.cancel",
                "for task in self._tasks:",
                "for task in self._tasks - self._waits:",
            ),
        ),
    ),
    TestedBug(
        "long-polls-counted-when-they-wait",
        "long polls are counted only after each has cost a task",
        "One client makes the bookie start as many tasks as it can send requests.",
        "a bound of memory",
        "unit/bookie/test_bounds_of_requests.py",
        (
            Edit(
                "octavo.bookie.wire.in_flight:InFlight._wait",
                "if not self._requests.takes_polls:",
                "if len(self._requests._parked) >= self._requests._config.long_polls_max:",
            ),
        ),
    ),
    TestedBug(
        "v3-missing-field-is-zero",
        "a missing required field of a v3 request counts as zero",
        "Protobuf gives a default for a missing field, so the code must ask whether it is there.",
        "bad input is refused",
        "fuzz/test_v3_by_hand.py::test_each_field_missing_once_and_repeated",
        (
            Edit(
                "octavo.protocol.v3:parse_request",
                "    if not message.IsInitialized():\n        return None\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "v3-repeated-field-counts-for-another",
        "a repeated field of a v3 add stands in for a missing one",
        """An entry id that occurs three times makes up for a missing key: the add is stored under a
        key of zeros, and acked.""",
        "bad input is refused; a ledger's key is its writer's",
        "fuzz/test_v3_by_hand.py::test_each_field_missing_once_and_repeated",
        (
            Edit(
                "octavo.protocol.v3_runs:_walked",
                "            seen |= 2\n",
                "            seen += 2\n",
            ),
        ),
    ),
    TestedBug(
        "v3-frame-without-bound",
        "the length of a v3 frame is not checked",
        "A client announces two gigabytes and sends them, and the bookie keeps them all.",
        "a bound of memory",
        "cluster/test_v3_frames.py::test_the_longest_frame_and_one_byte_more",
        (
            Edit(
                "octavo.bookie.wire.connection:Connection._take_v3",
                "position + LENGTH.size + self._receiver.checked_length(length)",
                "position + LENGTH.size + length",
            ),
            Edit(
                "octavo.protocol.frames:FrameReceiver.keep",
                "LENGTH.size + self.checked_length(LENGTH.unpack_from(data, start)[0])",
                "LENGTH.size + LENGTH.unpack_from(data, start)[0]",
            ),
        ),
    ),
    TestedBug(
        "lists-beside-full-answers",
        "lists of entries are made while answers wait to be taken",
        "A request for a list has 30 bytes, its answer may have megabytes.",
        "a bound of memory",
        "unit/bookie/test_bounds_of_requests.py",
        (
            Edit(
                "octavo.bookie.read.path:ReadPath.entries",
                "        if self._answers.is_spent:\n            await self._wait_for_room()\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "turn-reads-all-sockets",
        "one turn of the loop reads from all sockets",
        "With small requests the turn lasts for seconds, and all other callers wait.",
        "service under load",
        "unit/bookie/test_bounds_of_requests.py",
        (
            Edit(
                "octavo.bookie.back_pressure:Flow.get_buffer",
                "    if self._turns.is_over:\n        return self._receiver.get_buffer(1)\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "quarantined-ledgers-asked-for-first",
        "garbage collection asks for the same ledgers first in each round, and others wait",
        """A round asks for a bounded number of ledgers. After many deletions two rounds of three
        ask in vain, and the disk stays full for longer.""",
        "garbage goes in time",
        "unit/bookie/test_collector.py",
        (
            Edit(
                "octavo.bookie.gc.rules:Quarantine.in_turn",
                "    return due + new + waiting",
                "    return list(held)",
            ),
        ),
    ),
)
