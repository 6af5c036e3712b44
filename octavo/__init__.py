"""Octavo: a replicated ledger store with stateless topic brokers.

    from octavo import Client

    with Client("http://127.0.0.1:8080") as client:
        client.create_topic("flights", partitions=4)
        client.publish("flights", {"tailnum": "N14228"}, key="N14228")

Names are loaded at their first use, so that a bookie process does not load the HTTP client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from octavo.client.client import AsyncClient
    from octavo.client.errors import (
        AcksUnsent,
        ApiError,
        ClientError,
        Conflict,
        InvalidCall,
        MessageTooLong,
        NotFound,
        NotJson,
        OutcomeUnknown,
        PreconditionFailed,
        ProducerFailed,
        TopicReplaced,
        Trimmed,
        Unreachable,
    )
    from octavo.client.sync import Client
    from octavo.client.types import Delivery, Message, Position, Topic
    from octavo.protocol.compression import Compression

__all__ = [
    "AcksUnsent",
    "ApiError",
    "AsyncClient",
    "Client",
    "ClientError",
    "Compression",
    "Conflict",
    "Delivery",
    "InvalidCall",
    "Message",
    "MessageTooLong",
    "NotFound",
    "NotJson",
    "OutcomeUnknown",
    "Position",
    "PreconditionFailed",
    "ProducerFailed",
    "Topic",
    "TopicReplaced",
    "Trimmed",
    "Unreachable",
    "__version__",
]
_HOMES = {
    "AsyncClient": "octavo.client.client",
    "Client": "octavo.client.sync",
    "Compression": "octavo.protocol.compression",
    **dict.fromkeys(("Delivery", "Message", "Position", "Topic"), "octavo.client.types"),
}
_ERRORS = "octavo.client.errors"


def __getattr__(name: str) -> object:
    """Load a name at its first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_HOMES.get(name, _ERRORS)), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List also the names that are not loaded yet."""
    return sorted({*globals(), *__all__})
