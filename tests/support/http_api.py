"""A test's client of a broker's HTTP API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
from yarl import URL


class Api:
    """`await api.post("/v1/…", json=…)` returns an `Answer`."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def call(self, method: str, path: str, **kwargs: Any) -> Answer:
        headers = kwargs.pop("headers", {})
        url = URL(self.url + path, encoded=True)
        async with self.session.request(
            method, url, headers=headers, allow_redirects=False, **kwargs
        ) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path: str, **kwargs: Any) -> Answer:
        return await self.call("GET", path, **kwargs)

    async def post(self, path: str, data: Any = None, kind: str = "", **kwargs: Any) -> Answer:
        if kind:
            kwargs.setdefault("headers", {})["Content-Type"] = kind
        return await self.call("POST", path, data=data, **kwargs)

    async def put(self, path: str, **kwargs: Any) -> Answer:
        return await self.call("PUT", path, **kwargs)


class Answer:
    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"<{self.status} {self.body[:600]!r}>"


async def until(check: Callable[[], Any], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            if check():
                return
            await asyncio.sleep(0.005)
