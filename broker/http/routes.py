"""The table of calls, from which the router and /openapi.json are both made, so that they agree.

Calls on messages, offsets and subscriptions exist twice: for a whole topic, and for a partition
under `…/partitions/{partition}`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo.broker.http.api import access as api_access
from octavo.broker.http.api import answers
from octavo.broker.http.api import bulk_loads as api_bulk_loads
from octavo.broker.http.api import cluster as api_cluster
from octavo.broker.http.api import deliveries as api_acks
from octavo.broker.http.api import deliveries as api_deliveries
from octavo.broker.http.api import durable_streams as api_durable_streams
from octavo.broker.http.api import explain as api_explain
from octavo.broker.http.api import groups as api_groups
from octavo.broker.http.api import large as api_large
from octavo.broker.http.api import publish as api_publish
from octavo.broker.http.api import push as api_push
from octavo.broker.http.api import read as api_read
from octavo.broker.http.api import schemas as api_schemas
from octavo.broker.http.api import security as api_policy
from octavo.broker.http.api import security as api_quotas
from octavo.broker.http.api import security as api_reader_tokens
from octavo.broker.http.api import subscriptions as api_subscriptions
from octavo.broker.http.api import topics as api_topics
from octavo.broker.http.api.access import AccessBody, AccessShown
from octavo.broker.http.api.bulk_loads import AbortBody, BeginBody, CommitBody
from octavo.broker.http.api.deliveries import CREDITS_MAX, AckBody
from octavo.broker.http.api.groups import GroupShown, MemberBody, MemberShown
from octavo.broker.http.api.payloads import MessageIn, MessagesIn
from octavo.broker.http.api.schemas import (
    CompatibilityBody,
    SchemaBody,
    SchemaChecked,
    SchemaShown,
    SubjectShown,
)
from octavo.broker.http.api.security import (
    PolicyBody,
    PolicyShown,
    QuotaBody,
    Quotas,
    QuotaShown,
    UserGroups,
)
from octavo.broker.http.api.subscriptions import ExpireBody, SeekBody, SkipBody
from octavo.broker.http.api.topic_body import NamespaceBody, SubscriptionBody, TopicBody
from octavo.broker.http.api.topics import ForkBody
from octavo.broker.http.call import JSON, NDJSON, RECORD_BATCH
from octavo.broker.http.charges import Charge
from octavo.broker.http.needs import (
    CREATE_TOPIC,
    FORK_TOPIC,
    IN_GROUP,
    INNER,
    LIST_NAMESPACES,
    LIST_TOPICS,
    OPEN,
    SEE_SUBSCRIPTION,
    UNLOAD,
    Needs,
    of_bulk_load,
    of_cluster,
    of_namespace,
    of_schemas,
    of_subscription,
    of_topic,
)
from octavo.broker.http.openapi import encoded, openapi
from octavo.broker.http.router import Answer, Content, Handler, Parameter, Route, Struct
from octavo.broker.http.schemas import ANY, NAME, OFFSET
from octavo.broker.http.stream import EVENTS
from octavo.broker.types import PRIORITY_MAX
from octavo.protocol.append_time import APPEND_TIME_HEADER
from octavo.protocol.leased import ENTRIES_HEADER, LEASE_HEADER, LEASED_HEADER, PARTITION_HEADER
from octavo.security.rules import Operation

PUBLISHES, UPLOADS, TAKES = Charge.PUBLISHES, Charge.UPLOADS, Charge.TAKES
STREAMS, CALLS, FREE = Charge.STREAMS, Charge.CALLS, Charge.FREE
_QUOTA = "/v1/quotas/{subject}"
_DRAIN = "/v1/brokers/{broker}/drain"
_TOPIC = "/v1/topics/{namespace}/{topic}"
_DURABLE = "/v1/durable-streams/{namespace}/{topic}"
_EXAMPLES: dict[str, Any] = {
    "namespace": "public",
    "topic": "flights",
    "partition": 0,
    "subscription": "reports",
    "bulk_load": "nightly-copy",
    "batch": 0,
    "subject": "user:alice",
    "user": "alice",
    "broker": "b0",
    "group": "billing",
    "member": "worker-1",
    "schema_subject": "flights",
    "version": "latest",
    "message": "42",
}
_NAMED: dict[str, dict[str, Any]] = {
    "namespace": NAME,
    "topic": NAME,
    "subscription": NAME,
    "bulk_load": NAME,
    "batch": OFFSET,
    "partition": {"type": "integer", "minimum": 0},
    "ledger": OFFSET,
    "subject": {"type": "string"},
    "user": NAME,
    "entry": OFFSET,
    "broker": {"type": "string"},
    "group": NAME,
    "member": NAME,
    "schema_subject": NAME,
    "version": {"type": "string", "description": "a number, an id, or `latest`"},
    "message": {"type": "string", "description": "an offset, or a message id"},
}


def _in_path(*names: str) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(name, "path", f"the {name}", _NAMED[name], _EXAMPLES.get(name)) for name in names
    )


def _query(name: str, description: str, schema: dict[str, Any], example: Any = None) -> Parameter:
    return Parameter(name, "query", description, schema, example)


def _header(name: str, description: str, example: Any = None) -> Parameter:
    return Parameter(name, "header", description, {"type": "string"}, example)


def _json(struct: Struct | None, example: Any = None) -> tuple[Content, ...]:
    return (Content(JSON, struct or ANY, example),)


def _ok(description: str, struct: Struct | None = None, status: int = 200) -> Answer:
    return Answer(status, description, _json(struct))


def _get(
    path: str,
    handler: Handler,
    name: str,
    summary: str,
    answer: Struct | None,
    tag: str,
    needs: Needs,
    charge: Charge,
) -> Route:
    names = tuple(step[1:-1] for step in path.split("/") if step.startswith("{"))
    return Route(
        method="GET",
        path=path,
        handler=handler,
        name=name,
        tag=tag,
        summary=summary,
        needs=needs,
        charge=charge,
        parameters=_in_path(*names),
        answers=(_ok(summary, answer),),
        problems=(404,) if names else (),
    )


def _both(route: Route, **differs: Any) -> tuple[Route, Route]:
    changes = {
        "path": route.path.replace(_TOPIC, _TOPIC + "/partitions/{partition}"),
        "name": route.name + "_of_partition",
        "summary": route.summary + ", one partition",
        "parameters": (*route.parameters, *_in_path("partition")),
    }
    return route, replace(route, **{**changes, **differs})


_EXPLAINED = _query("subscription", "to be explained as well", {"type": "string"})
_NO_CONTENT = Answer(204, "Done")
_LEASED = {
    PARTITION_HEADER: "with batches: their partition",
    LEASE_HEADER: "with batches: the end of the ack ids, `epoch-number`",
    LEASED_HEADER: "with batches: which offsets are leased, `41:57,60:61*3` (the third delivery)",
    ENTRIES_HEADER: "with batches: their entries, `ledger:entry+count`",
    APPEND_TIME_HEADER: "with batches: base of their append times, `offset=milliseconds`",
}
_NEXT = {"Next-Offset": "where to continue reading"}
_READ = {**_NEXT, APPEND_TIME_HEADER: _LEASED[APPEND_TIME_HEADER]}
_PREFER = _header("Prefer", "`redirect`: answer 307 to the owner instead of forwarding the call")
_REDIRECTED = Answer(
    307,
    "With Prefer: redirect: the owner's address",
    headers={"Location": "the same call at the owner"},
)
_WAIT = _query(
    "wait", "how long to wait for new messages, at most 60 s", {"type": "string"}, "100ms"
)
_GENERATION = _query(
    "generation",
    "of the consumer group that has given its member `consumer` this partition; of one partition",
    {"type": "integer", "minimum": 0},
)
_COMPACTED = _query(
    "compacted",
    "`true`: below the horizon of the partition's compacted view only the messages that it has, "
    "also those that retention has removed from the topic",
    {"enum": ["true", "false"], "default": "false"}, "true",
)  # fmt: skip
_MESSAGE = {"key": "N14228", "value": {"carrier": "UA", "flight": 1545, "delay": 2}}
_LINES = (
    '{"key": "N14228", "value": {"flight": 1545}}\n{"key": "N24211", "value": {"flight": 1714}}\n'
)

_UNLOAD = (
    "By planned hand-over: publishers wait for some tens of milliseconds. Without `to` each goes "
    "to the broker that should have it; if that is its owner, the owner closes and reopens it. "
    "What is given to a named broker stays there until that goes or is drained, or it is unloaded "
    "again."
)
_TO = _query("to", "a live broker's id; default: the preferred broker", {"type": "string"})

_TOPICS = (
    _get(
        "/v1/namespaces", api_topics.list_namespaces, "list_namespaces",
        "All namespaces", None, "topics", LIST_NAMESPACES, CALLS,
    ),
    Route(
        method="PUT", path="/v1/namespaces/{namespace}", handler=api_topics.put_namespace,
        name="put_namespace", charge=CALLS, tag="topics",
        summary="Create a namespace, or change its policies",
        needs=of_namespace(Operation.CREATE),
        description=(
            "`encrypted`: whether new ledgers of its topics are encrypted. `auto_create`: how a "
            "missing topic is created by a publish; null: it is not. All other settings are the "
            "defaults of its topics. Omitted settings do not change."
        ),
        parameters=_in_path("namespace"), body=_json(NamespaceBody, {"encrypted": False}),
        body_required=False,
        answers=(_ok("New", status=201), _ok("It was there")), problems=(422,),
    ),
    _get(
        "/v1/namespaces/{namespace}", api_topics.get_namespace, "get_namespace",
        "One namespace", answers.Namespace, "topics", of_namespace(Operation.DESCRIBE), CALLS,
    ),
    Route(
        method="DELETE", path="/v1/namespaces/{namespace}", handler=api_topics.delete_namespace,
        name="delete_namespace", charge=CALLS, tag="topics", summary="Delete an empty namespace",
        needs=of_namespace(Operation.DELETE),
        parameters=_in_path("namespace"), answers=(_NO_CONTENT,), problems=(404, 409),
    ),
    Route(
        method="GET", path="/v1/topics/{namespace}", handler=api_topics.list_topics,
        name="list_topics", charge=CALLS, tag="topics",
        summary="The topics of a namespace, by name",
        needs=LIST_TOPICS,
        description=(
            "`next`: the value of `after` for the next page, or null; also in the `Link` header."
        ),
        parameters=(
            *_in_path("namespace"),
            _query("after", "only names after this one", {"type": "string"}),
            _query("limit", "names", {"type": "integer", "minimum": 1, "maximum": 10_000}, 10),
            _query(
                "letters", "`true`: also list the topics that get dead letters or retries",
                {"enum": ["true", "false"], "default": "false"},
            ),
        ),
        answers=(_ok("Names", answers.Topics),), problems=(404,),
    ),
    Route(
        method="PUT", path=_TOPIC, handler=api_topics.put_topic_or_auto, name="put_topic",
        charge=CALLS,
        tag="topics", summary="Create a topic", needs=CREATE_TOPIC,
        parameters=(
            *_in_path("namespace", "topic"),
            _query(
                "auto",
                "`true`, without a body: create it by the namespace's `auto_create`, 404 if that "
                "is not set, 200 if the topic exists",
                {"enum": ["true", "false"], "default": "false"},
            ),
            _query(
                "force", "`true`: even if it needs more bookies than there are",
                {"enum": ["true", "false"], "default": "false"},
            ),
        ),
        body=_json(TopicBody, {"partitions": 4}), body_required=False,
        answers=(
            _ok("New", answers.Topic, 201),
            _ok("It was there with the same settings", answers.Topic),
        ),
        problems=(404, 409, 415, 422),
    ),
    _get(
        _TOPIC, api_topics.get_topic, "get_topic", "Settings and live figures", answers.Topic,
        "topics",
        of_topic(Operation.DESCRIBE), CALLS,
    ),
    Route(
        method="PATCH", path=_TOPIC, handler=api_topics.patch_topic, name="patch_topic",
        charge=CALLS,
        tag="topics", summary="Change settings; partitions may only grow",
        needs=of_topic(Operation.ALTER),
        parameters=_in_path("namespace", "topic"),
        body=_json(TopicBody, {"retention": {"time": "7d", "size": "10GB"}}),
        answers=(_ok("Changed", answers.Topic),), problems=(404, 409, 415, 422),
    ),
    Route(
        method="DELETE", path=_TOPIC, handler=api_topics.delete_topic, name="delete_topic",
        charge=CALLS,
        tag="topics", summary="Delete a topic with its ledgers and cursors",
        needs=of_topic(Operation.DELETE),
        description=(
            "After the answer, no broker serves the topic any more and its publishers get no more "
            "acks. A long deletion gets a 503 and continues in the background."
        ),
        parameters=_in_path("namespace", "topic"), answers=(_NO_CONTENT,), problems=(404, 503),
    ),
    Route(
        method="POST", path=_TOPIC + "/fork", handler=api_topics.fork, name="fork_topic",
        charge=CALLS,
        tag="topics", summary="Fork a topic: a new topic begins with its messages, without a copy",
        needs=FORK_TOPIC,
        description=(
            "The fork has the settings of the topic, and its messages before the fork's point, at "
            "their offsets; later messages are separate. Ledgers are shared, and deleted when no "
            "topic has them any more: either topic may be trimmed, forked again or deleted. "
            "Subscriptions, producers' sequences and compacted views are not copied."
        ),
        parameters=_in_path("namespace", "topic"),
        body=_json(ForkBody, {"name": "flights-again", "at": "latest"}),
        answers=(_ok("Forked", answers.Topic, 201),), problems=(404, 409, 410, 415, 416, 422),
    ),
    Route(
        method="GET", path="/v1/operations", handler=api_cluster.connect, name="operations",
        charge=FREE,
        tag="cluster", summary="From broker to broker: switch to the protocol of operations",
        answers=(Answer(101, "Frames follow"),), problems=(403, 426, 503), needs=INNER,
    ),
    Route(
        method="GET", path="/v1/explain/{namespace}/{topic}", handler=api_explain.explain_topic,
        name="explain_topic", charge=CALLS, tag="topics",
        summary="Which broker serves each partition and why, and what delays clients",
        description=(
            "With `subscription` also its limits, and for each consumer its messages and why it "
            "gets no more. A partition whose owner does not answer within 2 s has a `problem`."
        ),
        needs=of_topic(Operation.DESCRIBE),
        parameters=(*_in_path("namespace", "topic"), _EXPLAINED),
        answers=(_ok("All partitions"),), problems=(404,),
    ),
    Route(
        method="GET", path=_TOPIC + "/partitions/{partition}/explain",
        handler=api_explain.explain_partition, name="explain_partition", charge=CALLS, tag="topics",
        summary="Explain one partition", needs=of_topic(Operation.DESCRIBE),
        parameters=(*_in_path("namespace", "topic", "partition"), _EXPLAINED),
        answers=(_ok("This partition", answers.Explained),), problems=(404,),
    ),
    Route(
        method="POST", path=_TOPIC + "/unload", handler=api_cluster.unload_topic,
        name="unload_topic", charge=CALLS, tag="topics",
        summary="Hand all partitions to their preferred brokers, or to one broker",
        description=_UNLOAD, needs=UNLOAD,
        parameters=(*_in_path("namespace", "topic"), _TO),
        answers=(_ok("Where each is served now", answers.UnloadedAll),),
        problems=(404, 409, 503, 504),
    ),
    Route(
        method="POST", path=_TOPIC + "/partitions/{partition}/unload",
        handler=api_cluster.unload_partition, name="unload_partition", charge=CALLS, tag="topics",
        summary="Hand one partition to its preferred broker, or to a given broker",
        description=_UNLOAD, needs=UNLOAD,
        parameters=(*_in_path("namespace", "topic", "partition"), _TO),
        answers=(_ok("Where it is served now", answers.Unloaded),), problems=(404, 409, 503, 504),
    ),
    _get(
        _TOPIC + "/partitions/{partition}", api_topics.get_partition, "get_partition",
        "Live figures of one partition", answers.PartitionFigures, "topics",
        of_topic(Operation.DESCRIBE), CALLS,
    ),
)  # fmt: skip

_PUBLISH_LARGE = Route(
    method="POST", path=_TOPIC + "/large", handler=api_large.publish_large, name="publish_large",
    charge=UPLOADS,
    tag="messages", summary="Publish one large message", needs=of_topic(Operation.PRODUCE),
    description=(
        "The body is the message, of any type, streamed: no broker has all of it in memory. "
        "Readers see the message only when all of it is durable, and never if the call breaks "
        "off. A body of less than a mebibyte is stored as an ordinary message. With a name of "
        "your own in Octavo-Upload, a repeat returns the place of the first message, as long as "
        "that is kept."
    ),
    parameters=(
        *_in_path("namespace", "topic"),
        _header("Octavo-Key", "the key", "N14228"),
        _header("Octavo-Timestamp", "milliseconds or RFC 3339"),
        _header("Octavo-Deliver-At", "shared subscriptions hand it out no earlier"),
        _header("Octavo-Deliver-After", "the same, counted from now: 500ms, 30s, 2h"),
        _header(api_large.UPLOAD_HEADER, "your name for the message: makes a repeat safe"),
        _header("Producer-Access-Epoch", "of the exclusive access that was acquired"),
        _PREFER,
    ),
    body=(
        Content(
            "application/octet-stream", {"type": "string", "format": "binary"}, "a long message"
        ),
    ),
    answers=(
        _ok("All of it is durable", answers.LargePublished),
        _REDIRECTED,
    ),
    problems=(400, 403, 404, 408, 409, 413, 422, 429, 504),
)  # fmt: skip

_MESSAGES = (
    *_both(
        Route(
            method="POST", path=_TOPIC + "/messages", handler=api_publish.publish, name="publish",
            charge=PUBLISHES,
            tag="messages", summary="Publish", needs=of_topic(Operation.PRODUCE),
            description=(
                "The body is one message or several, by Content-Type. A key picks the partition "
                "(murmur2); messages without a key are spread. Every line of NDJSON and every "
                "JSON message has `value` or `value_base64`; `null` is a message without a value. "
                "NDJSON is streamed: lines before an invalid line are stored, and the answer says "
                "how many. Producer-Id, -Epoch and -Seq together make a repeat safe; they and "
                "If-Match need one partition: in the path, or by a single key in the body."
            ),
            parameters=(
                *_in_path("namespace", "topic"),
                _query(
                    "results", "`all`: where each message was stored; `batches`: each batch",
                    {"enum": ["summary", "all", "batches"], "default": "summary"},
                ),
                _header("Octavo-Key", "the key of a raw message", "N14228"),
                _header("Octavo-Timestamp", "of a raw message: milliseconds or RFC 3339"),
                _header(
                    "Octavo-Deliver-At",
                    "of a raw message: shared subscriptions hand it out no earlier; milliseconds "
                    "or RFC 3339",
                ),
                _header("Octavo-Deliver-After", "the same, counted from now: 500ms, 30s, 2h"),
                _header("Producer-Id", "a number below 2^63, or any name"),
                _header("Producer-Epoch", "grows with each instance of the producer"),
                _header("Producer-Seq", "the number of the first message of this request"),
                _header("If-Match", 'store only at this offset: "42"'),
                _header("Producer-Access-Epoch", "of the exclusive access that was acquired"),
                _PREFER,
            ),
            body=(
                Content(JSON, {"anyOf": [MessageIn, MessagesIn]}, _MESSAGE),
                Content(NDJSON, {"type": "string"}, _LINES),
                Content(
                    RECORD_BATCH,
                    {"type": "string", "format": "binary", "description": "stored as sent"},
                ),
                Content("text/plain", {"type": "string"}, "first message"),
            ),
            answers=(
                _ok("All of it is durable", answers.Published),
                Answer(204, "All of it was stored before, by a request with the same sequence"),
                _ok("Only a part was stored: `errors` says why", answers.Published, 207),
                _REDIRECTED,
            ),
            problems=(403, 404, 408, 409, 412, 413, 415, 422, 429, 504),
        )
    ),
    *_both(_PUBLISH_LARGE),
    *_both(replace(_PUBLISH_LARGE, method="PUT", name="put_large", summary="Publish a file")),
    *_both(
        Route(
            method="GET", path=_TOPIC + "/messages/{message}/body", handler=api_large.body,
            name="read_body", charge=TAKES, tag="messages",
            summary="The body of one message, as it is",
            needs=of_topic(Operation.CONSUME),
            description=(
                "For large messages, which other calls show with `large` and an empty value, and "
                "for all others. If the connection breaks off before Content-Length, read again."
            ),
            parameters=(*_in_path("namespace", "topic", "message"), _PREFER),
            answers=(
                Answer(
                    200, "The body",
                    (Content(
                        "application/octet-stream", {"type": "string", "format": "binary"}
                    ),),
                    {"Octavo-Crc32c": "of a large message's body, in hex"},
                ),
                _REDIRECTED,
            ),
            problems=(404, 410, 416, 422),
        )
    ),
    *_both(
        Route(
            method="GET", path=_TOPIC + "/messages", handler=api_read.read, name="read",
            charge=TAKES,
            tag="messages", summary="Read without a subscription",
            needs=of_topic(Operation.CONSUME), waits=True,
            description=(
                "One partition at a time: for a topic with several, name it in the path. Record "
                "batches come whole, so the first may begin before the requested offset; batches "
                "of a compacted view have gaps between the offsets of their records. Server-sent "
                "events (`id` is the offset) and NDJSON with `follow` do not end; record batches "
                "with `follow` end after 15 s without messages, or when the partition moves: call "
                "again."
            ),
            parameters=(
                *_in_path("namespace", "topic"),
                _query(
                    "from", "earliest, latest, an offset, a message id or an RFC 3339 time",
                    {"type": "string", "default": "earliest"}, "earliest",
                ),
                _query("limit", "messages", {"type": "integer", "minimum": 1}, 10),
                _query("max_bytes", "of stored batches", {"type": "integer", "minimum": 1}),
                _COMPACTED,
                _WAIT,
                _query(
                    "follow", "`true`: also future messages: as NDJSON, record batches or "
                    "server-sent events, which need no `follow`",
                    {"type": "boolean", "default": False},
                ),
                _header("Last-Event-ID", "for server-sent events: continue after this offset"),
                _header(
                    "Octavo-Entries",
                    "`before-each`, with record batches and `follow`: before each batch come its "
                    "ledger and its entry, eight bytes each, big-endian",
                ),
                _PREFER,
            ),
            answers=(
                Answer(
                    200, "Messages",
                    (
                        *_json(answers.Messages),
                        Content(NDJSON, {"type": "string"}),
                        Content(RECORD_BATCH, {"type": "string", "format": "binary"}),
                        Content(EVENTS, {"type": "string"}),
                    ),
                    _READ,
                ),
                Answer(204, "Nothing new", headers=_NEXT),
                _REDIRECTED,
            ),
            problems=(404, 406, 410, 416, 422),
        )
    ),
    *_both(
        Route(
            method="DELETE", path=_TOPIC + "/messages", handler=api_read.truncate, name="truncate",
            charge=CALLS,
            tag="messages", summary="Remove the oldest messages, for good",
            needs=of_topic(Operation.DELETE),
            description=(
                "Acked or not: subscriptions skip them, readers get 410 with the first offset that "
                "is left. An earlier place than before changes nothing. An offset or a message id "
                "needs one partition."
            ),
            parameters=(
                *_in_path("namespace", "topic"),
                _query(
                    "before",
                    "the first to be kept: latest, earliest, an offset, a message id or a time",
                    {"type": "string"}, "earliest",
                ),
            ),
            answers=(_ok("Durable", answers.Truncated),), problems=(404, 416, 422),
        )
    ),
    *_both(
        Route(
            method="GET", path=_TOPIC + "/offsets", handler=api_read.offsets, name="offsets",
            charge=CALLS,
            tag="messages", summary="Find offsets", needs=of_topic(Operation.CONSUME),
            parameters=(
                *_in_path("namespace", "topic"),
                _query(
                    "at", "earliest, latest, or an RFC 3339 time",
                    {"type": "string", "default": "latest"}, "latest",
                ),
                _COMPACTED,
            ),
            answers=(_ok("One for each partition", answers.Offsets),), problems=(404,),
        )
    ),
)  # fmt: skip

_ACCESS_PATH = _TOPIC + "/partitions/{partition}/producer-access"
_ACCESS = (
    Route(
        method="POST", path=_ACCESS_PATH, handler=api_access.acquire, name="acquire_access",
        charge=CALLS,
        tag="messages", summary="Become the only producer of a partition",
        needs=of_topic(Operation.PRODUCE), waits=True,
        description=(
            "From then on a publish needs `Producer-Access-Epoch`, with the epoch of the answer. "
            "All messages that others had published lie before `next_offset` and are durable. With "
            "`fencing` the present holder loses the access; otherwise the call waits, for up to "
            "`wait`, for a holder that called within its session timeout."
        ),
        parameters=(*_in_path("namespace", "topic", "partition"), _WAIT),
        body=_json(AccessBody, {"producer": "loader", "fencing": True}),
        answers=(_ok("It is yours", AccessShown),), problems=(404, 409, 415, 422, 504),
    ),
    _get(
        _ACCESS_PATH, api_access.show, "get_access", "The only producer, if any",
        AccessShown, "messages", of_topic(Operation.DESCRIBE), CALLS,
    ),
    Route(
        method="DELETE", path=_ACCESS_PATH, handler=api_access.release, name="release_access",
        charge=CALLS,
        tag="messages", summary="Let others publish again", needs=of_topic(Operation.PRODUCE),
        parameters=(
            *_in_path("namespace", "topic", "partition"),
            _query("epoch", "the one that was acquired", {"type": "integer", "minimum": 0}, 1),
        ),
        answers=(_NO_CONTENT,), problems=(400, 403, 404, 504),
    ),
)  # fmt: skip

_READER_TOKENS = (
    Route(
        method="POST", path=_TOPIC + "/reader-token", handler=api_reader_tokens.issue,
        needs=of_topic(Operation.CONSUME),
        name="issue_reader_token", charge=TAKES, tag="messages",
        summary="A token to read the topic's ledgers from the bookies",
        description=(
            "For readers that have the metadata's records of these ledgers, and reach the bookies. "
            "Show it to a bookie in AUTH. It names the present ledgers, and ends after ten minutes."
        ),
        parameters=(
            *_in_path("namespace", "topic"),
            _query("partition", "only its ledgers", {"type": "integer", "minimum": 0}, 0),
        ),
        answers=(_ok("Token, ledgers, `expires_at` in milliseconds"),), problems=(404, 422),
    ),
)  # fmt: skip

_SUBSCRIPTION = _TOPIC + "/subscriptions/{subscription}"
_SUBSCRIPTION_PATH = _in_path("namespace", "topic", "subscription")
_PRIORITY = _query(
    "priority", "of the consumer: 0 is served first, others get the rest",
    {"type": "integer", "minimum": 0, "maximum": PRIORITY_MAX, "default": 0}, 1,
)  # fmt: skip
_SUBSCRIPTIONS = (
    _get(
        _TOPIC + "/subscriptions", api_subscriptions.list_subscriptions, "list_subscriptions",
        "The subscriptions of a topic", None, "subscriptions", of_topic(Operation.DESCRIBE), CALLS,
    ),
    *_both(
        Route(
            method="PUT", path=_SUBSCRIPTION, handler=api_subscriptions.put_subscription,
            name="put_subscription", charge=CALLS, tag="subscriptions",
            summary="Create a subscription",
            needs=of_subscription(Operation.CREATE),
            parameters=_SUBSCRIPTION_PATH,
            body=_json(SubscriptionBody, {"type": "shared"}), body_required=False,
            answers=(
                _ok("New", answers.Subscription, 201),
                _ok("It was there with the same settings", answers.Subscription),
            ),
            problems=(404, 409, 415, 422),
        ),
        summary="Make the cursor of a subscription in one partition, if it is missing",
        body=(),
        answers=(_ok("It is there", answers.SubscriptionFigures),),
    ),
    *_both(
        Route(
            method="GET", path=_SUBSCRIPTION, handler=api_subscriptions.get_subscription,
            name="get_subscription", charge=CALLS, tag="subscriptions",
            summary="Settings and live figures",
            needs=SEE_SUBSCRIPTION,
            parameters=_SUBSCRIPTION_PATH, answers=(_ok("Found", answers.Subscription),),
            problems=(404,),
        ),
        answers=(_ok("Found", answers.SubscriptionFigures),),
    ),
    Route(
        method="DELETE", path=_SUBSCRIPTION, handler=api_subscriptions.delete_subscription,
        name="delete_subscription", charge=CALLS, tag="subscriptions",
        summary="Delete a subscription",
        needs=of_subscription(Operation.DELETE),
        parameters=_SUBSCRIPTION_PATH, answers=(_NO_CONTENT,), problems=(404,),
    ),
    *_both(
        Route(
            method="POST", path=_SUBSCRIPTION + "/receive", handler=api_deliveries.receive,
            name="receive", charge=TAKES, tag="subscriptions", summary="Receive",
            needs=of_subscription(Operation.CONSUME), waits=True,
            description=(
                "Messages, each leased to the consumer for the subscription's ack timeout. Until "
                "then an ack_id is valid at any broker. From one partition also as stored record "
                "batches, if that is accepted and not longer than JSON: headers say which of their "
                "messages are leased."
            ),
            parameters=(
                *_SUBSCRIPTION_PATH,
                _query("max", "messages", {"type": "integer", "minimum": 1}, 10),
                _WAIT,
                _query("consumer", "who asks", {"type": "string", "default": "default"}, "me"),
                _query(
                    "request",
                    "any text, different for each call: if the answer was lost, repeat the call to "
                    "get the same messages. If it ends in an ascending number, a late copy of an "
                    "earlier call gets none. For one partition; ignored for several",
                    {"type": "string", "maxLength": 64}, "7f3a-1",
                ),
                _query(
                    "credits", "no more than so many messages of each partition are out at this "
                    "consumer, unacked",
                    {"type": "integer", "minimum": 1, "maximum": CREDITS_MAX}, 100,
                ),
                _GENERATION,
                _PRIORITY,
            ),
            answers=(
                Answer(
                    200, "Messages; or none, and `held_back` says why",
                    (
                        *_json(answers.Received),
                        Content(NDJSON, {"type": "string"}),
                        Content(RECORD_BATCH, {"type": "string", "format": "binary"}),
                    ),
                    _LEASED,
                ),
                Answer(204, "Nothing to receive"),
            ),
            problems=(404, 409),
        )
    ),
    *_both(
        Route(
            method="GET", path=_SUBSCRIPTION + "/stream", handler=api_push.stream,
            name="stream", charge=STREAMS, tag="subscriptions", summary="Receive without end",
            needs=of_subscription(Operation.CONSUME), waits=True,
            description=(
                "Messages as they come, each leased as by `receive`, even when their owners die: "
                "server-sent events, NDJSON, or a WebSocket (`Upgrade: websocket`). Ack events and "
                "lines by `ack`. A WebSocket takes the bodies of `ack` as text frames, with a "
                "`request` of any kind that the answer repeats; when it closes, unacked messages "
                "are given back."
            ),
            parameters=(
                *_SUBSCRIPTION_PATH,
                _query(
                    "consumer", "its name; by default each stream is a separate consumer, unless "
                    "the subscription is exclusive",
                    {"type": "string"}, "me",
                ),
                _query(
                    "credits", "the most unacked messages of each partition",
                    {"type": "integer", "minimum": 1, "maximum": CREDITS_MAX, "default": 1000}, 100,
                ),
                _query(
                    "form", "for a WebSocket: `batches`, as stored, in binary frames, where that "
                    "is not longer",
                    {"enum": ["json", "batches"], "default": "json"}, "json",
                ),
                _GENERATION,
                _PRIORITY,
            ),
            answers=(
                Answer(101, "A WebSocket"),
                Answer(
                    200, "A stream",
                    (
                        Content(EVENTS, {"type": "string"}),
                        Content(NDJSON, {"type": "string"}),
                    ),
                ),
            ),
            problems=(400, 403, 404, 406, 409, 422, 503),
        )
    ),
    *_both(
        Route(
            method="POST", path=_SUBSCRIPTION + "/ack", handler=api_acks.acknowledge,
            name="acknowledge", charge=CALLS, tag="subscriptions",
            summary="Acknowledge, give back, or extend",
            needs=of_subscription(Operation.CONSUME),
            parameters=_SUBSCRIPTION_PATH, body=_json(AckBody, {"ack_ids": []}),
            answers=(_ok("All of it is durable", answers.Acked),),
            problems=(404, 409, 415, 422, 504),
        )
    ),
    *_both(
        Route(
            method="POST", path=_SUBSCRIPTION + "/seek", handler=api_subscriptions.seek,
            name="seek", charge=CALLS, tag="subscriptions", summary="Set the cursor",
            needs=of_subscription(Operation.CONSUME),
            parameters=_SUBSCRIPTION_PATH, body=_json(SeekBody, {"to": "earliest"}),
            answers=(_ok("Where the cursors are now"),), problems=(404, 410, 415, 416, 422),
        )
    ),
    *_both(
        Route(
            method="GET", path=_SUBSCRIPTION + "/peek", handler=api_subscriptions.peek,
            name="peek", charge=TAKES, tag="subscriptions",
            summary="Show the first unacked messages",
            needs=of_subscription(Operation.CONSUME),
            description="Nothing is leased, and nothing counts as delivered.",
            parameters=(
                *_SUBSCRIPTION_PATH,
                _query(
                    "max", "messages",
                    {"type": "integer", "minimum": 1, "default": api_subscriptions.PEEK_DEFAULT},
                    10,
                ),
            ),
            answers=(_ok("Messages, without ack ids", answers.Messages),), problems=(404,),
        )
    ),
    *_both(
        Route(
            method="POST", path=_SUBSCRIPTION + "/skip", handler=api_subscriptions.skip,
            name="skip", charge=CALLS, tag="subscriptions",
            summary="Ack the first unacked messages",
            needs=of_subscription(Operation.CONSUME),
            parameters=_SUBSCRIPTION_PATH, body=_json(SkipBody, {"messages": 1}),
            answers=(_ok("It is durable", answers.Moved),), problems=(404, 415, 422, 504),
        )
    ),
    *_both(
        Route(
            method="POST", path=_SUBSCRIPTION + "/expire", handler=api_subscriptions.expire,
            name="expire", charge=CALLS, tag="subscriptions",
            summary="Ack all messages that are too old",
            needs=of_subscription(Operation.CONSUME),
            parameters=_SUBSCRIPTION_PATH, body=_json(ExpireBody, {"older_than": "7d"}),
            answers=(_ok("It is durable", answers.Moved),), problems=(404, 415, 422, 504),
        )
    ),
)  # fmt: skip

_MEMBER = "/v1/groups/{namespace}/{group}/members/{member}"
_GROUPS = (
    Route(
        method="POST", path=_MEMBER, handler=api_groups.beat, name="beat", charge=CALLS,
        tag="subscriptions",
        summary="Be a member of a consumer group, and learn its partitions",
        needs=IN_GROUP, waits=True,
        description=(
            "Call this repeatedly, at least once in a session timeout. Members share the "
            "partitions of all topics that they name; a partition belongs to one member at a "
            "time. The answer comes when the member should have other partitions than it `holds`, "
            "or after `wait` (at most half a session timeout). From a partition that is not in "
            "the answer, stop receiving, ack or give back its messages, and omit it from `holds` "
            "in the next call: only then another member gets it."
        ),
        parameters=(*_in_path("namespace", "group", "member"), _WAIT),
        body=_json(MemberBody, {"topics": ["flights"]}),
        answers=(_ok("What it has", MemberShown),), problems=(403, 404, 409, 415, 422),
    ),
    Route(
        method="DELETE", path=_MEMBER, handler=api_groups.leave, name="leave_group", charge=CALLS,
        tag="subscriptions", summary="Leave a consumer group: others get its partitions at once",
        needs=IN_GROUP, parameters=_in_path("namespace", "group", "member"),
        answers=(_NO_CONTENT,), problems=(403,),
    ),
    _get(
        "/v1/groups/{namespace}/{group}", api_groups.show, "get_group",
        "The members of a consumer group", GroupShown, "subscriptions", IN_GROUP,
        CALLS,
    ),
)  # fmt: skip

_SUBJECT = "/v1/schemas/subjects/{namespace}/{schema_subject}"
_OF_SUBJECT = _in_path("namespace", "schema_subject")
_SCHEMA = {"type": "json", "schema": {"type": "object", "required": ["flight"]}}
_SCHEMAS = (
    _get(
        "/v1/schemas/subjects/{namespace}", api_schemas.list_subjects, "list_schema_subjects",
        "The subjects of a namespace", None, "schemas", of_namespace(Operation.DESCRIBE), CALLS,
    ),
    Route(
        method="POST", path=_SUBJECT + "/versions", handler=api_schemas.register_schema,
        name="register_schema", charge=CALLS, tag="schemas",
        summary="Register a schema as the next version",
        needs=of_schemas(Operation.ALTER),
        description="If the schema is registered already, returns that version.",
        parameters=_OF_SUBJECT, body=_json(SchemaBody, _SCHEMA),
        answers=(_ok("New", SchemaShown, 201), _ok("It was there", SchemaShown)),
        problems=(409, 415, 422),
    ),
    Route(
        method="POST", path=_SUBJECT + "/check", handler=api_schemas.check_schema,
        name="check_schema", charge=CALLS, tag="schemas",
        summary="Whether a schema may be the next version",
        needs=of_schemas(Operation.DESCRIBE), parameters=_OF_SUBJECT,
        body=_json(SchemaBody, _SCHEMA), answers=(_ok("Yes or no", SchemaChecked),),
        problems=(415, 422),
    ),
    _get(
        _SUBJECT, api_schemas.get_subject, "get_schema_subject", "A subject and its versions",
        SubjectShown, "schemas", of_schemas(Operation.DESCRIBE), CALLS,
    ),
    Route(
        method="PUT", path=_SUBJECT, handler=api_schemas.put_subject, name="put_schema_subject",
        charge=CALLS,
        tag="schemas", summary="What a new version has to be compatible with",
        needs=of_schemas(Operation.ALTER), parameters=_OF_SUBJECT,
        body=_json(CompatibilityBody, {"compatibility": "BACKWARD"}),
        answers=(_ok("Set", SubjectShown),), problems=(409, 415, 422),
    ),
    _get(
        _SUBJECT + "/versions/{version}", api_schemas.get_schema, "get_schema",
        "One version, by its number, its id, or `latest`", SchemaShown, "schemas",
        of_schemas(Operation.DESCRIBE), CALLS,
    ),
    Route(
        method="DELETE", path=_SUBJECT, handler=api_schemas.delete_subject,
        name="delete_schema_subject", charge=CALLS, tag="schemas",
        summary="Delete a subject with all its versions", needs=of_schemas(Operation.DELETE),
        parameters=_OF_SUBJECT, answers=(_NO_CONTENT,), problems=(404, 409),
    ),
)  # fmt: skip

_BATCH = "/v1/bulk-loads/{bulk_load}/batches/{batch}"
_OF_BATCH = (
    *_in_path("bulk_load", "batch"),
    _header(
        api_bulk_loads.TOKEN_HEADER,
        "known to the id's owner alone; the first one given binds the id",
    ),
    _header(
        api_bulk_loads.CLUSTER_HEADER,
        "the cluster that the token was made for; another cluster refuses the call",
    ),
)
_BULK_LOADS = (
    Route(
        method="POST", path=_BATCH + "/commit", handler=api_bulk_loads.commit,
        name="commit_bulk_load", charge=CALLS, tag="bulk-loads",
        summary="Make closed ledgers part of their partitions, all or none of them",
        needs=of_bulk_load(Operation.PRODUCE, in_body=True),
        description=(
            "For writers that put record batches into ledgers of their own, straight at the "
            "bookies. A batch that is not newer than the newest committed one is a repeat and "
            "changes nothing, so the call is safe to make again; a newer one has to be the next. "
            "The answer comes when every partition has its part."
        ),
        parameters=_OF_BATCH, body=_json(CommitBody, {"parts": []}),
        answers=(_ok("All of it is visible", answers.BulkLoad),),
        problems=(403, 404, 409, 415, 422),
    ),
    Route(
        method="POST", path=_BATCH + "/begin", handler=api_bulk_loads.begin,
        name="begin_bulk_load", charge=CALLS, tag="bulk-loads",
        summary="Note that the caller will publish a batch by itself, and what",
        needs=of_bulk_load(Operation.PRODUCE, in_body=True),
        description=(
            "For small batches that an idempotent producer publishes, one record batch to each "
            "partition, between this call and a commit with `published`. A repeat must have the "
            "same content. `repeated`: the batch was committed before, and is not to be published."
        ),
        parameters=_OF_BATCH, body=_json(BeginBody, {"parts": []}),
        answers=(_ok("It may be published", answers.BulkLoadTurn),),
        problems=(403, 404, 409, 415, 422),
    ),
    Route(
        method="POST", path=_BATCH + "/abort", handler=api_bulk_loads.abort,
        name="abort_bulk_load", charge=CALLS, tag="bulk-loads",
        summary="Give up ledgers of a batch; those that no partition has are deleted",
        needs=of_bulk_load(Operation.PRODUCE),
        parameters=_OF_BATCH, body=_json(AbortBody, {"ledgers": []}),
        answers=(_ok("What was deleted", AbortBody),), problems=(403, 409, 415, 422),
    ),
    _get(
        "/v1/bulk-loads/{bulk_load}", api_bulk_loads.get_bulk_load, "get_bulk_load",
        "The newest committed batch, and whether all of it is visible", answers.BulkLoad,
        "bulk-loads", of_bulk_load(Operation.DESCRIBE), CALLS,
    ),
)  # fmt: skip

_CLUSTER = (
    Route(
        method="GET", path="/v1/ledgers", handler=api_cluster.list_ledgers, name="list_ledgers",
        charge=CALLS,
        tag="cluster", summary="Ledger ids, ascending", needs=of_cluster(Operation.DESCRIBE),
        parameters=(
            _query("after", "only larger ids", {"type": "integer"}),
            _query("limit", "ids", {"type": "integer", "minimum": 1}, 10),
        ),
        answers=(_ok("Ids"),),
    ),
    _get(
        "/v1/ledgers/{ledger}", api_cluster.get_ledger, "get_ledger",
        "A ledger's metadata", answers.Ledger, "cluster", of_cluster(Operation.DESCRIBE), CALLS,
    ),
    _get(
        "/v1/ledgers/{ledger}/entries/{entry}", api_cluster.get_entry, "get_entry",
        "One entry; Accept: application/octet-stream gives its payload", None, "cluster",
        of_cluster(Operation.ADMIN), TAKES,
    ),
    Route(
        method="POST", path="/v1/ledgers/{ledger}/recover", handler=api_cluster.recover_ledger,
        name="recover_ledger", charge=CALLS, tag="cluster",
        summary="Fence a ledger, find its end, close it",
        needs=of_cluster(Operation.ADMIN),
        description=(
            "Its writer gets no further ack. A ledger that a living broker writes for a topic is "
            "refused (409, with the owner) unless forced; the owner then opens a new ledger."
        ),
        parameters=(
            *_in_path("ledger"),
            _query(
                "force", "also a ledger in use; once a minute at one broker",
                {"type": "string", "enum": ["false", "true"]}, "false",
            ),
        ),
        answers=(_ok("Closed", answers.Ledger),), problems=(404, 409),
    ),
    _get(
        "/v1/bookies", api_cluster.list_bookies, "list_bookies", "Bookies", None, "cluster",
        of_cluster(Operation.DESCRIBE), CALLS,
    ),
    _get(
        "/v1/brokers", api_cluster.list_brokers, "list_brokers", "Brokers", None, "cluster",
        of_cluster(Operation.DESCRIBE), CALLS,
    ),
    Route(
        method="POST", path=_DRAIN, handler=api_cluster.drain_broker, name="drain_broker",
        charge=CALLS,
        tag="cluster", summary="Have a broker give all that it serves to others",
        description=(
            "By planned hand-over, several partitions at once; `partitions` of `/v1/brokers` tells "
            "how many are left. It is preferred for nothing until it is started anew, or the drain "
            "undone."
        ),
        needs=of_cluster(Operation.ADMIN), parameters=_in_path("broker"),
        answers=(_ok("It has begun", answers.Drained),), problems=(404, 409, 503, 504),
    ),
    Route(
        method="DELETE", path=_DRAIN, handler=api_cluster.undrain_broker, name="undrain_broker",
        charge=CALLS,
        tag="cluster", summary="Have a drained broker be like any other again",
        needs=of_cluster(Operation.ADMIN), parameters=_in_path("broker"),
        answers=(_ok("It will be given its share", answers.Drained),), problems=(404, 503, 504),
    ),
    _get(
        "/v1/cluster", api_cluster.get_cluster, "get_cluster", "All of it", None, "cluster",
        of_cluster(Operation.DESCRIBE), CALLS,
    ),
    _get(
        "/v1/quotas", api_quotas.list_quotas, "list_quotas", "All quotas", Quotas, "cluster",
        of_cluster(Operation.DESCRIBE), CALLS,
    ),
    _get(
        _QUOTA, api_quotas.get_quota, "get_quota", "What is set for one, and what holds",
        QuotaShown, "cluster", of_cluster(Operation.DESCRIBE), CALLS,
    ),
    Route(
        method="PUT", path=_QUOTA, handler=api_quotas.put_quota, name="put_quota", charge=CALLS,
        tag="cluster",
        summary="Set what one may do, in place of what was set", needs=of_cluster(Operation.ALTER),
        description="`user:NAME`, `user:*`, `anonymous`, `namespace:NS` or `namespace:*`.",
        parameters=_in_path("subject"),
        body=_json(QuotaBody, {"publish_bytes": 10_000_000, "requests": 100}),
        answers=(_ok("It is set; all brokers keep to it within seconds", QuotaShown),),
        problems=(415, 422),
    ),
    Route(
        method="DELETE", path=_QUOTA, handler=api_quotas.delete_quota, name="delete_quota",
        charge=CALLS,
        tag="cluster", summary="From now on the default holds", needs=of_cluster(Operation.ALTER),
        parameters=_in_path("subject"), answers=(_NO_CONTENT,), problems=(422,),
    ),
    _get(
        "/v1/policy", api_policy.get_policy, "get_policy", "Who may do what: all rules and roles",
        PolicyShown, "cluster", of_cluster(Operation.ADMIN), CALLS,
    ),
    Route(
        method="GET", path="/v1/policy/groups/{user}", handler=api_policy.get_user_groups,
        name="get_user_groups", charge=CALLS, tag="cluster",
        summary="The groups in a user's record",
        description="Of a user without a record there are none; a token may name others.",
        needs=of_cluster(Operation.ADMIN), parameters=_in_path("user"),
        answers=(_ok("As principals", UserGroups),), problems=(422,),
    ),
    Route(
        method="PUT", path="/v1/policy", handler=api_policy.put_policy, name="put_policy",
        charge=CALLS,
        tag="cluster", summary="Change who may do what, all of it at once",
        needs=of_cluster(Operation.ADMIN),
        description="Of a cluster that is secured. Whoever calls must still administer it then.",
        parameters=(_header("If-Match", "the ETag of the policy that is replaced", '"7"'),),
        body=_json(PolicyBody, {"rules": [], "roles": []}),
        answers=(_ok("All brokers and bookies go by it within seconds", PolicyShown),),
        problems=(409, 412, 415, 422),
    ),
    Route(
        method="POST", path="/v1/cluster/clock", handler=api_cluster.confirm_clock,
        name="confirm_clock", charge=CALLS, tag="cluster", summary="This broker's clock is right",
        needs=of_cluster(Operation.ALTER),
        description="Deletion by age goes by it from now on, at all brokers.",
        answers=(_ok("The time that is gone by"),),
    ),
    _get(
        "/healthz", api_cluster.healthz, "healthz", "The process answers", None,
        "health", OPEN, FREE,
    ),
    _get(
        "/readyz", api_cluster.readyz, "readyz", "The broker takes part", None,
        "health", OPEN, FREE,
    ),
    Route(
        method="GET", path="/metrics", handler=api_cluster.metrics, name="metrics", charge=FREE,
        tag="health",
        summary="Prometheus text", needs=of_cluster(Operation.DESCRIBE),
        answers=(Answer(200, "Metrics", (Content("text/plain", {"type": "string"}),)),),
    ),
    _get("/openapi.json", openapi, "openapi", "This API", None, "health", OPEN, FREE),
    Route(
        method="GET", path="/", handler=api_cluster.status_page, name="status_page", charge=FREE,
        tag="health",
        summary="The cluster on one page", needs=of_cluster(Operation.DESCRIBE),
        answers=(Answer(200, "HTML", (Content("text/html", {"type": "string"}),)),),
    ),
)  # fmt: skip

_BYTES = (Content("text/plain", {"type": "string"}, "one more line"),)
_STREAM_NEXT = {"Stream-Next-Offset": "the end of the stream, to read on from"}
_IN_STREAM = (
    *_in_path("namespace"), Parameter("topic", "path", "the stream's topic", NAME, "story"),
)  # fmt: skip
_DURABLE_STREAMS = (
    Route(
        method="PUT", path=_DURABLE, handler=api_durable_streams.put_stream, name="put_stream",
        charge=PUBLISHES,
        tag="streams", summary="Make a durable stream, or see that it is there", needs=CREATE_TOPIC,
        description="The body, if there is one, is what it begins with. Its `Content-Type` is the "
        "stream's: of `application/json` each element of an array is a message.",
        parameters=(
            *_IN_STREAM,
            _header("Stream-TTL", "seconds without a read or write after which it goes"),
            _header("Stream-Expires-At", "when it goes, RFC 3339"),
            _header("Stream-Closed", "`true`: nothing will follow"),
            _header("Stream-Forked-From", "path of the stream that it begins as, uncopied"),
            _header("Stream-Fork-Offset", "before which offset of that one; default: its end"),
            _header("Stream-Fork-Sub-Offset", "so many messages, or bytes of one, beyond that"),
        ),
        body=_BYTES, body_required=False, any_query=True,
        answers=(
            Answer(201, "Made", (), _STREAM_NEXT),
            Answer(200, "It was there, and is just that", (), _STREAM_NEXT),
        ),
        problems=(400, 404, 409, 413),
    ),
    Route(
        method="POST", path=_DURABLE, handler=api_durable_streams.append, name="publish_of_stream",
        charge=PUBLISHES,
        tag="streams", summary="Append to a durable stream, or close it",
        needs=of_topic(Operation.PRODUCE),
        parameters=(
            *_IN_STREAM,
            _header("Stream-Seq", "must be higher than the last one, letter by letter"),
            _header("Stream-Closed", "`true`: nothing follows this, which may be empty"),
            _header("Producer-Id", "who counts its appends"),
            _header("Producer-Epoch", "which instance of it"),
            _header("Producer-Seq", "which append, from 0 on"),
        ),
        body=_BYTES, body_required=False, any_query=True,
        answers=(
            Answer(204, "Stored; of a producer that counts: it was before", (), _STREAM_NEXT),
            Answer(200, "Stored, of a producer that counts", (), _STREAM_NEXT),
        ),
        problems=(400, 404, 409, 410, 413, 504),
    ),
    Route(
        method="GET", path=_DURABLE, handler=api_durable_streams.read, name="read_of_stream",
        charge=TAKES,
        tag="streams", summary="Read a durable stream; HEAD: what it is and where it ends",
        needs=of_topic(Operation.CONSUME), waits=True, any_query=True,
        parameters=(
            *_IN_STREAM,
            _query("offset", "where to begin: `-1`, `now`, or as told", {"type": "string"}, "-1"),
            _query(
                "live", "wait for more: one answer, or events", {"enum": ["long-poll", "sse"]}
            ),
            _query("cursor", "the `Stream-Cursor` of the answer before", {"type": "string"}),
            _header("If-None-Match", "the `ETag` of an answer: 304 when there is no more"),
        ),
        answers=(
            Answer(200, "What there is", _BYTES, _STREAM_NEXT),
            Answer(204, "Nothing has come", (), _STREAM_NEXT),
            Answer(304, "Nothing has changed"),
        ),
        problems=(400, 404, 410),
    ),
    Route(
        method="DELETE", path=_DURABLE, handler=api_durable_streams.delete_stream,
        name="delete_stream", charge=CALLS, tag="streams", summary="Delete a durable stream",
        needs=of_topic(Operation.DELETE),
        parameters=_IN_STREAM, answers=(_NO_CONTENT,),
        problems=(404, 410, 503), any_query=True,
    ),
)  # fmt: skip

ROUTES: tuple[Route, ...] = (
    *_MESSAGES, *_ACCESS, *_DURABLE_STREAMS, *_READER_TOKENS, *_TOPICS, *_SUBSCRIPTIONS, *_GROUPS,
    *_SCHEMAS, *_BULK_LOADS, *_CLUSTER,
)  # fmt: skip
OPENAPI = encoded(ROUTES)
