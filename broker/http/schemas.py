"""The shapes of bodies, once, as JSON Schema: OpenAPI's `components`, with examples that work.

The examples are of a topic `public/flights` with four partitions and a subscription `reports`;
tests/unit/broker_http/test_openapi.py publishes, reads and acks with them.
"""

from __future__ import annotations

from typing import Any

from octavo.protocol.names import NAME_PATTERN, NOT_NAMES

NAME = {"type": "string", "pattern": f"^{NAME_PATTERN}$", "not": {"enum": list(NOT_NAMES)}}
OFFSET = {"type": "integer", "format": "int64", "minimum": 0}
COUNT = {"type": "integer", "minimum": 0}
MESSAGE_ID = {"type": "string", "pattern": "^[0-9]+:[0-9]+:[0-9]+$"}
TIME = {
    "description": "seconds, or text with a unit: 500ms, 30s, 2m, 4h, 7d",
    "type": ["number", "string", "null"],
}
SIZE = {
    "description": "bytes, or text with a unit: 64KiB, 256MiB, 10GB",
    "type": ["integer", "string", "null"],
}
TEXT = {"type": "string"}
_AFTER = {
    "type": ["integer", "null"],
    "minimum": -1,
    "description": "the batch before, of a writer whose numbers have gaps or whose id may be new",
}


