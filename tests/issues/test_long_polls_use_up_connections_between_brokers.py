"""As many long polls through a broker that is not the owner as it has connections to other brokers:
all other calls that it had to pass on got 503.
"""

from __future__ import annotations

import asyncio

from tests.support.fake_broker import running, until

TOPIC = "/v1/topics/public/one"


async def test_calls_that_wait_leave_connections_to_those_that_work() -> None:
    async with running(2, peer_connections_max=4) as two:
        assert (await two.api.put(TOPIC)).status == 201
        other = two.apis[1]
        waiting = [
            asyncio.ensure_future(other.get(f"{TOPIC}/messages?from=latest&wait=30s"))
            for _ in range(20)
        ]
        partition = two.partition("public/one")
        try:
            async with asyncio.timeout(10):
                await until(lambda: len(partition.waiters) == 20)
                answers = await asyncio.gather(
                    *(other.post(f"{TOPIC}/messages", b"x", "text/plain") for _ in range(8))
                )
            assert {answer.status for answer in answers} == {200}
            assert {answer.status for answer in await asyncio.gather(*waiting)} == {200}
        finally:
            for one in waiting:
                one.cancel()
