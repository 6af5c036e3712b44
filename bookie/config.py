"""The settings of a bookie: its address, its folders, and every bound.

The configuration is a frozen value that is checked when it is made, so an invalid one cannot exist.
Names end in their unit. The defaults suit a small machine; each bound says what it protects.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.protocol.bounds import beyond_bounds, bounded
from octavo.protocol.codes import OctavoError, Scope
from octavo.protocol.limits import FRAME_BYTES_MAX

KIB = 1024
MIB = 1024 * KIB
_FROM_0 = "it must not be below 0"
_ANY_ADDRESS = ("", "0.0.0.0", "::")


class BookieConfigError(OctavoError):
    """A setting that no bookie can run with. The message names the setting, its value and what is
    allowed."""

    name = "bookie-config"
    scope = Scope.PROCESS


class FoldersMissing(BookieConfigError):
    """No folder for the bookie's data was configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieConfig:
    """All settings of a bookie."""

    # Identity and address
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = bounded(3181, 0, 65_535, "use 1 to 65535, or 0 for any")
    """0 takes any free port (tests)."""
    advertised_host: str = ""
    """The name under which clients reach this bookie; `host` when empty."""
    bookie_id: str = ""
    """The name in ensembles and cookies; `advertised_host:port` when empty (BookKeeper's rule)."""
    rack: str = ""
    """The bookie's place in the network, such as `/dc1/rack7`; empty: unknown."""
    admin_port: int | None = bounded(None, 0, 65_535, "use 1 to 65535, 0 for any, or leave it out")
    """HTTP port of /metrics and /healthz; absent: none, 0: any free port."""

    # Folders
    journal_directories: tuple[str, ...] = field(default=())
    """Absolute paths. The journal works best on its own device."""
    ledger_directories: tuple[str, ...] = field(default=())
    """Absolute paths of entry logs, index and ledger state."""

    accept_new_folders: bool = False
    """Take in empty ledger folders that were added [behind the others](#a-disk-more)."""

    # When data was lost
    accept_data_loss: bool = False
    """Start although folders are empty or damaged: [accept the
    loss](#it-does-not-start-process_failed-says-that-a-file-is-damaged-or-missing)."""
    accept_older_metadata: bool = False
    """Start although [the metadata is older](#when-metadata-is-older)."""
    limbo_ended_through: int = bounded(-1)
    """End a limbo up to this ledger id or below."""

    # Journal
    journal_sync: bool = True
    """False acks before `fdatasync`: a power failure may lose acked entries."""
    journal_file_bytes_max: int = 128 * MIB
    """A journal file of this length is closed and a new file begun."""
    journal_preallocate_bytes: int = 16 * MIB
    """Space reserved ahead, so that a sync need not change the file's size."""
    journal_group_bytes_max: int = 4 * MIB
    """The longest `pwritev` + `fdatasync`; bounds the latency of a group."""
    journal_queue_bytes_max: int = 32 * MIB
    """Adds waiting for the disk; above it the sockets that send most are not read."""
    add_bytes_max: int = 48 * MIB
    """Waiting adds with all their memory. Above it adds get TOO_MANY_REQUESTS."""

    # Caches, entry logs, index
    write_cache_bytes_max: int = 32 * MIB
    """Each of two memtables: a full memtable is flushed while the other fills."""
    read_cache_bytes_max: int = 16 * MIB
    """Runs of entry logs that were read; the least recently used goes first."""
    read_ahead_bytes_max: int = 1 * MIB
    """Bytes read from the entry log at a cache miss, beyond the entry asked for."""
    entry_log_bytes_max: int = 512 * MIB
    """An entry log of this length is closed and a new log begun."""
    open_entry_logs_max: int = 900
    """Open entry logs, at most a fourth of the process's file descriptors."""
    flush_interval_ms: int = 10_000
    """The longest time between flushes of the write cache; bounds the replay after a crash."""

    # Connections
    frame_bytes_max: int = FRAME_BYTES_MAX
    """A longer frame ends its connection before it is read."""
    connections_max: int = 10_000
    """Open connections; one more is closed at once."""
    scratch_bytes: int = bounded(256 * KIB, 4096, words="use 4096 or more")
    """The receive buffer of all connections, and the largest chunk parsed at once."""
    connection_add_bytes_max: int = 8 * MIB
    """A connection's adds that wait for the disk; above it the connection is not read."""
    connection_reads_max: int = 256
    """Reads of a connection under way; above it the connection is not read."""
    connection_answer_bytes_max: int = 4 * MIB
    """Answers that the peer has not taken; above it the connection is not read."""
    answer_bytes_max: int = 32 * MIB
    """Untaken answers of all connections together; above it no further read begins."""
    receive_bytes_max: int = 32 * MIB
    """Frames that arrived in part, of all connections; above it further frames wait unread."""
    pressed_stall_ms_max: int = 5_000
    """A peer that makes others wait for this long is cut off."""
    answer_stall_ms_max: int = 60_000
    """A peer that takes no answer for this long is cut off."""
    keepalive_ms: int = 60_000
    """TCP keep-alive detects peers that vanished silently."""
    batch_read_bytes_max: int = 1 * MIB
    """The longest answer to a batch read: as many entries as fit."""
    read_threads: int = 2
    """Reads of entry logs that run at once."""
    read_tasks_max: int = 1024
    """Reads that wait for an entry log, of all connections; further reads are queued."""
    reads_waiting_max: int = 16_384
    """Queued reads of all connections; further reads get TOO_MANY_REQUESTS."""
    read_wait_ms_max: int = 3_000
    """A connection that gets no turn for this long gets TOO_MANY_REQUESTS."""
    long_polls_max: int = 4096
    """Parked long polls; a further request that must wait gets TOO_MANY_REQUESTS."""

    unlisted_ledgers_max: int = 20_000
    """Ledgers here without a known record. Above it, adds to a new ledger get TOO_MANY_REQUESTS."""

    # Disk space
    read_only: bool = False
    """Start read-only and stay so."""
    disk_free_bytes_min: int = bounded(256 * MIB, 0, words=_FROM_0)
    """Below it the bookie turns read-only; recovery adds still pass."""
    disk_free_bytes_resume: int = 512 * MIB
    """At or above it the bookie turns writable again by itself."""
    disk_free_bytes_reserve: int = bounded(64 * MIB, 0, words=_FROM_0)
    """Below it recovery adds are refused too: journal and flush need the rest."""
    disk_check_interval_ms: int = 5_000
    """How often free space is measured."""

    # Scrubbing
    scrub_interval_ms: int = bounded(7 * 24 * 3600 * 1000, 0, words=_FROM_0)
    """From the end of a pass over all entry logs to the next; 0 means never."""
    scrub_bytes_per_s: int = 8 * MIB
    """How fast entry logs are read back."""
    consistency_check_on_start: bool = False
    """Compare index, entry logs and ledger state before serving: reads all of them."""

    # Copies
    keep_copies: bool = True
    """Fetch [entries that this bookie should hold](#lost-copies) but does not, and replace lost
    bookies."""
    lost_bookie_ms: int = 600_000
    """A bookie that is not registered for this long is lost; others take over its entries."""
    copies_open_ledger_ms: int = 30_000
    """How much longer an open ledger's writer has to replace a lost bookie itself."""
    copies_interval_ms: int = 86_400_000
    """From the end of a pass over all records to the next, when nothing is missing."""
    copies_retry_ms: int = 60_000
    """The same, when some entries could not be fetched."""
    copies_bytes_per_s: int = 32 * MIB
    """How fast copies are fetched."""

    # Garbage collection
    gc_interval_ms: int = 600_000
    """How often to look for ledgers deleted in metadata, and at the entry logs."""
    gc_quarantine_ms: int = 900_000
    """A ledger is deleted here when its record was proven gone twice, this far apart."""
    gc_minor_interval_ms: int = 3_600_000
    """From one minor compaction to the next."""
    gc_minor_ratio: float = 0.2
    """A minor compaction empties entry logs in which at most this share is live."""
    gc_major_interval_ms: int = 86_400_000
    """From one major compaction to the next."""
    gc_major_ratio: float = 0.8
    """The same share for a major compaction. When space is short, every round is major."""
    gc_bytes_per_s: int = 16 * MIB
    """How fast entry logs are read and copied, both together."""
    gc_disk_free_bytes_min: int = bounded(32 * MIB, 0, words=_FROM_0)
    """Free space that copies must leave."""
    gc_deleted_keep_ms: int = 7 * 24 * 3600 * 1000
    """How long a bookie remembers a deleted ledger and refuses late adds to it."""

    # Life
    start_timeout_ms: int = 60_000
    """The time for the metadata to answer and the cookie to be checked, without the replay."""
    stop_timeout_ms: int = 10_000
    """How long a graceful stop answers requests that were read."""

    def __post_init__(self) -> None:
        """Refuse settings that no bookie can run with. Raises `BookieConfigError`."""
        for name in ("journal_directories", "ledger_directories"):
            folders = getattr(self, name)
            if not folders:
                raise FoldersMissing(f"bookie setting {name} is empty: name at least one folder")
            _require(len(set(folders)) == len(folders), name, folders, "name each folder once")
            for folder in folders:
                _require(folder.startswith("/"), name, folder, "use an absolute path")
        if wrong := beyond_bounds(self):
            _require(False, wrong.name, wrong.value, wrong.bounds.words or "it must be above 0")
        _require(
            self.host not in _ANY_ADDRESS or bool(self.advertised_host),
            "advertised_host",
            self.advertised_host,
            f"with host {self.host}, set the name under which clients reach this bookie",
        )
        _require(
            self.add_bytes_max >= self.journal_queue_bytes_max,
            "add_bytes_max",
            self.add_bytes_max,
            f"it must not be below journal_queue_bytes_max ({self.journal_queue_bytes_max})",
        )
        _require(
            0 <= self.gc_minor_ratio <= self.gc_major_ratio < 1,
            "gc_minor_ratio",
            self.gc_minor_ratio,
            f"it must be 0 to gc_major_ratio ({self.gc_major_ratio}), and that below 1",
        )
        _require(
            self.disk_free_bytes_resume >= self.disk_free_bytes_min,
            "disk_free_bytes_resume",
            self.disk_free_bytes_resume,
            f"it must not be below disk_free_bytes_min ({self.disk_free_bytes_min})",
        )

    @property
    def directories(self) -> tuple[str, ...]:
        """Return every folder that carries a cookie, each once."""
        return tuple(dict.fromkeys((*self.journal_directories, *self.ledger_directories)))


def _require(holds: bool, name: str, value: object, advice: str) -> None:
    if not holds:
        raise BookieConfigError(f"bookie setting {name} = {value!r}: {advice}")
