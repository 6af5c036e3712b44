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
        """It missed entries that others confirmed, so it has to count anew from the last confirmed
        one. Without that line its acks are ranges that came too early, for ever: with Qa = Qw,
        or when another bookie fails, the writer stands still.""",
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
        """The look at who is down by now seems redundant after a change that went well. The writer
        goes on as if all were live, also where no ack quorum is left.""",
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
        """A range that waited may end before what was acked meanwhile. Without the maximum the
        bookie owes again what it has stored.""",
        "S8, P13",
        "unit/ledger/test_quorum.py",
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
        """The confirmed entry is read for nothing but its length, so the early return seems to
        belong first.""",
        "S2 (the record says what the ledger holds)",
        "unit/ledger/test_recovery_state.py",
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
        """An off-by-one: the bookie vouches for a ledger of which one entry is missing.""",
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
        """`finished` is repeated after a lost answer. Without the second half of the condition a
        copy that is still being made counts as whole.""",
        "X6",
        "unit/metadata/test_offloads.py",
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
        """A similar name: only a copy that is the *only* one is kept.""",
        "X6",
        "unit/metadata/test_offloads.py",
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
        """The run before was thought dead. It lives, has its object written after this, and dies
        before it hears that nobody needs it: no intent names the object, and it stays for ever.""",
        "S8",
        "cluster/test_offloaded.py",
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
        """The list is gone through while it changes: the copy of it looks redundant.""",
        "watches (no change is ever missed)",
        "unit/metadata/test_watching.py",
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
        """They are retired by no record any more, so nobody collects them.""",
        "X9, space",
        "unit/metadata/test_compactions.py",
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
        """An off-by-one at 2³¹ − 1: the record stands where BookKeeper does not look.""",
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
        """The token says that it is ours, so its state looks redundant.""",
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
        """The look at the session before looks like enough. The record that was made is gone or the
        next session's, and this process serves what another one may own.""",
        "one owner (metadata/election.py)",
        "unit/metadata/test_election.py",
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
        """Write sets reach both ways from a position. With half of them a write set may stand in
        one rack where there are two.""",
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
        """An off-by-one. When it falls silent there, nobody gives up on it: the recovery waits for
        ever, where it had a spare.""",
        "S8 (P35)",
        "unit/ledger/test_recovery_state.py",
        (Edit("octavo.ledger.recover.recovery_state:RecoveryState.is_owing", "<= last", "< last"),),
    ),
    TestedBug(
        "patience-with-who-has-failed",
        "a read's timer keeps running for a replica that has failed",
        """Who asks the next one starts a patience of its own, which looks as if it replaced the
        other. Behind the last replica none is started, and the old one fires.""",
        "reads (an error that nobody expects)",
        "unit/ledger/test_speculative_read.py",
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
        """Nothing was heard of it, for nothing was asked. Without the two lines an idle ledger
        replaces all its bookies when it goes on.""",
        "S8, copies",
        "unit/ledger/test_writer_state.py",
        (
            Edit(
                "octavo.ledger.write.bookie_channel:BookieChannel.push",
                "    if self._owed >= chunk.first_entry:\n"
                "        self._heard_at = now  # no ack was due before: the time-out starts now\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "told-of-an-older-end",
        "a bookie that was told one LAC is not told the next",
        """Who has confirmed it is kept by name. The edit does not begin anew with a new LAC: a
        reader at the end never sees the last entry of an idle ledger.""",
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
        """All that live have confirmed it. The one that comes back knows nothing of it, and may be
        the one that a reader asks.""",
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
        """Any answer is safe, but an old one may be below what another reader was shown: who asks
        waits for so many that no later LAC can have been told.""",
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
        """An `any` for an `all`. A copy that went missing on one bookie makes an acked entry absent
        while the others are away.""",
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
        """Two lists of equal length are cut together; one of the two lines looks like a repeat.
        What is sent again is another entry, or nothing.""",
        "S1, S8",
        "unit/ledger/test_pending.py",
        (
            Edit(
                "octavo.ledger.write.pending:Pending.release", "        del self._firsts[:at]\n", ""
            ),
        ),
    ),
    TestedBug(
        "squatters-hold-nothing-back",
        "recovery keeps an entry that can no longer reach an ack quorum",
        """A copy was found, and one copy is enough everywhere else. It was never acked, and has no
        ack quorum to be written back to: the ledger cannot be closed, nor its topic opened.""",
        "S8",
        "unit/ledger/test_recovery_state.py",
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
        """It may have had the ledger under that key, and acked. A recovery takes the refusal for a
        denial and closes the ledger before what was acked.""",
        "P29",
        "cluster/test_squatted_ledgers.py",
        (
            Edit(
                "octavo.bookie.ledgers.control:LedgerControl._authorized",
                '        self.deny(ledger_id, "had it under this key")\n',
                "",
            ),
        ),
    ),
    TestedBug(
        "damaged-copies-copied",
        "re-replication copies entries that failed their check",
        """Each entry is checked; the edit hands on the answer as it came. A damaged entry becomes
        a copy, and the record names it as a good one.""",
        "P53, P41",
        "unit/ledger/test_copying.py",
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
        """Each has an answer, so nothing is owed any more. That one of the answers was an error is
        kept beside it, and forgotten by the edit.""",
        "P53",
        "unit/ledger/test_copying.py",
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
        """Stretches are joined when they follow one another. Without that question every stretch
        is joined to the one before, and what is damaged between them is not fetched.""",
        "P42, P53",
        "unit/ledger/test_copying.py",
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
        """It is fenced and answers, only what it knows counts for nothing. The edit treats it as
        one that failed: where there is no other bookie, the ledger cannot be recovered.""",
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
        """Recovery is due when bookies have most to do. The edit takes "ask again" for an answer:
        with two busy bookies a ledger cannot be recovered.""",
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
        """A pause under way looks like a reason to return first. What was refused is kept by
        nobody then: the bookie counts as silent, and is replaced.""",
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
        """It is sent no more: it counts anew when it comes back. The edit waits for it; with no
        spare the writer's memory fills up, and it takes no more adds.""",
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
        """An `&=` that became `=`: what could not be fetched of an earlier fragment is forgotten
        when the last one is complete.""",
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
