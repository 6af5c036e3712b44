"""Every table that is read by a key and filled by it, and why its key is complete.

`test_caches.py` finds them in the code. A cache, or a table of joined requests, has a test that
varies each field of its key after a hit. All others have a reason to need none.
"""

from __future__ import annotations

from collections.abc import Mapping

_FILE = "unit/test_caches.py::test_"

_IN_FILE = {
    "bookie.read.read_ahead:ReadAhead._readers": "readers_that_read_ahead",
    "broker.cluster.schema_registry:SchemaRegistry._known": "subjects_and_versions_that_are_known",
    "broker.cluster.schema_registry:_Subject._quick": "subjects_and_versions_that_are_known",
    "broker.http.api.fast_publish:FastPublish._young": "heads_of_the_short_way",
    "broker.http.stream:Pages._fetching": "pages_that_are_fetched_once",
    "broker.log.compaction_rules:Hints._ranges": "where_pages_of_a_view_ended",
    "broker.log.open_batches:OpenBatches._kept": "batches_that_are_open",
    "broker.log.reader:LedgerTimes._known": "readers_and_times_of_ledgers",
    "broker.log.reader:OpenReaders._open": "readers_and_times_of_ledgers",
    "broker.operations.gathered:RemoteBatchers._gatherings": (
        "messages_that_are_passed_on_together"
    ),
    "broker.operations.upgrade:Nonces._seen": "nonces_that_were_seen",
    "broker.topic_rates:Rates._topics": "rates_of_topics",
    "broker.schemas.engine:Answering._compiled": "schemas_that_were_compiled",
    "client.doubt:Doubts._waiting": "owners_that_are_doubted",
    "ledger.bookies.connection:BookieConnection._reads": "reads_that_wait_on_a_connection",
    "security.identity.authenticator:Authenticator._checking": "passwords_that_are_checked_at_once",
    "security.identity.authenticator:Authenticator._verified": "who_was_verified",
    "security.keys.data_keys:DataKeys._keys": "data_keys",
    "security.limits:Limits._buckets": "quotas",
    "security.limits:Limits._held": "quotas",
    "security.rules:Policy._decided": "decisions",
}
HELD: Mapping[str, str] = {
    **{name: f"{_FILE}{test}" for name, test in _IN_FILE.items()},
    "spark.commit:_proofs": f"{_FILE}proofs_of_bulk_loads",
    "spark.sink_driver:_checked": f"{_FILE}targets_that_were_checked",
    "spark.process_cache:ProcessCache._values": (
        "unit/octavo/test_process_cache.py::test_a_value_is_kept_by_its_key"
    ),
    "ledger.client:LedgerClient._recoveries": (
        "cluster/test_ledgers.py::test_a_recovery_is_shared_by_callers_of_one_password"
    ),
}
"""Caches and joined requests, each with the test that varies the fields of its key."""

