"""Each argument of each public call of the client gets values of wrong types.

`client.consume(5)` raised Python's own "'int' object is not iterable", and a number for a namespace
raised "quote_from_bytes() expected bytes". A refusal by the client is a `ClientError`; the broker
refuses the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from octavo import AsyncClient, ClientError
from tests.support.fake_service import FakeBroker

NOT_CALLS = {"close", "close_in_time", "forked"}
WRONG = {
    "a number": 5, "a fraction": 1.5, "nothing": None, "a list": ["a"], "a dictionary": {"a": 1},
    "bytes": b"x", "truth": True, "an object": object(), "half a pair": "\ud800",
}  # fmt: skip
GOOD: dict[str, Any] = {
    "value": "v", "messages": [("k", "v")], "ledger_id": 1, "schema": {}, "source": b"x",
    "offset": 0, "message": 0, "rules": [], "roles": [], "before": "latest", "partitions": 1,
}  # fmt: skip
WITHIN_S = 60.0


def arguments(call: Any) -> Iterator[inspect.Parameter]:
    """Return the named parameters of a method, without `self`."""
    for one in list(inspect.signature(call).parameters.values())[1:]:
        if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            yield one


CALLS = {
    name: call
    for name, call in inspect.getmembers(AsyncClient, inspect.isfunction)
    if not name.startswith("_") and name not in NOT_CALLS
}
CASES = [(name, one.name) for name, call in CALLS.items() for one in arguments(call)]


@pytest.fixture
async def client() -> AsyncIterator[AsyncClient]:
    broker = FakeBroker(partitions=1)
    await broker.start()
    async with AsyncClient(broker.url, retry_s=0.0) as one:
        yield one
    await broker.stop()


async def run(client: AsyncClient, name: str, given: dict[str, Any]) -> None:
    """Make the call, and start its result."""
    found = CALLS[name](client, **given)
    if inspect.isawaitable(found):
        found = await found
    if hasattr(found, "__anext__"):
        async with contextlib.aclosing(found):
            async for _ in found:
                break
    elif hasattr(found, "__aenter__"):
        async with found:
            pass


def test_all_calls_are_tried() -> None:
    assert len(CASES) > 100


@pytest.mark.parametrize(("name", "argument"), CASES)
async def test_a_wrong_type_is_a_plain_error(client: AsyncClient, name: str, argument: str) -> None:
    for value in WRONG.values():
        given = {
            one.name: GOOD.get(one.name, "x")
            for one in arguments(CALLS[name])
            if one.default is one.empty
        }
        given[argument] = value
        with contextlib.suppress(ClientError):
            async with asyncio.timeout(WITHIN_S):
                await run(client, name, given)
