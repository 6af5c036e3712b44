"""The call by which another broker opens its connection for operations."""

from __future__ import annotations

from aiohttp import web

from octavo.broker.http.call import Call


async def connect(call: Call) -> web.StreamResponse:
    """`GET /v1/operations`: an upgrade, by another broker."""
    return await call.services.door.accept(call)
