"""What the ledger client can be told: deadlines and bounds, each with its unit and its reason."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerOptions:
    """All settings of a `LedgerClient`. The defaults suit one data centre."""

    # Deadlines
    add_timeout_s: float = 5.0
    """A bookie that owes acks and gives no sign of life for so long has failed. It is measured
    from its last answer, not from the add: a slow disk behind a deep queue is no failure."""
    read_timeout_s: float = 5.0
    """A read unanswered for so long failed; also every other request but long-polls."""
    connect_timeout_s: float = 10.0
    """Connect and learn who answers."""
    metadata_timeout_s: float = 30.0
    """How long a change of the ledger's record is tried while the metadata store is away."""
    stall_timeout_s: float = 10.0
    """How long a writer that cannot reach its ack quorum waits for a bookie to come (back)."""
    speculative_read_ms: float = 200.0
    """A read unanswered for so long is sent to the next replica as well."""

    # Writing
    pending_bytes_max: int = 32 * MIB
    """Above it `LedgerWriter.drain` waits. Counts what any live bookie of the ensemble has not
    yet acked, also when its callers were answered: a bookie that lags behind the ack quorum
    thus slows the writer down rather than fill its memory (pulsar #14861)."""
    pending_entries_max: int = 100_000
    """The same, in entries."""
    explicit_lac_interval_ms: float = 100.0
    """An idle writer tells its bookies the last confirmed entry after so long."""
    busy_backoff_ms_min: float = 5.0
    """The pause after `TooManyRequests`; doubles while the answer stays the same."""
    busy_backoff_ms_max: float = 500.0
    retry_failed_bookie_ms: float = 1_000.0
    """A failed bookie that has no replacement is tried again after so long."""

    # Connections
    reconnect_ms_min: float = 50.0
    reconnect_ms_max: float = 2_000.0
    connection_buffer_bytes_max: int = 1 * MIB
    """Written but not taken by the bookie; above it writers hold their adds back."""
    scratch_bytes: int = 512 * KIB
    """The receive buffer that all connections share."""

    # Reading
    read_batch_bytes_max: int = 1 * MIB
    """One batch read asks for no more."""
    read_batch_entries_max: int = 5_000
    long_poll_ms: float = 5_000.0
    """One long-poll at one bookie; the next asks another, lest a dead one hide the tail."""

    # Placement
    suspect_ms: float = 30_000.0
    """A bookie that failed is chosen for new ensembles only if there is no other, for so long."""
