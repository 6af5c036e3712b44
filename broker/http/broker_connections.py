"""Take connections of other brokers over from HTTP (broker/operations/upgrade.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from octavo.broker.errors import NotOwner
from octavo.broker.http.problems import Problem, refusal_of
from octavo.broker.http.services import node_identity
from octavo.broker.operations.bodies import Asker
from octavo.broker.operations.frames import keys_of
from octavo.broker.operations.links import AnsweringLink, Reply
from octavo.broker.operations.remote import Place, Proof, Remote, hello_of, seals_of
from octavo.broker.operations.serving import Serving
from octavo.broker.operations.upgrade import (
    PATH,
    PROTOCOL,
    PROTOCOLS,
    Nonces,
    Upgrade,
    answer_head,
    read_upgrade,
)
from octavo.security.principal import Identity
from octavo.tls.contexts import Certificates

if TYPE_CHECKING:
    from octavo.broker.http.call import Call
    from octavo.broker.http.config import HttpConfig
    from octavo.broker.http.services import Services


def new_remote(
    own: Identity,
    broker_id: str,
    config: HttpConfig,
    call_key: bytes,
    draw_nonce: Callable[[], str],
    tls: Certificates | None,
    count: Callable[[], object],
) -> Remote:
    async def dial(place: Place, protocol: Callable[[], asyncio.Protocol]) -> object:
        context = None
        if place.is_tls:
            context = tls.client if tls and tls.client else True
        return await asyncio.get_running_loop().create_connection(
            protocol, place.host, place.port, ssl=context
        )

    return Remote(broker_id, config, Proof(call_key, draw_nonce), dial, own, count)


class _Switched(web.StreamResponse):
    @property
    def prepared(self) -> bool:
        return True

    async def prepare(self, request: web.BaseRequest) -> None: ...

    async def write_eof(self, data: bytes = b"") -> None: ...


class _Accepted(AnsweringLink):
    http: asyncio.Protocol

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.http.connection_lost(exc)


class Door:
    """A crash loses the used nonces: then a recorded request may begin a connection, but no
    operation.
    """

    def __init__(self, broker_id: str, call_key: bytes, draw_nonce: Callable[[], str]) -> None:
        self._broker_id = broker_id
        self._call_key = call_key
        self._draw_nonce = draw_nonce
        self._nonces = Nonces()
        self._serving: Serving | None = None
        self._open: dict[_Accepted, None] = {}

    def check(self, headers: Mapping[str, str]) -> Identity:
        """Return the other broker's identity.

        Raises a 403 without a proof, a 426 for another version, `NotOwner` if it means another
        broker.
        """
        return node_identity(self._checked(headers).asking)

    def _checked(self, headers: Mapping[str, str]) -> Upgrade:
        wanted = headers.get("Upgrade", "")
        if wanted != PROTOCOL and wanted.startswith(PROTOCOLS):
            raise Problem(
                426,
                "other-protocol",
                f"this broker speaks {PROTOCOL}, not {wanted[:60]}: all brokers of a cluster must "
                "have the same version",
                headers={"Upgrade": PROTOCOL, "Connection": "close"},
            )
        upgrade = read_upgrade(headers, self._call_key)
        if upgrade is None:
            raise _brokers_only("it does not prove that it comes from a broker of this cluster")
        if upgrade.answering != self._broker_id:
            raise NotOwner(
                f"the call was meant for broker {upgrade.answering}; here is {self._broker_id}"
            )
        return upgrade

    def close(self) -> None:
        for link in tuple(self._open):
            link.end("this broker stops")
        if self._serving is not None:
            self._serving.close()

    async def accept(self, call: Call) -> web.StreamResponse:
        services, upgrade = call.services, self._checked(call.request.headers)
        if not self._nonces.is_new(upgrade.nonce):
            raise _brokers_only("it came before, so it was recorded")
        transport = call.request.transport
        if transport is None:
            raise ConnectionResetError("the broker that asked is gone")
        own, nonce = self._broker_id, self._draw_nonce()
        keys = keys_of(self._call_key, upgrade.asking, own, (upgrade.nonce, nonce))
        sends, receives = seals_of(keys, is_tls=transport.get_extra_info("sslcontext") is not None)
        serving, asker = self._serves(services), Asker(upgrade.asking, call.peer)
        run = partial(_run, serving, asker)
        link = _Accepted(hello_of(own), sends, receives, run)
        link.http = call.request.protocol
        transport.write(answer_head(nonce))
        transport.set_protocol(link)
        link.connection_made(transport)
        services.in_hand.leave()  # the operations are counted one by one from here
        self._open[link] = None
        try:
            await link.closed
        finally:
            del self._open[link]
            serving.lose(asker)
            services.in_hand.enter()
            link.end("this broker stops")
        answer = _Switched(status=101)
        answer.force_close()
        return answer

    def _serves(self, services: Services) -> Serving:
        if self._serving is None:
            self._serving = Serving(
                services.broker,
                services.rules,
                refusal_of,
                lambda: services.ready and not services.stopping.is_set(),
                services.in_hand.enter,
                services.in_hand.leave,
                services.groups,
            )
        return self._serving


def _brokers_only(reason: str) -> Problem:
    return Problem(
        403,
        "brokers-only",
        f"GET {PATH} is a call between brokers, and this one is refused: {reason}",
        headers={"Connection": "close"},
    )


async def _run(serving: Serving, asker: Asker, payload: bytes, deadline_s: float) -> Reply:
    return await serving.answer(payload, deadline_s, asker)
