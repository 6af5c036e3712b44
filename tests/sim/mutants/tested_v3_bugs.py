"""Bugs of v3 frames, and related bugs, that a test finds."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit
from tests.sim.mutants.tested import TestedBug

BUGS = (
    TestedBug(
        "deletion-denies-too-early",
        'a fence is answered "no such ledger" before the deletion is durable',
        """"No such ledger" ends a recovery's doubts about this bookie. Power fails, and the bookie
        has a ledger again, not fenced, whose writer goes on.""",
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
        """They take it in v3 frames alone. Until the next add nobody but the writer knows that the
        ledger's last entries are confirmed: readers leave them out, brokers answer 503.""",
        "what is confirmed can be read",
        "cluster/test_apaches_bookies.py",
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
        """A bit that falls over makes entries readable that were never confirmed.""",
        "P2",
        "cluster/test_apaches_bookies.py",
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
        """Most are. Where two writers share a connection, or one entry is sent again, answers name
        entries that nobody sent.""",
        "answers are those to what was asked",
        "unit/protocol/test_v3_runs.py",
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
        """v2 has them once. In v3 they may differ, and an answer acknowledges what is not here.""",
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
        """A recovery closes the ledger at what was answered. Power fails at the bookies together,
        and the ledger has an end that nobody has.""",
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
        """The entries are in the log and the journal is never shortened: it fills the disk, and a
        start reads all of it.""",
        "P39, space",
        "unit/bookie/test_deferred_sync.py",
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
        """Places for long polls are few. Clients that come, ask and go take all of them for a
        minute.""",
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
        """Each has cost a task by then: one client has a bookie make as many as it can name.""",
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
        """Protobuf gives the default of a field that is not there; that it is not has to be asked
        for.""",
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
        """An entry id that is there three times makes up for a key that is missing: the add is
        stored under a key of zeros, and acked.""",
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
        """Who announces two gigabytes and goes on sending has them kept.""",
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
        """Each may have megabytes; requests for it have 30 bytes.""",
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
        """With small requests it lasts for seconds, and everybody else waits.""",
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
        """It asks for so many only. After many deletions two rounds of three ask in vain, and the
        disk stays full for longer.""",
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
