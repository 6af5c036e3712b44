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
        """All bookies were gone for a while and nobody published. What they had not confirmed is
        confirmed by nobody now, and its readers get a 503 until somebody publishes.""",
        "S8",
        "cluster/test_partition_faults.py",
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
        """A roll-over could not name the new ledger: the store was away. It is back for the close,
        which looks at the new ledger and finds nothing in it. The old ledger leaves the record, and
        all that was acked in it is lost. It stood in the code until seed 91000032.""",
        "S9",
        "cluster/test_broker_partition.py",
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
        """The store has a clock, told its time, and was away since. Without the question the
        broker's own is written down, an hour ahead, and retention of all goes by it.""",
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
        """It begins at the beginning. What takes a little longer than that, a long state ledger on
        slow bookies, takes too long each time: nobody serves the partition any more.""",
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
        """Epochs only grow, so a smaller one looks like the only one that must not be. The edit
        lets the greater one pass: who was replaced fences its successor, and with cursors of
        before takes back acks that this one answered.""",
        "S9 (of two owners one chain wins; an ack that was answered holds)",
        "unit/broker/test_opening.py",
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
        """Two lines in the other order: the flag says that the record names the new ledger, and not
        that it may. A write whose reply was lost has taken effect all the same.""",
        "P46 (what a chain names is there)",
        "unit/broker/test_rollover.py",
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
        """Its last ledger is closed and no other one is made, so there is nothing to fence: the
        record alone keeps the former owner out, who names a ledger of its own there when somebody
        publishes. Left as it is, both answer: who reads at one misses what the other acked.""",
        "S9 (of two owners one chain wins)",
        "cluster/test_opening_makes_no_ledger.py::"
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
        """Then none of them is looked through again: the owner after the next one stores a repeat
        for the second time.""",
        "S9 (none twice)",
        "cluster/test_opening_makes_no_ledger.py::"
        "test_producers_are_known_again_however_the_owners_end",
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
        """In Kafka it is so: a leader whose clock is behind appends what is older than what stands
        there, and a lookup by halving goes wrong. The edit leaves out the last owner's time.""",
        "P66",
        "cluster/test_append_time.py::"
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
        """A view's batches are built anew, from records as they are stored, and the append time
        stands in the header alone. A message would have two times, by how it is read, and a
        tombstone would go by a producer's clock.""",
        "P66",
        "cluster/test_append_time.py::test_a_view_and_a_fork_have_the_same_times",
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
        """The producers were made durable as of a moment; what was published since a take-over has
        to scan. The edit goes by what subscriptions need alone, as if that moment were now.""",
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
        """Its name is there, before and after. What it had served nobody serves any more, and
        nobody takes it: the edit compares names, not runs.""",
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
        """What is served is handed on to brokers that have settled. The edit remembers when the
        name was first seen: a broker that dies every minute is handed partitions every minute.""",
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
        """The version that it learns so makes its next write succeed, where it has to fail. The
        edit leaves out the look at what has changed.""",
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
        """Nobody reads it, and nothing evicts it: a part that is closed gives nothing back. The
        bound shrinks for all others, for ever.""",
        "memory (the cache's bound)",
        "unit/broker/test_broker_memory.py",
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
        """That the topic is there and not being deleted looks like enough. The edit forgets to ask
        whether it is the one that the batch was written for.""",
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
        """Who is preferred is asked, and not whose record stands. The others send everybody to the
        broker that the record names, and this one sends them on: nobody serves the partition for
        as long as its session lives.""",
        "S8",
        "cluster/test_broker_takeover.py",
        (
            Edit(
                "octavo.broker.cluster.claims:route",
                "if owner is None and not is_forwarded:",
                "if not is_forwarded:",
            ),
        ),
    ),
    TestedBug(
        "forgotten-claim-not-released",
        "a forgotten claim of this broker is never released",
        """A release that failed has forgotten the claim; releasing it again does nothing. Two lines
        that look like a repeat claim it first. Without them a topic cannot be deleted for as long
        as the session lives.""",
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
        """Lengths that fit look like records that can be read. Damage behind comes to light
        when the message is delivered.""",
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
        """A line of all keys that are alike still looks like a fair one. One peer that sends a
        hundred of them keeps the others out until theirs are refused.""",
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
        """The overhead alone is added up, as for one that could not be opened. Sixteen batches of
        megabytes are kept as if they were none.""",
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
        """One that is behind does not know the view that was published a moment ago. Where
        retention has removed what the view holds, a reader from the beginning misses keys, and no
        word is said.""",
        "X9",
        "unit/broker/test_compacted_reader.py",
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
        """That the topic has its own ledgers goes without saying, it seems. When the fork is
        deleted nobody is known to have them any more, and they go from under the topic.""",
        "P46",
        "unit/broker/test_shared_ledgers.py",
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
        """The list of ledgers was read a moment ago. A ledger that was trimmed since was let go of
        by who saw no other referrer, and the fork begins with a ledger that is not there.""",
        "P46",
        "unit/broker/test_shared_ledgers.py",
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
        """As it was before there were forks. The edit does not ask who is left.""",
        "P46",
        "unit/broker/test_shared_ledgers.py",
        (
            Edit(
                "octavo.broker.log.shared_ledgers:SharedLedgers.release",
                "if after.referrers:",
                "if False:",
            ),
        ),
    ),
    TestedBug(
        "fork-in-the-making-swept",
        "cleanup removes the reference of a fork that has no record yet",
        """No record names the ledger, so nobody seems to have it. The fork is about to make that
        record: it gets a ledger that goes with its source.""",
        "P46",
        "unit/broker/test_shared_ledgers.py",
        (
            Edit(
                "octavo.broker.log.referrers:is_gone",
                "if not topic.stands or record is None or record.deleted:",
                "if record is None:\n        return True\n    if record.deleted:",
            ),
        ),
    ),
    TestedBug(
        "fork-has-the-whole-batch",
        "a fork in the middle of a batch shows the whole batch",
        """A batch is stored whole and served whole. The messages behind the fork are the source's,
        and their offsets come again with what is published into the fork.""",
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
        """A take-over scans what no checkpoint covers, of a fork all of it. A producer that begins
        in the fork with its first sequence is told that it is stored.""",
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
        """What they would read next is gone: their backlog counts it, and leases of it live on.""",
        "S9",
        "cluster/test_truncate.py",
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
        """The copies are sent together, and what fails is looked at when all are through. Acked are
        all of them, as if sending were storing: a message that nobody could process is gone.""",
        "X14",
        "unit/broker/test_dead_letters.py",
        (
            Edit(
                "octavo.broker.subscriptions.burying:Burying._bury",
                "zip(letters, fates, strict=True) if fate is None",
                "zip(letters, fates, strict=True)",
            ),
        ),
    ),
    TestedBug(
        "retry-acked-before-its-copy",
        "a message is acked before its retry copy is stored",
        """Clients that retry elsewhere send the copy, and ack without waiting for its answer: when
        the copy is refused, or its sender dies, the message is nowhere.""",
        "X14",
        "unit/broker/test_retry_topic.py",
        (
            Edit(
                "octavo.broker.subscriptions.burying:Burying._send",
                "self._elsewhere = await self._office.send(",
                "self._elsewhere = None\n    coroutine = self._office.send(",
            ),
            Edit(
                "octavo.broker.subscriptions.burying:Burying._send",
                "producer, self._info, body\n    )",
                "producer, self._info, body\n    )\n    asyncio.ensure_future(coroutine)",
            ),
        ),
    ),
    TestedBug(
        "take-over-forgets-writers-of-streams",
        "a take-over forgets a stream's appends since the last checkpoint",
        """What an append says lies in its batch, and the batches since the last checkpoint have to
        be looked through. Without that a repeat is stored twice, and a closed stream is open.""",
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
        """The next owner looks through the batches since the checkpoint, and those are gone. The
        edit writes down Kafka's producers alone before a trim.""",
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
        """The first one is under way when the second one comes: what is confirmed does not know it
        yet. The edit remembers an append when it is confirmed, and not when it is let in.""",
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
        """Its owner dies, the next one has never heard of the end, and more is appended, which
        readers who believe in it never see.""",
        "S9",
        "unit/broker/test_partition_stream.py",
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
        """It is known, so it is a repeat; that it is stored nobody knows yet. The edit has the
        repeat wait for the first message instead of its own: it is acked, and gone when the
        owner's ledger fails. Seeds hardly see it: before the answer the state ledger proves whose
        the partition is, and takes as long as the append.""",
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
        """The owner has not heard of it and asks the source, which has grown meanwhile: a stream of
        JSON is refused for good. The first version was so. A seed would need a fork of JSON without
        an offset, passed on before a watch comes, and an append to its source in between.""",
        "X20",
        "cluster/test_durable_streams.py",
        (
            Edit(
                "octavo.broker.http.api.durable_making:_topic",
                "return await topics.newest(topic), None",
                "return await topics.newest(topic), plan if asked.fork else None",
            ),
        ),
    ),
    TestedBug(
        "close-passes-what-is-under-way",
        "a stream's close does not wait for earlier appends",
        """They have their offsets and are on their way to the bookies. The edit has the end written
        where the stream ends at that moment, and readers told, while messages come behind it. A
        seed sees it when the state ledger's bookies are quicker than the log's.""",
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
        """The record says where it is before anything of it can be read. Its first version looked
        for the body there, and told who repeats as it was told to that there is no such offset.""",
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
        """The record may name its ledger by then. The edit deletes it all the same. Of the seeds of
        profile `large` one in some hundreds sees it: it wants a record that is written, an answer
        that does not come, and a broker that goes on.""",
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
