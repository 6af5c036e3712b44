"""A Spark driver waited a minute for a broker whose host had vanished, though others were there.

The metadata names a broker until its session ends, and a host without power refuses nothing. The
driver's call had one bound, of 60 s, for connecting and answer together: asked first, the vanished
broker took half of the `commitTimeout`, and two of them took all of it: the query failed. A host
that takes no connection is left after a few seconds now, as the client leaves it.
"""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from octavo.spark import commit
from tests.support.vanished_host import vanished_host


async def test_the_next_broker_is_asked_within_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def abort(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"ledgers": [7]})

    app = web.Application()
    app.router.add_post("/v1/bulk-loads/t/batches/0/abort", abort)
    async with TestServer(app) as live:
        with vanished_host() as vanished:

            async def urls(_: str) -> list[str]:
                return [vanished, str(live.make_url("")).rstrip("/")]

            async def token(*_: object) -> str:
                return ""

            monkeypatch.setattr(commit, "_urls", urls)
            monkeypatch.setattr(commit, "_token", token)
            # Half of what one answer may take: with one bound for all, the time is over.
            assert await commit.give_up("octavo.db", "t", 0, [7], 30_000) == [7]
    assert len(asked) == 1
