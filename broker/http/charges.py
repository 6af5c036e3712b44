"""Which quotas a call can be charged to. Pure. Each route declares its charge (`Route.charge`).

In addition, a partition's owner charges its namespace with what is stored and read there.
"""

from __future__ import annotations

import enum


class Charge(enum.Enum):
    """How a call is charged."""

    PUBLISHES = "publishes"
    """It brings messages: its body is charged before it is read, as its head announces it."""
    UPLOADS = "uploads"
    """It brings a message that may be longer than others: charged as it arrives."""
    TAKES = "takes"
    """It is answered with messages, or with a token to read them: charged by its answer."""
    STREAMS = "streams"
    """It gives messages without end: each piece is charged when it is sent."""
    CALLS = "calls"
    """It counts as one of the caller's requests."""
    FREE = "free"
    """Not charged: calls between brokers, and calls that watch a node (tag `health`)."""
