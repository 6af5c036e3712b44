"""The one table of calls: the router and /openapi.json are both made from it, so they agree.

Calls on messages, offsets and subscriptions exist twice: for a whole topic, and for one partition
under `…/partitions/{partition}`. `_both` makes the pair.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo.broker.http.api import acks as api_acks
from octavo.broker.http.api import bulk_loads as api_bulk_loads
from octavo.broker.http.api import cluster as api_cluster
from octavo.broker.http.api import deliveries as api_deliveries
from octavo.broker.http.api import publish as api_publish
from octavo.broker.http.api import push as api_push
from octavo.broker.http.api import read as api_read
from octavo.broker.http.api import subscriptions as api_subscriptions
from octavo.broker.http.api import topics as api_topics
from octavo.broker.http.api.deliveries import CREDITS_MAX
from octavo.broker.http.call import JSON, NDJSON, RECORD_BATCH
from octavo.broker.http.openapi import openapi
from octavo.broker.http.pages import EVENTS
from octavo.broker.http.router import Answer, Content, Handler, Parameter, Route
from octavo.broker.http.schemas import NAME, OFFSET, ref
from octavo.protocol.leased import ENTRIES_HEADER, LEASE_HEADER, LEASED_HEADER, PARTITION_HEADER

_TOPIC = "/v1/topics/{namespace}/{topic}"
_EXAMPLES: dict[str, Any] = {
    "namespace": "public",
    "topic": "flights",
    "partition": 0,
    "subscription": "reports",
    "bulk_load": "nightly-copy",
    "batch": 0,
}
_NAMED: dict[str, dict[str, Any]] = {
    "namespace": NAME,
    "topic": NAME,
    "subscription": NAME,
    "bulk_load": NAME,
    "batch": OFFSET,
    "partition": {"type": "integer", "minimum": 0},
    "ledger": OFFSET,
    "entry": OFFSET,
}


def _in_path(*names: str) -> tuple[Parameter, ...]:
    """Variables of the path."""
    return tuple(
        Parameter(name, "path", f"the {name}", _NAMED[name], _EXAMPLES.get(name)) for name in names
    )


def _query(name: str, description: str, schema: dict[str, Any], example: Any = None) -> Parameter:
    """A parameter behind the question mark."""
    return Parameter(name, "query", description, schema, example)


def _header(name: str, description: str, example: Any = None) -> Parameter:
    """A header of the request."""
    return Parameter(name, "header", description, {"type": "string"}, example)


def _json(schema: str, example: Any = None) -> tuple[Content, ...]:
    """A body of JSON."""
    return (Content(JSON, ref(schema), example),)


def _ok(description: str, schema: str = "Any", status: int = 200) -> Answer:
    """An answer that says yes."""
    return Answer(status, description, _json(schema))


def _get(path: str, handler: Handler, name: str, summary: str, answer: str, tag: str) -> Route:
    """A plain GET of something that has a path and nothing else."""
    names = tuple(step[1:-1] for step in path.split("/") if step.startswith("{"))
    return Route(
        method="GET",
        path=path,
        handler=handler,
        name=name,
        tag=tag,
        summary=summary,
        parameters=_in_path(*names),
        answers=(_ok(summary, answer),),
        problems=(404,) if names else (),
    )


def _both(route: Route, **differs: Any) -> tuple[Route, Route]:
    """The call on a topic, and the same on one of its partitions."""
    changes = {
        "path": route.path.replace(_TOPIC, _TOPIC + "/partitions/{partition}"),
        "name": route.name + "_of_partition",
        "summary": route.summary + ", one partition",
        "parameters": (*route.parameters, *_in_path("partition")),
    }
    return route, replace(route, **{**changes, **differs})


_NO_CONTENT = Answer(204, "Done")
_LEASED = {
    PARTITION_HEADER: "of batches: their partition",
    LEASE_HEADER: "of batches: the end of the ack ids, `epoch-number`",
    LEASED_HEADER: "of batches: which offsets are leased, `41:57,60:61*3` (the third delivery)",
    ENTRIES_HEADER: "of batches: which entries they are, `ledger:entry+count`",
}
_NEXT = {"Next-Offset": "where to go on reading"}
_PREFER = _header("Prefer", "`redirect`: answer 307 to the owner instead of passing the call on")
_WAIT = _query(
    "wait", "how long to wait for something new, at most 60 s", {"type": "string"}, "100ms"
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

_TOPICS = (
    _get(
        "/v1/namespaces", api_topics.list_namespaces, "list_namespaces",
        "All namespaces", "Any", "topics",
    ),
    Route(
        method="PUT", path="/v1/namespaces/{namespace}", handler=api_topics.put_namespace,
        name="put_namespace", tag="topics", summary="Create a namespace",
        parameters=_in_path("namespace"), body=_json("Any", {}), body_required=False,
        answers=(_ok("New", status=201), _ok("It was there")), problems=(422,),
    ),
    _get(
        "/v1/namespaces/{namespace}", api_topics.get_namespace, "get_namespace",
        "One namespace", "Any", "topics",
    ),
    Route(
        method="DELETE", path="/v1/namespaces/{namespace}", handler=api_topics.delete_namespace,
        name="delete_namespace", tag="topics", summary="Delete an empty namespace",
        parameters=_in_path("namespace"), answers=(_NO_CONTENT,), problems=(404, 409),
    ),
    Route(
        method="GET", path="/v1/topics/{namespace}", handler=api_topics.list_topics,
        name="list_topics", tag="topics", summary="The topics of a namespace, by name",
        description="`next` is null, or where to go on `after`; so says the `Link` header.",
        parameters=(
            *_in_path("namespace"),
            _query("after", "only names behind it", {"type": "string"}),
            _query("limit", "names", {"type": "integer", "minimum": 1, "maximum": 10_000}, 10),
        ),
        answers=(_ok("Names", "Topics"),), problems=(404,),
    ),
    Route(
        method="PUT", path=_TOPIC, handler=api_topics.put_topic, name="put_topic", tag="topics",
        summary="Create a topic", parameters=_in_path("namespace", "topic"),
        body=_json("TopicSettings", {"partitions": 4}), body_required=False,
        answers=(_ok("New", "Topic", 201), _ok("It was there with the same settings", "Topic")),
        problems=(404, 409, 415, 422),
    ),
    _get(_TOPIC, api_topics.get_topic, "get_topic", "Settings and live figures", "Topic", "topics"),
    Route(
        method="PATCH", path=_TOPIC, handler=api_topics.patch_topic, name="patch_topic",
        tag="topics", summary="Change settings; partitions may only grow",
        parameters=_in_path("namespace", "topic"),
        body=_json("TopicSettings", {"retention": {"time": "7d", "size": "10GB"}}),
        answers=(_ok("Changed", "Topic"),), problems=(404, 409, 415, 422),
    ),
    Route(
        method="DELETE", path=_TOPIC, handler=api_topics.delete_topic, name="delete_topic",
        tag="topics", summary="Delete a topic with its ledgers and cursors",
        description=(
            "When it is answered, no broker serves the topic any more and none of its publishers "
            "gets another ack. A deletion that takes long is a 503 and goes on by itself."
        ),
        parameters=_in_path("namespace", "topic"), answers=(_NO_CONTENT,), problems=(404, 503),
    ),
    Route(
        method="POST", path=_TOPIC + "/let-go", handler=api_topics.let_go, name="let_go",
        tag="topics", summary="From broker to broker: the topic is being deleted, serve it no more",
        parameters=(
            *_in_path("namespace", "topic"),
            _query("incarnation", "which topic of that name", {"type": "string"}, "9f3c-1"),
        ),
        answers=(_ok("Let go", "LetGo"),), problems=(403, 503), inner=True,
    ),
    _get(
        _TOPIC + "/partitions/{partition}", api_topics.get_partition, "get_partition",
        "Live figures of one partition", "Partition", "topics",
    ),
)  # fmt: skip

_MESSAGES = (
    *_both(
        Route(
            method="POST", path=_TOPIC + "/messages", handler=api_publish.publish, name="publish",
            tag="messages", summary="Publish",
            description=(
                "The body is one message or several, by Content-Type. A key picks the partition "
                "(murmur2), messages without one are spread. Every line of NDJSON "
                "and every JSON message has `value` or `value_base64`; `null` is a message without "
                "a value. NDJSON is streamed: lines before a bad one are stored, and the answer "
                "says how many. Producer-Id, -Epoch and -Seq together make repeating safe; they "
                "and If-Match need one partition: in the path, or by the one key of the body."
            ),
            parameters=(
                *_in_path("namespace", "topic"),
                _query(
                    "results", "`all`: where each message was stored; `batches`: each batch",
                    {"enum": ["summary", "all", "batches"], "default": "summary"},
                ),
                _header("Octavo-Key", "the key of a raw message", "N14228"),
                _header("Octavo-Timestamp", "of a raw message: milliseconds or RFC 3339"),
                _header("Producer-Id", "a number below 2^63, or any name"),
                _header("Producer-Epoch", "grows with each instance of the producer"),
                _header("Producer-Seq", "the number of the first message of this request"),
                _header("If-Match", 'store only at this offset: "42"'),
                _PREFER,
            ),
            body=(
                Content(JSON, {"anyOf": [ref("MessageIn"), ref("MessagesIn")]}, _MESSAGE),
                Content(NDJSON, {"type": "string"}, _LINES),
                Content(
                    RECORD_BATCH,
                    {"type": "string", "format": "binary", "description": "one or more, stored so"},
                ),
                Content("text/plain", {"type": "string"}, "first message"),
            ),
            answers=(
                _ok("All of it is durable", "Published"),
                Answer(204, "All of it was stored before, by a request with the same sequence"),
                _ok("Only a part was stored: `errors` says why", "Published", 207),
                Answer(307, "With Prefer: redirect: the owner's address", headers={
                    "Location": "the same call at the owner"
                }),
            ),
            problems=(403, 404, 408, 409, 412, 413, 415, 422, 429, 504),
        )
    ),
    *_both(
        Route(
            method="GET", path=_TOPIC + "/messages", handler=api_read.read, name="read",
            tag="messages", summary="Read without a subscription", waits=True,
            description=(
                "One partition at a time: a topic with several needs it in the path. Record "
                "batches come whole, so the first may begin before the offset asked for; those of "
                "a compacted view have gaps between the offsets of their records. Server-sent "
                "events (`id` is the offset) and NDJSON with `follow` do not end; record batches "
                "with `follow` end when nothing came for 15 s, or the partition moved: ask again."
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
                    "follow", "`true`: every message, those to come too: as NDJSON, record batches "
                    "or server-sent events, which need no `follow`",
                    {"type": "boolean", "default": False},
                ),
                _header("Last-Event-ID", "of server-sent events: go on behind this offset"),
                _PREFER,
            ),
            answers=(
                Answer(
                    200, "Messages",
                    (
                        *_json("Messages"),
                        Content(NDJSON, {"type": "string"}),
                        Content(RECORD_BATCH, {"type": "string", "format": "binary"}),
                        Content(EVENTS, {"type": "string"}),
                    ),
                    _NEXT,
                ),
                Answer(204, "Nothing new", headers=_NEXT),
            ),
            problems=(404, 406, 410, 416, 422),
        )
    ),
    *_both(
        Route(
            method="GET", path=_TOPIC + "/offsets", handler=api_read.offsets, name="offsets",
            tag="messages", summary="Find offsets",
            parameters=(
                *_in_path("namespace", "topic"),
                _query(
                    "at", "earliest, latest, or an RFC 3339 time",
                    {"type": "string", "default": "latest"}, "latest",
                ),
                _COMPACTED,
            ),
            answers=(_ok("One for each partition", "Offsets"),), problems=(404,),
        )
    ),
)  # fmt: skip

_SUBSCRIPTION = _TOPIC + "/subscriptions/{subscription}"
_SUBSCRIPTION_PATH = _in_path("namespace", "topic", "subscription")
_SUBSCRIPTIONS = (
    _get(
        _TOPIC + "/subscriptions", api_subscriptions.list_subscriptions, "list_subscriptions",
        "The subscriptions of a topic", "Any", "subscriptions",
    ),
    *_both(
        Route(
            method="PUT", path=_SUBSCRIPTION, handler=api_subscriptions.put_subscription,
            name="put_subscription", tag="subscriptions", summary="Create a subscription",
            parameters=_SUBSCRIPTION_PATH,
            body=_json("SubscriptionSettings", {"type": "shared"}), body_required=False,
            answers=(
                _ok("New", "Subscription", 201),
                _ok("It was there with the same settings", "Subscription"),
            ),
            problems=(404, 409, 415, 422),
        ),
        summary="Make the cursor of a subscription in one partition, if it is missing",
        body=(),
        answers=(_ok("It is there", "SubscriptionFigures"),),
    ),
    *_both(
        Route(
            method="GET", path=_SUBSCRIPTION, handler=api_subscriptions.get_subscription,
            name="get_subscription", tag="subscriptions", summary="Settings and live figures",
            parameters=_SUBSCRIPTION_PATH, answers=(_ok("Found", "Subscription"),),
            problems=(404,),
        ),
        answers=(_ok("Found", "SubscriptionFigures"),),
    ),
    Route(
        method="DELETE", path=_SUBSCRIPTION, handler=api_subscriptions.delete_subscription,
        name="delete_subscription", tag="subscriptions", summary="Delete a subscription",
        parameters=_SUBSCRIPTION_PATH, answers=(_NO_CONTENT,), problems=(404,),
    ),
    *_both(
        Route(
            method="POST", path=_SUBSCRIPTION + "/receive", handler=api_deliveries.receive,
            name="receive", tag="subscriptions", summary="Receive", waits=True,
            description=(
                "Messages, each leased to the consumer for the subscription's ack timeout. An "
                "ack_id is good at any broker until then. From one partition in record batches as "
                "they are stored, where that is accepted and not more than JSON: headers say which "
                "messages of theirs are leased."
            ),
            parameters=(
                *_SUBSCRIPTION_PATH,
                _query("max", "messages", {"type": "integer", "minimum": 1}, 10),
                _WAIT,
                _query("consumer", "who asks", {"type": "string", "default": "default"}, "me"),
                _query(
                    "request",
                    "any text, another one for each call: when the answer was lost, the same call "
                    "again gets the same messages. When it ends in a number that goes up, a late "
                    "copy of an earlier call gets none. Of one partition; several ignore it",
                    {"type": "string", "maxLength": 64}, "7f3a-1",
                ),
                _query(
                    "credits", "no more than so many messages of each partition are out at this "
                    "consumer, unacked",
                    {"type": "integer", "minimum": 1, "maximum": CREDITS_MAX}, 100,
                ),
            ),
            answers=(
                Answer(
                    200, "Messages; or none, and `held_back` says why",
                    (
                        *_json("Received"),
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
            name="stream", tag="subscriptions", summary="Receive without end", waits=True,
            description=(
                "Messages as they come, each leased as by `receive`, through the death of their "
                "owners: server-sent events, NDJSON, or a WebSocket (`Upgrade: websocket`). Events "
                "and lines are acked by `ack`. A WebSocket takes what `ack` takes, as text frames "
                "with a `request` of any kind that the answer repeats, and gives back what is not "
                "acked when it closes."
            ),
            parameters=(
                *_SUBSCRIPTION_PATH,
                _query(
                    "consumer", "who asks; by default each stream is a consumer of its own, but "
                    "of an exclusive subscription",
                    {"type": "string"}, "me",
                ),
                _query(
                    "credits", "messages of each partition that may be out, unacked",
                    {"type": "integer", "minimum": 1, "maximum": CREDITS_MAX, "default": 1000}, 100,
                ),
                _query(
                    "form", "of a WebSocket: `batches` come as they are stored, in binary frames, "
                    "where that is not more",
                    {"enum": ["json", "batches"], "default": "json"}, "json",
                ),
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
            name="acknowledge", tag="subscriptions", summary="Acknowledge, give back, or extend",
            parameters=_SUBSCRIPTION_PATH, body=_json("Ack", {"ack_ids": []}),
            answers=(_ok("All of it is durable", "Acked"),), problems=(404, 409, 415, 422, 504),
        )
    ),
    *_both(
        Route(
            method="POST", path=_SUBSCRIPTION + "/seek", handler=api_subscriptions.seek,
            name="seek", tag="subscriptions", summary="Set the cursor",
            parameters=_SUBSCRIPTION_PATH, body=_json("Seek", {"to": "earliest"}),
            answers=(_ok("Where the cursors are now"),), problems=(404, 415, 422),
        )
    ),
)  # fmt: skip

_BATCH = "/v1/bulk-loads/{bulk_load}/batches/{batch}"
_OF_BATCH = (
    *_in_path("bulk_load", "batch"),
    _header(
        api_bulk_loads.TOKEN_HEADER,
        "known to the id's owner alone; the first one given binds the id",
    ),
)
_BULK_LOADS = (
    Route(
        method="POST", path=_BATCH + "/commit", handler=api_bulk_loads.commit,
        name="commit_bulk_load", tag="bulk-loads",
        summary="Make closed ledgers part of their partitions, all or none of them",
        description=(
            "For writers that put record batches into ledgers of their own, straight at the "
            "bookies. A batch that is not newer than the newest committed one is a repeat and "
            "changes nothing, so the call is safe to make again; a newer one has to be the next. "
            "The answer comes when every partition has its part."
        ),
        parameters=_OF_BATCH, body=_json("BulkLoadParts", {"parts": []}),
        answers=(_ok("All of it is visible", "BulkLoad"),), problems=(403, 404, 409, 415, 422),
    ),
    Route(
        method="POST", path=_BATCH + "/begin", handler=api_bulk_loads.begin,
        name="begin_bulk_load", tag="bulk-loads",
        summary="Note that the caller will publish a batch by itself, and what",
        description=(
            "For small batches that an idempotent producer publishes, one record batch to each "
            "partition, between this call and a commit with `published`. A repeat must have the "
            "same content. `repeated`: the batch was committed before, and is not to be published."
        ),
        parameters=_OF_BATCH, body=_json("PublishedParts", {"parts": []}),
        answers=(_ok("It may be published", "BulkLoadTurn"),),
        problems=(403, 404, 409, 415, 422),
    ),
    Route(
        method="POST", path=_BATCH + "/abort", handler=api_bulk_loads.abort,
        name="abort_bulk_load", tag="bulk-loads",
        summary="Give up ledgers of a batch; those that no partition has are deleted",
        parameters=_OF_BATCH, body=_json("GivenUp", {"ledgers": []}),
        answers=(_ok("What was deleted", "GivenUp"),), problems=(403, 409, 415, 422),
    ),
    Route(
        method="POST", path=_TOPIC + "/partitions/{partition}/bulk-load",
        handler=api_bulk_loads.load_part, name="load_part", tag="bulk-loads",
        summary="From broker to broker: take in a partition's part of a committed batch",
        parameters=_in_path("namespace", "topic", "partition"),
        body=_json("BulkLoadBatch", {"bulk_load": "nightly-copy", "batch": 0}),
        answers=(_ok("It is there", "PartLoaded"),), problems=(403, 404, 415, 422), inner=True,
    ),
    _get(
        "/v1/bulk-loads/{bulk_load}", api_bulk_loads.get_bulk_load, "get_bulk_load",
        "The newest committed batch, and whether all of it is visible", "BulkLoad",
        "bulk-loads",
    ),
)  # fmt: skip

_CLUSTER = (
    Route(
        method="GET", path="/v1/ledgers", handler=api_cluster.list_ledgers, name="list_ledgers",
        tag="cluster", summary="Ledger ids, ascending",
        parameters=(
            _query("after", "only larger ids", {"type": "integer"}),
            _query("limit", "ids", {"type": "integer", "minimum": 1}, 10),
        ),
        answers=(_ok("Ids"),),
    ),
    _get(
        "/v1/ledgers/{ledger}", api_cluster.get_ledger, "get_ledger",
        "A ledger's metadata", "Ledger", "cluster",
    ),
    _get(
        "/v1/ledgers/{ledger}/entries/{entry}", api_cluster.get_entry, "get_entry",
        "One entry; Accept: application/octet-stream gives its payload", "Any", "cluster",
    ),
    Route(
        method="POST", path="/v1/ledgers/{ledger}/recover", handler=api_cluster.recover_ledger,
        name="recover_ledger", tag="cluster", summary="Fence a ledger, find its end, close it",
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
        answers=(_ok("Closed", "Ledger"),), problems=(404, 409),
    ),
    _get("/v1/bookies", api_cluster.list_bookies, "list_bookies", "Bookies", "Any", "cluster"),
    _get("/v1/brokers", api_cluster.list_brokers, "list_brokers", "Brokers", "Any", "cluster"),
    _get("/v1/cluster", api_cluster.get_cluster, "get_cluster", "All of it", "Any", "cluster"),
    Route(
        method="POST", path="/v1/cluster/clock", handler=api_cluster.confirm_clock,
        name="confirm_clock", tag="cluster", summary="This broker's clock is right",
        description="Deletion by age goes by it from now on, at all brokers.",
        answers=(_ok("The time that is gone by"),),
    ),
    _get("/healthz", api_cluster.healthz, "healthz", "The process answers", "Any", "health"),
    _get("/readyz", api_cluster.readyz, "readyz", "The broker takes part", "Any", "health"),
    Route(
        method="GET", path="/metrics", handler=api_cluster.metrics, name="metrics", tag="health",
        summary="Prometheus text",
        answers=(Answer(200, "Metrics", (Content("text/plain", {"type": "string"}),)),),
    ),
    _get("/openapi.json", openapi, "openapi", "This API", "Any", "health"),
    Route(
        method="GET", path="/", handler=api_cluster.status_page, name="status_page", tag="health",
        summary="The cluster on one page",
        answers=(Answer(200, "HTML", (Content("text/html", {"type": "string"}),)),),
    ),
)  # fmt: skip

ROUTES: tuple[Route, ...] = (*_MESSAGES, *_TOPICS, *_SUBSCRIPTIONS, *_BULK_LOADS, *_CLUSTER)
