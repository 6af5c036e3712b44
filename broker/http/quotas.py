"""Charge quotas for calls, and refuse or delay calls that exceed them (security/limits.py).

    a call            429 `quota-exceeded` with `Retry-After`, before its body is read
    a stream          waits before it sends more; it is not ended
    a connection      its first call gets that 429, and it is closed
    too many topics   422 `quota-exceeded`, since waiting would not help; the same for
                      subscriptions and groups
    processor time    429 as well: the work of a call is measured step by step, and charged to its
                      principal and its namespace at each broker that works
    a topic's rates   429 as well: they are policies (policies.py), counted by the owner

This module charges what only HTTP knows: announced lengths, bodies, streams, connections.
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
"""A content type whose bodies have no length limit: charged as they arrive."""
_BRINGS = (Charge.PUBLISHES, Charge.UPLOADS)


class Counted(Protocol):
    """A connection that tells when it ends."""

    counted_as: str
    """The principal for which its place is counted; empty before its first call."""

    def when_lost(self, call: Callable[[], None]) -> None: ...


class HttpQuotas(OperationQuotas):
    """Charges calls, bodies, streams and connections to their principals."""

    def __init__(
        self, store: MetadataStore, broker: Broker, config: HttpConfig, metrics: Metrics
    ) -> None:
        super().__init__(store, broker, metrics)
        self._config = config

    # Quotas of the principal, at the broker that it calls

    def admit(self, call: Call, connection: Counted) -> None:
        """Charge a call with what is known before its body is read. Raises a 429."""
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
        """Run a call's handler; charge its processor time to the principal and the namespace."""
        work: Awaitable[web.StreamResponse] = call.route.handler(call)
        if not self.on or call.route.charge is Charge.FREE:
            return work
        return self.measured_for(call.identity, call.variables.get("namespace", ""), work)

    def at_hand(
        self, connection: Counted, principal: str, topic: TopicName, size: int, *, owned: bool
    ) -> Wait | None:
        """Charge a message on the fast publish path; return the wait; None: use the normal path.

        Charges what `admit` and `owned` charge. If not `owned`, another broker will store it.
        """
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
        """Charge what the answer shows: its size, and how many messages there were."""
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
        """Charge a piece of a long answer, so that a client that breaks off pays for what it
        got."""
        if self.on and not call.is_streaming and call.route.charge is Charge.TAKES:
            self._limits.charge(call.identity.name, bytes_out=size, now_s=self.now_s())

    def paid(self, call: Call, size: int) -> None:
        """Charge the length of a body that was read, less what was announced."""
        if self.on:
            more = size - (0 if call.unpaid else call.request.content_length or 0)
            self._limits.charge(call.identity.name, bytes_in=max(0, more), now_s=self.now_s())

    async def came(self, call: Call, size: int) -> None:
        """Charge a piece of a body of unannounced length; wait until the debt is paid."""
        if self.on and call.unpaid:
            self.paid(call, size)
            await self._until_paid(call.identity.name, bytes_in=0, messages_in=0)

    async def sent(self, call: Call, size: int, messages: int) -> None:
        """Charge a piece of a stream; wait until the debt is paid."""
        if self.on:
            principal, now_s = call.identity.name, self.now_s()
            self._limits.charge(principal, bytes_out=size, messages_out=messages, now_s=now_s)
            await self._until_paid(principal, bytes_out=0, messages_out=0, processor_ms=0)

    @contextmanager
    def stream(self, call: Call) -> Iterator[None]:
        """Count an open stream for as long as the block lasts. Raises a 429."""
        principal = call.identity.name
        self._refuse(self._limits.hold(principal, "streams"))
        try:
            yield
        finally:
            self._limits.let_go(principal, "streams")

    def _count_connection(self, connection: Counted, principal: str) -> None:
        """Count a connection for its current principal; behind a proxy the principal may change."""
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

    # Quotas of the namespace, at the owner of the partition

    def owned(self, call: Call, namespace: str) -> None:
        """Charge a call to the namespace of a partition that is open here. Raises a 429."""
        if not call.is_streaming:
            self.owned_here(namespace)

    # Waits

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
        """Wait until the debts of all given kinds are paid."""
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
    """Return how many seconds a quota makes a refused call wait; 0 for other errors."""
    if isinstance(error, QuotaExceeded):
        return error.wait_s
    if isinstance(error, Problem) and error.code == QuotaExceeded.name and error.can_retry:
        return float(error.extra.get("wait_s", 1.0))
    return 0.0


def _size_of(response: web.StreamResponse) -> int:
    """Return the size of an answer's body, unless it was charged piece by piece."""
    if isinstance(response, web.Response) and isinstance(response.body, bytes):
        return len(response.body)
    return 0
