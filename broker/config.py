"""What a broker is told before it starts: who it is, and every bound of its core.

A frozen value, checked when it is made. Units stand last in each name. Each bound says what it
protects; none is per message.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.protocol.codes import OctavoError, Scope
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

KIB = 1024
MIB = 1024 * KIB
AUDIT_LEVELS = ("debug", "info", "warning", "error")


class BrokerConfigError(OctavoError):
    """A setting that no broker can run with. The message names it, its value and what would do."""

    name = "broker-config"
    scope = Scope.PROCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """All settings of a broker's core. HTTP: `HttpConfig`; topic defaults: `TopicSettings`."""

    # Identity and address
    broker_id: str = ""
    """Unique in the cluster; `advertised_host:port` when empty."""
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = 8080
    """0 takes any free port (tests)."""
    advertised_host: str = ""
    """The name under which clients and other brokers reach this broker; `host` when empty."""

    # Publishing
    batch_bytes_max: int = ENTRY_PAYLOAD_BYTES_MAX
    """A batch is one entry; longer ones are refused."""
    inflight_bytes_max: int = 16 * MIB
    """Unacked bytes of one partition; above it publishers wait."""
    publish_timeout_ms: int = 30_000
    """How long a publisher waits for room and for the ack quorum."""

    # Ledgers
    state_ledger_entries_max: int = 5_000
    """A longer state ledger is replaced by a snapshot in a new one: bounds the replay."""
    state_ledger_bytes_max: int = 8 * MIB
    """The same in bytes."""
    producer_checkpoint_bytes: int = 4 * MIB
    """At most about this much data is scanned at a take-over to rebuild producer sequences."""
    reopen_delay_ms: int = 200
    """First pause before a partition whose ledger failed is opened again; doubles up to …"""
    reopen_delay_ms_max: int = 5_000
    """… this."""
    open_timeout_ms: int = 30_000
    """A slower take-over is begun anew, with twice as long each time, at most eight times this."""
    trim_interval_ms: int = 10_000
    """How often retention and roll-over by age are looked at."""

    # Clocks, for what is deleted by age
    clock_beat_ms: int = 60_000
    """How often the time is written down, and the metadata store asked for its own."""
    clock_tolerance_ms: int = 300_000
    """Clocks that differ by more do not agree; a clock that gains more was set."""
    clock_quarantine_ms: int = 600_000
    """So long must two clocks agree on a time that was not counted before they are believed."""

    # Memory
    tail_cache_bytes_max: int = 64 * MIB
    """The newest batches of all partitions, for tailing readers."""
    read_ahead_bytes_max: int = 32 * MIB
    """What all partitions together keep of older batches read ahead of their readers."""
    opened_bytes_max: int = 32 * MIB
    """Batches of all partitions kept unpacked for readers of single messages; beside them one that
    is being opened (at most 64 MiB)."""
    producers_max: int = 10_000
    """Producers remembered per partition; the one silent for longest is forgotten first."""
    subscriptions_max: int = 1_000
    """Subscriptions of a topic; one more is refused."""
    leased_messages_max: int = 50_000
    """Messages out at consumers per subscription and partition; above it receive gives none."""
    delayed_messages_max: int = 50_000
    """Messages given back with a delay, per subscription and partition; no more are taken back."""
    look_ahead_messages_max: int = 20_000
    """Of a key-shared subscription in one partition: messages whose keys are remembered while they
    wait for their consumers, and as many keys."""

    # Dead letters
    dead_letters_waiting_max: int = 10_000
    """Messages on their way to the dead-letter topic, per subscription and partition; beyond, they
    go on being delivered."""
    dead_letter_retry_ms: int = 1_000
    """First pause before copies that could not be stored are sent again; doubles up to …"""
    dead_letter_retry_ms_max: int = 60_000
    """… this."""
    pending_messages_max: int = 1_000_000
    """Messages that are not due, remembered per subscription and partition, 8 to 50 bytes each;
    with so many none behind them is looked for until some are due."""

    # Subscriptions that are not durable
    non_durable_expiry_ms: int = 60_000
    """One that is not durable goes when nobody has used it for so long: longer than a take-over and
    than a consumer that lost its connection needs to come back."""

    # Ownership
    claim_wait_ms: int = 10_000
    """How long a request waits for a partition that is just being opened here."""
    stop_handover_ms: int = 10_000
    """So long a broker that is stopped hands its partitions on to others and goes on serving; what
    is left then is closed and released, and whoever should have it takes it over …"""
    handover_timeout_ms: int = 10_000
    """… and that takes no longer than this."""
    balance_after_ms: int = 10_000
    """So long a broker has been up before it is given partitions that another serves, and so long
    a partition stays where it was opened."""
    balance_interval_ms: int = 1_000
    """How often a broker looks whether another should serve what it serves …"""
    balance_pause_ms: int = 100
    """… and how long it waits between two partitions that it hands on."""
    drain_moves_max: int = 8
    """So many partitions at once are handed on by a broker that is drained."""
    balance_by_load: bool = True
    """Whether the most loaded broker gives partitions to the least loaded one."""
    balance_load_floor: int = 10_000
    """A broker that has less to do gives nothing: messages a second, published and read, plus
    their KiB a second …"""
    balance_load_percent: int = 125
    """… nor one that has less than so much of the mean of all brokers."""
    balance_load_pause_ms: int = 60_000
    """Between two partitions that a broker gives away for its load, and after brokers came or
    went."""
    balance_load_rest_ms: int = 600_000
    """So long a partition stays where it was opened, whatever its load."""
    deletion_wait_ms: int = 20_000
    """How long a caller waits for a topic's deletion; it goes on without them."""
    let_go_timeout_ms: int = 2_000
    """How long another broker has to say that it lets a deleted topic go."""
    sweep_interval_ms: int = 300_000
    """How often deletions that others left half done, and ledgers that nobody names any more, are
    looked for."""
    leftover_grace_ms: int = 600_000
    """A ledger that nobody names goes when that is found twice, so long apart."""

    # Compaction, of topics that ask for it
    compaction_keys_max: int = 500_000
    """Keys of which one run knows the newest offset, some 150 bytes each; it ends with the batch
    that has the last of them, and the next goes on there."""
    compaction_bytes_per_s: int = 16 * MIB
    """How fast a broker reads what it compacts, one partition after the other, when a run is just
    due; with more to compact in proportion."""
    compaction_load_percent: int = 50
    """Of its time a broker's loop works on compaction so much at most."""
    compaction_grace_ms: int = 3_600_000
    """Ledgers of a compacted view stay so long after a newer one took its place."""
    compaction_yield_ms: int = 6 * 3_600_000
    """A job that compacts a partition is left to finish for so long, then it is taken for dead."""
    ledger_shares_max: int = 1_000
    """So many partitions may share a ledger: a topic and its forks."""

    # The audit log, of secured clusters
    audit_topic: bool = True
    """Whether audit events also go into the topic octavo/audit, not into the log alone."""
    audit_retention_ms: int = 30 * 24 * 3_600_000
    """How long that topic keeps them; what it is made with, and may be changed there."""
    audit_queue_max: int = 10_000
    """Events that wait to be stored; beyond, they are counted as lost."""
    audit_log_level: str = "info"
    """Of the log event `audit`: debug, info, warning or error. Above the level of the process it
    is also seen in a log that shows no more than warnings."""

    # Policies
    backlog_hold_ms: int = 5_000
    """How long a publish waits for a backlog that is over its quota, where the policy is `hold`."""
    deferred_sync_ms: int = 100
    """How long after its ack a message may be not synced, where the durability is `deferred`; what
    syncing takes comes on top."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise BrokerConfigError(f"port is {self.port}; it must be between 0 and 65535")
        if not 1 <= self.batch_bytes_max <= ENTRY_PAYLOAD_BYTES_MAX:
            raise BrokerConfigError(
                f"batch_bytes_max is {self.batch_bytes_max}; it must be between 1 and "
                f"{ENTRY_PAYLOAD_BYTES_MAX}, the longest payload of an entry"
            )
        if self.balance_load_percent <= 100:
            raise BrokerConfigError(
                f"balance_load_percent is {self.balance_load_percent}; it must be above 100, which "
                "is what all brokers have in the mean"
            )
        if self.compaction_load_percent > 100:
            raise BrokerConfigError(
                f"compaction_load_percent is {self.compaction_load_percent}; it must be between 1 "
                "and 100"
            )
        if self.audit_log_level not in AUDIT_LEVELS:
            raise BrokerConfigError(
                f"audit_log_level is {self.audit_log_level!r}; it must be one of "
                + ", ".join(AUDIT_LEVELS)
            )
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise BrokerConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")


_POSITIVE = (
    "inflight_bytes_max",
    "publish_timeout_ms",
    "state_ledger_entries_max",
    "state_ledger_bytes_max",
    "producer_checkpoint_bytes",
    "reopen_delay_ms",
    "reopen_delay_ms_max",
    "open_timeout_ms",
    "trim_interval_ms",
    "clock_beat_ms",
    "clock_tolerance_ms",
    "clock_quarantine_ms",
    "tail_cache_bytes_max",
    "read_ahead_bytes_max",
    "opened_bytes_max",
    "producers_max",
    "subscriptions_max",
    "leased_messages_max",
    "delayed_messages_max",
    "dead_letters_waiting_max",
    "dead_letter_retry_ms",
    "dead_letter_retry_ms_max",
    "pending_messages_max",
    "look_ahead_messages_max",
    "non_durable_expiry_ms",
    "claim_wait_ms",
    "stop_handover_ms",
    "handover_timeout_ms",
    "balance_after_ms",
    "balance_interval_ms",
    "balance_pause_ms",
    "drain_moves_max",
    "balance_load_floor",
    "balance_load_pause_ms",
    "balance_load_rest_ms",
    "deletion_wait_ms",
    "let_go_timeout_ms",
    "sweep_interval_ms",
    "leftover_grace_ms",
    "compaction_keys_max",
    "compaction_bytes_per_s",
    "compaction_load_percent",
    "compaction_grace_ms",
    "compaction_yield_ms",
    "ledger_shares_max",
    "audit_retention_ms",
    "audit_queue_max",
    "backlog_hold_ms",
    "deferred_sync_ms",
)
