"""Planted bugs of partitions and their owners that a test must find.

Each is a mistake that a reviewer may overlook: a line that looks redundant and is removed, a
simplified condition, two lines in the wrong order.
"""

from __future__ import annotations

from tests.sim.mutants.planting import Edit
from tests.sim.mutants.tested import TestedBug

BUGS = (
    TestedBug(
        "ended-writer-waits-for-an-add",
        "a partition notices only at the next add that its writer has ended",
        """All bookies were gone for a while, and no client published. The unconfirmed entries stay
        unconfirmed, and readers get a 503 until a client publishes.""",
        "S8",
        "cluster/test_partition.py",
        (
            Edit(
                "octavo.broker.partition.publisher:Publisher._writer_told",
                "if isinstance(event, Ended):",
                "if False:",
            ),
        ),
    ),
    TestedBug(
        "closes-another-ledger",
        "a close records the new ledger's contents for the old ledger",
        """A roll-over could not name its new ledger, which is empty. The close takes that ledger's
        contents for the old ledger's, and all acked messages of the old ledger are lost (seed
        91000032).""",
        "S9",
        "cluster/test_partition.py",
        (
            Edit(
                "octavo.broker.partition.partition:Partition._close_log",
                "if publisher.failed is None:\n        with contextlib",
                "if True:\n        with contextlib",
            ),
            Edit(
                "octavo.broker.partition.partition:Partition._say_closed",
                "if last is None or last.ledger_id != closed.ledger_id:",
                "if last is None:",
            ),
            Edit(
                "octavo.broker.partition.partition:Partition._say_closed",
                "closed.ledger_id, contents, self._context.clock()",
                "last.ledger_id, contents, self._context.clock()",
            ),
        ),
    ),
    TestedBug(
        "first-time-from-one-clock",
        "a cluster's first deletion time comes from one broker's clock",
        """The store has a clock and was away for a moment. The broker's own clock, an hour ahead,
        becomes the cluster's time, and retention follows it.""",
        "P60",
        "cluster/test_retention.py",
        (
            Edit(
                "octavo.broker.clock.timekeeper:Timekeeper.now",
                "if silent and not self._clock.has_begun:",
                "if False:",
            ),
        ),
    ),
    TestedBug(
        "opening-never-gets-longer",
        "an opening that timed out is tried again with the same time limit",
        """An opening begins again from its start. If a long state ledger on slow bookies takes
        longer than the limit, no broker ever serves the partition.""",
        "S8",
        "cluster/test_broker_takeover.py",
        (
            Edit(
                "octavo.broker.partition.opening:PartitionOpener._in_time",
                "min(2 * allowed_ms, ",
                "min(allowed_ms, ",
            ),
        ),
    ),
    TestedBug(
        "opened-anew-though-replaced",
        "an owner that was replaced opens its partition again",
        """The record has a higher epoch, so the owner was replaced. It fences its successor, and
        its old cursors undo acks that the successor answered.""",
        "S9 (of two owners one chain wins; an ack that was answered holds)",
        "unit/broker/test_partition_record.py",
        (
            Edit(
                "octavo.broker.partition.opening:PartitionOpener._open",
                "record.epoch != epoch",
                "record.epoch < epoch",
            ),
        ),
    ),
    TestedBug(
        "named-only-when-it-is-known",
        "a roll-over without an answer deletes a ledger that the record may name",
        """Two lines in the other order: the flag must say that the record *may* name the new
        ledger. A write whose reply was lost has taken effect.""",
        "P46 (what a chain names is there)",
        "unit/broker/test_ledger_list.py",
        (
            Edit(
                "octavo.broker.partition.rollover:Rollover._replace",
                "        may_be_named = True\n"
                "        await self._record.change("
                "lambda record: self._joined(record, old, segment, insertion))\n",
                "        await self._record.change("
                "lambda record: self._joined(record, old, segment, insertion))\n"
                "        may_be_named = True\n",
            ),
        ),
    ),
    TestedBug(
        "taken-over-without-a-word",
        "a take-over without recovery does not change the record, so two owners answer",
        """The last ledger is closed, so there is nothing to fence: only the record keeps the former
        owner out. If it is unchanged, both owners answer, and readers at one miss the acks of the
        other.""",
        "S9 (of two owners one chain wins)",
        "cluster/test_sessions.py::"
        "test_a_successor_for_which_nobody_came_keeps_the_former_owner_out",
        (
            Edit(
                "octavo.broker.partition.opening:PartitionOpener._open",
                "    await self._name_them(recovered,",
                "    if contents or writer:\n        await self._name_them(recovered,",
            ),
        ),
    ),
    TestedBug(
        "there-never-was-a-producer",
        "an opening records that no batch has a producer, although some do",
        "Later openings then search no batches, and store a repeat a second time.",
        "S9 (none twice)",
        "cluster/test_sessions.py::test_producers_are_known_again_however_the_owners_end",
        (
            Edit(
                "octavo.broker.partition.opening:PartitionOpener._open",
                "has_none := not len(table) and state.stream is None",
                "has_none := True",
            ),
        ),
    ),
    TestedBug(
        "append-time-goes-back-after-a-take-over",
        "append times go back after a take-over",
        """As in Kafka, a new owner whose clock is behind appends older times, and a search by
        halving goes wrong. The edit ignores the last owner's time.""",
        "P66",
        "cluster/test_times.py::"
        "test_a_batch_has_the_time_at_which_it_is_stored_through_a_take_over",
        (
            Edit(
                "octavo.broker.partition.rollover:Rollover._appended_ms",
                "self._clock(), self._record.ledgers.newest_append_ms, self._publisher.appended_ms",
                "self._clock(), -1",
            ),
            Edit(
                "octavo.broker.partition.partition:Partition._new_publisher",
                "publisher.appended_ms = max(publisher.appended_ms, ledgers.newest_append_ms)",
                "pass",
            ),
        ),
    ),
    TestedBug(
        "view-with-the-producers-time",
        "a compacted view shows the producer's time instead of the append time",
        """A view's batches are rebuilt from stored records, but the append time is only in the
        header. A message then has two times, and a tombstone ages by a producer's clock.""",
        "P66",
        "cluster/test_times.py::test_a_view_and_a_fork_have_the_same_times",
        (
            Edit(
                "octavo.broker.partition.compactor:Compactor._opening",
                "readable(batch.header, batch.data)",
                "batch.data",
            ),
        ),
    ),
    TestedBug(
        "trimmed-beyond-what-was-scanned",
        "a trim removes batches that the producers' snapshot does not cover",
        """Producers are durable as of an offset; a take-over must scan the batches behind it. The
        trim looks only at subscriptions, and removes them.""",
        "S9 (none twice)",
        "cluster/test_retention.py",
        (
            Edit(
                "octavo.broker.partition.maintenance:Maintenance._trim",
                "limits = [self._subscriptions.oldest_unacked(), scanned_from]",
                "limits = [self._subscriptions.oldest_unacked()]",
            ),
        ),
    ),
    TestedBug(
        "back-before-it-was-missed",
        "a broker that restarts between two looks counts as never gone",
        """The broker's name is there before and after, but it no longer serves its partitions, and
        no other broker takes them: the edit compares names, not runs.""",
        "S8",
        "unit/broker/test_broker_registry.py",
        (
            Edit(
                "octavo.broker.cluster.registry:BrokerRegistry._reload",
                "if values.get(n) != value",
                "if n not in values",
            ),
        ),
    ),
    TestedBug(
        "settled-in-another-life",
        "a broker that restarted counts as settled",
        """Partitions go only to brokers that have been up for a while. The edit counts from the
        first time a name was seen, so a broker that dies every minute gets partitions every
        minute.""",
        "S10",
        "unit/broker/test_broker_registry.py",
        (
            Edit(
                "octavo.broker.cluster.registry:BrokerRegistry._reload",
                "name: now_s if name in gone else self._up_since_s.get(name, now_s)",
                "name: self._up_since_s.get(name, now_s)",
            ),
        ),
    ),
    TestedBug(
        "look-takes-anothers-record",
        "a replaced owner adopts the new owner's record version",
        """With the newer version its next write succeeds, although it must fail. The edit does not
        compare what has changed.""",
        "S9 (of two owners one chain wins)",
        "unit/broker/test_partition_record.py",
        (
            Edit(
                "octavo.broker.log.record:PartitionRecordKeeper.look",
                "            if same_to_owner(found, self.value):\n"
                "                self._version = version\n"
                "                self._set(found)\n",
                "            self._version = version\n            self._set(found)\n",
            ),
        ),
    ),
    TestedBug(
        "batches-kept-for-nobody",
        "a batch confirmed after its partition closed stays in the cache",
        "No reader uses it and nothing evicts it, so the room of the cache shrinks for ever.",
        "memory (the cache's bound)",
        "unit/broker/test_log_reader.py",
        (
            Edit(
                "octavo.broker.log.cache:PartitionTail.append",
                "    if self._gone:\n        return\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "taken-in-by-a-namesake",
        "a committed batch enters a new topic of the same name",
        """The topic exists and is not being deleted, but it is not the topic for which the batch
        was written.""",
        "X1, S9 (no phantom)",
        "cluster/test_broker_bulk_loads.py",
        (
            Edit(
                "octavo.broker.partition.part_loader:PartLoader._is_void",
                "not topic.stands or not part.is_of(topic)",
                "topic.deleting",
            ),
        ),
    ),
    TestedBug(
        "own-record-taken-for-anothers",
        "a broker does not serve a partition that its own old record claims",
        """Other brokers forward callers to the broker that the record names. If that broker
        forwards them too, no broker serves the partition until its session ends.""",
        "S8",
        "cluster/test_broker_takeover.py",
        (
            Edit(
                "octavo.broker.cluster.ownership_states:route",
                "if owner is None and not is_forwarded:",
                "if not is_forwarded:",
            ),
        ),
    ),
    TestedBug(
        "forgotten-claim-not-released",
        "a forgotten claim of this broker is never released",
        """A release that failed has already forgotten the claim, so releasing it again does
        nothing. Two lines claim it first; without them the topic cannot be deleted while the
        session lives.""",
        "S8",
        "cluster/test_broker_takeover.py",
        (
            Edit(
                "octavo.broker.cluster.ownership:OwnershipManager._release",
                "        if is_leftover and await self._ownership.owner(path) == self._value:\n"
                "            await self._ownership.claim(path, self._value)\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "only-the-first-window-is-proved",
        "only the beginning of a compressed batch is checked",
        "Damage behind the beginning is noticed only when the message is delivered.",
        "a packed batch holds what it says",
        "unit/broker_http/test_batch_proofs.py::test_damage_behind_the_first_window_is_refused",
        (
            Edit(
                "octavo.broker.operations.batch_proofs:_prove",
                "range(windows.windows)",
                "range(1)",
            ),
        ),
    ),
    TestedBug(
        "proofs-by-arrival",
        "a client with many large batches keeps other clients' batches waiting",
        """Clients should take turns. With one queue for all, a client that sends a hundred large
        batches delays the others until theirs are refused.""",
        "nobody else waits for whoever meets a bound (docs/limits.md)",
        "unit/broker_http/test_batch_proofs.py::test_peers_take_turns",
        (
            Edit(
                "octavo.broker.operations.batch_proofs:_Line.enter",
                "self._waiting.push(peer, turn)",
                'self._waiting.push("", turn)',
            ),
        ),
    ),
    TestedBug(
        "open-batches-counted-packed",
        "unpacked batches in the cache are counted without their contents",
        "Sixteen unpacked batches of megabytes count as almost nothing.",
        "memory has a bound (GUARANTEES.md)",
        "unit/broker_http/test_batch_proofs.py::test_the_cache_counts_what_it_holds",
        (
            Edit(
                "octavo.broker.log.open_batches:_cost_bytes",
                "held = found.held_bytes if isinstance(found, BatchWindows) else 0",
                "held = 0",
            ),
        ),
    ),
    TestedBug(
        "view-of-a-server-that-is-behind",
        "a compacted read starts with an outdated view",
        """A metadata server that is behind does not know the newest view. If retention has removed
        the messages of that view, a reader from the beginning misses keys without an error.""",
        "X9",
        "unit/broker/test_compaction.py",
        (
            Edit(
                "octavo.broker.partition.compacted:CompactedReader.learn",
                "self._record.look(newest=at_once)",
                "self._record.look()",
            ),
        ),
    ),
    TestedBug(
        "fork-alone-refers",
        "a shared ledger is registered for the fork but not for its source",
        """When the fork is deleted, no other user of the ledgers is known, and they are deleted
        while the source needs them.""",
        "P46",
        "unit/broker/test_ledger_list.py",
        (
            Edit(
                "octavo.broker.cluster.forks:Forks._share",
                "self._shared.refer(ledger_id, pair)",
                "self._shared.refer(ledger_id, pair[1:])",
            ),
        ),
    ),
    TestedBug(
        "fork-looks-once",
        "a fork does not check again that its source still has the shared ledgers",
        """The source may have trimmed a ledger since its list was read, when it saw no other user.
        The fork then begins with a ledger that is gone.""",
        "P46",
        "unit/broker/test_ledger_list.py",
        (
            Edit(
                "octavo.broker.cluster.forks:Forks._share",
                "again = await self._source(source, number, at)",
                "again = ledger_list",
            ),
        ),
    ),
    TestedBug(
        "trimmed-for-all",
        "a ledger that one partition releases is deleted although others share it",
        """This was correct before there were forks. The edit does not ask which partitions still
        use the ledger.""",
        "P46",
        "unit/broker/test_ledger_list.py",
        (
            Edit(
                "octavo.broker.log.ledger_references:SharedLedgers.release",
                "if after.referrers:",
                "if False:",
            ),
        ),
    ),
    TestedBug(
        "fork-in-the-making-swept",
        "cleanup removes the reference of a fork that has no record yet",
        """No record names the ledger yet, so it seems unused. The fork is about to write its
        record, and gets a ledger that is deleted with its source.""",
        "P46",
        "unit/broker/test_ledger_list.py",
        (
            Edit(
                "octavo.broker.log.orphan_ledgers:is_gone",
                "if not topic.stands or record is None or record.deleted:",
                "if record is None:\n        return True\n    if record.deleted:",
            ),
        ),
    ),
    TestedBug(
        "fork-has-the-whole-batch",
        "a fork in the middle of a batch shows the whole batch",
        """A batch is stored and served whole. The messages behind the fork's offset belong to the
        source, and new messages of the fork get their offsets again.""",
        "S9",
        "cluster/test_forks.py",
        (
            Edit(
                "octavo.broker.log.reader:LogReader._cut",
                "if kept == header.record_count:",
                "if kept <= header.record_count:",
            ),
        ),
    ),
    TestedBug(
        "fork-remembers-producers",
        "a fork inherits the producers of its source",
        """A take-over scans the batches that no checkpoint covers, in a fork all of them. A
        producer's first sequence in the fork then counts as stored.""",
        "S9",
        "cluster/test_forks.py",
        (
            Edit(
                "octavo.broker.partition.opening:PartitionOpener._producers",
                "sequenced = not (segment.bulk_loaded or segment.shared)",
                "sequenced = not segment.bulk_loaded",
            ),
        ),
    ),
    TestedBug(
        "truncated-under-its-subscriptions",
        "truncating a partition does not move its subscriptions",
        """The messages at their positions are gone, but the backlog still counts them, and their
        leases stay.""",
        "S9",
        "cluster/test_retention.py",
        (
            Edit(
                "octavo.broker.subscriptions.subscriptions:SubscriptionSet.pass_all_over",
                "await self.pass_over(name, end)",
                "pass",
            ),
        ),
    ),
    TestedBug(
        "dead-letter-acked-without-its-copy",
        "a message is acked although its dead letter was refused",
        """Copies are sent together, and the edit acks all originals whatever the answers. A message
        that no consumer could process is lost.""",
        "X14",
        "unit/broker/test_dead_letters.py",
        (
            Edit(
                "octavo.broker.subscriptions.dead_letter_delivery:DeadLetterDelivery._bury",
                "zip(letters, fates, strict=True) if fate is None",
                "zip(letters, fates, strict=True)",
            ),
        ),
    ),
    TestedBug(
        "retry-acked-before-its-copy",
        "a message is acked before its retry copy is stored",
        "When the copy is refused, or the broker dies before it is stored, the message is lost.",
        "X14",
        "unit/broker/test_dead_letters.py",
        (
            Edit(
                "octavo.broker.subscriptions.dead_letter_delivery:DeadLetterDelivery._send",
                "self._elsewhere = await self._office.send(",
                "self._elsewhere = None\n    coroutine = self._office.send(",
            ),
            Edit(
                "octavo.broker.subscriptions.dead_letter_delivery:DeadLetterDelivery._send",
                "producer, self._info, body\n    )",
                "producer, self._info, body\n    )\n    asyncio.ensure_future(coroutine)",
            ),
        ),
    ),
    TestedBug(
        "take-over-forgets-writers-of-streams",
        "a take-over forgets a stream's appends since the last checkpoint",
        """A new owner must read the batches since the last checkpoint. Otherwise a repeat is stored
        twice, and a closed stream is open.""",
        "S9",
        "cluster/test_durable_streams.py::test_a_take_over_keeps_all_of_it",
        (
            Edit(
                "octavo.broker.partition.opening:PartitionOpener._open",
                "await self._appends(state.stream, ledger_list)",
                "False",
            ),
        ),
    ),
    TestedBug(
        "trim-takes-writers-of-streams-along",
        "a trim forgets a stream's writers",
        """The next owner reads the batches since the checkpoint, and the trim has removed them. The
        edit writes down only Kafka's producers before a trim.""",
        "S9",
        "cluster/test_durable_streams.py::test_what_is_trimmed_took_no_writers_along",
        (
            Edit(
                "octavo.broker.partition.maintenance:Maintenance._persist_producers",
                "told.append(publisher.stored_stream.change(upto))",
                "pass",
            ),
        ),
    ),
    TestedBug(
        "repeats-at-once-are-both-new",
        "two concurrent appends with the same sequence are both stored",
        """The first append is not confirmed when the second comes, so it must be remembered when it
        is let in.""",
        "S9",
        "cluster/test_durable_streams.py::test_repeats_that_come_at_once_are_stored_once",
        (
            Edit(
                "octavo.broker.partition.publisher:Publisher._admit",
                "self._stream.accept(job.append, self.next_offset)",
                "self._stream = self.stored_stream",
            ),
        ),
    ),
    TestedBug(
        "end-shown-before-it-is-durable",
        "readers learn that a stream has ended before that is durable",
        """The owner dies. The next owner does not know the end and takes more appends, which
        readers that saw the end never read.""",
        "S9",
        "unit/broker/test_log_reader.py",
        (
            Edit(
                "octavo.broker.partition.stream:PartitionStream.is_closed",
                " and not self._pending",
                "",
            ),
        ),
    ),
    TestedBug(
        "repeat-is-answered-before-it-is-durable",
        "a repeated append is answered before the first is durable",
        """The edit makes a repeat wait for the partition's first message instead of its own. The
        repeat is acked, and lost when the owner's ledger fails.""",
        "X20",
        "unit/broker/test_publisher.py::test_a_repeat_of_what_is_under_way_waits_for_it",
        (
            Edit(
                "octavo.broker.partition.publisher:Publisher._is_repeat",
                "job.first_offset = end - 1",
                "job.first_offset = 0",
            ),
        ),
    ),
    TestedBug(
        "maker-plans-a-fork-anew",
        "a repeated request to make a fork plans it at another offset",
        """The owner has not heard of the fork yet and asks the source, which has grown meanwhile. A
        repeated request for a JSON stream is then refused for good.""",
        "X20",
        "cluster/test_durable_streams.py",
        (
            Edit(
                "octavo.broker.http.api.durable_streams:_topic",
                "return await topics.newest(topic), None",
                "return await topics.newest(topic), plan if asked.fork else None",
            ),
        ),
    ),
    TestedBug(
        "close-passes-what-is-under-way",
        "a stream's close does not wait for earlier appends",
        """Earlier appends have their offsets and are on their way to the bookies. Readers are told
        an end, and messages come behind it.""",
        "X20",
        "unit/broker/test_publisher.py::test_a_close_waits_for_what_was_let_in_before_it",
        (
            Edit(
                "octavo.broker.partition.stream:PartitionStream.close",
                "await publisher.confirmed_up_to(upto)",
                "pass",
            ),
        ),
    ),
    TestedBug(
        "repeat-is-refused-while-it-is-opened-anew",
        "a repeated upload is refused while its partition reopens",
        """The partition's record names the upload before its messages can be read. A first version
        looked for the body in the partition, and answered that the offset does not exist.""",
        "X23",
        "cluster/test_large_messages.py",
        (
            Edit(
                "octavo.broker.partition.partition:Partition.begin_large",
                "if stored.last_offset >= self.next_offset:",
                "if False:",
            ),
        ),
    ),
    TestedBug(
        "unknown-upload-is-thrown-away",
        "an upload whose insertion had no answer is discarded",
        "The record may name the upload's ledger, which the edit deletes.",
        "P46, X23",
        "cluster/test_large_messages.py",
        (
            Edit(
                "octavo.broker.partition.large:LargeUpload.finish",
                "except OctavoError as error:\n        raise PublishOutcomeUnknown(",
                "except OctavoError as error:\n        self._writer = writer\n"
                "        raise PublishOutcomeUnknown(",
            ),
        ),
    ),
)
