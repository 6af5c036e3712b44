"""What plain reads answered to clients that took nothing was counted nowhere: 500 of them took a
broker above a gigabyte, twice what docs/limits.md says that it takes at most.
"""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import aiohttp

from octavo import AsyncClient
from octavo.broker.http.held_bytes import HeldBytes
from tests.support.cluster import running_cluster
from tests.support.fake_broker import until

MIB = 1024 * 1024
BOUND = 32 * MIB
ANSWER = 4 * MIB
"""More than two sockets' buffers take."""
TOPIC = "/v1/topics/public/t"
READ = f"{TOPIC}/partitions/0/messages?from=0&max_bytes={ANSWER}"


async def test_answers_that_nobody_takes_are_counted_and_bounded(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=0) as cluster:
        api = await cluster.start_broker("small", bodies_bytes_max=BOUND, stall_timeout_ms=60_000)
        server = cluster.brokers["small"].server
        assert server is not None
        held = server._services.held
        async with AsyncClient(api.url) as client:
            await client.create_topic("t")
            async with client.producer("t", batch_bytes=100_000) as producer:
                for _ in range(100):
                    await producer.send(b"x" * 90_000)
        host, port = api.url.removeprefix("http://").split(":")
        request = (
            f"GET {READ} HTTP/1.1\r\nHost: {host}:{port}\r\n"
            "Accept: application/vnd.kafka.recordbatch.v2\r\n\r\n"
        ).encode()
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                one = stack.enter_context(socket.socket())
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                one.connect((host, int(port)))
                before = held.total
                one.sendall(request)
                await until(lambda before=before: held.total > before, 20)
            assert 3 * ANSWER * 0.9 < held.total <= BOUND * 3 // 8
            refused = await api.get(READ)
            assert (refused.status, refused.json()["code"]) == (429, "overloaded")
            assert "ask for less" in refused.json()["detail"]
            assert refused.headers["Retry-After"]
            assert (await api.get(f"{READ[: -len(str(ANSWER))]}1000")).status == 200, (
                "short ones go"
            )
            body = b"x" * MIB
            stored = await api.post(f"{TOPIC}/messages", body, "application/octet-stream")
            assert stored.status == 200, "there is room for what comes in"
            other = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
            async with (
                aiohttp.ClientSession(connector=other) as session,
                session.get(api.url + READ) as answer,
            ):
                assert answer.status == 200, "one address does not take all of it"
                await answer.read()
        await until(lambda: held.total == 0, 20)
        assert (await api.get(READ)).status == 200


def test_one_answer_is_always_possible() -> None:
    held = HeldBytes(100)
    held.check_answer("a", 1_000)
    held.count_going_out("a", 1_000)
    held.count_going_out("a", -1_000)
    assert held.total == 0
