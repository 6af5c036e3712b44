"""How calls are charged to quotas. Pure. Each route declares its charge (`Route.charge`).

In addition, a partition's owner charges the namespace for messages stored and read there.
"""

from __future__ import annotations

import enum


class Charge(enum.Enum):
    PUBLISHES = "publishes"
    """It brings messages: its announced length is charged before its body is read."""
    UPLOADS = "uploads"
    """It brings a large message: charged as it arrives."""
    TAKES = "takes"
    """It returns messages, or a token to read them: charged by its answer."""
    STREAMS = "streams"
    """It sends messages without end: each piece is charged when it is sent."""
    CALLS = "calls"
    """It counts as one of the caller's requests."""
    FREE = "free"
    """Not charged: calls between brokers, and calls that watch a node (tag `health`)."""
