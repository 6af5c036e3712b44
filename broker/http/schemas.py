"""OpenAPI's `components`, made from the structs of bodies and answers.

So the documentation says what the broker reads and writes. This module adds only the public names
of the structs, and what a struct cannot express. The examples are in http/routes.py, for a topic
`public/flights` with four partitions and a subscription `reports`;
tests/unit/broker_http/test_openapi.py publishes, reads and acks with them.
"""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from octavo.broker.http.api import answers
from octavo.broker.http.api.access import AccessBody, AccessShown
from octavo.broker.http.api.acks import AckBody
from octavo.broker.http.api.bulk_loads import (
    AbortBody,
    BeginBody,
    CommitBody,
    LedgerBody,
    PartBody,
)
from octavo.broker.http.api.groups import GroupShown, MemberBody, MemberShown
from octavo.broker.http.api.payloads import MessageIn, MessageOut, MessagesIn
from octavo.broker.http.api.policy import PolicyBody, PolicyShown, UserGroups
from octavo.broker.http.api.quotas import QuotaBody, Quotas, QuotaShown
from octavo.broker.http.api.schemas import (
    CompatibilityBody,
    SchemaBody,
    SchemaChecked,
    SchemaShown,
    SubjectShown,
)
from octavo.broker.http.api.subscriptions import ExpireBody, SeekBody, SkipBody
from octavo.broker.http.api.topic_body import NamespaceBody, SubscriptionBody, TopicBody
from octavo.broker.http.api.topics import ForkBody

NAME = msgspec.json.schema(answers.Name)
OFFSET = msgspec.json.schema(answers.Offset)

_REF = "#/components/schemas/"
_KINDS: dict[str, type[msgspec.Struct]] = {
    "Problem": answers.ProblemBody,
    "MessageIn": MessageIn,
    "MessagesIn": MessagesIn,
    "Published": answers.Published,
    "LargePublished": answers.LargePublished,
    "Message": MessageOut,
    "Messages": answers.Messages,
    "Received": answers.Received,
    "Offsets": answers.Offsets,
    "TopicSettings": TopicBody,
    "Topics": answers.Topics,
    "Topic": answers.Topic,
    "NamespaceSettings": NamespaceBody,
    "Namespace": answers.Namespace,
    "Partition": answers.PartitionFigures,
    "Explained": answers.Explained,
    "SubscriptionSettings": SubscriptionBody,
    "SubscriptionFigures": answers.SubscriptionFigures,
    "Subscription": answers.Subscription,
    "Ack": AckBody,
    "Acked": answers.Acked,
    "Seek": SeekBody,
    "PrivateLedger": LedgerBody,
    "BulkLoadPart": PartBody,
    "BulkLoadParts": CommitBody,
    "PublishedParts": BeginBody,
    "BulkLoadTurn": answers.BulkLoadTurn,
    "BulkLoad": answers.BulkLoad,
    "GivenUp": AbortBody,
    "Ledger": answers.Ledger,
    "Quota": QuotaBody,
    "Quotas": Quotas,
    "QuotaShown": QuotaShown,
    "GroupMember": MemberBody,
    "GroupMemberShown": MemberShown,
    "Group": GroupShown,
    "Skip": SkipBody,
    "Expire": ExpireBody,
    "Moved": answers.Moved,
    "Schema": SchemaBody,
    "SchemaShown": SchemaShown,
    "SchemaSubject": SubjectShown,
    "SchemaChecked": SchemaChecked,
    "SchemaCompatibility": CompatibilityBody,
    "ProducerAccess": AccessBody,
    "ProducerAccessShown": AccessShown,
    "Policy": PolicyBody,
    "PolicyShown": PolicyShown,
    "UserGroups": UserGroups,
    "Drained": answers.Drained,
    "Unloaded": answers.Unloaded,
    "UnloadedTopic": answers.UnloadedAll,
    "Fork": ForkBody,
    "Truncated": answers.Truncated,
}
"""By public name, for documents and generated clients. Other structs keep their own names."""
_MORE: dict[str, dict[str, Any]] = {
    "MessageIn": {
        "anyOf": [{"required": [name]} for name in ("value", "value_text", "value_base64")]
    },
}


def ref(name: str) -> dict[str, Any]:
    """Return a reference to a component schema."""
    return {"$ref": _REF + name}


def _made() -> dict[str, Any]:
    _, made = msgspec.json.schema_components(_KINDS.values(), ref_template=_REF + "{name}")
    names = {kind.__name__: name for name, kind in _KINDS.items()}
    found: dict[str, Any] = {"Any": {"type": "object"}}
    for own, schema in made.items():
        name = names.get(own, own)
        found[name] = {**_renamed(schema, names), **_MORE.get(name, {})}
        del found[name]["title"]  # the internal name
        found[name]["description"] = inspect.cleandoc(schema["description"])
    return found


def _renamed(schema: Any, names: dict[str, str]) -> Any:
    """Return the schema with references to public names."""
    if isinstance(schema, list):
        return [_renamed(one, names) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _renamed(value, names) for key, value in schema.items()}
    if isinstance(refers := found.get("$ref"), str):
        own = refers.removeprefix(_REF)
        found["$ref"] = _REF + names.get(own, own)
    return found


SCHEMAS = _made()
