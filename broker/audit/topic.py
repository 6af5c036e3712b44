"""The topic of the audit log: its name, and that no client writes to it."""

from __future__ import annotations

from octavo.broker.errors import AuditTopicClosed
from octavo.broker.types import TopicName

AUDIT_TOPIC = TopicName("octavo", "audit")
AUDIT_PARTITION = AUDIT_TOPIC.partition(0)


def check_not_audit(name: TopicName) -> None:
    """Raises `AuditTopicClosed` where a client would write to the audit log."""
    if name == AUDIT_TOPIC:
        raise AuditTopicClosed(
            f"{AUDIT_TOPIC} is written by the brokers alone, so that nobody can forge what stands "
            "in it"
        )
