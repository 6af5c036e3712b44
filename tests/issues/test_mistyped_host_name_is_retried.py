"""A mistyped host name was tried for 60 s before anybody was told."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from typing import Any

import pytest

from octavo.cli.main import run
from octavo.client import transport
from octavo.client.errors import Unreachable
from octavo.client.transport import Transport


@pytest.fixture(autouse=True)
def no_such_host(monkeypatch: pytest.MonkeyPatch) -> None:
    real = asyncio.base_events.BaseEventLoop.getaddrinfo

    async def getaddrinfo(self: Any, host: Any, *args: Any, **named: Any) -> Any:
        if host == "brokr":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return await real(self, host, *args, **named)

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(transport, "HOPELESS_RETRY_S", 0.2)


async def test_it_is_named_soon() -> None:
    calls = Transport("http://brokr:8080", attempt_s=5, retry_s=60, rng=random.Random(1))
    async with asyncio.timeout(20):
        with pytest.raises(Unreachable, match="there is no host named 'brokr'"):
            await calls.call("GET", "/v1/cluster")
    await calls.close()


async def test_with_another_broker_that_may_come_back_there_is_time() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        other = f"http://127.0.0.1:{taken.getsockname()[1]}"
        calls = Transport(
            ["http://brokr:8080", other], attempt_s=5, retry_s=1.5, rng=random.Random(1)
        )
        begun = time.monotonic()
        with pytest.raises(Unreachable):
            await calls.call("GET", "/v1/cluster")
        assert time.monotonic() - begun > 0.5
        await calls.close()


def test_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    assert run(["topic", "list", "--url", "http://brokr:8080"]) == 1
    assert time.monotonic() - begun < 15
    assert "there is no host named 'brokr'" in capsys.readouterr().err
