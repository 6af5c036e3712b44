"""Create a missing topic on the first publish, if its namespace says so; else answer a 404.

The 404 says how to turn this on. It is off by default, so that a mistyped name does not become a
topic. The caller needs the right to create the topic, as for a `PUT`.
"""

from __future__ import annotations

from aiohttp import web

from octavo.broker.errors import NamespaceNotFound, SettingsConflict, TopicNotFound
from octavo.broker.http.api.topics import put_topic, show_topic, too_few_bookies
from octavo.broker.http.call import Call
from octavo.broker.http.forwarding import topic_of
from octavo.broker.http.problems import Problem
from octavo.broker.types import TopicInfo, TopicSettings
from octavo.metadata.topics import AutoCreate
from octavo.security.rules import Kind, Operation, Resource


async def topic_to_publish(call: Call) -> TopicInfo:
    """Return the topic in the path; create it if allowed. Raises `TopicNotFound`, and what a `PUT`
    raises."""
    try:
        return await topic_of(call)
    except TopicNotFound as error:
        if call.names_incarnation or call.forwarded:
            raise  # the caller means an incarnation that is gone
        await make(call, error)
        return await topic_of(call)


async def put_topic_or_auto(call: Call) -> web.StreamResponse:
    """`PUT /v1/topics/{namespace}/{topic}`; with `auto=true` as the namespace says, if it does."""
    if call.choice("auto", "false", "true", "false") == "false":
        return await put_topic(call)
    if await call.read_body():
        raise Problem(422, "invalid-settings", "auto=true takes no body: the namespace says it all")
    return call.reply(show_topic(await topic_to_publish(call)))


async def make(call: Call, missing: TopicNotFound) -> None:
    """Create the topic in the path by its namespace's `auto_create`. Raises `TopicNotFound`."""
    name, broker = call.topic, call.services.broker
    try:
        auto = (await broker.topics.namespace(name.namespace)).auto_create
    except NamespaceNotFound:
        raise missing from None
    if auto is None:
        raise TopicNotFound(
            f"{missing}. By itself it would be made by the policy auto_create of namespace "
            f"{name.namespace}, which is off (octavo namespace set {name.namespace} --auto-create)"
        ) from None
    topic = Resource(Kind.TOPIC, str(name))
    namespace = Resource(Kind.NAMESPACE, name.namespace)
    if not call.services.gate.may(call.identity, Operation.CREATE, namespace):
        call.check(Operation.CREATE, topic)
    settings = _settings(auto)
    if (problem := await too_few_bookies(call, settings)) is not None:
        raise problem
    await call.services.quotas.check_topics(name)
    try:
        await broker.topics.create(name, settings)
    except SettingsConflict:
        return  # another call made it meanwhile, with other settings


def _settings(auto: AutoCreate) -> TopicSettings:
    return TopicSettings(
        partitions=auto.partitions,
        ensemble_size=auto.ensemble_size,
        write_quorum=auto.write_quorum,
        ack_quorum=auto.ack_quorum,
    )
