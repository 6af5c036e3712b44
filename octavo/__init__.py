"""Octavo: a replicated ledger store with stateless topic brokers.

    from octavo import Client

    with Client("http://127.0.0.1:8080") as client:
        client.create_topic("flights", partitions=4)
        client.publish("flights", {"tailnum": "N14228"}, key="N14228")

Names are loaded when first used, so that a bookie process does not pay for the HTTP client.
A process without assertions (`python -O`, `PYTHONOPTIMIZE`) ends here, with one line that says so.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if not __debug__:  # every command, process, Spark task and client comes through here
    sys.exit(
        "octavo: this process runs without assertions, and they are part of what keeps "
        "acknowledged data safe: start it without -O and without PYTHONOPTIMIZE"
    )

if TYPE_CHECKING:
    from octavo.client.client import AsyncClient
    from octavo.client.errors import TopicReplaced
    from octavo.client.sync import Client

__all__ = ["AsyncClient", "Client", "TopicReplaced", "__version__"]


def __getattr__(name: str) -> object:
    """Load the client on first use (PEP 562)."""
    if name == "AsyncClient":
        from octavo.client.client import AsyncClient

        return AsyncClient
    if name == "Client":
        from octavo.client.sync import Client

        return Client
    if name == "TopicReplaced":
        from octavo.client.errors import TopicReplaced

        return TopicReplaced
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")