KEPT: Mapping[str, str] = {
    "a pure function of what is the key, all of it": """
        bookie.adds:_layout bookie.journal.reader:_rows_of bookie.node:_version
        bookie.read.cache:_entry_layout bookie.read.cache:_ids_layout cli.main:_command
        ledger.offload.message_rows:rows_schema
        ledger.offload.message_rows:_entries_schema
        broker.cluster.registry:_preferred broker.http.connection_bytes:body_bytes_of
        broker.subscriptions.key_shared:_points metadata.bookies:decode_service_info
        metadata.cookie:decode_cookie metadata.topic_records:_stored pipeline.json_schema:decoder_of
        protocol.records:_codec protocol.records:_remembered_hash protocol.records:not_records
        protocol.topic_patterns:_compiled protocol.v3_runs:_layout""",
    "by ledger, entry log or file of one bookie, whose numbers are never given twice": """
        bookie.disk.damage:DamageRegistry._found bookie.entrylog.log:EntryLogs._bytes_of
        bookie.entrylog.log:EntryLogs._paths bookie.entrylog.open_logs:OpenLogs._open
        bookie.gc.log_metadata:EntryLogMetadata._kept bookie.gc.rules:Quarantine._since_ms
        bookie.gc.status:CollectorStatus._decisions bookie.index.index:RocksIndex._last
        bookie.ledgers.control:LacWatches._parked bookie.ledgers.control:LedgerControl._deletions
        bookie.ledgers.control:LedgerControl._fences
        bookie.ledgers.control:LedgerControl._unsure_deletions
        bookie.ledgers.state:LedgerStates._all bookie.read.cache:ReadCache._firsts
        bookie.read.cache:ReadCache._runs
        bookie.write.cache:Memtable.ledgers bookie.write.flushing:Flushing._written_at
        bookie.write.duplicate_adds:DuplicateAdds._lines
        bookie.write.duplicate_adds:DuplicateAdds._tasks
        broker.log.entry_index:EntryIndex._ledgers broker.log.orphan_ledgers:Suspects._since_s
        broker.log.reader:LogReader._hints broker.partition.compacted:CompactedReader._times
        inspect.entry_log:EntryLogWalk.sums ledger.bookies.connection:BookieConnection._sinks
        ledger.read.doubts:Doubts._told ledger.rereplication.comparing:CopyComparer._doubted
        ledger.rereplication.keeper:CopyKeeper._reasons
        ledger.rereplication.keeper:CopyKeeper._waited_for
        pipeline.compact_rules:Chunks._first pipeline.compact_rules:Chunks._starts
        pipeline.streams:Progress._by_batch spark.cluster:Cluster._open""",
    "by bookie, of one ledger or of one client of ledgers": """
        ledger.bookies.bookies:Bookies._suspects
        ledger.bookies.bookies:Bookies._bookies ledger.quorum:Acks._early
        ledger.recover.recovery:Recovery._connections ledger.recover.recovery:Recovery._writing_to
        ledger.recover.recovery_state:RecoveryState._polls
        ledger.recover.recovery_state:RecoveryState._squatted
        ledger.recover.recovery_state:RecoveryState._unsure
        ledger.write.ensemble_writer:EnsembleWriter._by_bookie
        ledger.write.ensemble_writer:EnsembleWriter._told
        ledger.write.explicit_ids:ExplicitIds._early ledger.write.forces:Forces._asked
        ledger.write.forces:Forces._resting ledger.write.writer_state:WriterState.down
        ledger.write.writer_state:WriterState.ensemble""",
    "by the whole name of a topic, partition, broker or namespace: checked against the incarnation "
    "when it is used, or read again after an alarm of its watch": """
        broker.bulkload.driver:BulkLoads._seen
        broker.cluster.background_tasks:BackgroundTasks._failing
        broker.cluster.background_tasks:BackgroundTasks._under_way
        broker.cluster.deletion:Deletions._jobs broker.cluster.deletion:Deletions._locks
        broker.cluster.deletion:Deletions._taken_up broker.cluster.balance:Patience._silent
        broker.cluster.membership:GoneBrokers._gone broker.cluster.dead_letters:Turns._doubtful
        broker.cluster.dead_letters:Turns._shares broker.cluster.ownership:Lookups._lookups
        broker.cluster.ownership:OwnershipManager._awaited
        broker.cluster.ownership:OwnershipManager._holdings
        broker.cluster.ownership:OwnershipManager._names
        broker.cluster.ownership:OwnershipManager._outstanding
        broker.cluster.broker_status:BrokerStatuses._others broker.cluster.topics:Topics._known
        broker.cluster.topics:Topics._namespaces broker.groups.coordinator:Groups._kept
        client.client:AsyncClient._looked_at client.client:AsyncClient._own_producers
        client.consumer:TopicsConsumer._subscriptions client.merging:Merged._sources
        client.transport:Transport._owners client.transport:Transport._silent_until
        metadata.election:Ownership._sent metadata.watching:WatchTable._watches
        metadata.zookeeper_watches:PlacedWatches._placed""",
    "the state of one partition or subscription, by what clients call its parts": """
        broker.log.reader:LogReader._ahead broker.partition.log:PartitionLog._growth
        broker.state.cursor:Cursor._chunks broker.state.producers:ProducerTable._producers
        broker.state.format:State.cursors broker.state.format:State.producers
        broker.state.stream:StreamState.producers
        broker.subscriptions.dead_letters:SpentMessages._due_ms
        broker.subscriptions.dead_letters:SpentMessages._sent
        broker.subscriptions.dead_letters:SpentMessages._under_way
        broker.subscriptions.dead_letters:SpentMessages._waiting
        broker.subscriptions.delays:Delays._runs broker.subscriptions.dispatch:Dispatcher._attempts
        broker.subscriptions.dispatch:Dispatcher._resumed
        broker.subscriptions.dispatch:Dispatcher.consumers
        broker.groups.group:Group.members broker.subscriptions.key_shared:KeyOrder._keys
        broker.subscriptions.key_shared:KeyOrder._known
        broker.subscriptions.key_shared:KeyOrder._offers
        broker.subscriptions.key_shared:KeyOrder._returned
        broker.subscriptions.subscription:Subscription._answered
        broker.subscriptions.subscriptions:SubscriptionSet._open
        broker.subscriptions.subscriptions:SubscriptionSet._unsaved
        broker.subscriptions.last_used:LastUsed._retired_until_s
        broker.subscriptions.last_used:LastUsed._used_s""",
    "a set, by the object itself": """
        bookie.back_pressure:FrameRoom._waiting bookie.back_pressure:Turns._waiting
        bookie.wire.server:BookieServer._connections
        broker.http.connections:ConnectionServer._reserved
        client.merging:Merged._loops ledger.bookies.bookies:Bookie._listeners
        ledger.client:LedgerClient._ticking ledger.client:LedgerClient._writers
        process.schema_workers:_Server._workers tls.listening:TlsListener._shaking
        broker.cluster.openings:Openings._line
        bookie.admin:AdminServer._connections bookie.admin:AdminServer._silent
        bookie.wire.read_scheduler:ReadScheduler._blocked
        bookie.wire.read_scheduler:ReadScheduler._ready
        bookie.wire.requests:Requests._parked broker.partition.stream:PartitionStream._waiting
        broker.subscriptions.subscription:Subscription._waiters
        client.subscription:Subscription._loops ledger.bookies.bookies:Bookies._on_change""",
    "lives for one call, one batch of a task or one object that is looked through": """
        bookie.journal.journal:_Stretch._lanes bookie.journal.reader:JournalReader.lost
        broker.http.api.batching:Publishing._queues broker.http.api.push:_Out._of
        broker.http.stream:Page._written broker.schemas.avro:_Pairs._known
        broker.schemas.avro:Shape._empty broker.schemas.avro:Shape._sizes
        broker.schemas.json_cost:_Walk._weights pipeline.interrupt:Signals._before
        pipeline.spread:Findings.counts process.schema_server:_Server._pids
        protocol.topic_patterns:_Compiled._places security.rules:Policy._of
        spark.sink_task:_Task._counts spark.sink_ledgers:TaskLedgers._open
        spark.sink_ledgers:TaskLedgers._settings
        spark.sink_rows:RowRouter._lanes spark.sink_rows:RowRouter._names
        process.schema_server:_Server._names""",
    "by a number that a connection gives to one request alone": """
        broker.operations.channel:Answering._owed broker.operations.channel:Asking._requests
        broker.operations.links:AnsweringLink._work broker.operations.links:AskingLink._waiters
        ledger.bookies.connection:BookieConnection._by_id""",
    "by a name that the sending broker gives to one body alone": """
        broker.operations.bodies:Bodies._bodies""",
    "figures, turns and what is told in a log: nothing is decided by it": """
        bookie.admin:AdminServer._routes bookie.wire.requests:Requests._reads
        broker.metrics:Metrics._counted broker.metrics:Metrics._exceeded
        broker.metrics:Metrics._timed broker.metrics:_PartitionFigures._texts
        process.recovery_log:RecoveryLog._in_full
        process.schema_workers:_Lane._pauses protocol.fair_queue:FairQueue._lanes
        protocol.log_limiter:LogLimiter._told security.audit:AuditBook._counted""",
    "by broker and address: a connection is of no caller and of no topic, requests say theirs": """
        broker.operations.remote:Remote._links broker.operations.remote:Remote._opening
    """,
    "an index of all rules and roles of one policy, made when it is read; no answer is kept": """
        security.policy:_Reading._roles security.rules:_RulesOf._by
        security.rules:_RulesOf._allowed
        security.rules:_RulesOf._lengths
    """,
    "bytes held for one principal or namespace: counted, and no answer comes from it": """
        broker.http.held_bytes:HeldBytes._by_subject
    """,
    "of one call, by partition: what the call was given there": """
        broker.http.api.deliveries:_Gathering._given
    """,
    "locks and counts of one partition, and of nobody's answers": """
        broker.operations.serving:Serving._looking broker.operations.serving:Serving._turns
    """,
    "by address and user, and one for all further users of an address: test_credentials": """
        security.identity.failed_logins:FailedLogins._failures
        security.identity.failed_logins:FailedLogins._users""",
    "a file of keys, by namespace: replaced whole when the file has changed": """
        security.keys.sources:FileKeys._keys""",
}  # fmt: skip
