"""The settings of a broker's core: its identity, and every bound."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.protocol.bounds import beyond_bounds, bounded
from octavo.protocol.codes import OctavoError, Scope
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

KIB = 1024
MIB = 1024 * KIB
AUDIT_LEVELS = ("debug", "info", "warning", "error")


class BrokerConfigError(OctavoError):
    name = "broker-config"
    scope = Scope.PROCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    # Identity and address
    broker_id: str = ""
    """Unique in the cluster; `advertised_host:port` when empty."""
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = bounded(8080, 0, 65_535)
    """0 takes any free port (tests)."""
    advertised_host: str = ""
    """The host name by which clients and brokers reach this broker; `host` when empty."""

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
    """A longer state ledger is replaced by a snapshot in a new ledger."""
    state_ledger_bytes_max: int = 8 * MIB
    """The same in bytes."""
    producer_checkpoint_bytes: int = 4 * MIB
    """About the most data that a take-over scans for producer sequences."""
    reopen_delay_ms: int = 200
    """First pause before a partition whose ledger failed is reopened; doubles up to …"""
    reopen_delay_ms_max: int = 5_000
    """… this."""
    open_timeout_ms: int = 30_000
    """A slower take-over starts again, with twice the time, at most eight times this."""
    trim_interval_ms: int = 10_000
    """How often retention and age are checked; in unused partitions every sixth time."""

    # Clocks, for deletions by age
    clock_beat_ms: int = 60_000
    """How often the time is written down, and the metadata store's clock read."""
    clock_tolerance_ms: int = 300_000
    """Clocks that differ by more do not agree."""
    clock_quarantine_ms: int = 600_000
    """How long two clocks must agree on an unexpected time before it is trusted."""

    # Memory
    tail_cache_bytes_max: int = 64 * MIB
    """The newest batches of all partitions, for tailing readers."""
    read_ahead_bytes_max: int = 32 * MIB
    """Older batches of all partitions, read ahead of their readers."""
    opened_bytes_max: int = 32 * MIB
    """Batches kept unpacked for readers; a batch being unpacked (at most 64 MiB) comes on top."""
    producers_max: int = 10_000
    """Producers remembered per partition; the longest silent is forgotten first."""
    subscriptions_max: int = 1_000
    """Subscriptions of a topic; one more is refused."""
    leased_messages_max: int = 50_000
    """Leased messages per subscription and partition; above it a receive gives none."""
    delayed_messages_max: int = 50_000
    """Nacked messages that wait for their delay, per subscription and partition."""
    look_ahead_messages_max: int = 20_000
    """Keys that a key-shared subscription remembers in a partition."""

    # Dead letters
    dead_letters_waiting_max: int = 10_000
    """Messages on their way to a dead-letter or retry topic, per subscription and partition."""
    dead_letter_retry_ms: int = 1_000
    """First pause before failed copies are sent again; doubles up to …"""
    dead_letter_retry_ms_max: int = 60_000
    """… this."""
    pending_messages_max: int = 1_000_000
    """Messages [not due](http.md#publish) per subscription and partition."""

    # Subscriptions that are not durable
    non_durable_expiry_ms: int = 60_000
    """A subscription with `durable: false` that is unused for this long is deleted."""

    # Ownership
    claim_wait_ms: int = 10_000
    """How long a request waits for a partition that is being opened here."""
    stop_handover_ms: int = 10_000
    """How long a stopping broker hands partitions over; then it releases the rest …"""
    handover_timeout_ms: int = 10_000
    """… and closing takes at most this long."""
    balance_after_ms: int = 10_000
    """How long a broker must be up to get others' partitions, and a partition stays put."""
    balance_interval_ms: int = 1_000
    """How often a broker checks whether others should serve its partitions …"""
    balance_pause_ms: int = 100
    """… and its pause between two hand-overs."""
    drain_moves_max: int = 8
    """Simultaneous hand-overs of a drained or stopping broker, or an unloaded topic."""
    balance_by_load: bool = True
    """Whether the most loaded broker gives partitions to the least loaded broker."""
    balance_load_floor: int = 10_000
    """A broker with a lower load (messages and KiB a second) gives no partition away …"""
    balance_load_percent: int = bounded(125, 101, words="above 100, the mean load of all brokers")
    """… nor does a broker below this percentage of the mean load."""
    balance_load_pause_ms: int = 60_000
    """Pause between two partitions given away for load, and after brokers came or went."""
    balance_load_rest_ms: int = 600_000
    """How long a partition stays where it was opened, whatever its load."""
    deletion_wait_ms: int = 20_000
    """How long a caller waits for a topic's deletion, which then continues."""
    let_go_timeout_ms: int = 2_000
    """How long another broker has to confirm that it no longer serves a deleted topic."""
    sweep_interval_ms: int = 300_000
    """How often a broker looks for unfinished deletions and orphan ledgers."""
    leftover_grace_ms: int = 600_000
    """An orphan ledger is deleted when found twice, this far apart."""

    # Compaction by brokers, if a topic's settings say so
    compaction_keys_max: int = 500_000
    """Keys that a run of [compaction](compaction.md) remembers, some 150 bytes each."""
    compaction_bytes_per_s: int = 16 * MIB
    """How fast a broker reads for a compaction that is just due."""
    compaction_load_percent: int = bounded(50, 1, 100)
    """The largest share of the event loop's time for compaction."""
    compaction_grace_ms: int = 3_600_000
    """How long a replaced view's ledgers stay, for readers that began before."""
    compaction_yield_ms: int = 6 * 3_600_000
    """A job that takes longer to compact a partition counts as dead."""
    ledger_shares_max: int = 1_000
    """Partitions that may share a ledger: a topic, its forks, and their forks."""

    # The audit log, of secured clusters
    audit_topic: bool = True
    """Whether audit events also go into the topic octavo/audit."""
    audit_retention_ms: int = 30 * 24 * 3_600_000
    """The retention with which that topic is created (30 days)."""
    audit_queue_max: int = 10_000
    """Events that wait to be stored; further events are only in the log."""
    audit_log_level: str = "info"
    """Level of the log event `audit`: debug, info, warning or error."""

    # Policies
    backlog_hold_ms: int = 5_000
    """How long a publish waits for a backlog over its quota with policy `hold`."""
    deferred_sync_ms: int = 100
    """How long after its ack a message with durability `deferred` may stay unsynced."""

    def __post_init__(self) -> None:
        if self.audit_log_level not in AUDIT_LEVELS:
            raise BrokerConfigError(
                f"audit_log_level is {self.audit_log_level!r}; it must be one of "
                + ", ".join(AUDIT_LEVELS)
            )
        if wrong := beyond_bounds(self):
            raise BrokerConfigError(f"{wrong.name} is {wrong.value}; it must be {wrong.bounds}")
