"""Numbers of production code that the simulator leaves as they are, and why.

`tests/unit/sim/test_thresholds.py` holds that each is here or drawn (`thresholds.py`), and that
none is here that is gone.
"""

from __future__ import annotations

from collections.abc import Mapping

KEPT: Mapping[str, str] = {
    "part of a format or a protocol, or a unit: another value would be another system": """
        bookie.answers:_ENTRY_ID_AT bookie.chunk:_ADD_OP bookie.chunk:_FLAGS_MASK
        bookie.chunk:_FRAME_BYTES_MIN bookie.chunk:_PREFIX_BYTES bookie.config:KIB
        bookie.config:MIB bookie.connection:_ADD bookie.connection:_READ
        bookie.connection:_BATCH_READ bookie.connection:_AUTH bookie.connection:_V3_FIRST_BYTE
        bookie.disk:_IOV_MAX bookie.entry_log_format:VERSION bookie.index:ENTRY_MAX
        bookie.journal_format:VERSION bookie.journal_format:META_VERSION
        bookie.journal_reader:_FIRST_FILE bookie.journals:_GOLDEN bookie.journals:_MASK
        bookie.ledger_control:_LAC_AT bookie.ledger_state:VERSION bookie.limbo:VERSION
        bookie.limbo:_NOWHERE bookie.mark:VERSION bookie.replay:_ADD bookie.write_cache:_NEVER
        broker.call:OFFSET_MAX broker.config:KIB broker.config:MIB broker.dedup:SEQUENCE_MODULUS
        broker.openapi:_ALWAYS broker.payloads:TIMESTAMP_MS_MAX broker.preference:_WEIGHT_BYTES
        broker.publishing:SEQUENCE_MASK broker.server:CLIENT_GONE broker.state_format:FORMAT_VERSION
        broker.types:_SETTING_MAX
        ledger.entry_source:DISORDER_UNKNOWN ledger.offload_format:FORMAT ledger.options:KIB
        ledger.options:MIB metadata.cookie:LAYOUT_VERSION metadata.cookie:_OLDEST_TEXT_VERSION
        metadata.ledger_codec:_V1_IN_RECOVERY metadata.ledger_codec:_VARINT_BYTES_MAX
        metadata.ledger_ids:SHORT_IDS_END metadata.ledger_ids:IDS_END
        metadata.ledger_ids:_SHORT_CUT metadata.ledger_ids:_LONG_CUT metadata.ledgers:UNALLOCATED
        metadata.opening:ZOOKEEPER_PORT metadata.record_schema:SCHEMA_VERSION
        metadata.record_schema:_OLD_VERSION metadata.record_schema:ENDS_IN_BEATS
        metadata.record_schema:APPLICATION_ID metadata.store:ANY_VERSION
        metadata.topic_records:FORMAT_VERSION metadata.transactions:ABSENT
        octavo.client.lane:PARTLY_STORED octavo.client.lane:SEQUENCE_MODULUS
        octavo.client.lane:EPOCH_MAX octavo.client.producer:PRODUCER_ID_MAX
        octavo.spark.columns:_APPEND_TIME octavo.spark.options:EARLIEST
        octavo.spark.options:LATEST octavo.spark.pack:_SINCE_DOS
        octavo.spark.sink_producer:_EPOCHS octavo.spark.sink_rows:RECORD_OVERHEAD_BYTES
    """,
    "a limit that users are told of (GUARANTEES.md, http.md): beyond it requests are refused": """
        broker.dedup:BATCHES_REMEMBERED broker.dispatch:CONSUMERS_MAX broker.payloads:HEADERS_MAX
        broker.subscription:_ANSWERS_REMEMBERED broker.transaction:REFUSED_MAX
        broker.types:NAME_CHARS_MAX broker.types:PARTITIONS_MAX broker.types:BOOKIES_MAX
        broker.types:ACK_TIMEOUT_MS_MAX metadata.store:RECORD_BYTES_MAX
    """,
    "against seven days stand requests that are minutes on their way, and a seed lasts one: "
    "unit/broker/test_transactions_kept goes to the end of them": """
        broker.transactions:KEPT_MS
    """,
    "an estimate of memory, or a share of it: it is added up, and decides nothing by itself": """
        bookie.budget:_CHUNK_SHARE bookie.read_cache:_RUN_OVERHEAD_BYTES
        bookie.write_cache:_RUN_OVERHEAD_BYTES broker.cache:_OVERHEAD_BYTES
    """,
    "how much is shown, logged or counted; the referees look at all of it": """
        bookie.collector_status:_ROUNDS_KEPT bookie.connection:_LOGGED_REFUSALS_MAX
        bookie.damage:FINDINGS_MAX bookie.ledger_sizes:_LIMIT bookie.salvage:_NAMED_MAX
        bookie.write_metrics:LATENCY_S bookie.write_metrics:COUNTS bookie.write_metrics:_GROUP_BYTES
        bookie.write_metrics:_FLUSH_S bookie.write_metrics:_FLUSH_BYTES
        broker.chores:_SAID_EVERY_S broker.metrics:SECONDS_BUCKETS broker.subscription:_STALE_SHOWN
        broker.types:_NAME_SHOWN_CHARS
    """,
    "bounds a file that was never written longer: what is longer is not read": """
        bookie.cookies:_VERSION_BYTES_MAX bookie.folder_check:_MARK_BYTES_MAX bookie.mark:_BYTES_MAX
    """,
    "says which clock is wrong; the clocks that the simulator draws lie on both sides of it": """
        broker.deletion_clock:_WANDERING
    """,
    "a cache of a pure function": """
        broker.preference:_TOPICS_REMEMBERED
    """,
    "HTTP and sockets are outside of the simulator": """
        bookie.admin:_REQUEST_BYTES_MAX bookie.admin:_REQUEST_S_MAX bookie.admin:_CONNECTIONS_MAX
        bookie.server:_KEEPALIVE_PROBES bookie.server:_BACKLOG broker.api_cluster:LEDGERS_SHOWN_MAX
        broker.api_deliveries:CONSUMER_CHARS_MAX broker.api_deliveries:REQUEST_CHARS_MAX
        broker.api_deliveries:ACK_IDS_MAX broker.api_deliveries:NACK_DELAY_MS_MAX
        broker.api_deliveries:RECEIVE_PARTITIONS_MAX broker.api_deliveries:GRACE_S
        broker.api_publish:TURN_MESSAGES broker.api_read:RENDERED_TOGETHER
        broker.api_transactions:CONTENT_CHARS_MAX broker.api_transactions:SHARES_MAX
        broker.problems:RETRY_AFTER_S broker.proxy:HELD_ANSWER_BYTES_MAX
        broker.proxy:HELD_BODY_BYTES_MAX broker.proxy:ASKED_AT_ONCE broker.proxy:FIRST_PAUSE_S
        broker.proxy:PAUSE_S_MAX broker.proxy:KEEPALIVE_S broker.publishing:SENT_TOGETHER_BYTES
        broker.router:PATH_BYTES_MAX broker.server:BACKLOG broker.server:WATCHED_BYTES
        broker.server:READ_BUFFER_BYTES broker.server:GONE_CHECK_S
        broker.api_publish:BLANK_LINES_MAX broker.api_topics:FIGURES_WITHIN_S
        broker.api_transactions:ABORTED_LEDGERS_MAX broker.api_transactions:LEDGERS_MAX
        broker.call:PRESSED_STALL_S broker.held_bytes:ROOM_WAIT_S
        broker.http_connections:REFUSALS_TOLD_S broker.inflating:GROWTH_FREE_BYTES
        broker.inflating:GROWTH_MAX broker.inflating:PIECE_BYTES broker.inflating:_DEFLATE_METHOD
        broker.inflating:_GZIP_BITS broker.inflating:_RAW_BITS broker.inflating:_ZLIB_BITS
        broker.overview:ANSWER_WITHIN_S broker.overview:OUT_OF_REACH_WAIT_S
        octavo.client.deliveries:CLOSE_S octavo.client.deliveries:LOOKS octavo.client.handing:ACK_S
        octavo.client.handing:ACK_SHARE octavo.client.handing:EXTEND_SHARE
        octavo.client.handing:FIRST_MAX octavo.client.handing:HELD_SHARE
        octavo.client.subscription:LEASE_S
        octavo.client.client:READ_MESSAGES_MAX octavo.client.client:FOLLOW_WAIT_S
        octavo.client.doubt:SILENCE_S octavo.client.doubt:PAUSE_S octavo.client.lane:PAUSE_S
        octavo.client.lane:MESSAGES_PER_BATCH_MAX octavo.client.producer:BATCH_BYTES_MAX
        octavo.client.subscription:WAIT_S_MAX octavo.client.sync:HANDED_OVER_MAX
        octavo.client.transport:PAUSE_S octavo.client.transport:PAUSE_S_MAX
        octavo.client.transport:CONNECT_TIMEOUT_S octavo.client.transport:SILENT_S
        octavo.client.transport:OWNER_ANSWER_S octavo.spark.cluster:_ANSWER_S
        octavo.spark.commit:_ANSWER_S
    """,
    "SQLite and ZooKeeper are outside of the simulator": """
        metadata.embedded:POLL_INTERVAL_MS metadata.embedded:QUIET_POLLS_MAX
        metadata.embedded:CONNECT_TIMEOUT_MS metadata.embedded:CALL_TIMEOUT_MS
        metadata.embedded:LOCK_TIMEOUT_MS metadata.embedded:_LOCK_RETRY_MS
        metadata.opening:SESSION_TIMEOUT_MS metadata.record_file:CHANGES_KEPT
        metadata.record_file:SWEEP_INTERVAL_MS metadata.record_file:BUSY_TIMEOUT_MS
        metadata.zookeeper:CONNECT_TIMEOUT_MS metadata.zookeeper:CALL_TIMEOUT_MS
        metadata.zookeeper:CALLS_IN_FLIGHT_MAX metadata.zookeeper:_PARENTS_TRIED_MAX
        metadata.zookeeper:_PROBE_TIMEOUT_S metadata.zookeeper_server:HEAP_MB_MAX
        metadata.zookeeper_server:TICK_MS metadata.zookeeper_server:SESSION_MS_MAX
    """,
    "Spark's own processes are outside of the simulator; its load draws this for itself": """
        octavo.spark.options:SPLIT_BYTES octavo.spark.options:TRIGGER_DELAY_MS
        octavo.spark.orphans:GRACE_MS octavo.spark.orphans:_ABORT_TIMEOUT_MS
        octavo.spark.reading:ROWS_MAX octavo.spark.reading:BYTES_MAX octavo.spark.reading:_TRIES_MAX
        octavo.spark.reading:_PAUSE_S octavo.spark.served:_BYTES_MAX
        octavo.spark.served:_MESSAGES_MAX octavo.spark.served:_ANSWER_S
        octavo.spark.sink:_LAST_WRITE_S octavo.spark.sink_options:BATCH_BYTES
        octavo.spark.sink_options:COMMIT_TIMEOUT_MS octavo.spark.sink_producer:TASK_BYTES_MAX
        octavo.spark.sink_producer:PARTITIONS_MAX octavo.spark.sink_rows:RECORDS_MAX
        octavo.spark.splits:_MESSAGE_BYTES_GUESS octavo.spark.splits:_COST_BYTES
    """,
}
"""Reason → the names that it holds for."""
