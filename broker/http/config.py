"""Every limit of a broker's HTTP server."""

from __future__ import annotations

import re
from dataclasses import dataclass

from octavo.broker.config import KIB, MIB, BrokerConfigError
from octavo.protocol.bounds import beyond_bounds
from octavo.protocol.limits import MESSAGE_BYTES_MAX

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[1-9][0-9]{0,4})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    body_bytes_max: int = 8 * MIB
    """A body that is held in memory as a whole."""
    bodies_bytes_max: int = 256 * MIB
    """All such bodies together; beyond, callers get a 429 with `Retry-After`."""
    line_bytes_max: int = MESSAGE_BYTES_MAX
    """A single message, such as a line of NDJSON."""
    large_message_bytes_max: int = 128 * MIB
    """A large message, which is never in memory as a whole."""
    header_bytes_max: int = 16 * KIB
    """One header field, and the request line."""
    headers_max: int = 128
    """Header fields per request."""

    batch_messages_max: int = 1000
    """Single messages are built into batches of at most this many …"""
    batch_target_bytes: int = 64 * KIB
    """… and about this many bytes of keys and values."""
    inflight_bytes_max: int = 4 * MIB
    """Bytes of a request on their way to the partitions."""
    inflight_batches_max: int = 8
    """Batches of a request in flight to a partition of this broker."""
    results_max: int = 100_000
    """Messages in a request with `results=all`, which keeps a result for each."""

    read_bytes: int = 1 * MIB
    """Size of a read's answer when `max_bytes` is not given …"""
    read_bytes_max: int = 8 * MIB
    """… and the largest `max_bytes`."""
    read_messages: int = 1000
    """Messages in an answer when no limit is given."""
    read_messages_max: int = 10_000
    """The most messages that may be asked for at once."""
    wait_ms_max: int = 60_000
    """The longest long-poll."""
    stream_poll_ms: int = 20_000
    """A long-poll of a durable stream is answered after this time …"""
    stream_events_ms: int = 60_000
    """… and its event stream ends, so that caches can share connections."""
    streams_max: int = 2_000
    """Streams of partitions or subscriptions; each may hold a page."""

    body_timeout_ms: int = 60_000
    """A body held in memory must have come by then."""
    stream_idle_ms: int = 50
    """When a stream of messages pauses this long, its messages are published."""
    stall_timeout_ms: int = 30_000
    """A stream or answer that moves no byte for this long is cut off."""
    keepalive_timeout_ms: int = 75_000
    """How long a connection may be idle, or its request incomplete."""
    moving_wait_ms: int = 8_000
    """How long a request waits for a reachable owner before it gets a 503."""
    peer_connect_timeout_ms: int = 2_000
    """How long another broker may take to accept a connection."""
    peer_answer_timeout_ms: int = 40_000
    """How long another broker may take to answer, besides the requested wait."""
    connections_max: int = 10_000
    """Open connections; a further connection gets a 503 and is closed …"""
    connections_reserved: int = 128
    """… except these, for health checks and other brokers."""
    allowed_hosts: tuple[str, ...] = ()
    """Names of this broker, besides addresses, names without a dot and its advertised name.
    Other `Host` headers are refused."""
    allowed_origins: tuple[str, ...] = ()
    """Sites whose pages may make every call (CORS), such as `https://console.example.com`."""
    groups_max: int = 1_000
    """Consumer groups of this broker …"""
    group_members_max: int = 256
    """… members of each …"""
    group_partitions_max: int = 4_096
    """… and partitions of its topics."""
    stop_timeout_ms: int = 10_000
    """A graceful stop waits this long for requests under way."""

    def __post_init__(self) -> None:
        if wrong := beyond_bounds(self):
            raise BrokerConfigError(f"{wrong.name} is {wrong.value}; it must be {wrong.bounds}")
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                raise BrokerConfigError(
                    f"allowed_origins has {origin!r}; it must be a scheme and a host, in small "
                    "letters, and a port where it is not the usual one, as browsers send it: "
                    "https://console.example.com. Nothing stands for every site"
                )
