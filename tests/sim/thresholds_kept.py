"""Numbers of production code that the simulator leaves as they are, and why.

`tests/unit/sim/test_thresholds.py` holds that each is here or drawn (`thresholds.py`), and that
none is here that is gone.
"""

from __future__ import annotations

from collections.abc import Mapping

KEPT: Mapping[str, str] = {
    "part of a format or a protocol, or a unit: another value would be another system": """
        bookie.answers:_ENTRY_ID_AT bookie.chunk:_ADD_OP bookie.chunk:_FLAGS_MASK
        bookie.chunk:_FRAME_BYTES_MIN bookie.chunk:_PREFIX_BYTES bookie.config:KIB bookie.config:MIB
        bookie.connection:_ADD bookie.connection:_READ bookie.connection:_BATCH_READ
        bookie.connection:_AUTH bookie.connection:_V3_FIRST_BYTE bookie.disk:_IOV_MAX
        bookie.entry_log_format:VERSION bookie.index:ENTRY_MAX bookie.journal_format:VERSION
        bookie.journal_format:META_VERSION bookie.journal_reader:_FIRST_FILE bookie.journals:_GOLDEN
        bookie.journals:_MASK bookie.ledger_control:_LAC_AT bookie.ledger_rules:_HMAC_BYTES
        bookie.ledger_state:VERSION
        bookie.limbo:VERSION bookie.limbo:_NOWHERE bookie.mark:VERSION bookie.replay:_ADD
        bookie.write_cache:_NEVER broker.call:OFFSET_MAX broker.config:KIB broker.config:MIB
        broker.dedup:SEQUENCE_MODULUS broker.openapi:_ALWAYS broker.payloads:TIMESTAMP_MS_MAX
        broker.preference:_WEIGHT_BYTES broker.publishing:SEQUENCE_MASK
        broker.state_format:FORMAT_VERSION broker.types:_SETTING_MAX
        ledger.entry_source:DISORDER_UNKNOWN ledger.offload_format:FORMAT ledger.options:KIB
        ledger.options:MIB metadata.cookie:LAYOUT_VERSION metadata.cookie:_OLDEST_TEXT_VERSION
        metadata.ledger_codec:_V1_IN_RECOVERY metadata.ledger_codec:_VARINT_BYTES_MAX
        metadata.ledger_ids:SHORT_IDS_END metadata.ledger_ids:IDS_END metadata.ledger_ids:_SHORT_CUT
        metadata.ledger_ids:_LONG_CUT metadata.ledgers:UNALLOCATED metadata.opening:ZOOKEEPER_PORT
        metadata.secret:SECRET_BYTES
        metadata.store:ANY_VERSION metadata.topic_records:FORMAT_VERSION
        metadata.transactions:ABSENT octavo.spark.columns:_APPEND_TIME octavo.spark.options:EARLIEST
        octavo.spark.options:LATEST octavo.spark.pack:_SINCE_DOS octavo.spark.sink_producer:_EPOCHS
        octavo.spark.sink_rows:RECORD_OVERHEAD_BYTES protocol.windows:_RECORD_BODY_BYTES_MIN
        protocol.windows:_VARINT_BYTES_MAX
    """,
    "a limit that users are told of (GUARANTEES.md, http.md): beyond it requests are refused": """
        broker.dedup:BATCHES_REMEMBERED broker.dispatch:CONSUMERS_MAX broker.payloads:HEADERS_MAX
        broker.subscription:_ANSWERS_REMEMBERED broker.transaction:REFUSED_MAX
        broker.types:PARTITIONS_MAX broker.types:BOOKIES_MAX
        broker.types:ACK_TIMEOUT_MS_MAX metadata.store:RECORD_BYTES_MAX
    """,
    "against seven days stand requests that are minutes on their way, and a seed lasts one: "
    "unit/broker/test_transactions_kept goes to the end of them": """
        broker.transactions:KEPT_MS
    """,
    "an estimate of memory, or a share of it: it is added up, and decides nothing by itself": """
        bookie.budget:_CHUNK_SHARE bookie.read_cache:_RUN_OVERHEAD_BYTES
        bookie.write_cache:_RUN_OVERHEAD_BYTES broker.cache:_OVERHEAD_BYTES
        broker.open_batches:OVERHEAD_BYTES
    """,
    "how much is shown, logged or counted; the referees look at all of it": """
        bookie.collector_status:_ROUNDS_KEPT bookie.connection:_LOGGED_REFUSALS_MAX
        bookie.damage:FINDINGS_MAX bookie.ledger_sizes:_LIMIT bookie.loss:_NAMED_MAX
        bookie.write_metrics:LATENCY_S bookie.write_metrics:COUNTS bookie.write_metrics:_GROUP_BYTES
        bookie.write_metrics:_FLUSH_S bookie.write_metrics:_FLUSH_BYTES broker.chores:_SAID_EVERY_S
        broker.members:_STRANGERS_TOLD_S
        broker.metrics:SECONDS_BUCKETS broker.subscription:_STALE_SHOWN
        broker.types:_NAME_SHOWN_CHARS ledger.forgetting:_NAMED_MAX
    """,
    "bounds a file that was never written longer: what is longer is not read": """
        bookie.cookies:_VERSION_BYTES_MAX bookie.folder_check:_MARK_BYTES_MAX bookie.mark:_BYTES_MAX
    """,
    "says which clock is wrong; the clocks that the simulator draws lie on both sides of it": """
        broker.deletion_clock:_WANDERING
    """,
    "one read is compared entry by entry, however long; test_holes_below_the_highest_entry": """
        bookie.repeats:_READ_BYTES
    """,
    "a world in seconds, the simulator draws what it multiplies": """
        broker.opening:_LONGER_MAX
    """,
    "a cache of a pure function": """
        broker.members:_TOPICS_REMEMBERED
    """,
    "the simulator draws what stands beside them: batches, windows, leases, what a loop holds": """
        ledger.replication:_GIVE_UP_PAUSE_S
        octavo.client.client:* octavo.client.deliveries:* octavo.client.doubt:*
        octavo.client.encoding:* octavo.client.handing:* octavo.client.lane:*
        octavo.client.producer:* octavo.client.subscription:* octavo.client.transport:*
    """,
    "nobody in the simulator takes the ids of others: issues/test_squatted_ledger_ids does": """
        ledger.ledgers:_ASK_FOR_ID_S ledger.taken_ids:* metadata.ledger_ids:_HIGH_END
        bookie.newcomers:_BETWEEN_LISTINGS_S
    """,
    "nobody in the simulator forges entries: cluster/test_comparing_copies does": """
        bookie.requests:_COMPARED_MAX ledger.comparing:* ledger.doubts:*
    """,
    "HTTP and sockets are outside of the simulator": """
        bookie.admin:* broker.api_cluster:* broker.api_deliveries:* broker.api_publish:*
        broker.batch_proofs:*
        broker.api_read:* broker.api_subscriptions:* broker.api_topics:* broker.api_transactions:*
        broker.held_bytes:* broker.http_config:* broker.http_connections:* broker.in_use:*
        broker.inflating:*
        broker.overview:* broker.router:* broker.server:* broker.services:*
        broker.status_page:*
        octavo.client.sync:* octavo.client.wire:* bookie.server:_KEEPALIVE_PROBES
        bookie.server:_BACKLOG
        broker.problems:RETRY_AFTER_S broker.proxy:HELD_ANSWER_BYTES_MAX
        broker.proxy:HELD_BODY_BYTES_MAX broker.proxy:ASKED_AT_ONCE broker.proxy:FIRST_PAUSE_S
        broker.proxy:PAUSE_S_MAX broker.proxy:KEEPALIVE_S broker.publishing:SENT_TOGETHER_BYTES
        broker.call:PRESSED_STALL_S octavo.spark.cluster:_ANSWER_S octavo.spark.commit:_ANSWER_S
    """,
    "SQLite and ZooKeeper are outside of the simulator": """
        metadata.embedded:* metadata.record_file:* metadata.record_schema:* metadata.zookeeper:*
        metadata.zookeeper_server:* metadata.zookeeper_watches:* metadata.opening:SESSION_TIMEOUT_MS
    """,
    "Spark's own processes are outside of the simulator; its load draws this for itself": """
        octavo.spark.reading:* octavo.spark.served:* octavo.spark.sink:*
        octavo.spark.options:SPLIT_BYTES octavo.spark.options:TRIGGER_DELAY_MS
        octavo.spark.orphans:GRACE_MS octavo.spark.orphans:_ABORT_TIMEOUT_MS
        octavo.spark.sink_options:BATCH_BYTES octavo.spark.sink_options:COMMIT_TIMEOUT_MS
        octavo.spark.sink_producer:TASK_BYTES_MAX octavo.spark.sink_producer:PARTITIONS_MAX
        octavo.spark.sink_rows:RECORDS_MAX octavo.spark.splits:_MESSAGE_BYTES_GUESS
        octavo.spark.splits:_COST_BYTES
    """,
}
"""Reason → the names that it holds for; `module:*` where it holds for whatever comes there."""
