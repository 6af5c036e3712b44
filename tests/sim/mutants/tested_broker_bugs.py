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
        """A chunk of a snapshot may begin below the cursor's floor. Without the mask its lower bits
        count, and the backlog is too small for ever.""",
        "S9 (backlog)",
        "unit/broker/test_state_log.py",
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
        """A repeat may span several stored batches. Its answer must wait for its last offset, not
        for its first.""",
        "S9, S1 (what is answered is durable)",
        "unit/broker/test_publisher.py",
        (
            Edit(
                "octavo.broker.state.producers:_place",
                "return Duplicate(first_offset, last_offset, last_offset)",
                "return Duplicate(first_offset, last_offset, first_offset)",
            ),
        ),
    ),
    TestedBug(
        "repeat-answered-from-memory",
        "a fenced owner answers a repeat from memory",
        """An answer to a repeat adds nothing by which the old owner would notice its fence.
        Meanwhile the topic was deleted and recreated, and its producer begins at sequence 0.""",
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
        """A head that names an incarnation is remembered with it. The name and partition of the new
        topic are the same, but the producer means the old topic.""",
        "X13 (nothing is acked into a topic that is gone)",
        "unit/broker_http/test_short_way.py",
        (
            Edit(
                "octavo.broker.http.api.fast_publish:FastPublish.take",
                "if topic is None or known.incarnation not in (None, topic.incarnation):",
                "if topic is None:",
            ),
        ),
    ),
    TestedBug(
        "short-way-repeats-itself",
        "a publish with unknown outcome on the fast path is done again",
        """If nothing was done, the ordinary path may begin again. An add with an unknown outcome
        may be stored already, and is then stored twice.""",
        "S9 (unknown is told, and never repeated by us)",
        "unit/broker_http/test_short_way.py",
        (
            Edit(
                "octavo.broker.http.api.fast_publish:_ShortCall.__call__",
                "None if isinstance(error, _NOTHING_DONE) else error",
                "None",
            ),
        ),
    ),
    TestedBug(
        "short-way-with-anothers-key",
        "the fast path gives each message the key of the first",
        """The remembered head leaves the key out, so that heads that differ only in the key match.
        The key of each request must be put back in.""",
        "what is stored is what was sent",
        "unit/broker_http/test_short_way.py",
        (
            Edit(
                "octavo.broker.http.api.fast_publish:FastPublish.take",
                "single_record(known.kind, known.headers, body, services, known.topic, key)",
                "single_record(known.kind, known.headers, body, services, known.topic)",
            ),
        ),
    ),
    TestedBug(
        "short-way-in-the-midst-of-a-body",
        "the fast path takes bytes of a chunked body for a request",
        """A request with `Transfer-Encoding` has no length in its head. If it counts as a request
        without a body, its chunks are read as the next request.""",
        "bytes of a request are of that request alone",
        "unit/broker_http/test_request_edges.py",
        (
            Edit(
                "octavo.broker.http.connection_bytes:_body_bytes_of",
                "if len(lengths) > 1 or _OTHER_FRAMING.search(lower):",
                "if len(lengths) > 1:",
            ),
        ),
    ),
    TestedBug(
        "short-way-holds-on",
        "the fast path never gives back a message's memory",
        """Memory is counted when a message is taken. After some million messages an idle broker
        says that it is full.""",
        "bodies are bounded, and only those that are there count",
        "unit/broker_http/test_short_way.py",
        (
            Edit(
                "octavo.broker.http.api.fast_publish:_ShortCall.__call__",
                "    services.held.give_back(caller.peer, self._body_bytes, *self._shares)\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "extended-lease-ends",
        "an extended lease ends with the lease that it was split from",
        """Both leases have one number, so the existing `holds` looks like the right check. The
        message is delivered to two consumers at once.""",
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
        """The messages that are cut off go to other consumers, but this consumer may have them from
        the first answer.""",
        "X12",
        "unit/broker/test_subscriptions.py",
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
        """A first receive that fails releases its leases, because no consumer saw them. A consumer
        that has the first answer works on the messages of a repeat.""",
        "X12",
        "unit/broker/test_subscriptions.py",
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
        """The table forgets the producer that was silent for longest. Setting an existing key keeps
        its place, so after a take-over the busiest producer may be forgotten first.""",
        "S9 (none twice)",
        "unit/broker/test_state_log.py",
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
        """There are two tables with similar names: accepted messages, and confirmed messages, which
        a snapshot holds.""",
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
        """The ledgers that stay must hold the bytes to keep; the edit counts the ledger that goes
        as well.""",
        "retention",
        "unit/broker/test_ledger_list.py",
        (
            Edit(
                "octavo.broker.log.retention:RetentionPolicy._kept_from",
                "total - segment.bytes >= self.payload_bytes",
                "total >= self.payload_bytes",
            ),
        ),
    ),
    TestedBug(
        "a-complete-batch-is-asked-for",
        "a partition takes in a late repeat of a batch that is complete",
        """After the mark was pruned, only `complete` in the record keeps a late repeat out. The
        rows are then stored twice.""",
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
        """In memory the ack is done, so the edit writes nothing. A take-over delivers the messages
        again although the ack was answered.""",
        "S9 (an ack that was answered holds)",
        "unit/broker/test_partition_record.py",
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
        """The old writer must be released before the new ledger is there. If the record names the
        new ledger, later answers are in a ledger that no owner reads.""",
        "S9 (an ack that was answered holds)",
        "unit/broker/test_partition_record.py",
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
        "No caller uses it, and its watch stays for ever.",
        "every reader is closed",
        "unit/broker/test_log_reader.py",
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
        """The reader may have been replaced since. Without the check that it is the same one, the
        newer reader leaves the table and is never closed.""",
        "every reader is closed",
        "unit/broker/test_log_reader.py",
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
        """Every second point goes. The edit begins one point too early, so nothing lies before the
        lowest point.""",
        "reads of long ledgers",
        "unit/broker/test_log_reader.py",
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
        """Two lines in the other order: when the write fails, the next call does not repeat it, and
        unacked messages are trimmed.""",
        "S9",
        "unit/broker/test_subscriptions.py",
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
        "A call that waits for an opening under way must check which incarnation was opened.",
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
        "Its caller has given up by then, and asks again.",
        "S8 (a subscription drains)",
        "unit/broker/test_subscriptions.py",
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
        """The cursor was deleted while it was on the way to the state ledger. The consumer receives
        and acks with a cursor that no snapshot has.""",
        "S9",
        "unit/broker/test_subscriptions.py",
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
        """The old cursor still has the name; only its creation time shows that it is of the deleted
        subscription. New messages count as acked.""",
        "S9",
        "unit/broker/test_partition_record.py",
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
        """The watch fired during the read, so the result may be old. The edit ignores that, and the
        broker uses it until the next change.""",
        "what is remembered is not older than the last alarm",
        "unit/broker/test_partition_record.py",
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
        "An off-by-one: at the current epoch the owner may still name the ledger.",
        "P46",
        "unit/broker/test_retention.py",
        (
            Edit(
                "octavo.broker.log.orphan_ledgers:may_go",
                "record.epoch > label.epoch",
                "record.epoch >= label.epoch",
            ),
        ),
    ),
    TestedBug(
        "leftover-though-it-holds-cursors",
        "cleanup deletes a state ledger from an earlier epoch",
        """Besides its chain of ledgers a partition's record names its state ledger, which may be of
        an earlier epoch. All cursors are gone at the next take-over.""",
        "P46",
        "unit/broker/test_retention.py",
        (
            Edit(
                "octavo.broker.log.orphan_ledgers:named_ledgers",
                "named if record.state_ledger is None else named | {record.state_ledger}",
                "named",
            ),
        ),
    ),
    TestedBug(
        "state-ledger-of-an-earlier-epoch",
        "an owner names a state ledger with an outdated label, which cleanup then deletes",
        """A state ledger may be made while its owner reopens the partition at a higher epoch. By
        its label it is then a leftover, and cleanup deletes it just before the record names it.""",
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
        """A ledger that was found named must be found unnamed twice again. The line looks
        redundant, because a named ledger is not deleted anyway.""",
        "P46",
        "unit/broker/test_retention.py",
        (
            Edit(
                "octavo.broker.log.orphan_ledgers:Suspects.judged",
                "        self.acquitted(ledger_id)\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "dated-by-a-clock-that-was-behind",
        "a ledger's age ignores the times of its messages",
        """This was the earlier behaviour. For a clock that is behind, every message is from the
        future and gets the clock's date: days ago, when the clock is right again.""",
        "P60",
        "cluster/test_retention.py",
        (
            Edit(
                "octavo.broker.log.retention:is_older",
                "max(segment.aging_since_ms, stamped_ms)",
                "segment.aging_since_ms",
            ),
        ),
    ),
    TestedBug(
        "follows-by-its-own-word",
        "a reader accepts a batch that leaves a gap",
        """The entry has a good checksum, so the reader believes it. A gap or a forged entry is
        skipped without an error.""",
        "S9 (none skipped)",
        "cluster/test_forged.py",
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
        "A reader stays with the bookie that answered, so asking once more gives the same copy.",
        "S8 (one bad copy of three)",
        "cluster/test_forged.py",
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
        """A flag says whether the record may name the new ledger, and begins with the wrong value.
        Each failure leaves a ledger until a sweep finds it.""",
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
        """The watch marks the record as old during the read. If the read marks it as current when
        it ends, the change is missed.""",
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
        """The owner was cut off and does not know that its session is over. A refusal adds nothing
        to a ledger, so it must ask before it refuses.""",
        "S9 (a producer goes on)",
        "cluster/test_broker_takeover.py",
        (
            Edit(
                "octavo.broker.partition.partition:Partition._publish",
                "await self.prove()  # if there is a",
                "pass  # if there is a",
            ),
        ),
    ),
    TestedBug(
        "a-deposed-owner-knows-the-end",
        "a replaced owner says that an existing offset is beyond the end",
        """The owner does not know that it was replaced. It must ask before it says where the
        partition ends.""",
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
        """The reader ends where the ledger ended when it was opened, so readers miss the last
        entries of the closed ledger.""",
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
        "The timestamp −1 is taken for a time: now minus −1 is older than any retention.",
        "P60",
        "cluster/test_retention.py",
        (
            Edit(
                "octavo.broker.log.retention:is_older",
                "is_measured(segment) and segment.first_ms >= 0 and now_ms",
                "is_measured(segment) and now_ms",
            ),
        ),
    ),
)
