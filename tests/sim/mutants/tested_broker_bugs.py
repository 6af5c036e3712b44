"""Planted bugs of a broker that a test must find.

Each is a mistake that a reviewer may overlook: a line that looks redundant and is removed, a
simplified condition, an off-by-one, a similar name, an `and` for an `or`.
"""

from __future__ import annotations

from tests.sim.mutants.planting import Edit
from tests.sim.mutants.tested import TestedBug

BUGS = (
    TestedBug(
        "cursor-load-below-floor",
        "loading a cursor counts acks below its floor",
        """A chunk of a snapshot may begin below the floor. Without the mask its lower bits are
        counted: the backlog is too small by them for ever.""",
        "S9 (backlog)",
        "unit/broker/test_cursor.py",
        (
            Edit(
                "octavo.broker.state.cursor:Cursor.load",
                "        if base < self._floor:\n"
                "            bits = bits >> (self._floor - base) << (self._floor - base)\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "duplicate-proved-by-its-first",
        "a repeat is answered when only its first message is durable",
        """A repeat may span several batches, cut otherwise than before. Its answer waits for one
        offset; the first one does not prove the last.""",
        "S9, S1 (what is answered is durable)",
        "unit/broker/test_dedup.py",
        (
            Edit(
                "octavo.broker.state.dedup:_place",
                "return Duplicate(first_offset, last_offset, last_offset)",
                "return Duplicate(first_offset, last_offset, first_offset)",
            ),
        ),
    ),
    TestedBug(
        "repeat-answered-from-memory",
        "a fenced owner answers a repeat from memory",
        """What it says was true once, and nothing is added by which it would find out. Meanwhile
        the topic was deleted and made again, and its maker begins at sequence 0.""",
        "X13 (nothing is acked into a topic that is gone)",
        "cluster/test_namesakes.py",
        (
            Edit(
                "octavo.broker.partition.partition:Partition._proved",
                "try:\n            await self.prove()",
                "try:\n            pass",
            ),
        ),
    ),
    TestedBug(
        "short-way-into-a-namesake",
        "the fast publish path stores into a new topic of the same name",
        """A head that names an incarnation is remembered with it. Who made the topic anew is not
        the one whom the producer means, though name and partition are the same.""",
        "X13 (nothing is acked into a topic that is gone)",
        "unit/broker_http/test_short_way.py",
        (
            Edit(
                "octavo.broker.http.api.short_way:ShortWay.take",
                "if topic is None or known.incarnation not in (None, topic.incarnation):",
                "if topic is None:",
            ),
        ),
    ),
    TestedBug(
        "passed-on-and-on",
        "the fast publish path forwards a call that was forwarded already",
        """It would pass such a call on again, and two brokers that take each other for the owner
        send a message to and fro for ever. Each of those calls has a number of its own, so its head
        never comes again but by who has recorded it.""",
        "a call is passed on once at most",
        "unit/broker_http/test_short_way.py",
        (
            Edit(
                "octavo.broker.http.api.short_way:ShortWay.learn",
                "and not call.forwarded",
                "and call.grant is not None",
            ),
        ),
    ),
    TestedBug(
        "short-way-repeats-itself",
        "a publish with unknown outcome on the fast path is done again",
        """Where nothing was done, the long way begins anew; an add whose end nobody knows may have
        been stored, and then it is stored twice.""",
        "S9 (unknown is told, and never repeated by us)",
        "unit/broker_http/test_short_way.py",
        (
            Edit(
                "octavo.broker.http.api.short_way:_ShortCall.__call__",
                "None if isinstance(error, _NOTHING_DONE) else error",
                "None",
            ),
        ),
    ),
    TestedBug(
        "short-way-with-anothers-key",
        "the fast path gives each message the key of the first",
        """The key stands in the head and is left out of what is remembered, so that heads that
        differ in it alone are one. What is left out must be put in again.""",
        "what is stored is what was sent",
        "unit/broker_http/test_short_way.py",
        (
            Edit(
                "octavo.broker.http.api.short_way:ShortWay.take",
                "single_record(known.kind, known.headers, body, services, known.topic, key)",
                "single_record(known.kind, known.headers, body, services, known.topic)",
            ),
        ),
    ),
    TestedBug(
        "short-way-in-the-midst-of-a-body",
        "the fast path takes bytes of a chunked body for a request",
        """A request with `Transfer-Encoding` has no length that its head says. Who takes it for
        one without a body sees a new request begin where chunks go on: what one caller sends as
        the content of a message is then a call of its own.""",
        "bytes of a request are of that request alone",
        "unit/broker_http/test_request_edges.py",
        (
            Edit(
                "octavo.broker.http.request_edges:_body_bytes_of",
                "if len(lengths) > 1 or _OTHER_FRAMING.search(lower):",
                "if len(lengths) > 1:",
            ),
        ),
    ),
    TestedBug(
        "short-way-holds-on",
        "the fast path never gives back a message's memory",
        """It is counted when it is taken. After some million messages the broker says that it is
        full, with nothing in its hands.""",
        "bodies are bounded, and only those that are there count",
        "unit/broker_http/test_short_way.py",
        (
            Edit(
                "octavo.broker.http.api.short_way:_ShortCall.__call__",
                "    services.held.give_back(caller.peer, self._body_bytes, *self._shares)\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "extended-lease-ends",
        "an extended lease ends with the lease that it was split from",
        """Both have one number, so `holds`, which is there already, looks like the right question.
        The message is delivered to two consumers at once.""",
        "S9",
        "unit/broker/test_dispatch.py",
        (
            Edit(
                "octavo.broker.subscriptions.dispatch:Dispatcher.expire",
                "if self._lease_of.get(offset) is lease:",
                "if self.holds(offset, lease.number):",
            ),
        ),
    ),
    TestedBug(
        "a-repeat-is-cut-short",
        "a repeated receive is cut short when reading takes long",
        """What is cut off is there for others; the consumer, who has the first answer as well, is
        at work on it.""",
        "X12",
        "unit/broker/test_receive_of_subscription.py",
        (
            Edit(
                "octavo.broker.subscriptions.subscription:_read_until_s",
                "math.inf if found.is_repeat else ",
                "",
            ),
        ),
    ),
    TestedBug(
        "a-failed-repeat-ends-leases",
        "a repeated receive that fails releases leases of the first answer",
        """As a first one does, of which nobody has seen anything. A consumer that has the first
        answer is at work on them.""",
        "X12",
        "unit/broker/test_receive_of_subscription.py",
        (
            Edit(
                "octavo.broker.subscriptions.subscription:Subscription._hand_out",
                "if found.is_repeat:",
                "if False:",
            ),
        ),
    ),
    TestedBug(
        "producers-keep-their-place",
        "replay does not update which producer was silent longest",
        """The table forgets whoever was silent for longest. Setting a key that is there keeps its
        place, so after a take-over the busiest producer may be forgotten first.""",
        "S9 (none twice)",
        "unit/broker/test_state_format.py",
        (
            Edit(
                "octavo.broker.state.format:State._apply",
                "                self.producers.pop(producer_id, None)\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "snapshot-of-what-is-not-confirmed",
        "confirmed messages are noted among the accepted messages, and snapshots miss them",
        """Two tables with similar names: one as of what was accepted, one as of what is confirmed,
        which a snapshot holds.""",
        "S9 (none twice)",
        "unit/broker/test_publisher.py",
        (
            Edit(
                "octavo.broker.partition.publisher:Publisher._confirm",
                "self.stored_producers.accept(*job.sequence, first)",
                "self._producers.accept(*job.sequence, first)",
            ),
        ),
    ),
    TestedBug(
        "size-trims-one-more",
        "retention by size removes a ledger too many",
        """What is left afterwards has to hold the bytes to keep; the edit looks at what was there
        before.""",
        "retention",
        "unit/broker/test_ledger_list.py",
        (
            Edit(
                "octavo.broker.log.ledger_list:LedgerList._covered_from",
                "total - segment.bytes >= policy.payload_bytes",
                "total >= policy.payload_bytes",
            ),
        ),
    ),
    TestedBug(
        "a-complete-batch-is-asked-for",
        "a partition takes in a late repeat of a batch that is complete",
        """Only the record's own word that it is complete keeps a late repeat out once the mark was
        pruned. With the mark that is there it looks redundant. The rows are there twice.""",
        "X2",
        "unit/broker/test_bulk_load.py",
        (
            Edit(
                "octavo.broker.bulkload.rules:part_of",
                "if record.batch != batch or record.complete:",
                "if record.batch != batch:",
            ),
        ),
    ),
    TestedBug(
        "repeated-ack-not-durable",
        "a repeated ack is answered without being durable",
        """In memory it is done already, so nothing in it is new, and the edit writes only what is
        new. A take-over delivers again what was answered.""",
        "S9 (an ack that was answered holds)",
        "unit/broker/test_acks_are_durable.py",
        (
            Edit(
                "octavo.broker.subscriptions.subscription:Subscription.acknowledge",
                "if ranges:",
                "if new:",
            ),
        ),
    ),
    TestedBug(
        "old-state-ledger-goes-on",
        "after a roll without answer, acks go into the old state ledger",
        """That the old writer is let go of before the new one stands looks redundant. The record
        may name the new one: what is answered from then on nobody finds.""",
        "S9 (an ack that was answered holds)",
        "unit/broker/test_acks_are_durable.py",
        (
            Edit("octavo.broker.state.log:StateLog._roll", "    self._writer = None\n", ""),
            Edit(
                "octavo.broker.state.log:StateLog._roll",
                "    finally:\n        if old is not None:\n            let_go(old)\n",
                "    finally:\n        pass\n",
            ),
        ),
    ),
    TestedBug(
        "second-reader-kept-open",
        "when two readers of a ledger open at once, one is never closed",
        """Nobody uses it; its watch stays for ever.""",
        "every reader is closed",
        "unit/broker/test_open_readers.py",
        (
            Edit(
                "octavo.broker.log.reader:OpenReaders.get_or_open",
                "        if reader is not opened:  # another call opened one first\n"
                "            await opened.close()\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "reader-of-another-time-dropped",
        "dropping a reader removes its successor from the table",
        """The one that is dropped may have been replaced since. The look whether it is still the
        same one seems redundant; the newer one is never closed.""",
        "every reader is closed",
        "unit/broker/test_open_readers.py",
        (
            Edit(
                "octavo.broker.log.reader:OpenReaders.drop",
                "    if self._open.get(ledger_id) is reader:\n        del self._open[ledger_id]\n",
                "    self._open.pop(ledger_id, None)\n",
            ),
        ),
    ),
    TestedBug(
        "index-loses-its-first-point",
        "a sparse index loses its first point when it is thinned",
        """Every second one goes; the edit begins one earlier, and nothing lies before the lowest
        any more.""",
        "reads of long ledgers",
        "unit/broker/test_broker_memory.py",
        (
            Edit(
                "octavo.broker.log.entry_index:_Points.note",
                "del self.offsets[1::2], self.entries[1::2]",
                "del self.offsets[::2], self.entries[::2]",
            ),
        ),
    ),
    TestedBug(
        "unsaved-cursor-forgotten",
        "a cursor counts as saved before it is written",
        """Two lines in the other order: when the write fails the next call does not repeat it, and
        messages that nobody had are trimmed.""",
        "S9",
        "unit/broker/test_subscriptions_made.py",
        (
            Edit(
                "octavo.broker.subscriptions.subscriptions:SubscriptionSet.make",
                "            await self._persist(cursor_op(info.name, info.created_ms, "
                "committed_offset))\n",
                "            self._unsaved.clear()\n"
                "            await self._persist(cursor_op(info.name, info.created_ms, "
                "committed_offset))\n"
                "            self._unsaved[info.name] = None\n",
            ),
        ),
    ),
    TestedBug(
        "a-namesake-taken-for-the-topic",
        "a call that names an old topic is served by a new one of that name",
        """Who finds a claim under way takes it for its own. What was opened meanwhile may be of
        another incarnation.""",
        "X13",
        "cluster/test_namesakes.py",
        (
            Edit(
                "octavo.broker.cluster.ownership:OwnershipManager._here",
                "if tenure.opening.incarnation != info.incarnation:  # also",
                "if False:  # also",
            ),
        ),
    ),
    TestedBug(
        "reads-until-it-has-all",
        "a receive reads without a limit of time",
        """Its caller has given up by then, and begins anew.""",
        "S8 (a subscription drains)",
        "unit/broker/test_receive_of_subscription.py",
        (
            Edit(
                "octavo.broker.subscriptions.subscription:_delivered",
                "if deliveries and loop.time() > until_s:",
                "if False:",
            ),
        ),
    ),
    TestedBug(
        "made-though-deleted-meanwhile",
        "a subscription deleted during its creation is returned as created",
        """Its cursor was forgotten while it was on the way to the state ledger. Who gets the
        subscription receives and acks over a cursor that no snapshot has.""",
        "S9",
        "unit/broker/test_subscriptions_made.py",
        (
            Edit(
                "octavo.broker.subscriptions.subscriptions:SubscriptionSet.make",
                "            if self._cursors.get(info.name) is not held:\n"
                "                raise SubscriptionNotFound("
                'f"subscription {info.name!r} was deleted meanwhile")\n'
                "            del self._unsaved[info.name]\n",
                "            self._unsaved.pop(info.name, None)\n",
            ),
        ),
    ),
    TestedBug(
        "cursor-of-a-namesake",
        "a recreated subscription starts at the deleted one's cursor",
        """Its cursor is there, by name; that it belongs to another life of the name is told by when
        it was made. Messages of the new one are taken for acked.""",
        "S9",
        "unit/broker/test_acks_are_durable.py",
        (
            Edit(
                "octavo.broker.subscriptions.subscriptions:SubscriptionSet.make",
                "if held is None or held.created_ms != info.created_ms:",
                "if held is None:",
            ),
        ),
    ),
    TestedBug(
        "reading-before-the-alarm",
        "a record that changed during its reading counts as current",
        """The record changed while it was read: what came back may be of before. The edit forgets
        to look, and the broker goes by it until the next change.""",
        "what is remembered is not older than the last alarm",
        "unit/broker/test_watched_record.py",
        (
            Edit(
                "octavo.broker.cluster.watched_record:WatchedRecord._read_once",
                "self._stale = alarms != self._alarms",
                "self._stale = False",
            ),
        ),
    ),
    TestedBug(
        "leftover-of-this-epoch",
        "cleanup deletes a ledger that the current epoch may still name",
        """An off-by-one: at this epoch its owner may still name it.""",
        "P46",
        "unit/broker/test_leftover.py",
        (
            Edit(
                "octavo.broker.log.leftover:may_go",
                "record.epoch > label.epoch",
                "record.epoch >= label.epoch",
            ),
        ),
    ),
    TestedBug(
        "leftover-though-it-holds-cursors",
        "cleanup deletes a state ledger from an earlier epoch",
        """A partition is its chain of ledgers; that its record names one more, which lives on when
        the owner opens the partition anew, is easily forgotten. All cursors are gone at the next
        take-over.""",
        "P46",
        "unit/broker/test_leftover.py",
        (
            Edit(
                "octavo.broker.log.leftover:named_ledgers",
                "named if record.state_ledger is None else named | {record.state_ledger}",
                "named",
            ),
        ),
    ),
    TestedBug(
        "state-ledger-of-an-earlier-epoch",
        "an owner names a state ledger with an outdated label, which cleanup then deletes",
        """It lives through its owner's opening anew, and may be made meanwhile. By its label it is
        left over by then: a sweep deletes what the record names a moment later.""",
        "P46",
        "cluster/test_orphan_ledgers.py",
        (
            Edit(
                "octavo.broker.state.log:StateLog._renew",
                "        if record.epoch != before.epoch:\n            raise _OpenedAnew\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "proofs-that-need-not-agree",
        "cleanup keeps its suspicion although the ledger was found named in between",
        """That it is named takes the suspicion away; a line that looks redundant, as what is named
        does not go anyway.""",
        "P46",
        "unit/broker/test_leftover.py",
        (
            Edit(
                "octavo.broker.log.leftover:Suspects.judged",
                "        self.acquitted(ledger_id)\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "dated-by-a-clock-that-was-behind",
        "a ledger's age ignores the times of its messages",
        """What stood before. By a clock that is behind every message is from the future, and gets
        the date of that clock: days ago, when the clock is right again.""",
        "P60",
        "cluster/test_retention.py",
        (
            Edit(
                "octavo.broker.log.ledger_list:is_older",
                "max(segment.aging_since_ms, stamped_ms)",
                "segment.aging_since_ms",
            ),
        ),
    ),
    TestedBug(
        "follows-by-its-own-word",
        "a reader accepts a batch that leaves a gap",
        """Each entry has a checksum, and the index found the right one. A gap, or an entry that
        somebody forged, is passed over in silence.""",
        "S9 (none skipped)",
        "cluster/test_forged_entries.py",
        (
            Edit(
                "octavo.ledger.read.continuity:Continuity.follow",
                "if expected is not None and start != expected:",
                "if expected is not None and start < expected:",
            ),
        ),
    ),
    TestedBug(
        "one-copy-asked-again",
        "a reader that met a bad copy asks the same bookie again",
        """Who asked for the same entries once more would get them from another replica, one thinks;
        but readers stay with the one that answered.""",
        "S8 (one bad copy of three)",
        "cluster/test_forged_entries.py",
        (
            Edit(
                "octavo.ledger.read.reader:LedgerReader.turn_away",
                "    self._sticky += 1\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "unused-state-ledger-kept",
        "a state ledger that no record can name is not deleted",
        """A flag says whether the record may name the new ledger: it begins with the wrong value.
        One ledger for each failure, until a sweep finds it.""",
        "P62",
        "cluster/test_orphan_ledgers.py",
        (
            Edit(
                "octavo.broker.state.log:StateLog._renew",
                "may_be_named = False",
                "may_be_named = True",
            ),
        ),
    ),
    TestedBug(
        "changed-while-it-was-read",
        "a bulk load that changes during its reading is not read again",
        """The watch says that a record is out of date, a reading says that it is not: the second is
        noted when the reading is done, as one would write it at first.""",
        "X3 (complete means everywhere)",
        "cluster/test_broker_bulk_loads.py",
        (
            Edit(
                "octavo.broker.bulkload.driver:BulkLoads._read_watched",
                "    seen.complete, seen.changed_ms = record.complete, record.changed_ms\n",
                "    seen.complete, seen.changed_ms = record.complete, record.changed_ms\n"
                "    seen.stale = False\n",
            ),
        ),
    ),
    TestedBug(
        "a-deposed-owner-refuses",
        "a replaced owner refuses a valid sequence for good",
        """It was cut off, and has not heard yet that its session is over. A refusal adds nothing to
        a ledger, so nothing tells it; the edit does not ask.""",
        "S9 (a producer goes on)",
        "cluster/test_broker_takeover.py",
        (
            Edit(
                "octavo.broker.partition.partition:Partition._publish",
                "await self.prove()  # our successor",
                "pass  # our successor",
            ),
        ),
    ),
    TestedBug(
        "a-deposed-owner-knows-the-end",
        "a replaced owner says that an existing offset is beyond the end",
        """The same for whoever reads: the edit answers by what is here.""",
        "S9 (a reader goes on)",
        "cluster/test_broker_takeover.py",
        (
            Edit(
                "octavo.broker.operations.routing:with_owner",
                "await partition.prove()",
                "pass",
            ),
        ),
    ),
    TestedBug(
        "growing-reader-taken-for-closed",
        "a reader opened while its ledger grew is used for the closed ledger",
        """Its end is where the ledger ended then. The edit asks whether it has entries and not
        whether it is closed: the last entries of a ledger are not there.""",
        "S9",
        "unit/broker/test_log_reader.py",
        (
            Edit(
                "octavo.broker.log.reader:LogReader._closed_reader",
                "if reader.is_closed or segment.cut >= 0:",
                "if reader.last_add_confirmed >= 0:",
            ),
        ),
    ),
    TestedBug(
        "no-time-is-long-ago",
        "a message without a timestamp is older than any retention",
        """Its timestamp is -1, and now less -1 is more than any retention. The edit takes the
        number for a time.""",
        "P60",
        "cluster/test_retention.py",
        (
            Edit(
                "octavo.broker.log.ledger_list:is_older",
                "is_measured(segment) and segment.first_ms >= 0 and now_ms",
                "is_measured(segment) and now_ms",
            ),
        ),
    ),
)
