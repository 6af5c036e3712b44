"""`AsyncClient`: topics, publishing, reading and subscriptions of an Octavo cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import weakref
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from types import TracebackType
from typing import Any, Literal, Unpack
from urllib.parse import quote

from octavo.client.consumer import (
    REFRESH_S,
    SESSION_S,
    ConsumerOptions,
    TopicsConsumer,
    patterns_of,
)
from octavo.client.deliveries import DeliveryLoop
from octavo.client.durable import AsyncStream
from octavo.client.encoding import BatchEncoding, NdjsonEncoding
from octavo.client.errors import (
    ApiError,
    ClientError,
    InvalidCall,
    NotFound,
    OutcomeUnknown,
    TopicReplaced,
)
from octavo.client.every_partition import (
    Pages,
    all_at_once,
    first_of,
    one_after_another,
    only_partition,
    starts_of,
    where_one_is_needed,
)
from octavo.client.following import pages
from octavo.client.incarnation import Incarnation
from octavo.client.large import Source, body_of, head_of
from octavo.client.large import upload as upload_body
from octavo.client.of_this_process import OfThisProcess
from octavo.client.producer import (
    Opening,
    Producer,
    ProducerOptions,
    Receipt,
    acquire_access,
    producer_id_of,
)
from octavo.client.reading import find_offset, read_messages
from octavo.client.settings import (
    NamespaceSettings,
    Policies,
    ProducerSettings,
    Quota,
    Role,
    Rule,
    SubscriptionSettings,
    TopicChanges,
    TopicSettings,
)
from octavo.client.subscription import Subscription
from octavo.client.topic_list import list_topics
from octavo.client.transport import Answer, Transport
from octavo.client.trust import context_of, proof_of
from octavo.client.types import (
    Headers,
    Message,
    Position,
    SubscriptionType,
    Topic,
    TopicName,
    Value,
    keyed_messages,
    partition_number,
    partitions_in,
)
from octavo.client.wire import DefaultUrl, HttpWire, Wire
from octavo.clock import wall_clock_ms
from octavo.protocol.compression import Compression

DEFAULT_URL = DefaultUrl("http://127.0.0.1:8080")
URL_VARIABLE = "OCTAVO_URL"
READ_MESSAGES_MAX = 1_000


class AsyncClient(OfThisProcess):
    """A client of one cluster; an async context manager. One instance serves many tasks.

        async with AsyncClient("http://127.0.0.1:8080") as client:
            await client.create_topic("orders", partitions=4)
            async with client.producer("orders") as producer:
                await producer.send({"order": 1}, key="customer-7")
            orders = await client.subscribe("orders", "billing", type="shared")
            async for delivery in orders.deliveries(idle_s=2):
                print(delivery.offset, delivery.json())

    Arguments:
        urls: any of the brokers, `http://host:port`; more than one, as a list or with commas, for
            when one is away. The environment may name them: `OCTAVO_URL`; else it is
            http://127.0.0.1:8080, and a call ends soon where nothing listens there.
        ca_file: PEM file of the CAs that are believed, for `https://`; by default those of the
            machine. The environment may name it: `OCTAVO_TLS_CA`.
        certificate, key: PEM files of what this client shows where brokers ask for it
            (`OCTAVO_TLS_CERTIFICATE`, `OCTAVO_TLS_KEY`).
        token: says who asks, of a cluster that is secured: of `octavo token create`, an API key, or
            an identity provider's. The environment may have it (`OCTAVO_TOKEN`), or name its file
            (`OCTAVO_TOKEN_FILE`).
        attempt_s: seconds that one try of a call may take.
        retry_s: seconds for which a call that failed for a reason that passes (a broker that does
            not answer, 429, 503) is repeated, with growing pauses; 0 tries once.
        rng, clock: where random numbers and the time (ms since 1970) come from.
        on_retry: hears why a call is about to be repeated.
        wire: how calls reach brokers, for tests without a network.

    Every call raises `Unreachable` when no broker answered within `retry_s`, `ApiError` (or one of
    its kinds, named below) when one refused, and `InvalidCall`, before anything is sent, for
    arguments that cannot mean anything.
    """

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        ca_file: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
        token: str | None = None,
        attempt_s: float = 15.0,
        retry_s: float = 60.0,
        rng: random.Random | None = None,
        clock: Callable[[], int] = wall_clock_ms,
        on_retry: Callable[[ClientError], None] | None = None,
        wire: Wire | None = None,
    ) -> None:
        self._rng = rng or random.SystemRandom()
        self._clock = clock
        named = os.environ.get(URL_VARIABLE) or DEFAULT_URL if urls is None else urls
        self.transport = Transport(
            named,
            attempt_s=attempt_s,
            retry_s=retry_s,
            rng=self._rng,
            on_retry=on_retry,
            wire=wire or HttpWire(context_of(ca_file, certificate, key), proof_of(token)),
        )
        self._own_producers: dict[TopicName, Producer] = {}
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        """Of those with messages under way none is ever missing: its tasks know it."""
        self._looked_at: dict[TopicName, Incarnation] = {}
        """Of which topic the offsets are that this client has seen."""
        self.loops: dict[DeliveryLoop, None] = {}
        """All that are open."""

    def __repr__(self) -> str:
        """Where it calls, and nothing of who calls."""
        return f"AsyncClient({', '.join(self.transport.urls)})"

    async def __aenter__(self) -> AsyncClient:
        """Ready for use as it is; connections open when needed."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close. What producers have not sent goes out, unless the block failed."""
        await self.close(flush=kind is None)

    async def close(self, *, flush: bool = True) -> None:
        """End loops over deliveries, flush and close producers, give the connections back.

        No message that was sent is lost in silence: raises why one was not stored, unless its
        receipt, or `flush`, has said so.
        """
        try:
            for loop in list(self.loops):
                await loop.close()
        finally:
            try:
                await self._close_producers(flush=flush)
            finally:
                await self.transport.close()

    async def close_in_time(self, given_up: asyncio.Future[None]) -> None:
        """Close, as long as it is not given up. Raises `OutcomeUnknown` for what was not stored."""
        closing = asyncio.ensure_future(self.close())
        await asyncio.wait({closing, given_up}, return_when=asyncio.FIRST_COMPLETED)
        left = {str(one.topic): count for one in self._producers if (count := one.unanswered)}
        if left:
            closing.cancel()
            await asyncio.wait({closing})
            told = ", ".join(f"{count} messages to {topic}" for topic, count in left.items())
            raise OutcomeUnknown(f"{told} were not sent or not answered, and may not be stored")
        await closing

    def forked(self, why: InvalidCall) -> None:
        """What loops hold is the parent's to work on."""
        for loop in self.loops:
            loop.fail(why)

    async def _close_producers(self, *, flush: bool) -> None:
        while self._own_producers:  # another task may publish meanwhile
            _, producer = self._own_producers.popitem()
            await producer.close(flush=False)
        closing = [one.close_if_forgotten(flush=flush) for one in self._producers]
        for failed in await asyncio.gather(*closing, return_exceptions=True):
            if failed is not None:
                raise failed

    # ---- cluster

    async def cluster(self) -> Mapping[str, Any]:
        """The cluster at a glance, as `GET /v1/cluster` has it: brokers, bookies, metadata, clock.

        `stale` in it is null, or says what this broker may not know the latest of.
        """
        return await self._get("/v1/cluster")

    async def brokers(self) -> list[Mapping[str, Any]]:
        """Live brokers: a mapping each, with `id`, `url`, `draining`, `partitions` and `load`."""
        return list((await self._get("/v1/brokers")).get("brokers", []))

    async def drain_broker(self, broker_id: str) -> Mapping[str, Any]:
        """Have a broker give all that it serves to others; `partitions` is how many are left.

        It goes on by itself: `brokers` tells how far it is. Until `undrain_broker` or a new start
        it is given nothing. Raises `NotFound`, `ApiError` (409: there is no other broker).
        """
        return await self._drain("POST", broker_id)

    async def undrain_broker(self, broker_id: str) -> Mapping[str, Any]:
        """Have a drained broker be given its share again. Raises `NotFound`."""
        return await self._drain("DELETE", broker_id)

    async def _drain(self, method: str, broker_id: str) -> Mapping[str, Any]:
        path = f"/v1/brokers/{quote(broker_id, safe='')}/drain"
        found: Mapping[str, Any] = (await self.transport.call(method, path)).json()
        return found

    async def bookies(self) -> list[Mapping[str, Any]]:
        """Live bookies: a mapping each, with `id`, `address` and `state`, as the API gives it."""
        return list((await self._get("/v1/bookies")).get("bookies", []))

    async def ledger(self, ledger_id: int) -> Mapping[str, Any]:
        """A ledger's metadata: quorums, ensembles, state, last entry. Raises `NotFound`."""
        return await self._get(f"/v1/ledgers/{ledger_id}")

    # ---- namespaces and topics

    async def create_namespace(
        self, name: str, *, encrypted: bool | None = None, **settings: Unpack[NamespaceSettings]
    ) -> None:
        """Create a namespace, or find that it exists; what is said is set, the rest stays.

        Arguments:
            name: 1 to 249 letters, digits, `.`, `_`, `-`.
            encrypted: whether the ledgers that its topics begin from now on are; None: as it was.
            settings: what holds for its topics that say nothing: see `NamespaceSettings`.
        """
        body: dict[str, Any] = dict(settings)
        if encrypted is not None:
            body["encrypted"] = encrypted
        await self.transport.call("PUT", _namespace_path(name), json_body=body)

    async def namespace(self, name: str) -> Mapping[str, Any]:
        """A namespace: how many topics it has, and its `policies`. Raises `NotFound`."""
        return await self._get(_namespace_path(name))

    async def update_namespace(
        self, name: str, *, encrypted: bool | None = None, **settings: Unpack[NamespaceSettings]
    ) -> Mapping[str, Any]:
        """Change what a namespace says for its topics: see `NamespaceSettings`; what is left away
        stays. Returns it as it is now. Raises `NotFound`: `create_namespace` makes one."""
        await self.namespace(name)
        await self.create_namespace(name, encrypted=encrypted, **settings)
        return await self.namespace(name)

    async def namespace_policies(self, name: str) -> Mapping[str, Any]:
        """What a namespace says for its topics that say nothing themselves; what stands in it not
        is left to the defaults. Raises `NotFound`."""
        return _said((await self.namespace(name)).get("policies", {}))

    async def delete_namespace(self, name: str) -> None:
        """Remove a namespace. Raises `NotFound`, and `Conflict` while it has topics."""
        await self.transport.call("DELETE", _namespace_path(name))

    async def is_encrypted(self, namespace: str) -> bool:
        """Whether ledgers that a namespace's topics begin now are. Raises `NotFound`."""
        found = await self._get(_namespace_path(namespace))
        return bool(found.get("policies", {}).get("encrypted", False))

    async def namespaces(self) -> list[str]:
        """The names of all namespaces, in order."""
        return _names((await self._get("/v1/namespaces")).get("namespaces", []))

    async def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        ensemble_size: int | None = None,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        force: bool = False,
        **settings: Unpack[TopicSettings],
    ) -> Topic:
        """Create a topic, or find that it exists so.

        Arguments:
            topic: `name`, in the namespace `public`, or `namespace/name`.
            partitions: how many; they can become more, never fewer.
            ensemble_size, write_quorum, ack_quorum: over how many bookies a ledger is spread, how
                many copies an entry has, and how many of them are on disk before a publish is
                answered. The cluster's defaults (3, 3, 2) where left away.
            force: also when the cluster has not that many bookies; `warning` in the topic's `stats`
                says so then.
            settings: policies and `rollover`, see `TopicSettings`.

        Returns the topic as it is. Raises `Conflict` when it exists with other settings, `NotFound`
        when there is no such namespace.
        """
        body = {
            "partitions": partitions,
            "ensemble_size": ensemble_size,
            "write_quorum": write_quorum,
            "ack_quorum": ack_quorum,
            **settings,
        }
        given = {name: value for name, value in body.items() if value is not None}
        name = TopicName.of(topic)
        query = {"force": "true"} if force else None
        answer = await self.transport.call("PUT", _path(name), query=query, json_body=given)
        return self._look_at(_topic(name, answer.json() or given))

    async def topic(self, topic: str) -> Topic:
        """A topic's settings, and live figures of its partitions. Raises `NotFound`."""
        name = TopicName.of(topic)
        return self._look_at(_topic(name, await self._get(_path(name))))

    async def _topic_to_publish(self, topic: str) -> Topic:
        """A topic, perhaps a new one, where its namespace says so. Raises `NotFound`."""
        try:
            return await self.topic(topic)
        except NotFound as missing:
            name = TopicName.of(topic)
            try:
                answer = await self.transport.call("PUT", _path(name), query={"auto": "true"})
            except ApiError as refused:
                # Who may publish need not have the right to create, nor the broker to know of this.
                raise refused if isinstance(refused, NotFound) else missing from None
            return self._look_at(_topic(name, answer.json()))

    async def topics(self, namespace: str = "public") -> list[str]:
        """The names of a namespace's topics, in order, however many calls that takes.

        Raises `NotFound` when there is no such namespace.
        """
        return (await list_topics(self.transport, namespace)).names

    async def update_topic(self, topic: str, **settings: Unpack[TopicChanges]) -> Topic:
        """Change what may be changed of a topic: see `TopicChanges`. Returns it as it is now.

        Raises `NotFound`, `ApiError` (422: fewer partitions, more copies than bookies).
        """
        name = TopicName.of(topic)
        answer = await self.transport.call("PATCH", _path(name), json_body=settings)
        return _topic(name, answer.json() or settings)

    async def topic_policies(self, topic: str) -> Mapping[str, Any]:
        """What holds for a topic, by the name of each policy: a mapping with its `value`, and
        `from`, who says so: `topic`, `namespace` or `default`. Raises `NotFound`."""
        found: Mapping[str, Any] = (await self.topic(topic)).stats.get("effective", {})
        return found

    async def set_topic_policies(
        self, topic: str, **policies: Unpack[Policies]
    ) -> Mapping[str, Any]:
        """Change what a topic says for itself: None takes a word back, `off` says that there is
        none. Returns what holds then, as `topic_policies`. Raises `NotFound`, `ApiError` (422)."""
        await self.update_topic(topic, **policies)
        return await self.topic_policies(topic)

    async def fork_topic(
        self, topic: str, name: str, *, at: str | int | Mapping[int, str | int] = "latest"
    ) -> Topic:
        """Make a topic that begins with another one's messages, at the same offsets, uncopied.

        Arguments:
            name: of the new topic, in the same namespace; it gets the settings of `topic`.
            at: `latest`, `earliest`, an RFC 3339 time, or by partition before which offset (or
                one of these); what is left away is `latest`. An offset alone does for a topic with
                one partition.

        Subscriptions and producers' sequences are not taken over. Raises `NotFound`, `Conflict`
        when there is a topic `name`, `ApiError` (410: trimmed, 416: beyond the end, 422).
        """
        where = {str(n): at[n] for n in at} if isinstance(at, Mapping) else at
        source, fork = TopicName.of(topic), TopicName(TopicName.of(topic).namespace, name)
        body = {"name": name, "at": where}
        answer = await self.transport.call("POST", _path(source) + "/fork", json_body=body)
        return self._look_at(_topic(fork, answer.json() or body))

    async def truncate_topic(
        self, topic: str, before: str | int, *, partition: int | None = None
    ) -> dict[int, int]:
        """Remove the oldest messages of a topic for good, acked or not.

        Arguments:
            before: the first message to be kept: `latest` (none), an offset, a message id, or an
                RFC 3339 time. An offset or an id needs a `partition`, if there are several.

        Returns the first offset that each partition has now; it never goes back. Raises `NotFound`,
        `ApiError` (416: beyond the end).
        """
        path = _path(TopicName.of(topic)) + (
            "" if partition is None else f"/partitions/{partition}"
        )
        try:
            answer = await self.transport.call(
                "DELETE", path + "/messages", query={"before": before}
            )
        except ApiError as error:
            why = f"{before} is a place in one of them"
            raise where_one_is_needed(TopicName.of(topic), error, why) from None
        return {one["partition"]: one["earliest_offset"] for one in answer.json()["partitions"]}

    async def delete_topic(self, topic: str) -> None:
        """Remove a topic, its messages and its subscriptions, for good. Raises `NotFound`.

        Once this has returned nothing is acknowledged into the topic any more, by any broker.
        """
        await self.transport.call("DELETE", _path(TopicName.of(topic)))

    async def unload_topic(self, topic: str, *, to: str | None = None) -> list[Mapping[str, Any]]:
        """Hand a topic's partitions on, to those that should have them or to the broker `to`.

        One mapping a partition: `partition`, `from_broker`, `to_broker`. Publishers wait for some
        tens of milliseconds. Raises `NotFound`: no such topic, or no such broker.
        """
        path, query = _path(TopicName.of(topic)) + "/unload", {} if to is None else {"to": to}
        answer = await self.transport.call("POST", path, query=query)
        return list(answer.json()["partitions"])

    async def explain_topic(
        self, topic: str, *, subscription: str | None = None
    ) -> Mapping[str, Any]:
        """Why things are as they are: who serves each partition and why, what holds publishers
        back; with `subscription` also what holds its consumers back, and by what limit.

        A mapping as `GET /v1/explain` answers it. Raises `NotFound`.
        """
        name = TopicName.of(topic)
        path = f"/v1/explain/{quote(name.namespace, safe='')}/{quote(name.topic, safe='')}"
        query = {} if subscription is None else {"subscription": subscription}
        found: Mapping[str, Any] = (await self.transport.call("GET", path, query=query)).json()
        return found

    # ---- schemas

    async def register_schema(
        self,
        subject: str,
        schema: Any,
        *,
        type: Literal["json", "avro"] = "json",  # noqa: A002
    ) -> Mapping[str, Any]:
        """Make it the next version of a subject, `name` or `namespace/name`, unless it is there.

        `schema` is JSON, or text that is JSON. Returns `version`, `id` and more, as the API gives
        them. Raises `Conflict` (`incompatible-schema`), `ApiError` (422: no schema).
        """
        path = f"{_subject_path(subject)}/versions"
        body = {"type": type, "schema": schema}
        found: Mapping[str, Any] = (await self.transport.call("POST", path, json_body=body)).json()
        return found

    async def check_schema(
        self,
        subject: str,
        schema: Any,
        *,
        type: Literal["json", "avro"] = "json",  # noqa: A002
    ) -> list[str]:
        """Why it may not be the next version; empty when it may."""
        body = {"type": type, "schema": schema}
        path = f"{_subject_path(subject)}/check"
        answer = await self.transport.call("POST", path, json_body=body)
        return list(answer.json()["problems"])

    async def schema(self, subject: str, version: int | str = "latest") -> Mapping[str, Any]:
        """A version, by its number, its id, or `latest`. Raises `NotFound`."""
        which = quote(str(version), safe="")
        return await self._get(f"{_subject_path(subject)}/versions/{which}")

    async def schema_subject(self, subject: str) -> Mapping[str, Any]:
        """A subject: its `compatibility` and `versions`. Raises `NotFound`."""
        return await self._get(_subject_path(subject))

    async def schema_subjects(self, namespace: str = "public") -> list[str]:
        """The subjects of a namespace, in order."""
        found = await self._get(f"/v1/schemas/subjects/{quote(namespace, safe='')}")
        return _names(found.get("subjects", []))

    async def set_schema_compatibility(self, subject: str, compatibility: str) -> None:
        """What a new version has to be compatible with: `BACKWARD`, `FORWARD`, `FULL`, each also
        with `_TRANSITIVE`, or `NONE`."""
        body = {"compatibility": compatibility}
        await self.transport.call("PUT", _subject_path(subject), json_body=body)

    async def delete_schema_subject(self, subject: str) -> None:
        """Remove a subject and all its versions. Raises `NotFound`."""
        await self.transport.call("DELETE", _subject_path(subject))

    # ---- how much, and who

    async def quotas(self) -> dict[str, Mapping[str, int]]:
        """All quotas as they are set, by subject; −1: without a bound."""
        found = (await self._get("/v1/quotas")).get("quotas", [])
        return {one["subject"]: _without(one, "subject") for one in found}

    async def quota(self, subject: str) -> Mapping[str, int]:
        """What holds for a subject, the defaults of its kind included; what stands in it not has no
        bound.

        `subject`: `user:NAME`, `user:*` (each known user), `anonymous`, `namespace:NS` or
        `namespace:*`. Raises `ApiError` (422: it is none of these).
        """
        found: Mapping[str, int] = (await self._get(_quota_path(subject)))["holds"]
        return {name: amount for name, amount in found.items() if amount >= 0}

    async def set_quota(self, subject: str, **amounts: Unpack[Quota]) -> Mapping[str, int]:
        """Set what a subject may do, in place of what was set for it: see `Quota`.

        All brokers keep to it within seconds. Returns what holds then, as `quota`. Raises
        `ApiError` (422: it is no subject, or has no such quota).
        """
        body = {name: amount for name, amount in amounts.items() if amount is not None}
        await self.transport.call("PUT", _quota_path(subject), json_body=body)
        return await self.quota(subject)

    async def delete_quota(self, subject: str) -> None:
        """Set nothing for a subject any more: the defaults of its kind hold."""
        await self.transport.call("DELETE", _quota_path(subject))

    async def policy(self) -> Mapping[str, Any]:
        """Who may do what: `rules` (`Rule`) and `roles` (`Role`), whether the cluster is `secured`,
        and the policy's `version`."""
        return _with_version(await self.transport.call("GET", _POLICY))

    async def user_groups(self, user: str) -> list[str]:
        """The groups in a user's record, as `group:NAME`; none of one that has no record.

        `user`: the name without `user:`. It takes the right to administer the cluster. Raises
        `ApiError` (422: it can be no name).
        """
        found: list[str] = (await self._get(f"{_POLICY}/groups/{quote(user, safe='')}"))["groups"]
        return found

    async def set_policy(
        self, rules: Iterable[Rule], roles: Iterable[Role], *, version: str
    ) -> Mapping[str, Any]:
        """Replace who may do what, all of it at once; brokers and bookies go by it within seconds.

        Arguments:
            version: of the policy that this one is made of, as `policy` gave it.

        Returns it as it is now. Raises `ApiError`: 412 `policy-changed` (somebody was faster: read
        it again), 409 `not-secured`, 422 (a rule makes no sense; or you could change nothing any
        more).
        """
        answer = await self.transport.call(
            "PUT",
            _POLICY,
            json_body={"rules": list(rules), "roles": list(roles)},
            headers={"If-Match": version},
        )
        return _with_version(answer)

    # ---- publishing

    async def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
        deliver_at_ms: int | None = None,
    ) -> Position:
        """Store one message in the topic that is there now; return where, once it is durable.

        Arguments:
            value: bytes as they are, text as UTF-8, None for a tombstone, anything else as JSON.
            key: messages of one key stay in one partition and in order.
            headers: a mapping, or (name, value) pairs where a name repeats.
            timestamp_ms: since 1970, UTC; now where left away.
            partition: where it goes, in place of what the key says.
            deliver_at_ms: no shared subscription hands it out before (since 1970, UTC).

        It waits for the copies to be on disk: to publish many, use `publish_many` or `producer`.
        Raises `NotFound`, `MessageTooLong`, `OutcomeUnknown` (stored or not: nobody knows).
        """

        async def send(producer: Producer) -> list[Receipt]:
            receipt = await producer.send(
                value, key=key, headers=headers, timestamp_ms=timestamp_ms, partition=partition,
                deliver_at_ms=deliver_at_ms,
            )  # fmt: skip
            return [receipt]

        return (await self._publish(topic, send))[0]

    async def publish_many(
        self, topic: str, messages: Iterable[tuple[str | bytes | None, Value]]
    ) -> list[Position]:
        """Store (key, value) pairs, in order per key; return their positions in the same order.

        All of them in one topic: in the new one when it is made anew in the midst of it. Raises as
        `publish` does, for the first that was not stored; others may be. What can be no message is
        an `InvalidCall` that says which one it is, before any is sent.
        """
        pairs = keyed_messages(messages)

        async def send(producer: Producer) -> list[Receipt]:
            return await producer.send_all(pairs)

        return await self._publish(topic, send)

    async def publish_large(
        self,
        topic: str,
        source: Source,
        *,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
        deliver_at_ms: int | None = None,
        upload: str | None = None,
    ) -> Position:
        """Store one message of up to 128 MiB, streamed; return where, once all of it is durable.

        Arguments:
            source: its body: bytes, or the path of a file.
            upload: a name of yours; a body that was stored under it is not stored again, as long
                as its message is kept. One for this call alone where left away.

        The others as in `publish`; key and headers must be text. Nobody sees anything of it before
        it is stored, or ever when it is not. Its messages have `large`, and `body` reads them.
        Raises `NotFound`, `InvalidCall`, `ApiError` (413 too long; 422 the topic takes none),
        `Unreachable` (stored or not: call again with the same `upload`), `OSError`.
        """
        name = TopicName.of(topic)
        known = upload or secrets.token_hex(16)
        head = head_of(known, key, headers, timestamp_ms, deliver_at_ms)
        return await upload_body(self.transport, name, source, head, partition, Incarnation())

    async def _publish(
        self, topic: str, send: Callable[[Producer], Awaitable[list[Receipt]]]
    ) -> list[Position]:
        """What our own producer stores; a new one where the topic was made anew since its last use.

        The caller knows of no producer: the call stands alone, whatever became of earlier ones.
        """
        name = TopicName.of(topic)
        producer = await self._own_producer(name)
        try:
            return [await receipt for receipt in await send(producer)]
        except TopicReplaced:
            if self._own_producers.get(name) is producer:
                del self._own_producers[name]
            with contextlib.suppress(ClientError):
                await producer.close()  # others may wait for answers to what they sent
        return [await receipt for receipt in await send(await self._own_producer(name))]

    def producer(
        self,
        topic: str,
        *,
        producer_id: str | int | None = None,
        encoding: Literal["batch", "ndjson"] = "batch",
        compression: Compression = Compression.NONE,
        exclusive: bool | Literal["fencing"] = False,
        exclusive_wait_s: float = 0.0,
        **options: Unpack[ProducerSettings],
    ) -> Opening:
        """A producer of a topic; `options` as in `ProducerSettings`. Raises `NotFound`.

        `exclusive`: nobody else may publish into the topic until this one is closed, or silent for
        30 s and followed by another one. Raises `Conflict` (`producer-busy`) when another one has
        it, after waiting `exclusive_wait_s` for each partition; `"fencing"` takes it, and the other
        one's messages fail with `ApiError` (`stale-producer-access`). It needs a `producer_id`.

        It is of this topic and of no later one of the name: see `TopicReplaced`. To be awaited,
        or entered, which flushes and closes it at the end of the block:

            async with client.producer("orders") as producer:
                await producer.send({"order": 1}, key="customer-7")
        """

        if exclusive and producer_id is None:
            raise InvalidCall("an exclusive producer needs a name: producer_id='loader', say")

        async def make() -> Producer:
            found = await self._topic_to_publish(topic)
            form = BatchEncoding(compression) if encoding == "batch" else NdjsonEncoding()
            chosen = ProducerOptions(
                producer_id=producer_id_of(producer_id, self._rng), encoding=form, **options
            )
            access: dict[int, int] = {}
            if exclusive:
                access = await acquire_access(
                    self.transport, found.name, found.partitions, str(producer_id),
                    fencing=exclusive == "fencing", wait_s=exclusive_wait_s,
                )  # fmt: skip
            producer = Producer(
                self.transport, found.name, found.partitions, chosen, rng=self._rng,
                clock=self._clock, incarnation=found.incarnation, access=access,
            )  # fmt: skip
            self._producers.add(producer)
            return producer

        return Opening(make)

    # ---- reading

    async def read(
        self,
        topic: str,
        *,
        partition: int | None = None,
        start: str | int = "earliest",
        limit: int = READ_MESSAGES_MAX,
        wait_s: float = 0.0,
        compacted: bool = False,
        incarnation: str | None = None,
    ) -> list[Message]:
        """Messages of one partition, in order, or of all; to read without end use `messages`.

        Arguments:
            partition: which one; None: all, one partition after the other (`Message.partition`
                says which), `limit` of them in all.
            start: `earliest`, `latest`, an offset, a message id (`ledger:entry:index`), or an
                RFC 3339 time: the first message at or after it. An offset and an id are places in
                one partition: of a topic with several, say which.
            limit: at most so many messages; there may be fewer though more are stored.
            wait_s: seconds to wait for the first one, at most 60; empty when none came.
            compacted: below the horizon of its compacted view only what that has.
            incarnation: see below.

        Raises `Trimmed` when retention has removed `start`, `NotFound`, `InvalidBatch` (damaged on
        the way), `InvalidCall`.

        An offset is of the topic that this client looked at last, by `topic`, `create_topic`,
        `offset` or a read from anything but an offset; of another one if its `incarnation`
        (`Topic.incarnation`) was kept beside the offset. Raises `TopicReplaced` when that topic
        was deleted and another one of its name was made.
        """
        name = TopicName.of(topic)
        of = self._of(name, start, incarnation)
        starts = await self._starts(name, partition, start, of=of, compacted=compacted)

        async def some(number: int, most: int, wait_s: float) -> list[Message]:
            batch = await read_messages(
                self.transport, name, number, starts[number], most, wait_s,
                of=of, compacted=compacted,
            )  # fmt: skip
            return batch.messages

        found: list[Message] = []
        if len(starts) == 1:
            found = await some(next(iter(starts)), limit, wait_s)
        else:
            for number in starts:
                if len(found) < limit:
                    found += await some(number, limit - len(found), 0.0)
            if not found and wait_s:
                found = await first_of([some(number, limit, wait_s) for number in starts])
        self._looked_at[name] = of
        return found

    async def messages(
        self,
        topic: str,
        *,
        partition: int | None = None,
        start: str | int = "earliest",
        follow: bool = False,
        compacted: bool = False,
        incarnation: str | None = None,
    ) -> AsyncGenerator[Message, None]:
        """Messages of a partition, or of all, to the end, or without end (`follow`).

            async for message in client.messages("orders", start="earliest"):
                print(message.partition, message.offset, message.key, message.value)

        `partition`: which one; None, all of them: one partition after the other to its end, or,
        followed, all at once, each message as it comes. Each partition is in order, and between
        partitions there is none; partitions that are added meanwhile are followed as well.

        Followed, messages come as soon as they are stored, over one stream from each partition's
        owner. While that is away there is a pause, no gap and no repeat, and `Unreachable` when no
        broker answers for `retry_s`. A body may take as long as it likes.
        To go on later, keep `message.offset + 1` for each partition, and begin there: `partition=`,
        `start=`. `start` as in `read`; `compacted`: first its compacted view, then every message
        behind the view's horizon.
        All are of one topic: raises `TopicReplaced` as `read` does, which also says what
        `incarnation` is; `Trimmed` when retention was faster than the reader.
        """
        found = self.pages(
            topic, partition=partition, start=start, follow=follow, compacted=compacted,
            incarnation=incarnation,
        )  # fmt: skip
        async with contextlib.aclosing(found):
            async for page in found:
                for message in page:
                    yield message

    async def pages(
        self,
        topic: str,
        *,
        partition: int | None = None,
        start: str | int = "earliest",
        follow: bool = False,
        compacted: bool = False,
        incarnation: str | None = None,
    ) -> AsyncGenerator[list[Message], None]:
        """The same as `messages`, as many at a time as come together, of one partition each."""
        name = TopicName.of(topic)
        of = self._of(name, start, incarnation)
        starts = await self._starts(name, partition, start, of=of, compacted=compacted)

        def of_each(starts: Mapping[int, str | int]) -> dict[int, Pages]:
            return {
                number: pages(
                    self.transport, name, number, place, of=of, follow=follow, compacted=compacted
                )
                for number, place in starts.items()
            }

        async def more(known: set[int]) -> Mapping[int, Pages]:
            all_now = await starts_of(self.transport, name, "earliest", of=of)
            return of_each({n: place for n, place in all_now.items() if n not in known})

        is_one = partition is not None or not follow
        found = one_after_another(of_each(starts)) if is_one else all_at_once(of_each(starts), more)
        async with contextlib.aclosing(found):
            async for page in found:
                self._looked_at[name] = of
                yield page

    async def _starts(
        self,
        name: TopicName,
        partition: int | None,
        start: str | int,
        *,
        of: Incarnation,
        compacted: bool,
    ) -> dict[int, str | int]:
        """Where each partition that is meant begins to be read. Raises `InvalidCall`."""
        if partition is not None:
            return {partition_number(partition): start}
        return await starts_of(self.transport, name, start, of=of, compacted=compacted)

    async def body(
        self, topic: str, message: Message | int, *, partition: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The body of one message, large or not, piece by piece.

            async for message in client.messages("films"):
                if message.large:
                    async for piece in client.body("films", message):
                        file.write(piece)

        `message` may be an offset, of a topic with several partitions beside its `partition`.
        Raises `NotFound`, `Trimmed`, `Unreachable` and `BrokenBody`, where it broke off or is not
        what it was: what came before is then no whole body; `InvalidCall`.
        """
        name = TopicName.of(topic)
        number, offset = partition, message
        if not isinstance(message, int):
            number, offset = message.partition, message.offset
        assert isinstance(offset, int)
        of = self._of(name, offset, None)
        if number is None:
            ((number, _),) = (await starts_of(self.transport, name, offset, of=of)).items()
        found = body_of(self.transport, name, number, offset, of)
        async with contextlib.aclosing(found):
            async for piece in found:
                yield piece

    async def offset(
        self, topic: str, *, partition: int | None = None, at: str | int = "latest"
    ) -> int:
        """The offset that `at` means: `earliest`, `latest`, an offset, a message id, or a time.

        `latest` is the next one to be written; a time (RFC 3339) is the first message with that
        timestamp or a later one, and the end when there is none. Of a topic with several
        partitions, say which: each has offsets of its own. Raises `InvalidCall`.
        """
        name = TopicName.of(topic)
        of = self._of(name, at, None)
        if partition is None:
            found = await only_partition(self.transport, name, at, of=of)
        else:
            number = partition_number(partition)
            found = await find_offset(self.transport, name, number, at, of=of)
        self._looked_at[name] = of
        return found

    # ---- subscriptions

    async def subscribe(
        self,
        topic: str,
        name: str,
        *,
        type: SubscriptionType = "exclusive",  # noqa: A002 (the API's word)
        start: Literal["earliest", "latest"] = "earliest",
        ack_timeout_s: float | None = None,
        consumer: str | None = None,
        priority: int = 0,
        **settings: Unpack[SubscriptionSettings],
    ) -> Subscription:
        """Create a subscription of a topic, or find that it exists so; return a consumer of it.

        Arguments:
            name: of the subscription: what is acked is acked for all who use this name.
            type: `exclusive`, one consumer at a time, in order; `failover`, the same, and others
                stand by; `shared`, as many as there are, each message to one of them;
                `key_shared`, likewise, but each key to one of them, in order.
            start: where a new subscription begins.
            ack_timeout_s: seconds that a message is leased to a consumer (30 where left away).
            consumer: this one's name in the figures; drawn where left away.
            priority: of this consumer, 0 to 100: others get what the lower numbers do not take.
            settings: what becomes of messages that are not acked, which are its own, how many may
                be out, see `SubscriptionSettings`.

        Raises `NotFound`, `Conflict` when it exists with other settings.
        """
        body: dict[str, Any] = {"type": type, "start": start, **settings}
        if ack_timeout_s is not None:
            body["ack_timeout"] = ack_timeout_s
        path = f"{_path(TopicName.of(topic))}/subscriptions/{quote(name, safe='')}"
        of = Incarnation()
        await self.transport.call("PUT", path, json_body=body, of=of)
        return self._consumer(topic, name, consumer, of, priority)

    async def subscriptions(self, topic: str) -> list[Mapping[str, Any]]:
        """A topic's subscriptions: a mapping each, with `name` and `settings`, as the API gives it.

        Raises `NotFound`.
        """
        found = await self._get(f"{_path(TopicName.of(topic))}/subscriptions")
        return list(found.get("subscriptions", []))

    def subscription(
        self, topic: str, name: str, *, consumer: str | None = None, priority: int = 0
    ) -> Subscription:
        """A consumer of a subscription that exists: its first call raises `NotFound` if not."""
        return self._consumer(topic, name, consumer, Incarnation(), priority)

    def stream(self, name: str) -> AsyncStream:
        """A durable stream, to be made, appended to, read and followed: see `AsyncStream`.

            events = client.stream("public/events")
            await events.create()
            await events.append({"order": 1})

        `name`: `namespace/topic`; without a slash the namespace is `public`. Nothing is sent yet.
        """
        return AsyncStream(self.transport, TopicName.of(name), self._rng)

    def consume(
        self,
        topics: str | Sequence[str],
        subscription: str,
        *,
        group: bool = False,
        consumer: str | None = None,
        type: SubscriptionType = "shared",  # noqa: A002 (the API's word)
        start: Literal["earliest", "latest"] = "earliest",
        ack_timeout_s: float | None = None,
        session_timeout_s: float = SESSION_S,
        refresh_s: float = REFRESH_S,
    ) -> TopicsConsumer:
        """A consumer of several topics at once, also of those that appear later.

            orders = client.consume("orders-*", "billing", group=True)
            async for delivery in orders.deliveries():
                print(delivery.topic, delivery.offset, delivery.json())

        Arguments:
            topics: names, or patterns with `*` and `?` that never reach beyond their namespace.
            subscription: its name on every topic; made where it is missing, of this `type` (one of
                the four; `shared` or `key_shared` for a group), with this `start` and
                `ack_timeout_s`; one that is there is used as it is.
            group: share the partitions with all others that consume so under this name: each is
                one member's at a time, so its order is kept, and that of a member that vanishes is
                another one's after `session_timeout_s`, at most. The topics are of one namespace.
            consumer: this one's name, in a group its member's; drawn where left away.
            refresh_s: how often to look for new topics; a group hears of them as often as it is
                asked, at least three times in a session timeout.

        Raises `InvalidCall` for what names no topics. Its loop is `TopicsConsumer.deliveries`.
        """
        if group and type in ("exclusive", "failover"):
            raise InvalidCall(
                f"the members of a consumer group share a subscription, and type={type!r} gives "
                "all to one consumer: type='shared' or 'key_shared'"
            )
        options = ConsumerOptions(
            topics=patterns_of(topics, group=group),
            subscription=subscription,
            consumer=consumer or f"consumer-{self._rng.getrandbits(32):08x}",
            type=type,
            start=start,
            ack_timeout_s=ack_timeout_s,
            group=group,
            session_timeout_s=session_timeout_s,
            refresh_s=refresh_s,
        )
        return TopicsConsumer(self, options)

    def _consumer(
        self, topic: str, name: str, consumer: str | None, of: Incarnation, priority: int
    ) -> Subscription:
        who = consumer or f"consumer-{self._rng.getrandbits(32):08x}"
        return Subscription(
            self.transport,
            TopicName.of(topic),
            quote(name, safe=""),
            who,
            nonce=self._rng.getrandbits(64),
            loops=self.loops,
            of=of,
            priority=priority,
        )

    # ---- inner

    async def _get(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.transport.call("GET", path)).json()
        return found

    def _look_at(self, topic: Topic) -> Topic:
        self._looked_at[topic.name] = Incarnation(topic.incarnation)
        return topic

    def _of(self, name: TopicName, start: str | int, incarnation: str | None) -> Incarnation:
        """Which topic a read from `start` is about."""
        if incarnation:
            return Incarnation(incarnation)
        if isinstance(start, int) or start.isdecimal():
            return self._looked_at.get(name) or Incarnation()
        return Incarnation()

    async def _own_producer(self, name: TopicName) -> Producer:
        producer = self._own_producers.get(name)
        if producer is None:
            made = await self.producer(str(name), linger_ms=0.0)
            producer = self._own_producers.setdefault(name, made)
        return producer


_POLICY = "/v1/policy"


def _with_version(answer: Answer) -> Mapping[str, Any]:
    return {**answer.json(), "version": answer.headers.get("ETag", "")}


def _quota_path(subject: str) -> str:
    return f"/v1/quotas/{quote(subject, safe='')}"


def _without(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != name}


def _said(policies: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in policies.items() if value is not None}


def _namespace_path(name: str) -> str:
    return f"/v1/namespaces/{quote(name, safe='')}"


def _subject_path(subject: str) -> str:
    namespace, name = TopicName.of(subject)
    return f"/v1/schemas/subjects/{quote(namespace, safe='')}/{quote(name, safe='')}"


def _path(name: TopicName) -> str:
    return f"/v1/topics/{quote(name.namespace, safe='')}/{quote(name.topic, safe='')}"


def _topic(name: TopicName, found: Mapping[str, Any]) -> Topic:
    return Topic(name, partitions_in(found), found.get("settings", found), found)


def _names(found: Iterable[Any]) -> list[str]:
    return [str(one["name"] if isinstance(one, Mapping) else one) for one in found]
