"""Every bound of the HTTP side of a broker, with its unit and its reason. A frozen value."""

from __future__ import annotations

import re
from dataclasses import dataclass

from octavo.broker.config import KIB, MIB, BrokerConfigError
from octavo.protocol.limits import MESSAGE_BYTES_MAX

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[1-9][0-9]{0,4})?")
"""As a browser sends it (RFC 6454); `null` is every page in a sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """What one broker's HTTP server allows. The defaults suit a small machine."""

    body_bytes_max: int = 8 * MIB
    """A body that is held in memory whole: raw, JSON, record batches, settings."""
    bodies_bytes_max: int = 256 * MIB
    """All such bodies of all connections together; above it callers are told to come back."""
    line_bytes_max: int = MESSAGE_BYTES_MAX
    """One message, in whatever form: it must fit an entry with its batch around it."""
    large_message_bytes_max: int = 128 * MIB
    """One large message: its pieces are stored as they come, and it is in memory nowhere. A topic's
    `message_bytes_max`, where it has one, bounds it too."""
    header_bytes_max: int = 16 * KIB
    """One header field, and the request line."""
    headers_max: int = 128
    """Header fields per request."""

    batch_messages_max: int = 1000
    """Messages that came singly are built into batches of at most this many …"""
    batch_target_bytes: int = 64 * KIB
    """… and about this many bytes of keys and values."""
    inflight_bytes_max: int = 4 * MIB
    """What one request may have on its way to the partitions: bounds the memory of a stream."""
    inflight_batches_max: int = 8
    """Batches of one request in flight to one partition of this broker."""
    results_max: int = 100_000
    """`results=all` keeps a result per message, so such requests have this many at most."""

    read_bytes: int = 1 * MIB
    """A read's answer when `max_bytes` is not given …"""
    read_bytes_max: int = 8 * MIB
    """… and the most that may be asked for."""
    read_messages: int = 1000
    """A read's or a receive's answer when no limit is given, for messages one by one."""
    read_messages_max: int = 10_000
    """The most messages that may be asked for at once."""
    wait_ms_max: int = 60_000
    """The longest long-poll."""
    stream_poll_ms: int = 20_000
    """A long-poll of a durable stream is answered after so long, also with nothing …"""
    stream_events_ms: int = 60_000
    """… and its events end after so long, and are asked for again: so caches on the way can have
    many readers share one connection."""
    streams_max: int = 2_000
    """Streams of partitions or subscriptions, each with a page of its own at the worst."""

    body_timeout_ms: int = 60_000
    """A body that is held in memory must have come within this time."""
    stream_idle_ms: int = 50
    """A stream of messages that pauses for so long is published as far as it came."""
    stall_timeout_ms: int = 30_000
    """A stream that brings, or an answer that loses, not one byte for so long is cut off."""
    keepalive_timeout_ms: int = 75_000
    """An idle connection is closed after this; also one that never sends a whole request."""
    moving_wait_ms: int = 8_000
    """How long a request waits for a partition that has no reachable owner before it is a 503."""
    peer_connect_timeout_ms: int = 2_000
    """How long another broker may take to accept a connection."""
    peer_answer_timeout_ms: int = 40_000
    """How long another broker may take to begin its answer, beyond the wait that was asked for."""
    connections_max: int = 10_000
    """Open connections; one more is told to come back and closed …"""
    connections_reserved: int = 128
    """… but for so many beyond, which serve health checks and other brokers only."""
    peer_connections_max: int = 512
    """Connections to all other brokers together."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which this broker is called besides IP addresses, names without a dot (localhost)
    and the one it advertises. A browser may be led here under any other."""
    allowed_origins: tuple[str, ...] = ()
    """Sites whose pages may make every call and see its answer, such as
    https://console.example.com; any other's may neither change anything nor see what there is."""
    groups_max: int = 1_000
    """Consumer groups that one broker keeps the members of …"""
    group_members_max: int = 256
    """… members of each …"""
    group_partitions_max: int = 4_096
    """… and partitions of all its topics: who has what is worked out anew when one comes or goes,
    within half a second."""
    stop_timeout_ms: int = 10_000
    """A graceful stop waits no longer than this for requests that are being answered."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise BrokerConfigError(f"{name} is {value}; it must be at least 1")
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                raise BrokerConfigError(
                    f"allowed_origins has {origin!r}; it must be a scheme and a host, in small "
                    "letters, and a port where it is not the usual one, as browsers send it: "
                    "https://console.example.com. Nothing stands for every site"
                )
