"""Planted bugs of ledgers and metadata that a test has to find.

They are outside the canon. Each is a mistake that a reviewer may overlook: a line that looks
redundant and is left out, a simplified condition, an off-by-one, a similar name, an `and` for an
`or`.
"""

from __future__ import annotations

from tests.sim.mutants.planting import Edit
from tests.sim.mutants.tested import TestedBug

BUGS = (
    TestedBug(
        "returned-not-counted",
        "the acks of a bookie that returned are never counted",
        """A bookie that returned missed confirmed entries, so it must count again from the last
        confirmed one. Otherwise its acks stay ranges that came too early, and with Qa = Qw the
        writer stops.""",
        "S8",
        "unit/ledger/test_writer_state.py",
        (
            Edit(
                "octavo.ledger.write.writer_state:WriterState.returned",
                "        self.acks.join(position, self.lac)\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "second-failure-forgotten",
        "a bookie that fails during an ensemble change is not replaced",
        """After an ensemble change the writer must check which bookies failed meanwhile. Otherwise
        it continues as if all were up, also where no ack quorum is left.""",
        "S8",
        "unit/ledger/test_writer_state.py",
        (
            Edit(
                "octavo.ledger.write.writer_state:WriterState._apply",
                "    if self.down:\n        return actions + self._choose()\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "early-acks-go-back",
        "duplicate acks move a bookie's progress back",
        """A range of acks that waited may end before a later ack. Without the maximum, the bookie
        seems not to have entries that it has stored.""",
        "S8, P13",
        "unit/ledger/test_placement.py",
        (
            Edit(
                "octavo.ledger.quorum:Acks._absorb",
                "reached = max(reached, heappop(early)[1])",
                "reached = heappop(early)[1]",
            ),
        ),
    ),
    TestedBug(
        "length-not-taken",
        "recovery closes a ledger with length 0 if nothing is above the LAC",
        "The last confirmed entry must be read for its length, even if nothing lies above it.",
        "S2 (the record says what the ledger holds)",
        "unit/ledger/test_recovery.py",
        (
            Edit(
                "octavo.ledger.recover.recovery_state:RecoveryState._take",
                "    self._length = found.length\n    if entry_id <= self._start:\n",
                "    if entry_id <= self._start:\n",
            ),
            Edit(
                "octavo.ledger.recover.recovery_state:RecoveryState._take",
                "    assert entry_id == self._decided + 1\n",
                "    self._length = found.length\n    assert entry_id == self._decided + 1\n",
            ),
        ),
    ),
    TestedBug(
        "gap-of-one",
        "a single missing entry is overlooked when copies are checked",
        "An off-by-one: the bookie vouches for a ledger although it lacks one entry.",
        "P42, P53",
        "unit/ledger/test_copies.py",
        (
            Edit(
                "octavo.ledger.rereplication.copies:_gaps",
                "if start > first:",
                "if start > first + 1:",
            ),
        ),
    ),
    TestedBug(
        "any-copy-finishes",
        "an offload takes another run's finished copy for its own",
        """`finished` is repeated after a lost answer. Without the second condition, a copy that is
        still being made counts as complete.""",
        "X6",
        "unit/metadata/test_partition_steps.py",
        (
            Edit(
                "octavo.metadata.offloads:finished",
                " and is_readable(found)",
                "",
            ),
        ),
    ),
    TestedBug(
        "whole-copy-begun-anew",
        "a complete offload is started again, and the record forgets it",
        "The edit uses a similar name, and protects only a copy that is the *only* copy.",
        "X6",
        "unit/metadata/test_partition_steps.py",
        (
            Edit(
                "octavo.metadata.offloads:begun",
                "if is_readable(link.offload):",
                "if is_only_copy(link.offload):",
            ),
        ),
    ),
    TestedBug(
        "intent-gone-before-its-run",
        "a new offload removes the intent of an older run that still writes",
        """The older run was thought dead. It writes its object afterwards and dies, and without the
        intent no run ever finds that object.""",
        "S8",
        "cluster/test_orphan_ledgers.py",
        (
            Edit(
                "octavo.pipeline.offload:_remove_copy",
                "{intent.stem})\n",
                "{intent.stem})\n        await topics.delete_intent(uuid)\n",
            ),
        ),
    ),
    TestedBug(
        "watchers-skipped",
        "a watcher is skipped when the previous one cancels its watch",
        "The list changes while the loop walks over it, because the loop no longer copies it.",
        "watches (no change is ever missed)",
        "unit/metadata/test_zookeeper.py",
        (
            Edit(
                "octavo.metadata.watching:WatchTable.notify",
                "for watch in list(self._watches.get(key, ())):",
                "for watch in self._watches.get(key, ()):",
            ),
        ),
    ),
    TestedBug(
        "retired-ledgers-forgotten",
        "a third compacted view forgets the ledgers of the first",
        "No record retires them any more, so no process deletes them.",
        "X9, space",
        "unit/metadata/test_partition_steps.py",
        (
            Edit(
                "octavo.metadata.compactions:published",
                "retired=view.retired + retired,",
                "retired=retired,",
            ),
        ),
    ),
    TestedBug(
        "last-short-id",
        "the first long ledger id gets the path of a short id",
        "An off-by-one at 2³¹ − 1: BookKeeper looks for the record at another path.",
        "BookKeeper's tree",
        "conformance/test_metadata_records.py",
        (
            Edit(
                "octavo.metadata.ledger_ids:ledger_path",
                "_SHORT_CUT if ledger_id < SHORT_IDS_END else",
                "_SHORT_CUT if ledger_id <= SHORT_IDS_END else",
            ),
        ),
    ),
    TestedBug(
        "own-create-any-state",
        "a ledger is written although it was recovered before its creator knew of it",
        """The record has the creator's token, but a recovery has closed it meanwhile: its state
        must be checked too.""",
        "S2, S3",
        "cluster/test_ledger_edges.py",
        (
            Edit(
                "octavo.metadata.ledgers:LedgerStore._made",
                "if ours and found.state is LedgerState.OPEN:",
                "if ours:",
            ),
        ),
    ),
    TestedBug(
        "claim-of-a-dead-session",
        "a claim is believed although its session ended while it was made",
        """The session was checked before the claim, but not after it. The claim's record is gone,
        and this broker serves a partition that another broker may own.""",
        "one owner (metadata/election.py)",
        "unit/metadata/test_zookeeper.py",
        (
            Edit(
                "octavo.metadata.election:Ownership._try_claim",
                "    self._check(path, generation)\n    self._held.add(path)\n",
                "    self._held.add(path)\n",
            ),
        ),
    ),
    TestedBug(
        "rack-of-one-side",
        "placement compares a bookie's rack with one neighbour only",
        """Write sets reach both ways from a position. If only one side is compared, a write set may
        lie in one rack although there are two.""",
        "placement",
        "unit/ledger/test_placement.py",
        (
            Edit(
                "octavo.ledger.bookies.placement:_best",
                "range(-write_quorum + 1, write_quorum)",
                "range(0, write_quorum)",
            ),
        ),
    ),
    TestedBug(
        "last-entry-not-owed",
        "a bookie that has not acked the last written-back entry counts as done",
        """An off-by-one: when the bookie falls silent before its last ack, recovery waits for ever
        instead of using a spare.""",
        "S8 (P35)",
        "unit/ledger/test_recovery.py",
        (Edit("octavo.ledger.recover.recovery_state:RecoveryState.is_owing", "<= last", "< last"),),
    ),
    TestedBug(
        "patience-with-who-has-failed",
        "a read's timer keeps running for a replica that has failed",
        """The next replica gets a timer of its own, so the old timer seems harmless. After the last
        replica no new timer starts, and the old one fires.""",
        "reads (an error that nobody expects)",
        "unit/ledger/test_reader.py",
        (
            Edit(
                "octavo.ledger.read.speculative_read:SpeculativeRead._ask_next",
                "    self._cancel_timer()\n    replica",
                "    replica",
            ),
        ),
    ),
    TestedBug(
        "idle-counts-as-silence",
        "idle time counts as silence, so all bookies are replaced at the next add",
        """A bookie that was asked nothing answers nothing. Without two lines, an idle ledger
        replaces all its bookies at its next add.""",
        "S8, copies",
        "unit/ledger/test_writer_state.py",
        (
            Edit(
                "octavo.ledger.write.bookie_channel:BookieChannel.push",
                "    if self._owed >= chunk.first_entry:\n"
                "        self._heard_at = now  # the time-out starts now\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "told-of-an-older-end",
        "a bookie that was told one LAC is not told the next",
        """The writer keeps which bookies have confirmed a LAC. If this is not reset for a new LAC,
        a reader never sees the last entry of an idle ledger.""",
        "S6, S8",
        "cluster/test_ledger_edges.py",
        (
            Edit(
                "octavo.ledger.write.ensemble_writer:EnsembleWriter._announce_lac",
                "self._announcing_lac, self._told = lac, {}",
                "self._announcing_lac = lac",
            ),
        ),
    ),
    TestedBug(
        "told-without-who-was-away",
        "a LAC counts as announced although a bookie was down",
        """All live bookies have confirmed the LAC. A bookie that returns does not know it, and may
        be the bookie that a reader asks.""",
        "S6, S8",
        "cluster/test_ledger_edges.py",
        (
            Edit(
                "octavo.ledger.write.ensemble_writer:EnsembleWriter._announce_lac",
                "        if not self.core.down:  # resend when it is back\n"
                "            self._announced_lac = lac\n"
                "        return bool(self.core.down)\n",
                "        self._announced_lac = lac\n        return False\n",
            ),
        ),
    ),
    TestedBug(
        "first-answer-is-the-end",
        "a reader believes the first bookie about the end of an open ledger",
        """The first answer may be older than the LAC that another reader has seen. A reader must
        wait for so many answers that no higher LAC can have been announced.""",
        "S6",
        "unit/ledger/test_reader.py",
        (
            Edit(
                "octavo.ledger.read.reader:LedgerReader.refresh",
                "while pending and not self._quorum.covers(answered):",
                "while pending and not answered:",
            ),
        ),
    ),
    TestedBug(
        "one-denial-is-absence",
        "a single denial makes an entry absent while other bookies are silent",
        """An `any` for an `all`: a copy that one bookie lost makes an acked entry absent while the
        other bookies are away.""",
        "S3 (unknown is never absent)",
        "unit/ledger/test_reader.py",
        (
            Edit(
                "octavo.ledger.read.reader:LedgerReader._verdict",
                "if all(denials):",
                "if any(denials):",
            ),
        ),
    ),
    TestedBug(
        "firsts-of-chunks-that-went",
        "the writer finds the wrong chunk after it has released some",
        """Two lists of equal length must be shortened together; one of the two lines looks like a
        repeat. The writer then resends another entry, or none.""",
        "S1, S8",
        "unit/ledger/test_bookie_channel.py",
        (
            Edit(
                "octavo.ledger.write.pending:Pending.release", "        del self._firsts[:at]\n", ""
            ),
        ),
    ),
    TestedBug(
        "squatters-hold-nothing-back",
        "recovery keeps an entry that can no longer reach an ack quorum",
        """The entry was never acked and has no ack quorum to which it can be written back. So the
        ledger cannot be closed, nor its topic opened.""",
        "S8",
        "unit/ledger/test_recovery.py",
        (
            Edit(
                "octavo.ledger.recover.recovery_state:RecoveryState._decide",
                "if poll.found is not None and not barred:",
                "if poll.found is not None:",
            ),
        ),
    ),
    TestedBug(
        "squatter-in-limbo",
        "a bookie in limbo refuses a ledger's own key as wrong",
        """The bookie may have had the ledger under that key. Recovery takes the refusal for a
        denial and closes the ledger before an acked entry.""",
        "P29",
        "cluster/test_secured_ledgers.py",
        (
            Edit(
                "octavo.bookie.ledgers.control:LedgerControl._authorized",
                '        self.require_certain(ledger_id, "had it under this key")\n',
                "",
            ),
        ),
    ),
    TestedBug(
        "damaged-copies-copied",
        "re-replication copies entries that failed their check",
        """The edit passes the answer on as it came. A damaged entry becomes a copy, and the record
        names it as good.""",
        "P53, P41",
        "unit/ledger/test_copies.py",
        (
            Edit(
                "octavo.ledger.rereplication.copying:Copying._take",
                "answer(None, found[:good])",
                "answer(None, found)",
            ),
        ),
    ),
    TestedBug(
        "refused-copy-counts",
        "a copy that a bookie refused counts as stored",
        """Every copy was answered, so nothing seems missing. The edit forgets that one answer was
        an error.""",
        "P53",
        "unit/ledger/test_copies.py",
        (
            Edit(
                "octavo.ledger.rereplication.copying:_Answers.settled",
                "    if self._error is not None:\n        raise self._error\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "gaps-count-as-sound",
        "gaps between sound entries count as sound",
        """Ranges of sound entries are joined only if they follow one another. The edit joins all,
        so damaged entries between them are not fetched.""",
        "P42, P53",
        "unit/ledger/test_copies.py",
        (
            Edit(
                "octavo.ledger.rereplication.copying:Copying.sound",
                "if found and found[-1][1] == first - 1:",
                "if found:",
            ),
        ),
    ),
    TestedBug(
        "limbo-taken-for-a-failure",
        "recovery treats a bookie in limbo as failed",
        """A bookie in limbo can be fenced and answers; only its denials count for nothing. If it
        counts as failed and there is no other bookie, the ledger cannot be recovered.""",
        "S8 (P35)",
        "unit/ledger/test_recovery.py",
        (
            Edit(
                "octavo.ledger.recover.recovery:Recovery._fence",
                "failed = self._core.fence_unknown if unknown else self._core.fence_failed",
                "failed = self._core.fence_failed",
            ),
        ),
    ),
    TestedBug(
        "busy-taken-for-a-failure",
        "recovery counts a busy bookie's refusal as its answer",
        """Recoveries come when bookies are busiest. If "ask again" counts as an answer, two busy
        bookies make a recovery fail.""",
        "S8 (P35)",
        "cluster/test_ledger_edges.py",
        (
            Edit(
                "octavo.ledger.recover.recovery:Recovery._ask",
                "        if isinstance(error, TooManyRequests) and self._loop.time() < until:\n"
                "            self._later(_BUSY_PAUSE_S, self._with, bookie, send, done)\n"
                "        elif error is not None:",
                "        if error is not None:",
            ),
        ),
    ),
    TestedBug(
        "refused-during-a-pause",
        "entries that a busy bookie refuses during its pause are not sent again",
        """If the pause under way returns first, no queue keeps the refused entries: the bookie
        counts as silent and is replaced.""",
        "S8, copies",
        "unit/ledger/test_bookie_channel.py",
        (
            Edit(
                "octavo.ledger.write.bookie_channel:BookieChannel.busy",
                "    self._again.append((first, last))\n"
                "    self._again = _merged(self._again)\n"
                "    if self._pause is not None:\n        return\n",
                "    if self._pause is not None:\n        return\n"
                "    self._again.append((first, last))\n"
                "    self._again = _merged(self._again)\n",
            ),
        ),
    ),
    TestedBug(
        "held-for-who-is-down",
        "a writer keeps entries in memory for a bookie that is down",
        """A bookie that is down gets no entries, and counts again when it returns. With no spare
        the writer's memory fills up, and it takes no more adds.""",
        "S8, memory",
        "unit/ledger/test_writer_state.py",
        (
            Edit(
                "octavo.ledger.write.ensemble_writer:EnsembleWriter._release",
                "if acked_to < floor and position not in core.down:",
                "if acked_to < floor:",
            ),
        ),
    ),
    TestedBug(
        "last-stretch-counts",
        "a ledger leaves limbo when only its last part is complete",
        """An `&=` became `=`: a failed fetch of an earlier fragment is forgotten when the last
        fragment is complete.""",
        "P42 (who vouches for a ledger has all of it)",
        "cluster/test_copies.py",
        (
            Edit(
                "octavo.ledger.rereplication.keeper:CopyKeeper._look_after",
                "whole &= await self._fetch(",
                "whole = await self._fetch(",
            ),
        ),
    ),
)
