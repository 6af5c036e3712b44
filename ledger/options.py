"""Options of the ledger client: deadlines and bounds, each with its unit and its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.ledger.errors import BadLedgerOption
from octavo.protocol.bounds import beyond_bounds, bounded

KIB = 1024
MIB = 1024 * KIB
_DAY_S = 86_400


def _seconds(default: float) -> Any:
    return bounded(default, 0.001, _DAY_S)


def _ms(default: float) -> Any:
    return bounded(default, 1, 1000 * _DAY_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerOptions:
    # Deadlines
    add_timeout_s: float = _seconds(5.0)
    """A bookie that owes acks and sends nothing for this time has failed."""
    read_timeout_s: float = _seconds(5.0)
    """A read or another request, except a long-poll, without an answer in this time has failed."""
    connect_timeout_s: float = _seconds(10.0)
    """Bounds the connect and the check of the bookie's identity."""
    metadata_timeout_s: float = _seconds(30.0)
    """How long to retry a change of the ledger's record while the metadata store is away."""
    stall_timeout_s: float = _seconds(10.0)
    """How long a writer without its ack quorum waits for a bookie to become usable."""
    speculative_read_ms: float = _ms(200.0)
    """If a read has no answer in this time, send it to the next replica as well."""

    # Writing
    pending_bytes_max: int = 32 * MIB
    """Above this `LedgerWriter.drain` waits. Counts entries that any live bookie has not acked,
    so a slow bookie slows the writer down (pulsar #14861)."""
    pending_entries_max: int = 100_000
    """Above this many pending entries `LedgerWriter.drain` waits too."""
    explicit_lac_interval_ms: float = _ms(100.0)
    """An idle writer sends its bookies the last confirmed entry after this time."""
    busy_backoff_ms_min: float = _ms(5.0)
    """The pause after `TooManyRequests`; doubles while the bookie repeats that answer."""
    busy_backoff_ms_max: float = _ms(500.0)
    """The longest pause after `TooManyRequests`."""
    retry_failed_bookie_ms: float = _ms(1_000.0)
    """Retry a failed bookie that has no replacement after this time."""

    # Connections
    reconnect_ms_min: float = _ms(50.0)
    """The first pause before a lost connection is made again; each further pause doubles."""
    reconnect_ms_max: float = _ms(2_000.0)
    """The longest pause before a lost connection is made again."""
    connection_buffer_bytes_max: int = 1 * MIB
    """Bytes written but not yet taken by the bookie; above it writers hold their adds back."""
    scratch_bytes: int = 512 * KIB
    """The receive buffer that all connections share."""

    # Reading
    read_batch_bytes_max: int = 1 * MIB
    """The most bytes that a batch read asks for."""
    read_batch_entries_max: int = 5_000
    """The most entries that a batch read asks for."""
    long_poll_ms: float = _ms(5_000.0)
    """Length of a long-poll at one bookie; the next asks another."""

    # Placement
    suspect_ms: float = _ms(30_000.0)
    """For this time after a failure choose a bookie only if there is no other."""
    free_space_weight_max: float = bounded(3.0, 1, 1_000)
    """How many times the median's new ledgers a bookie with much free space gets; with little,
    the inverse. 1: ignore free space."""

    def __post_init__(self) -> None:
        """Raise `BadLedgerOption` if a value is out of range."""
        if wrong := beyond_bounds(self):
            raise BadLedgerOption(f"{wrong.name} is {wrong.value}; it must be {wrong.bounds}")
        for name in ("busy_backoff_ms", "reconnect_ms"):
            least, most = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            if least > most:
                raise BadLedgerOption(
                    f"{name}_min is {least} and {name}_max is {most}; the first must not be above "
                    "the second"
                )
