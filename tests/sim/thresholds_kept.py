"""Numbers of production code that the simulator leaves as they are, and why.

`tests/unit/sim/test_thresholds.py` checks that each is here or drawn (`thresholds.py`), and that
every number here exists.
"""

from __future__ import annotations

from collections.abc import Mapping

KEPT: Mapping[str, str] = {
    "part of a format or a protocol, or a unit: another value would be another system": """
        octavo.bookie.wire.connection:_ENTRY_ID_AT octavo.bookie.adds:_ADD_OP
        octavo.bookie.adds:_FLAGS_MASK octavo.bookie.adds:_FRAME_BYTES_MIN
        octavo.bookie.adds:_PREFIX_BYTES octavo.bookie.config:KIB octavo.bookie.config:MIB
        octavo.bookie.wire.connection:_ADD octavo.bookie.wire.connection:_READ
        octavo.bookie.wire.connection:_BATCH_READ octavo.bookie.wire.connection:_AUTH
        octavo.bookie.wire.connection:_V3_FIRST_BYTE octavo.bookie.disk.files:_IOV_MAX
        octavo.bookie.entrylog.format:VERSION octavo.bookie.index.index:ENTRY_MAX
        octavo.bookie.journal.format:VERSION octavo.bookie.journal.format:META_VERSION
        octavo.bookie.journal.reader:_FIRST_FILE octavo.bookie.journal.journal:_GOLDEN
        octavo.bookie.journal.journal:_MASK octavo.bookie.ledgers.control:_LAC_AT
        octavo.bookie.ledgers.rules:_HMAC_BYTES octavo.bookie.ledgers.state:VERSION
        octavo.bookie.ledgers.limbo:VERSION octavo.bookie.ledgers.limbo:_NOWHERE
        octavo.bookie.ledgers.high_water:VERSION octavo.bookie.ledgers.high_water:_BYTES_MAX
        octavo.bookie.journal.mark:VERSION octavo.bookie.journal.reader:_ADD
        octavo.bookie.write.cache:_NEVER octavo.broker.http.call:OFFSET_MAX
        octavo.broker.http.call:PARTITION_HIGHEST octavo.broker.http.connection_bytes:_MASK
        octavo.broker.http.connection_bytes:_OP octavo.broker.http.connection_bytes:_DATA_OP_MAX
        octavo.broker.http.call:_LEAP_SECOND octavo.broker.config:KIB
        octavo.broker.config:MIB octavo.broker.state.producers:SEQUENCE_MODULUS
        octavo.broker.http.openapi:_ALWAYS
        octavo.broker.cluster.membership:_WEIGHT_BYTES octavo.broker.groups.group:_ODD
        octavo.broker.groups.group:_64_BITS
        octavo.broker.http.api.batching:SEQUENCE_MASK octavo.broker.state.format:FORMAT_VERSION
        octavo.metadata.topic_settings:OFF octavo.metadata.topic_settings:NUMBER_MAX
        octavo.broker.state.producers:BROKERS octavo.bookie.wire.rights:_COUNT_MAX
        octavo.broker.subscriptions.key_shared:SLOTS octavo.broker.subscriptions.key_shared:POINTS
        octavo.broker.subscriptions.key_shared:_POINT_BYTES
        octavo.broker.subscriptions.key_shared:_NAMES_REMEMBERED
        octavo.ledger.read.entry_source:DISORDER_UNKNOWN
        octavo.ledger.offload.message_rows:_ROW_BYTES
        octavo.ledger.options:KIB octavo.ledger.options:MIB
        octavo.ledger.options:_DAY_S
        octavo.metadata.cookie:LAYOUT_VERSION octavo.metadata.cookie:_OLDEST_TEXT_VERSION
        octavo.metadata.ledger_codec:_V1_IN_RECOVERY octavo.metadata.ledger_codec:_VARINT_BYTES_MAX
        octavo.metadata.ledger_ids:SHORT_IDS_END octavo.metadata.ledger_ids:IDS_END
        octavo.metadata.ledger_ids:_SHORT_CUT octavo.metadata.ledger_ids:_LONG_CUT
        octavo.metadata.ledgers:UNALLOCATED octavo.metadata.opening:ZOOKEEPER_PORT
        octavo.metadata.opening:ZOOKEEPER_TLS_PORT
        octavo.metadata.secret:SECRET_BYTES octavo.metadata.store:ANY_VERSION
        octavo.metadata.topic_records:FORMAT_VERSION octavo.metadata.one_record:ABSENT
        octavo.spark.arrow:_APPEND_TIME octavo.spark.options:EARLIEST octavo.spark.options:LATEST
        octavo.spark.pack:_SINCE_DOS octavo.spark.sink_producer:_EPOCHS
        octavo.spark.sink_rows:RECORD_OVERHEAD_BYTES octavo.protocol.windows:_RECORD_BODY_BYTES_MIN
        octavo.protocol.windows:_VARINT_BYTES_MAX octavo.broker.log.compaction_rules:_KEY_BYTES
        octavo.broker.subscriptions.dead_letters:_LENGTHS_BYTES
        octavo.broker.subscriptions.delays:_WORD_BITS
        octavo.broker.subscriptions.delays:_OFFSET_BITS
        octavo.broker.subscriptions.delays:_OFFSET_LOW
        octavo.broker.operations.channel:NUMBER_MAX octavo.broker.operations.frames:SEAL_BYTES
        octavo.broker.operations.frames:VERSION
        octavo.broker.operations.frames:DATA_BYTES_MAX
        octavo.broker.operations.kinds:REFUSAL_BYTES_MAX
        octavo.broker.operations.kinds:_BATCH_BYTES_MAX
        octavo.broker.operations.large_kinds:GIVEN_UP
    """,
    "a limit that users are told of (GUARANTEES.md, http.md): beyond it requests are refused": """
        octavo.broker.state.producers:BATCHES_REMEMBERED
        octavo.broker.subscriptions.dispatch:CONSUMERS_MAX
        octavo.broker.http.api.payloads:DELAY_MS_MAX
        octavo.metadata.topic_settings:COMPACTION_AFTER_BYTES
        octavo.broker.log.compaction_rules:_RETIRED_MAX
        octavo.broker.log.compaction_rules:_RUN_MESSAGES_MAX
        octavo.broker.subscriptions.subscription:_ANSWERS_REMEMBERED
        octavo.broker.bulkload.rules:REFUSED_MAX octavo.metadata.topic_settings:PARTITIONS_MAX
        octavo.metadata.topic_settings:BOOKIES_MAX octavo.broker.types:ACK_TIMEOUT_MS_MAX
        octavo.broker.types:FILTER_CHARS_MAX octavo.broker.types:FILTER_HEADERS_MAX
        octavo.broker.types:FILTER_VALUES_MAX octavo.broker.types:PRIORITY_MAX
        octavo.broker.types:UNACKED_MAX
        octavo.metadata.store:RECORD_BYTES_MAX octavo.broker.types:BACKOFF_FACTOR_MAX
        octavo.broker.types:DELIVERIES_MAX octavo.broker.types:RETRY_MS_MAX
        octavo.broker.http.api.topic_body:BACKOFF_MOST_MS octavo.broker.groups.group:WISHES_MAX
        octavo.broker.groups.group:HELD_MAX
    """,
    "longer than what it waits for may take; the simulated network has deadlines of its own": """
        octavo.broker.cluster.dead_letters:ATTEMPT_S
        octavo.broker.cluster.dead_letters:SLOWEST_BYTES_S octavo.broker.cluster.dead_letters:SLOW_S
        octavo.broker.cluster.dead_letters:DOUBTFUL_MAX
    """,
    "against seven days stand requests that are minutes on their way, and a seed lasts one: "
    "unit/broker/test_bulk_load goes to the end of them": """
        octavo.broker.bulkload.driver:KEPT_MS
    """,
    "of encrypted ledgers, which the simulated cluster has none of: to bookies they are like any "
    "other (cluster/test_encryption)": """
        octavo.broker.log.reader:_REWRAP_LOOK_S octavo.ledger.encryption:TURN_BYTES
        octavo.ledger.read.reader:_REWRAP_LOOK_S octavo.pipeline.offload_rules:_USUAL_BYTES
    """,
    "of callers who prove who they are, or do not: the simulated cluster is not secured "
    "(cluster/test_bookie_callers)": """
        octavo.bookie.wire.caller:FAILED_PROOFS_MAX octavo.bookie.wire.caller:_CLOCKS_APART_S
        octavo.bookie.wire.connection:_FAREWELL_S octavo.bookie.wire.caller:PROOF_S
        octavo.spark.cluster:_TASK_TOKEN_S octavo.spark.cluster:_AGAIN_MS
    """,
    "an estimate of memory, or a share of it: it is added up, and decides nothing by itself": """
        octavo.bookie.back_pressure:_CHUNK_SHARE octavo.bookie.read.cache:_RUN_OVERHEAD_BYTES
        octavo.bookie.write.cache:_RUN_OVERHEAD_BYTES octavo.broker.log.cache:_OVERHEAD_BYTES
        octavo.broker.log.open_batches:OVERHEAD_BYTES
        octavo.broker.subscriptions.delays:_LEFT_SHARE octavo.broker.subscriptions.delays:_FEW
    """,
    "how much is shown, logged or counted; the referees look at all of it": """
        octavo.bookie.gc.status:_ROUNDS_KEPT octavo.bookie.wire.connection:_LOGGED_REFUSALS_MAX
        octavo.bookie.disk.damage:FINDINGS_MAX octavo.bookie.node:_LISTED
        octavo.bookie.disk.damage:_NAMED_MAX octavo.bookie.metrics:LATENCY_S
        octavo.bookie.metrics:COUNTS octavo.bookie.metrics:_GROUP_BYTES
        octavo.bookie.metrics:_FLUSH_S octavo.bookie.metrics:_FLUSH_BYTES
        octavo.broker.cluster.background_tasks:_SAID_EVERY_S
        octavo.broker.cluster.ownership:_ENDED_WITHIN_S
        octavo.broker.metrics:SECONDS_BUCKETS octavo.broker.errors:_STALE_SHOWN
        octavo.broker.types:_NAME_SHOWN_CHARS
        octavo.broker.subscriptions.subscription:_RANGES_SHOWN_FOR
        octavo.ledger.rereplication.forgetting:_NAMED_MAX
        octavo.ledger.bookies.placement:_NAMED_MAX
        octavo.ledger.bookies.placement:_REASON_CHARACTERS_MAX
        octavo.broker.subscriptions.waits:CONSUMERS_TOLD_MAX
    """,
    "free space is a preference among bookies; simulated disks are alike": """
        octavo.bookie.disk.space:_SHARE_TOLD octavo.bookie.disk.space:_LEAST_TOLD
        octavo.ledger.bookies.placement:WEIGHT_MAX octavo.ledger.bookies.placement:_ALIKE
        octavo.ledger.bookies.bookies:_LOOK_AGAIN_S
    """,
    "bounds a file that was never written longer: what is longer is not read": """
        octavo.broker.state.leases:_MESSAGES_MAX
        octavo.bookie.ledgers.cookies:_VERSION_BYTES_MAX
        octavo.bookie.check.folder_check:_MARK_BYTES_MAX octavo.bookie.journal.mark:_BYTES_MAX
    """,
    "says which clock is wrong; the clocks that the simulator draws lie on both sides of it": """
        octavo.broker.clock.deletion_clock:_WANDERING
    """,
    "one read is compared entry by entry, however long; test_holes_below_the_highest_entry": """
        octavo.bookie.write.duplicate_adds:_READ_BYTES
    """,
    "of the process's limit of open files; what it bounds is drawn (open_entry_logs_max)": """
        octavo.bookie.entrylog.open_logs:_SHARE_OF_DESCRIPTORS
    """,
    "a world in seconds, the simulator draws what it multiplies": """
        octavo.broker.partition.opening:_LONGER_MAX
    """,
    "thousands of requests at once, which no seed sends; "
    "unit/bookie/test_bounds_of_requests does": """
        octavo.bookie.back_pressure:REQUESTS_PER_TURN octavo.bookie.back_pressure:_READ_PER_TURN
        octavo.bookie.back_pressure:REQUESTS_PER_CHUNK
    """,
    "of time that work takes, and on the simulated clock none does; unit/broker/test_turns": """
        octavo.broker.partition.compactor:_TURN_S octavo.broker.partition.compactor:_LATE_S_MAX
        octavo.ledger.client:_TICKED_AT_ONCE octavo.broker.groups.group:ASSIGNED_AT_ONCE
    """,
    "attempts that follow each other at once, and are begun again by a round": """
        octavo.broker.cluster.broker_status:_TRIES
    """,
    "of balance by load, which the simulator leaves off, for it judges the even spread; "
    "unit/broker/test_broker_registry, cluster/test_balance": """
        octavo.broker.cluster.load:GAIN octavo.broker.cluster.load:IDLE
        octavo.broker.cluster.load:MEASURED_EVERY_S octavo.broker.cluster.load:MESSAGE_BYTES
        octavo.broker.cluster.load:SMOOTHED_OVER_S octavo.broker.cluster.load:TOLD_STEP
        octavo.broker.cluster.load:TOLD_WITHIN_S
    """,
    "waits between brokers; what the simulated clients wait for is drawn around them": """
        octavo.broker.operations.links:HELLO_TIMEOUT_S octavo.broker.operations.bodies:*
        octavo.broker.operations.remote:NOTHING_AFTER_S
        octavo.broker.operations.routing:FIRST_PAUSE_S octavo.broker.operations.routing:PAUSE_S_MAX
    """,
    "cuts what a refusal says, which no referee reads": """
        octavo.broker.operations.kinds:_DETAIL_CHARS_MAX
    """,
    "a cache of a pure function": """
        octavo.broker.cluster.registry:_TOPICS_REMEMBERED
    """,
    "what is shown to people, and decides nothing": """
        octavo.broker.cluster.membership:REMEMBERED_S
        octavo.broker.cluster.membership:REMEMBERED_MAX
    """,
    "the simulator draws what stands beside them: batches, windows, leases, what a loop holds": """
        octavo.ledger.write.ensemble_writer:_GIVE_UP_PAUSE_S
        octavo.broker.cluster.forks:_CHANGE_WAIT_S
        octavo.client.client:* octavo.client.topic_list:*
        octavo.client.deliveries:* octavo.client.doubt:*
        octavo.client.encoding:* octavo.client.partition_queue:*
        octavo.client.handing:ACK_SHARE octavo.client.handing:ACK_S octavo.client.handing:HELD_SHARE
        octavo.client.handing:EXTEND_SHARE octavo.client.handing:_PACE_KEPT
        octavo.client.producer:* octavo.client.subscription:* octavo.client.transport:*
    """,
    "no bookie of the simulator is one of Apache's: cluster/test_ledgers draws it": """
        octavo.ledger.write.ensemble_writer:_TELL_AGAIN_S
    """,
    "nobody in the simulator takes the ids of others: cluster/test_secured_ledgers does": """
        octavo.ledger.client:_ASK_FOR_ID_S octavo.ledger.write.taken_ids:*
        octavo.metadata.ledger_ids:_HIGH_END
        octavo.bookie.ledgers.ledger_admission:_BETWEEN_LISTINGS_S
    """,
    "nobody in the simulator forges entries: cluster/test_forged does": """
        octavo.bookie.wire.requests:_COMPARED_MAX octavo.ledger.rereplication.comparing:*
        octavo.ledger.read.doubts:*
    """,
    "simulated clients send batches; unit/broker/test_publisher draws them": """
        octavo.broker.partition.message_batcher:* octavo.broker.operations.gathered:*
    """,
    "the load of large messages makes pieces short by itself; their memory is counted in "
    "cluster/test_large_messages": """
        octavo.broker.partition.large:* octavo.broker.http.api.large:*
        octavo.broker.operations.large:*
    """,
    "nobody in the simulator chooses ids: cluster/test_ledgers does": """
        octavo.ledger.write.explicit_ids:*
    """,
    "HTTP and sockets are outside of the simulator": """
        octavo.broker.http.api.topics:* octavo.broker.http.api.security:*
        octavo.broker.groups.coordinator:_SHARE_OF_A_PRINCIPAL
        octavo.broker.groups.coordinator:WAITS_PER_SESSION
        octavo.broker.operations.group_calls:*
        octavo.bookie.admin:* octavo.broker.http.api.cluster:* octavo.broker.http.api.deliveries:*
        octavo.broker.http.api.subscriptions:*
        octavo.broker.http.stream:* octavo.broker.http.api.push:*
        octavo.broker.http.api.fast_publish:*
        octavo.broker.http.call:JSON_BYTES_MAX
        octavo.broker.http.connection_bytes:FRAMES_A_STEP
        octavo.broker.http.connection_bytes:FRAGMENTS_MAX
        octavo.broker.http.connection_bytes:HEAD_BYTES_KEPT
        octavo.broker.http.connection_bytes:_HEADS_KEPT octavo.broker.http.connection_bytes:_LOST
        octavo.broker.http.csrf:*
        octavo.broker.http.api.publish:* octavo.broker.operations.batch_proofs:*
        octavo.broker.http.api.read:*
        octavo.broker.http.api.bulk_loads:*
        octavo.broker.http.durable:*
        octavo.broker.http.api.durable_streams:*
        octavo.broker.operations.stream_kinds:* octavo.broker.operations.streams:*
        octavo.broker.cluster.expiry:_GENERATIONS_MAX
        octavo.broker.audit:*
        octavo.broker.http.held_bytes:* octavo.broker.http.config:* octavo.broker.http.connections:*
        octavo.broker.cluster.in_use:* octavo.broker.http.request_body:*
        octavo.broker.http.overview:*
        octavo.broker.http.router:* octavo.broker.http.server:* octavo.broker.http.services:*
        octavo.client.following:* octavo.client.sync:*
        octavo.client.wire:* octavo.broker.http.api.access:* octavo.broker.http.api.groups:*
        octavo.client.consumer:* octavo.client.large:* octavo.client.durable:*
        octavo.client.json_values:* octavo.client.every_partition:*
        octavo.broker.cluster.schema_registry:* octavo.broker.schemas.kinds:*
        octavo.broker.schemas.avro:*
        octavo.broker.schemas.json_cost:* octavo.broker.schemas.engine:*
        octavo.broker.http.openapi:_RECORDS octavo.broker.metrics:_ROWS_A_TURN
        octavo.broker.metrics:_PARTITIONS_A_TURN
        octavo.broker.subscriptions.subscriptions:STATS_A_TURN
        octavo.bookie.wire.server:_KEEPALIVE_PROBES octavo.bookie.wire.listener:_BACKLOG
        octavo.broker.http.problems:RETRY_AFTER_S
        octavo.broker.http.forwarding:ASKED_AT_ONCE
        octavo.broker.operations.upgrade:*
        octavo.broker.http.api.batching:SENT_TOGETHER_BYTES
        octavo.broker.http.call:PRESSED_STALL_S octavo.broker.http.call:PACE_OVER_S
        octavo.broker.http.call:PACED_FROM_BYTES octavo.spark.service:_ANSWER_S
        octavo.spark.commit:_ANSWER_S
    """,
    "SQLite and ZooKeeper are outside of the simulator": """
        octavo.metadata.embedded:* octavo.metadata.record_file:* octavo.metadata.record_schema:*
        octavo.metadata.zookeeper:* octavo.metadata.zookeeper_server:*
        octavo.metadata.zookeeper_connections:* octavo.metadata.zookeeper_watches:*
        octavo.metadata.opening:SESSION_TIMEOUT_MS
    """,
    "Spark's own processes are outside of the simulator; its load draws this for itself": """
        octavo.spark.kept:* octavo.spark.reading:* octavo.spark.served:*
        octavo.spark.sink_task:* octavo.spark.stored:*
        octavo.spark.options:SPLIT_BYTES octavo.spark.options:TRIGGER_DELAY_MS
        octavo.spark.orphans:GRACE_MS octavo.spark.orphans:_ABORT_TIMEOUT_MS
        octavo.spark.sink_options:BATCH_BYTES octavo.spark.sink_options:COMMIT_TIMEOUT_MS
        octavo.spark.sink_producer:TASK_BYTES_MAX octavo.spark.sink_producer:PARTITIONS_MAX
        octavo.spark.sink_rows:RECORDS_MAX octavo.spark.splits:_MESSAGE_BYTES_GUESS
        octavo.spark.splits:_COST_BYTES
    """,
}
"""Reason → the names that it applies to; `module:*` covers a whole module."""
