"""Which quota each call is charged to, by the name of its route. Pure.

    PUBLISHES   brings messages: its body is charged before it is read, as its head announces it
    UPLOADS     brings a message that may be longer than others: charged as it arrives
    TAKES       is answered with messages, or with a token to read them: charged by its answer
    STREAMS     gives messages without end: each piece is charged when it is sent
    CALLS       neither: it counts as one of the caller's requests
    FREE        not charged: calls between brokers, and calls that watch a node (tag `health`)

In addition, a partition's owner charges its namespace with what is stored and read there. Every
route is listed here; `tests/unit/broker_http/test_charges.py` fails for a missing route.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class Charge(enum.Enum):
    """How a call is charged."""

    PUBLISHES = "publishes"
    UPLOADS = "uploads"
    TAKES = "takes"
    STREAMS = "streams"
    CALLS = "calls"
    FREE = "free"


_TABLE: Mapping[Charge, str] = {
    Charge.PUBLISHES: "publish publish_of_stream put_stream",
    Charge.UPLOADS: "publish_large put_large",
    Charge.TAKES: "read read_of_stream read_body receive peek issue_reader_token get_entry",
    Charge.STREAMS: "stream",
    Charge.CALLS: """
        list_namespaces put_namespace get_namespace delete_namespace
        list_topics put_topic get_topic patch_topic delete_topic fork_topic get_partition
        explain_topic explain_partition unload_topic unload_partition
        truncate offsets acquire_access get_access release_access delete_stream
        list_subscriptions put_subscription get_subscription delete_subscription
        acknowledge seek skip expire beat leave_group get_group
        list_schema_subjects register_schema check_schema get_schema_subject put_schema_subject
        get_schema delete_schema_subject
        commit_bulk_load begin_bulk_load abort_bulk_load get_bulk_load
        list_ledgers get_ledger recover_ledger list_bookies list_brokers drain_broker undrain_broker
        get_cluster list_quotas get_quota put_quota delete_quota
        get_policy get_user_groups put_policy confirm_clock
    """,
    Charge.FREE: """
        healthz readyz openapi metrics status_page
        operations
    """,
}
CHARGES: Mapping[str, Charge] = {
    name: charge for charge, names in _TABLE.items() for name in names.split()
}


def charge_of(route: str) -> Charge:
    """Return the charge of a route; a call on one partition costs the same as on its topic."""
    return CHARGES[route.removesuffix("_of_partition")]
