"""Charge quotas for calls, and refuse or delay calls that exceed them (security/limits.py).

A call gets a 429 with `Retry-After` before its body is read, a connection at its first call; a
stream waits; a surplus topic gets a 422. Processor time is measured step by step, at each broker.
This module charges what only HTTP knows: lengths, bodies, streams, connections;
operations/quotas.py charges operations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from octavo.broker.errors import QuotaExceeded
from octavo.broker.http.charges import Charge
from octavo.broker.http.problems import Problem
from octavo.broker.operations.quotas import OperationQuotas
from octavo.broker.topic_rates import INTO
from octavo.broker.types import TopicName
from octavo.security.limits import GO_ON, Wait

if TYPE_CHECKING:
    from octavo.broker.broker import Broker
    from octavo.broker.http.call import Call
    from octavo.broker.http.config import HttpConfig
    from octavo.broker.metrics import Metrics
    from octavo.metadata.store import MetadataStore

_STREAMED = "application/x-ndjson"
_BRINGS = (Charge.PUBLISHES, Charge.UPLOADS)


class Counted(Protocol):
    counted_as: str

    def when_lost(self, call: Callable[[], None]) -> None: ...


class HttpQuotas(OperationQuotas):
    def __init__(
        self, store: MetadataStore, broker: Broker, config: HttpConfig, metrics: Metrics
    ) -> None:
        super().__init__(store, broker, metrics)
        self._config = config

    def admit(self, call: Call, connection: Counted) -> None:
        if not self.on:
            return
        charge = call.route.charge
        if charge is Charge.FREE:
            return
        principal = call.identity.name
        self._count_connection(connection, principal)
        now_s = self.now_s()
        if charge in _BRINGS:
            length = call.request.content_length
            uploads = charge is Charge.UPLOADS
            call.unpaid = length is None or uploads or call.content_type == _STREAMED
            size = 0 if call.unpaid or length is None else min(length, self._config.body_bytes_max)
            found = self._limits.take(
                principal, bytes_in=size, messages_in=1, processor_ms=0, now_s=now_s
            )
        elif charge is Charge.TAKES:
            found = self._limits.take(
                principal, bytes_out=0, messages_out=0, processor_ms=0, now_s=now_s
            )
        else:
            found = self._limits.take(principal, processor_ms=0, now_s=now_s)
        self._refuse(found)

    def measured(self, call: Call) -> Awaitable[web.StreamResponse]:
        work: Awaitable[web.StreamResponse] = call.route.handler(call)
        if not self.on or call.route.charge is Charge.FREE:
            return work
        return self.measured_for(call.identity, call.variables.get("namespace", ""), work)

    def at_hand(
        self, connection: Counted, principal: str, topic: TopicName, size: int, *, owned: bool
    ) -> Wait | None:
        """Charge a message of the fast publish path; return its wait; None: use the normal path."""
        now_s = self.now_s()
        if self.on and any(
            self._limits.bounds(one, "processor_ms", now_s)
            for one in (principal, f"namespace:{topic.namespace}")
        ):
            return None  # the normal path measures it
        if owned and (found := self._rate(topic, INTO)).wait_s:
            return found
        if not self.on:
            return GO_ON
        if connection.counted_as != principal:
            return None
        namespace = topic.namespace if owned else ""
        found = self._limits.take("", namespace, bytes_in=0, messages_in=0, now_s=now_s)
        if not found.wait_s:
            found = self._limits.take(principal, bytes_in=size, messages_in=1, now_s=now_s)
        return found

    def answered(self, call: Call, response: web.StreamResponse) -> None:
        if not self.on or call.is_streaming:
            return
        charge, now_s = call.route.charge, self.now_s()
        if charge in _BRINGS:
            more = max(0, call.messages - 1)  # one was charged by `admit`
            self._limits.charge(call.identity.name, messages_in=more, now_s=now_s)
        elif charge is Charge.TAKES:
            size = _size_of(response)
            self._limits.charge(
                call.identity.name, bytes_out=size, messages_out=call.messages, now_s=now_s
            )

    def gave_piece(self, call: Call, size: int) -> None:
        """Charge a piece of an answer: a client that breaks off pays for its part."""
        if self.on and not call.is_streaming and call.route.charge is Charge.TAKES:
            self._limits.charge(call.identity.name, bytes_out=size, now_s=self.now_s())

    def paid(self, call: Call, size: int) -> None:
        if self.on:
            more = size - (0 if call.unpaid else call.request.content_length or 0)
            self._limits.charge(call.identity.name, bytes_in=max(0, more), now_s=self.now_s())

    async def came(self, call: Call, size: int) -> None:
        if self.on and call.unpaid:
            self.paid(call, size)
            await self._until_paid(call.identity.name, bytes_in=0, messages_in=0)

    async def sent(self, call: Call, size: int, messages: int) -> None:
        if self.on:
            principal, now_s = call.identity.name, self.now_s()
            self._limits.charge(principal, bytes_out=size, messages_out=messages, now_s=now_s)
            await self._until_paid(principal, bytes_out=0, messages_out=0, processor_ms=0)

    @contextmanager
    def stream(self, call: Call) -> Iterator[None]:
        principal = call.identity.name
        self._refuse(self._limits.hold(principal, "streams"))
        try:
            yield
        finally:
            self._limits.let_go(principal, "streams")

    def _count_connection(self, connection: Counted, principal: str) -> None:
        before = connection.counted_as
        if before == principal:
            return
        found = self._limits.hold(principal, "connections")
        if found.wait_s:
            self._refuse(found)  # the answer closes it
        if before:
            self._limits.let_go(before, "connections")
        else:
            connection.when_lost(partial(self._lost, connection))
        connection.counted_as = principal

    def _lost(self, connection: Counted) -> None:
        self._limits.let_go(connection.counted_as, "connections")

    def owned(self, call: Call, namespace: str) -> None:
        if not call.is_streaming:
            self.owned_here(namespace)

    async def _until_paid(
        self,
        principal: str,
        *,
        bytes_in: int | None = None,
        messages_in: int | None = None,
        bytes_out: int | None = None,
        messages_out: int | None = None,
        processor_ms: float | None = None,
    ) -> None:
        while True:
            found = self._limits.take(
                principal,
                requests=None,
                bytes_in=bytes_in,
                messages_in=messages_in,
                bytes_out=bytes_out,
                messages_out=messages_out,
                processor_ms=processor_ms,
                now_s=self.now_s(),
            )
            if not found.wait_s:
                return
            await asyncio.sleep(found.wait_s)


def wait_of(error: BaseException) -> float:
    if isinstance(error, QuotaExceeded):
        return error.wait_s
    if isinstance(error, Problem) and error.code == QuotaExceeded.name and error.can_retry:
        return float(error.extra.get("wait_s", 1.0))
    return 0.0


def _size_of(response: web.StreamResponse) -> int:
    if isinstance(response, web.Response) and isinstance(response.body, bytes):
        return len(response.body)
    return 0