def ref(name: str) -> dict[str, Any]:
    """A reference to a component schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: dict[str, Any], *required: str, closed: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        found["required"] = list(required)
    if closed:
        found["additionalProperties"] = False
    return found


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_HEADERS = {
    "type": ["object", "array"],
    "description": 'text; other bytes as {"base64": …}; a list when a name repeats. '
    "A list of [name, value] where a name comes again behind another one",
    "additionalProperties": {
        "anyOf": [TEXT, {"type": "null"}, ref("Base64"), _list({})],
    },
    "items": {
        "type": "array",
        "prefixItems": [TEXT, {"anyOf": [TEXT, {"type": "null"}, ref("Base64")]}],
        "items": False,
        "minItems": 2,
    },
}
_PLACE = _object({"partition": COUNT, "offset": OFFSET, "id": MESSAGE_ID}, "partition")

SCHEMAS: dict[str, Any] = {
    "Problem": _object(
        {
            "type": {"type": "string", "format": "uri"},
            "title": TEXT,
            "status": {"type": "integer"},
            "detail": {"type": "string", "description": "the cause, and what would help"},
            "instance": TEXT,
            "code": {"type": "string", "description": "a stable word for programs"},
            "retryable": {
                "type": "boolean",
                "description": "whether the very same call may succeed later",
            },
        },
        "type", "title", "status", "detail", "code", "retryable",
    ),
    "Base64": _object({"base64": {"type": "string", "format": "byte"}}, "base64", closed=True),
    "MessageIn": {
        **_object(
            {
                "key": {"type": ["string", "null"], "description": "picks the partition"},
                "key_base64": {"type": "string", "format": "byte"},
                "value": {
                    "description": "any JSON, stored byte for byte; null is a message without value"
                },
                "value_text": {"type": "string", "description": "text, stored as UTF-8"},
                "value_base64": {"type": "string", "format": "byte"},
                "headers": _HEADERS,
                "timestamp": {
                    "type": ["integer", "string", "null"],
                    "description": "milliseconds since the epoch, or RFC 3339; now by default",
                },
            },
            closed=True,
        ),
        "anyOf": [{"required": [name]} for name in ("value", "value_text", "value_base64")],
    },
    "MessagesIn": _object(
        {"messages": {**_list(ref("MessageIn")), "minItems": 1}}, "messages", closed=True
    ),
    "Published": _object(
        {
            "count": {**COUNT, "description": "messages stored, also those that were already"},
            "first": _PLACE,
            "last": _PLACE,
            "duplicates": {**COUNT, "description": "of these, stored by an earlier request"},
            "partitions": _list(
                _object({"partition": COUNT, "count": COUNT, "first": _PLACE, "last": _PLACE})
            ),
            "results": _list({"type": "object", "description": "with results=all: one a message"}),
            "batches": _list({"type": "object", "description": "with results=batches"}),
            "not_confirmed": {**COUNT, "description": "in a 207: see errors"},
            "errors": {**_list(ref("Problem")), "description": "in a 207: why, by partition"},
        },
        "count",
    ),
    "Message": _object(
        {
            "partition": COUNT,
            "offset": OFFSET,
            "id": MESSAGE_ID,
            "timestamp": {"type": "integer", "description": "milliseconds since the epoch"},
            "key": {"type": ["string", "null"]},
            "key_base64": {"type": "string", "format": "byte"},
            "value": {
                "description": "JSON; null: no value. Its compact form is what is stored, unless "
                "value_text or value_base64 says it"
            },
            "value_text": {"type": "string", "description": "what is stored, exactly"},
            "value_base64": {
                "type": "string",
                "format": "byte",
                "description": "what is stored, where that is no text",
            },
            "headers": _HEADERS,
            "ack_id": {"type": "string", "description": "of a subscription's delivery"},
            "delivery_count": {"type": "integer", "minimum": 1},
        },
        "partition", "offset", "id", "timestamp",
    ),
    "Messages": _object({"messages": _list(ref("Message")), "next_offset": OFFSET}, "messages"),
    "Received": _object(
        {
            "messages": _list(ref("Message")),
            "held_back": {"type": "string", "description": "why none is handed out now"},
        },
        "messages",
    ),
    "Offsets": _object(
        {
            "offsets": _list(
                _object(
                    {
                        "partition": COUNT,
                        "offset": OFFSET,
                        "earliest": OFFSET,
                        "latest": {**OFFSET, "description": "one past the last message"},
                    }
                )
            )
        },
        "offsets",
    ),
    "TopicSettings": _object(
        {
            "partitions": {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 1},
            "ensemble_size": {"type": "integer", "minimum": 1, "maximum": 64, "default": 3},
            "write_quorum": {"type": "integer", "minimum": 1, "maximum": 64, "default": 3},
            "ack_quorum": {"type": "integer", "minimum": 1, "maximum": 64, "default": 2},
            "retention": {
                **_object({"time": TIME, "size": SIZE}, closed=True),
                "type": ["object", "null"],
            },
            "rollover": _object({"time": TIME, "size": SIZE, "entries": COUNT}, closed=True),
            "ttl": {"type": "null", "description": "not supported yet"},
            "backlog_quota": {"type": "null", "description": "not supported yet"},
            "compaction": {"type": "null", "description": "not supported yet"},
        },
        closed=True,
    ),
    "Partition": _object(
        {
            "partition": COUNT,
            "owner": TEXT,
            "epoch": COUNT,
            "earliest_offset": OFFSET,
            "next_offset": OFFSET,
            "messages": COUNT,
            "stored_bytes": COUNT,
            "pending_bytes": COUNT,
            "last_add_confirmed": {"type": "integer"},
            "producers": COUNT,
            "ledgers": _list(_object({"id": OFFSET, "base_offset": OFFSET})),
            "subscriptions": {
                "type": "object",
                "additionalProperties": ref("SubscriptionFigures"),
            },
            "problem": ref("Problem"),
        },
    ),
    "Topics": _object(
        {
            "namespace": NAME,
            "topics": _list(TEXT),
            "next": {"type": ["string", "null"], "description": "go on `after` it; null: the end"},
        },
        "namespace", "topics", "next",
    ),
    "Topic": _object(
        {
            "name": TEXT,
            "settings": ref("TopicSettings"),
            "created": {"type": "integer", "description": "milliseconds since the epoch"},
            "incarnation": {
                "type": "string",
                "description": "tells it from earlier and later topics of the same name",
            },
            "messages": COUNT,
            "stored_bytes": COUNT,
            "backlog": {"type": "object", "additionalProperties": COUNT},
            "partitions": _list(ref("Partition")),
        },
        "name", "settings", "created", "incarnation",
    ),
    "LetGo": _object(
        {"served": _list({"type": "integer", "description": "of partitions, until now"})},
        "served",
    ),
    "SubscriptionSettings": _object(
        {
            "type": {"enum": ["exclusive", "shared"], "default": "exclusive"},
            "start": {"enum": ["earliest", "latest"], "default": "earliest"},
            "ack_timeout": {**TIME, "type": ["number", "string"], "default": 30},
            "max_deliveries": {"type": "null", "description": "not supported yet"},
            "dead_letter_topic": {"type": "null", "description": "not supported yet"},
            "retry_backoff": {"type": "null", "description": "not supported yet"},
        },
        closed=True,
    ),
    "SubscriptionFigures": _object(
        {
            "committed_offset": {
                "type": "integer",
                "description": "the first offset that is not acked: all before it are",
            },
            "mark_delete_offset": {
                "type": "integer",
                "deprecated": True,
                "description": "committed_offset by its former name, until 0.3",
            },
            "next_offset": OFFSET,
            "backlog": COUNT,
            "unacked_ranges": COUNT,
            "leased": COUNT,
            "redelivering": COUNT,
            "delayed": {**COUNT, "description": "given back, and waiting for their delay"},
            "held_back": {
                "type": ["string", "null"],
                "description": "why receive hands nothing out though there are messages",
            },
            "consumers": _list({"type": "object"}),
        }
    ),
    "Subscription": _object(
        {
            "name": TEXT,
            "topic": TEXT,
            "settings": ref("SubscriptionSettings"),
            "created": {"type": "integer"},
            "backlog": COUNT,
            "unacked_ranges": COUNT,
            "leased": COUNT,
            "redelivering": COUNT,
            "delayed": {**COUNT, "description": "given back, and waiting for their delay"},
            "held_back": {
                "type": ["string", "null"],
                "description": "why receive hands nothing out though there are messages",
            },
            "partitions": _list(ref("SubscriptionFigures")),
        },
        "name", "topic", "settings", "created",
    ),
    "Ack": _object(
        {
            "ack_ids": _list(TEXT),
            "up_to": {
                "type": ["integer", "string", "null"],
                "description": "an offset or message id: it and all before it (exclusive only)",
            },
            "nack": _list(
                {
                    "anyOf": [
                        TEXT,
                        _object(
                            {"ack_id": TEXT, "delay": {**TIME, "type": ["number", "string"]}},
                            "ack_id",
                            closed=True,
                        ),
                    ]
                }
            ),
            "extend": _list(TEXT),
        },
        closed=True,
    ),
    "Acked": _object({"acked": COUNT}, "acked"),
    "Seek": _object(
        {
            "to": {
                "type": ["string", "integer"],
                "description": "earliest, latest, an offset, a message id, or an RFC 3339 time",
            }
        },
        "to",
        closed=True,
    ),
    "PrivateLedger": _object(
        {
            "id": OFFSET,
            "messages": {"type": "integer", "minimum": 1},
            "bytes": COUNT,
            "first_ms": {"type": "integer", "description": "the oldest timestamp in it"},
            "last_ms": {"type": "integer", "description": "the newest"},
            "disorder_ms": {
                "type": "integer",
                "description": "no batch's newest timestamp lies further below that of an earlier "
                "one; -1, the default: not known",
            },
        },
        "id", "messages", "bytes", "first_ms", "last_ms",
        closed=True,
    ),
    "TransactionPart": _object(
        {"topic": TEXT, "partition": COUNT, "ledgers": _list(ref("PrivateLedger"))},
        "topic", "partition", "ledgers",
        closed=True,
    ),
    "TransactionParts": _object(
        {
            "parts": _list(ref("TransactionPart")),
            "published": {"type": "boolean", "description": "by the caller, which has begun it"},
            "after": _AFTER,
        },
        "parts",
        closed=True,
    ),
    "PublishedParts": _object(
        {
            "parts": _list(
                _object(
                    {
                        "topic": TEXT,
                        "partition": COUNT,
                        "content": {
                            "type": "string",
                            "maxLength": 100,
                            "description": "the caller's own words; a repeat must say the same",
                        },
                    },
                    "topic", "partition", "content",
                    closed=True,
                )
            ),
            "after": _AFTER,
        },
        "parts",
        closed=True,
    ),
    "TransactionTurn": _object(
        {"transaction": TEXT, "batch": COUNT, "repeated": {"type": "boolean"}},
        "transaction", "batch", "repeated",
    ),
    "TransactionBatch": _object(
        {"transaction": NAME, "batch": OFFSET}, "transaction", "batch", closed=True
    ),
    "Transaction": _object(
        {
            "transaction": TEXT,
            "batch": {"type": "integer", "description": "the newest committed one"},
            "complete": {"type": "boolean", "description": "every partition has its part"},
            "repeated": {"type": "boolean", "description": "this call has added nothing"},
            "published": {"type": "boolean", "description": "by its writer, without ledgers"},
            "parts": _list(
                _object(
                    {
                        "topic": TEXT,
                        "partition": COUNT,
                        "messages": COUNT,
                        "offset": {"type": ["integer", "null"], "description": "its first one"},
                        "ledgers": _list(OFFSET),
                    }
                )
            ),
        },
        "transaction", "batch", "complete",
    ),
    "GivenUp": _object({"ledgers": _list(OFFSET)}, "ledgers", closed=True),
    "Spliced": _object({"offset": {"type": ["integer", "null"]}}, "offset"),
    "Ledger": _object(
        {
            "id": OFFSET,
            "state": {"enum": ["OPEN", "IN_RECOVERY", "CLOSED"]},
            "ensemble_size": COUNT,
            "write_quorum": COUNT,
            "ack_quorum": COUNT,
            "digest_type": TEXT,
            "created": {"type": "integer"},
            "last_entry": {"type": ["integer", "null"]},
            "length": {"type": ["integer", "null"]},
            "fragments": _list(_object({"first_entry": COUNT, "bookies": _list(TEXT)})),
            "custom": {"type": "object"},
            "steps": _list({"type": "object"}),
        },
        "id", "state",
    ),
    "Any": {"type": "object"},
}  # fmt: skip
