"""The settings of a broker's core: its identity, and every bound.

A frozen value, checked when it is made. Names end with the unit.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.protocol.bounds import beyond_bounds, bounded
from octavo.protocol.codes import OctavoError, Scope
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

KIB = 1024
MIB = 1024 * KIB
AUDIT_LEVELS = ("debug", "info", "warning", "error")


class BrokerConfigError(OctavoError):
    """A setting is out of range. The message names it, its value and the right values."""

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
    port: int = bounded(8080, 0, 65_535)
    """0 takes any free port (tests)."""
    advertised_host: str = ""
    """The host name by which clients and other brokers reach this broker; `host` when empty."""

    # Publishing
    batch_bytes_max: int = bounded(
        ENTRY_PAYLOAD_BYTES_MAX,
        1,
        ENTRY_PAYLOAD_BYTES_MAX,
        f"between 1 and {ENTRY_PAYLOAD_BYTES_MAX}, the longest payload of an entry",
    )
    """A batch is one entry; longer batches are refused."""
    inflight_bytes_max: int = 16 * MIB
    """Unacked bytes of a partition; above it publishers wait."""
    publish_timeout_ms: int = 30_000
    """How long a publisher waits for room and for the ack quorum."""

    # Ledgers
    state_ledger_entries_max: int = 5_000
    """A longer state ledger is replaced by a new state ledger that begins with a snapshot: bounds
    the replay."""
    state_ledger_bytes_max: int = 8 * MIB
    """The same in bytes."""
    producer_checkpoint_bytes: int = 4 * MIB
    """At most about this much data is scanned at a take-over to rebuild producer sequences."""
    reopen_delay_ms: int = 200
    """First pause before a partition whose ledger failed is opened again; doubles up to …"""
    reopen_delay_ms_max: int = 5_000
    """… this."""
    open_timeout_ms: int = 30_000
    """A slower take-over starts again, with twice the time each time, at most eight times this."""
    trim_interval_ms: int = 10_000
    """How often retention and roll-over by age are checked; for an unused partition, every sixth
    time."""

    # Clocks, for deletions by age
    clock_beat_ms: int = 60_000
    """How often the time is written down, and the metadata store asked for its own."""
    clock_tolerance_ms: int = 300_000
    """Clocks that differ by more do not agree; a clock that gains more was set."""
    clock_quarantine_ms: int = 600_000
    """How long two clocks must agree on a time that the broker did not count before it trusts
    them."""

    # Memory
    tail_cache_bytes_max: int = 64 * MIB
    """The newest batches of all partitions, for tailing readers."""
    read_ahead_bytes_max: int = 32 * MIB
    """Older batches of all partitions that were read ahead of their readers."""
    opened_bytes_max: int = 32 * MIB
    """Batches of all partitions kept unpacked for readers of single messages; a batch that is being
    unpacked (at most 64 MiB) comes on top."""
    producers_max: int = 10_000
    """Producers remembered per partition; the producer silent for longest is forgotten first."""
    subscriptions_max: int = 1_000
    """Subscriptions of a topic; one more is refused."""
    leased_messages_max: int = 50_000
    """Leased messages per subscription and partition; above it a receive gives none."""
    delayed_messages_max: int = 50_000
    """Nacked messages that wait for their delay, per subscription and partition; a further nack
    with a delay is refused, and the message stays leased."""
    look_ahead_messages_max: int = 20_000
    """Keys that a key-shared subscription remembers in a partition; up to about twice as many
    waiting messages; above it no new messages are looked at until some are acked."""

    # Dead letters
    dead_letters_waiting_max: int = 10_000
    """Messages on their way to the dead-letter or retry topic, per subscription and partition;
    beyond, messages continue to be delivered."""
    dead_letter_retry_ms: int = 1_000
    """First pause before copies that could not be stored are sent again; doubles up to …"""
    dead_letter_retry_ms_max: int = 60_000
    """… this."""
    pending_messages_max: int = 1_000_000
    """Messages that are [not due](http.md#publish), per subscription and partition, 8 bytes each,
    and 50 for each of the 4,096 added last; above it no later messages are looked at until some are
    due."""

    # Subscriptions that are not durable
    non_durable_expiry_ms: int = 60_000
    """A subscription with `durable: false` that is unused in all partitions for this long is
    deleted; after a take-over the time starts again. Longer than a take-over, or a consumer's
    search for a new broker."""

    # Ownership
    claim_wait_ms: int = 10_000
    """How long a request waits for a partition that is just being opened here."""
    stop_handover_ms: int = 10_000
    """How long a stopping broker hands over its partitions and still serves; then it closes and
    releases the rest, and other brokers take them over …"""
    handover_timeout_ms: int = 10_000
    """… and closing takes at most this long; without a metadata session it does not wait."""
    balance_after_ms: int = 10_000
    """How long a broker must be up before it gets partitions from others, and how long a partition
    stays where it was opened."""
    balance_interval_ms: int = 1_000
    """How often a broker checks whether another broker should serve its partitions …"""
    balance_pause_ms: int = 100
    """… and how long it waits between two partitions that it hands over."""
    drain_moves_max: int = 8
    """Partitions handed over at the same time when a broker is drained or stopped or a topic is
    unloaded."""
    balance_by_load: bool = True
    """Whether, after the even spread, the broker with the highest load gives partitions to the
    broker with the lowest; brokers publish their load in any case."""
    balance_load_floor: int = 10_000
    """A broker with a lower load gives no partition away: messages a second, published and read,
    plus their KiB a second …"""
    balance_load_percent: int = bounded(125, 101, words="above 100, the mean load of all brokers")
    """… and neither does a broker below this percentage of the mean load of all brokers."""
    balance_load_pause_ms: int = 60_000
    """The pause between two partitions that a broker gives away for its load, and after brokers
    came or went."""
    balance_load_rest_ms: int = 600_000
    """How long a partition stays where it was opened, whatever its load."""
    deletion_wait_ms: int = 20_000
    """How long a caller waits for a topic's deletion; it then continues in the background."""
    let_go_timeout_ms: int = 2_000
    """How long another broker has to confirm that it no longer serves a deleted topic."""
    sweep_interval_ms: int = 300_000
    """How often a broker looks for unfinished deletions of other brokers, and for ledgers that no
    record names."""
    leftover_grace_ms: int = 600_000
    """A ledger that no record names is deleted when found twice, this time apart; a sweep looks at
    the next 2,000 ledgers."""

    # Compaction by brokers, if a topic's settings say so
    compaction_keys_max: int = 500_000
    """Keys whose newest offset a run of [compaction](compaction.md) remembers, some 150 bytes each;
    the run ends after the batch with the last of them, and the next run continues there."""
    compaction_bytes_per_s: int = 16 * MIB
    """How fast a broker reads for compaction, a partition at a time, when a run is just due; faster
    in proportion to the bytes that wait."""
    compaction_load_percent: int = bounded(50, 1, 100)
    """The largest share of a broker's event loop time for compaction."""
    compaction_grace_ms: int = 3_600_000
    """How long the ledgers of a replaced compacted view stay, for readers that began before."""
    compaction_yield_ms: int = 6 * 3_600_000
    """How long a job may take to compact a partition before brokers treat it as dead."""
    ledger_shares_max: int = 1_000
    """How many partitions may share a ledger: a topic, its forks, and their forks."""

    # The audit log, of secured clusters
    audit_topic: bool = True
    """Whether audit events also go into the topic octavo/audit, not into the log alone."""
    audit_retention_ms: int = 30 * 24 * 3_600_000
    """The retention with which that topic is created (30 days); it may be changed there."""
    audit_queue_max: int = 10_000
    """Events that wait to be stored; further events are counted as lost, and the log has them."""
    audit_log_level: str = "info"
    """Level of the log event `audit`: debug, info, warning or error. With `warning` it also appears
    in a log with `log_level` `warning`."""

    # Policies
    backlog_hold_ms: int = 5_000
    """How long a publish waits for a backlog over its quota with policy `hold`."""
    deferred_sync_ms: int = 100
    """How long after its ack a message may stay unsynced with durability `deferred`, plus the time
    of the sync."""

    def __post_init__(self) -> None:
        if self.audit_log_level not in AUDIT_LEVELS:
            raise BrokerConfigError(
                f"audit_log_level is {self.audit_log_level!r}; it must be one of "
                + ", ".join(AUDIT_LEVELS)
            )
        if wrong := beyond_bounds(self):
            raise BrokerConfigError(f"{wrong.name} is {wrong.value}; it must be {wrong.bounds}")
