"""How calls are charged to quotas. Pure. Each route declares its charge (`Route.charge`)."""

from __future__ import annotations

import enum


class Charge(enum.Enum):
    PUBLISHES = "publishes"
    """The announced length is charged before the body is read."""
    UPLOADS = "uploads"
    TAKES = "takes"
    STREAMS = "streams"
    CALLS = "calls"
    FREE = "free"
    """Calls between brokers, and calls that watch a node."""
