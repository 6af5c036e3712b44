"""The asynchronous client of an Octavo cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import reprlib
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
    known_options,
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
    listed,
    partition_number,
    partitions_in,
    path_part,
    plain_text,
)
from octavo.client.wire import DefaultUrl, HttpWire, Wire
from octavo.clock import wall_clock_ms
from octavo.protocol.compression import Compression

DEFAULT_URL = DefaultUrl("http://127.0.0.1:8080")
URL_VARIABLE = "OCTAVO_URL"
READ_MESSAGES_MAX = 1_000


class AsyncClient(OfThisProcess):
    """A client of a cluster; an async context manager. Many tasks can share it.

        async with AsyncClient("http://127.0.0.1:8080") as client:
            await client.create_topic("orders", partitions=4)
            async with client.producer("orders") as producer:
                await producer.send({"order": 1}, key="customer-7")
            orders = await client.subscribe("orders", "billing", type="shared")
            async for delivery in orders.deliveries(idle_s=2):
                print(delivery.offset, delivery.json())

    Arguments:
        urls: brokers, `http://host:port`: one, or several as a list or with commas. Default:
            `OCTAVO_URL`, else http://127.0.0.1:8080.
        ca_file: PEM file of the CAs to trust for `https://`. Default: `OCTAVO_TLS_CA`, else the
            machine's CAs.
        certificate, key: PEM files of this client's certificate. Default: `OCTAVO_TLS_CERTIFICATE`,
            `OCTAVO_TLS_KEY`.
        token: a token of `octavo token create` or of an identity provider, or an API key. Default:
            `OCTAVO_TOKEN`, or the file that `OCTAVO_TOKEN_FILE` names.
        attempt_s: seconds for each attempt of a call.
        retry_s: seconds for which a call is repeated after a passing failure (no answer, 429, 503);
            0: a single attempt.
        rng, clock: sources of random numbers and of the time (ms since 1970).
        on_retry: called with the error before a call is repeated.
        wire: the transport of calls, for tests without a network.

    Every call raises `Unreachable` when no broker answered within `retry_s`, `ApiError` or a
    subclass when a broker refused, and `InvalidCall`, before anything is sent, for wrong arguments.
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
        """Weak references suffice: tasks keep a producer with messages under way alive."""
        self._looked_at: dict[TopicName, Incarnation] = {}
        """The incarnation of each topic whose offsets this client has seen."""
        self.loops: dict[DeliveryLoop, None] = {}

    def __repr__(self) -> str:
        return f"AsyncClient({', '.join(self.transport.urls)})"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(flush=kind is None)

    async def close(self, *, flush: bool = True) -> None:
        """End loops over deliveries, flush and close producers, release the connections.

        Raises the reason why a message was not stored, unless its receipt or `flush` has raised it.
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
        """Close, until cancelled. Raises `OutcomeUnknown` for messages that were not stored."""
        closing = asyncio.ensure_future(self.close())
        await asyncio.wait({closing, given_up}, return_when=asyncio.FIRST_COMPLETED)
        left = {str(one.topic): count for one in self._producers if (count := one.unanswered)}
        if left:
            closing.cancel()
            await asyncio.wait({closing})
            told = ", ".join(f"{count} messages to {topic}" for topic, count in left.items())
            raise OutcomeUnknown(f"{told} were not answered, or not even sent; they may be lost")
        await closing

    def forked(self, why: InvalidCall) -> None:
        for loop in self.loops:
            loop.fail(why)

    async def _close_producers(self, *, flush: bool) -> None:
        while self._own_producers:
            _, producer = self._own_producers.popitem()
            await producer.close(flush=False)
        closing = [one.close_if_forgotten(flush=flush) for one in self._producers]
        for failed in await asyncio.gather(*closing, return_exceptions=True):
            if failed is not None:
                raise failed

    # ---- cluster

    async def cluster(self) -> Mapping[str, Any]:
        """Return brokers, bookies, metadata and clock (`GET /v1/cluster`).

        `stale`: null, or the parts of which this broker may know only an older state.
        """
        return await self._get("/v1/cluster")

    async def brokers(self) -> list[Mapping[str, Any]]:
        """List live brokers, each with `id`, `url`, `draining`, `partitions` and `load`."""
        return list((await self._get("/v1/brokers")).get("brokers", []))

    async def drain_broker(self, broker_id: str) -> Mapping[str, Any]:
        """Make a broker hand over all its partitions.

        It gets none until `undrain_broker` or its restart. Returns at once, with the number of
        `partitions` left. Raises `NotFound`, `ApiError` (409: there is no other broker).
        """
        return await self._drain("POST", broker_id)

    async def undrain_broker(self, broker_id: str) -> Mapping[str, Any]:
        """Let a drained broker have partitions again. Raises `NotFound`."""
        return await self._drain("DELETE", broker_id)

    async def _drain(self, method: str, broker_id: str) -> Mapping[str, Any]:
        path = f"/v1/brokers/{path_part(broker_id, 'broker_id')}/drain"
        found: Mapping[str, Any] = (await self.transport.call(method, path)).json()
        return found

    async def bookies(self) -> list[Mapping[str, Any]]:
        """List live bookies, each with `id`, `host`, `port` and `read_only`."""
        return list((await self._get("/v1/bookies")).get("bookies", []))

    async def ledger(self, ledger_id: int) -> Mapping[str, Any]:
        """Return a ledger's metadata: quorums, ensembles, state, last entry. Raises `NotFound`."""
        return await self._get(f"/v1/ledgers/{ledger_id}")

    # ---- namespaces and topics

    async def create_namespace(
        self, name: str, *, encrypted: bool | None = None, **settings: Unpack[NamespaceSettings]
    ) -> None:
        """Create a namespace, or change an existing one: settings that are not given stay.

        Arguments:
            name: 1 to 249 letters, digits, `.`, `_`, `-`.
            encrypted: whether its topics encrypt new ledgers; None: no change.
            settings: the policies of topics without their own, see `NamespaceSettings`.
        """
        body: dict[str, Any] = dict(settings)
        if encrypted is not None:
            body["encrypted"] = encrypted
        await self.transport.call("PUT", _namespace_path(name), json_body=body)

    async def namespace(self, name: str) -> Mapping[str, Any]:
        """Return `policies` and the number of topics. Raises `NotFound`."""
        return await self._get(_namespace_path(name))

    async def update_namespace(
        self, name: str, *, encrypted: bool | None = None, **settings: Unpack[NamespaceSettings]
    ) -> Mapping[str, Any]:
        """Change a namespace's policies, see `NamespaceSettings`; others stay.

        Returns the namespace. Raises `NotFound`.
        """
        await self.namespace(name)
        await self.create_namespace(name, encrypted=encrypted, **settings)
        return await self.namespace(name)

    async def namespace_policies(self, name: str) -> Mapping[str, Any]:
        """Return the policies that the namespace itself sets. Raises `NotFound`."""
        return _said((await self.namespace(name)).get("policies", {}))

    async def delete_namespace(self, name: str) -> None:
        """Remove a namespace. Raises `NotFound`, and `Conflict` while it has topics."""
        await self.transport.call("DELETE", _namespace_path(name))

    async def is_encrypted(self, namespace: str) -> bool:
        """Return whether a namespace encrypts new ledgers. Raises `NotFound`."""
        found = await self._get(_namespace_path(namespace))
        return bool(found.get("policies", {}).get("encrypted", False))

    async def namespaces(self) -> list[str]:
        """List all namespaces, in order."""
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
        """Create a topic, or find that it exists with these settings.

        Arguments:
            topic: `name`, in the namespace `public`, or `namespace/name`.
            partitions: their number; it can grow, never shrink.
            ensemble_size, write_quorum, ack_quorum: the bookies of a ledger, the copies of an
                entry, and how many are on disk before a publish is answered. Default: the cluster's
                (3, 3, 2).
            force: create it although the cluster has too few bookies.
            settings: policies and `rollover`, see `TopicSettings`.

        Raises `Conflict` when it exists with other settings, `NotFound` without such a namespace.
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
        """Return a topic's settings, and live figures of its partitions. Raises `NotFound`."""
        name = TopicName.of(topic)
        return self._look_at(_topic(name, await self._get(_path(name))))

    async def _topic_to_publish(self, topic: str) -> Topic:
        try:
            return await self.topic(topic)
        except NotFound as missing:
            name = TopicName.of(topic)
            try:
                answer = await self.transport.call("PUT", _path(name), query={"auto": "true"})
            except ApiError as refused:
                # The caller may lack the right to create topics; an older broker lacks this call.
                raise refused if isinstance(refused, NotFound) else missing from None
            return self._look_at(_topic(name, answer.json()))

    async def topics(self, namespace: str = "public") -> list[str]:
        """List all topics of a namespace, in order. Raises `NotFound`."""
        return (await list_topics(self.transport, namespace)).names

    async def update_topic(self, topic: str, **settings: Unpack[TopicChanges]) -> Topic:
        """Change a topic, see `TopicChanges`; return it as it is now.

        Raises `NotFound`, `ApiError` (422: fewer partitions, more copies than bookies).
        """
        name = TopicName.of(topic)
        answer = await self.transport.call("PATCH", _path(name), json_body=settings)
        return _topic(name, answer.json() or settings)

    async def topic_policies(self, topic: str) -> Mapping[str, Any]:
        """Return the effective policies by name: `value`, and `from` (`topic`, `namespace`,
        `default`).

        Raises `NotFound`.
        """
        found: Mapping[str, Any] = (await self.topic(topic)).stats.get("effective", {})
        return found

    async def set_topic_policies(
        self, topic: str, **policies: Unpack[Policies]
    ) -> Mapping[str, Any]:
        """Change a topic's own policies: None removes a value, `off` means no bound.

        Returns the effective policies. Raises `NotFound`, `ApiError` (422).
        """
        await self.update_topic(topic, **policies)
        return await self.topic_policies(topic)

    async def fork_topic(
        self, topic: str, name: str, *, at: str | int | Mapping[int, str | int] = "latest"
    ) -> Topic:
        """Create a topic that begins with the messages of `topic`, at the same offsets, uncopied.

        Arguments:
            name: the new topic's name, in the same namespace; it gets the settings of `topic`.
            at: where the fork ends: `latest`, `earliest`, an RFC 3339 time, or for each partition
                one of these or an offset (default `latest`). For one partition an offset alone will
                do.

        Subscriptions and producers' sequences are not taken over. Raises `NotFound`, `Conflict`
        when `name` exists, `ApiError` (410: trimmed, 416: beyond the end, 422).
        """
        where = {str(n): at[n] for n in at} if isinstance(at, Mapping) else at
        source, fork = TopicName.of(topic), TopicName(TopicName.of(topic).namespace, name)
        body = {"name": name, "at": where}
        answer = await self.transport.call("POST", _path(source) + "/fork", json_body=body)
        return self._look_at(_topic(fork, answer.json() or body))

    async def truncate_topic(
        self, topic: str, before: str | int, *, partition: int | None = None
    ) -> dict[int, int]:
        """Remove a topic's oldest messages for good, acked or not.

        Arguments:
            before: the first message to keep: `latest` (none), an offset, a message id, or an RFC
                3339 time. An offset or id needs a `partition`, if there are several.

        Returns the first offset of each partition. Raises `NotFound`, `ApiError` (416: beyond the
        end).
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

        Once this has returned, no broker acknowledges a message into the topic.
        """
        await self.transport.call("DELETE", _path(TopicName.of(topic)))

    async def unload_topic(self, topic: str, *, to: str | None = None) -> list[Mapping[str, Any]]:
        """Hand a topic's partitions to the brokers that should have them, or to the broker `to`.

        Returns `partition`, `from_broker`, `to_broker` for each. Publishers wait for some tens of
        milliseconds. Raises `NotFound` (topic or broker).
        """
        path, query = _path(TopicName.of(topic)) + "/unload", {} if to is None else {"to": to}
        answer = await self.transport.call("POST", path, query=query)
        return list(answer.json()["partitions"])

    async def explain_topic(
        self, topic: str, *, subscription: str | None = None
    ) -> Mapping[str, Any]:
        """Explain which broker serves each partition, and what holds publishers back.

        With `subscription`, also what holds its consumers back (`GET /v1/explain`). Raises
        `NotFound`.
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
        """Register a schema as a subject's next version, unless the subject has it already.

        `subject`: `name` or `namespace/name`; `schema`: JSON, as a value or text. Returns
        `version`, `id` and more. Raises `Conflict` (`incompatible-schema`), `ApiError` (422: not a
        schema).
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
        """List why a schema may not be the next version; empty when it may."""
        body = {"type": type, "schema": schema}
        path = f"{_subject_path(subject)}/check"
        answer = await self.transport.call("POST", path, json_body=body)
        return list(answer.json()["problems"])

    async def schema(self, subject: str, version: int | str = "latest") -> Mapping[str, Any]:
        """Return a schema by its version, its id, or `latest`. Raises `NotFound`."""
        which = path_part(str(version), "version")
        return await self._get(f"{_subject_path(subject)}/versions/{which}")

    async def schema_subject(self, subject: str) -> Mapping[str, Any]:
        """Return a subject's `compatibility` and `versions`. Raises `NotFound`."""
        return await self._get(_subject_path(subject))

    async def schema_subjects(self, namespace: str = "public") -> list[str]:
        """List the subjects of a namespace, in order."""
        found = await self._get(f"/v1/schemas/subjects/{path_part(namespace, 'namespace')}")
        return _names(found.get("subjects", []))

    async def set_schema_compatibility(self, subject: str, compatibility: str) -> None:
        """Set `BACKWARD`, `FORWARD`, `FULL`, each also with `_TRANSITIVE`, or `NONE`."""
        body = {"compatibility": compatibility}
        await self.transport.call("PUT", _subject_path(subject), json_body=body)

    async def delete_schema_subject(self, subject: str) -> None:
        """Remove a subject and all its versions. Raises `NotFound`."""
        await self.transport.call("DELETE", _subject_path(subject))

    # ---- quotas and policy

    async def quotas(self) -> dict[str, Mapping[str, int]]:
        """List the quotas that are set, by subject; −1: no bound."""
        found = (await self._get("/v1/quotas")).get("quotas", [])
        return {one["subject"]: _without(one, "subject") for one in found}

    async def quota(self, subject: str) -> Mapping[str, int]:
        """Return a subject's own quotas, completed by the defaults of its kind; others are
        unbounded.

        `subject`: `user:NAME`, `user:*` (each known user), `anonymous`, `namespace:NS` or
        `namespace:*`. Raises `ApiError` (422: any other subject).
        """
        found: Mapping[str, int] = (await self._get(_quota_path(subject)))["holds"]
        return {name: amount for name, amount in found.items() if amount >= 0}

    async def set_quota(self, subject: str, **amounts: Unpack[Quota]) -> Mapping[str, int]:
        """Replace a subject's quotas, see `Quota`; brokers apply them within seconds.

        Returns the effective quotas. Raises `ApiError` (422: no such subject, or not a quota of its
        kind).
        """
        body = {name: amount for name, amount in amounts.items() if amount is not None}
        await self.transport.call("PUT", _quota_path(subject), json_body=body)
        return await self.quota(subject)

    async def delete_quota(self, subject: str) -> None:
        """Remove a subject's own quotas: the defaults of its kind hold."""
        await self.transport.call("DELETE", _quota_path(subject))

    async def policy(self) -> Mapping[str, Any]:
        """Return `rules` (`Rule`), `roles` (`Role`), `version`, and whether the cluster is
        `secured`.
        """
        return _with_version(await self.transport.call("GET", _POLICY))

    async def user_groups(self, user: str) -> list[str]:
        """List a user's groups as `group:NAME`; empty for a user without a record.

        `user`: without `user:`. Only for administrators. Raises `ApiError` (422: not a user's
        name).
        """
        found: list[str] = (await self._get(f"{_POLICY}/groups/{path_part(user, 'user')}"))[
            "groups"
        ]
        return found

    async def set_policy(
        self, rules: Iterable[Rule], roles: Iterable[Role], *, version: str
    ) -> Mapping[str, Any]:
        """Replace the whole policy at once; it applies within seconds.

        `version`: of the policy that you changed. Returns the new policy. Raises `ApiError`: 412
        `policy-changed` (read the policy again), 409 `not-secured`, 422 (an invalid rule, or you
        would lose the right to change the policy).
        """
        if not isinstance(version, str):
            raise InvalidCall(
                f"a version is text, as `policy` gave it, not {reprlib.repr(version)}"
            )
        answer = await self.transport.call(
            "PUT",
            _POLICY,
            json_body={"rules": listed(rules, "rules"), "roles": listed(roles, "roles")},
            headers={"If-Match": plain_text(version, "version")},
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
        """Store one message in a topic; return its position once it is durable.

        Arguments:
            value: bytes as they are, text as UTF-8, None for a tombstone, anything else as JSON.
            key: messages with the same key stay in the same partition and in order.
            headers: a mapping, or (name, value) pairs where a name repeats.
            timestamp_ms: since 1970, UTC; default: now.
            partition: the partition to store it in, instead of the key's.
            deliver_at_ms: shared subscriptions deliver it no earlier (since 1970, UTC).

        For many messages use `publish_many` or `producer`. Raises `NotFound`, `MessageTooLong`,
        `OutcomeUnknown` (it may be stored or not).
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
        """Store (key, value) pairs, in order per key; return their positions in that order.

        Raises as `publish` for the first message that was not stored; others may be stored. Raises
        `InvalidCall`, which names the message, before any is sent, if a pair cannot be a message.
        """
        pairs = keyed_messages(messages)

        async def send(producer: Producer) -> list[Receipt]:
            return await producer.send_pairs(pairs)

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
        """Store one message of up to 128 MiB, streamed; return its position once it is durable.

        Arguments:
            source: the body: bytes, or the path of a file.
            upload: a name that you choose: a repeated upload of that name is stored once, while the
                first is kept. Default: a new name for each call.

        Other arguments as in `publish`; key and headers must be text. Readers see the message once
        all of it is stored; `body` reads it. Raises `NotFound`, `InvalidCall`, `ApiError` (413 too
        long; 422 the topic takes none), `OSError`, `Unreachable` (stored or not: call again with
        the same `upload`).
        """
        name = TopicName.of(topic)
        known = plain_text(upload, "upload") if upload else secrets.token_hex(16)
        head = head_of(known, key, headers, timestamp_ms, deliver_at_ms)
        number = None if partition is None else partition_number(partition)
        return await upload_body(self.transport, name, source, head, number, Incarnation())

    async def _publish(
        self, topic: str, send: Callable[[Producer], Awaitable[list[Receipt]]]
    ) -> list[Position]:
        """Publish with the client's own producer, or a new one if the topic was created again.

        All callers of `publish` share it: one call's failure must not fail a later call.
        """
        name = TopicName.of(topic)
        producer = await self._own_producer(name)
        try:
            return [await receipt for receipt in await send(producer)]
        except TopicReplaced:
            if self._own_producers.get(name) is producer:
                del self._own_producers[name]
            with contextlib.suppress(ClientError):
                await producer.close()  # other calls may still wait for its answers
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
        """Return a producer of a topic: await it, or use it as a block, which closes it.

            async with client.producer("orders") as producer:
                await producer.send({"order": 1}, key="customer-7")

        Arguments:
            producer_id: a name or number, by which brokers recognise messages that are repeated
                after a restart; default: random.
            encoding: `batch`: the client makes record batches; `ndjson`: the broker makes them.
            compression: of record batches.
            exclusive: no other producer may publish into the topic until this producer is
                closed, or silent for 30 s. Needs a `producer_id`. `"fencing"` takes the access from
                another producer, whose messages then fail (`stale-producer-access`).
            exclusive_wait_s: seconds to wait for the access to each partition.
            options: see `ProducerSettings`.

        It belongs to this topic, not to a later topic of its name (`TopicReplaced`). Raises
        `NotFound`, `Conflict` (`producer-busy`: another producer has exclusive access).
        """

        if exclusive and producer_id is None:
            raise InvalidCall("an exclusive producer needs a name: producer_id='loader', say")

        async def make() -> Producer:
            found = await self._topic_to_publish(topic)
            form = BatchEncoding(compression) if encoding == "batch" else NdjsonEncoding()
            chosen = ProducerOptions(
                producer_id=producer_id_of(producer_id, self._rng),
                encoding=form,
                **known_options(options),
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
        """Read messages of a partition, in order, or of all; `messages` reads without end.

        Arguments:
            partition: its number; None: all partitions, one after the other.
            start: `earliest`, `latest`, an offset, a message id (`ledger:entry:index`), or an RFC
                3339 time. An offset or id needs a `partition`, if the topic has several.
            limit: the most messages to return, in all; there may be fewer although more are stored.
            wait_s: seconds to wait for the first message, at most 60; then the list is empty.
            compacted: up to its horizon, read only the compacted view.
            incarnation: `Topic.incarnation`; keep it with your offsets. Default: the topic that
                this client last saw by this name.

        Raises `Trimmed` when retention has removed `start`, `TopicReplaced` when the topic was
        deleted and created again, `NotFound`, `InvalidBatch` (damaged on the way), `InvalidCall`.
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
        """Yield messages of a partition, or of all, to the end, or without end (`follow`).

            async for message in client.messages("orders", start="earliest"):
                print(message.partition, message.offset, message.key, message.value)

        `partition`: its number; None: all, one after the other, or with `follow` all at once,
        including partitions that are added. Only messages of the same partition are in order. With
        `follow`, a message comes as soon as it is stored; while an owner is away the messages
        pause, without a gap or a repeat.

        To resume, give `message.offset + 1` of each partition as `start`, with `partition`.
        `compacted`: first the compacted view, then every message after its horizon. Arguments and
        errors as in `read`; `Unreachable` when no broker answers for `retry_s`.
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
        """Yield what `messages` yields, as lists; each list is of a single partition."""
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
        if partition is not None:
            return {partition_number(partition): start}
        return await starts_of(self.transport, name, start, of=of, compacted=compacted)

    async def body(
        self, topic: str, message: Message | int, *, partition: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the body of a message, large or not, piece by piece.

            async for message in client.messages("films"):
                if message.large:
                    async for piece in client.body("films", message):
                        file.write(piece)

        `message` may be an offset; with several partitions, give its `partition`. Raises
        `NotFound`, `Trimmed`, `Unreachable`, `InvalidCall`, and `BrokenBody` when the body broke
        off or is damaged: discard the pieces.
        """
        name = TopicName.of(topic)
        number, offset = partition, message
        if isinstance(message, Message):
            number, offset = message.partition, message.offset
        if not isinstance(offset, int):
            raise InvalidCall(f"a message is a Message or its offset, not {reprlib.repr(message)}")
        of = self._of(name, offset, None)
        if number is None:
            ((number, _),) = (await starts_of(self.transport, name, offset, of=of)).items()
        found = body_of(self.transport, name, partition_number(number), offset, of)
        async with contextlib.aclosing(found):
            async for piece in found:
                yield piece

    async def offset(
        self, topic: str, *, partition: int | None = None, at: str | int = "latest"
    ) -> int:
        """Find the offset of `at`: `earliest`, `latest`, an offset, a message id, or a time.

        `latest` is the next offset to be written. A time (RFC 3339) finds the first message at or
        after it, or else the end. Several partitions need a `partition`. Raises `InvalidCall`.
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
        """Create a subscription, or find that it exists with these settings; return a consumer.

        Arguments:
            name: all consumers of this name share its acks.
            type: `exclusive`: one consumer, in order; `failover`: the same, with others standing
                by; `shared`: each message to one of many consumers; `key_shared`: each key to one,
                in order.
            start: where a new subscription begins.
            ack_timeout_s: seconds that a message is leased to a consumer; default: 30.
            consumer: this consumer's name in figures; default: random.
            priority: 0 to 100; consumers with a higher number get only messages that the others do
                not take.
            settings: see `SubscriptionSettings`: retries, dead letters, filters, bounds.

        Raises `NotFound`, `Conflict` when it exists with other settings.
        """
        body: dict[str, Any] = {"type": type, "start": start, **settings}
        if ack_timeout_s is not None:
            body["ack_timeout"] = ack_timeout_s
        path = f"{_path(TopicName.of(topic))}/subscriptions/{path_part(name, 'name')}"
        of = Incarnation()
        await self.transport.call("PUT", path, json_body=body, of=of)
        return self._consumer(topic, name, consumer, of, priority)

    async def subscriptions(self, topic: str) -> list[Mapping[str, Any]]:
        """List a topic's subscriptions, each with `name` and `settings`. Raises `NotFound`."""
        found = await self._get(f"{_path(TopicName.of(topic))}/subscriptions")
        return list(found.get("subscriptions", []))

    def subscription(
        self, topic: str, name: str, *, consumer: str | None = None, priority: int = 0
    ) -> Subscription:
        """Return a consumer of a subscription; its first call raises `NotFound` if none exists."""
        return self._consumer(topic, name, consumer, Incarnation(), priority)

    def stream(self, name: str) -> AsyncStream:
        """Return a durable stream, to create, append to, read and follow: see `AsyncStream`.

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
        """Return a consumer of several topics, also of topics that appear later.

            orders = client.consume("orders-*", "billing", group=True)
            async for delivery in orders.deliveries():
                print(delivery.topic, delivery.offset, delivery.json())

        Arguments:
            topics: names, or patterns with `*` and `?`, each within its namespace.
            subscription: its name on every topic. Where it is missing, it is created with `type`
                (`shared` or `key_shared` for a group), `start` and `ack_timeout_s`.
            group: share the partitions of topics in one namespace with the group's other consumers.
                A partition belongs to one member; the partitions of a lost member move within
                `session_timeout_s`.
            consumer: this consumer's or member's name; default: random.
            refresh_s: how often to look for new topics.

        Raises `InvalidCall` for text that names no topics.
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
            path_part(name, "name"),
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
        if incarnation:
            return Incarnation(plain_text(incarnation, "incarnation"))
        if not isinstance(start, int | str):
            raise InvalidCall(
                f"a place is 'earliest', 'latest', an offset, a message id or a time in text, "
                f"not {reprlib.repr(start)}"
            )
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
    return f"/v1/quotas/{path_part(subject, 'subject')}"


def _without(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != name}


def _said(policies: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in policies.items() if value is not None}


def _namespace_path(name: str) -> str:
    return f"/v1/namespaces/{path_part(name, 'name')}"


def _subject_path(subject: str) -> str:
    namespace, name = TopicName.of(subject)
    return f"/v1/schemas/subjects/{quote(namespace, safe='')}/{quote(name, safe='')}"


def _path(name: TopicName) -> str:
    return f"/v1/topics/{quote(name.namespace, safe='')}/{quote(name.topic, safe='')}"


def _topic(name: TopicName, found: Mapping[str, Any]) -> Topic:
    return Topic(name, partitions_in(found), found.get("settings", found), found)


def _names(found: Iterable[Any]) -> list[str]:
    return [str(one["name"] if isinstance(one, Mapping) else one) for one in found]
