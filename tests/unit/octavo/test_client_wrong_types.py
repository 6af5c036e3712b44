"""Each argument of each public call gets values of wrong types. The client's refusal is a
`ClientError` and not Python's own error; the broker refuses the rest."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, get_type_hints

import pytest

from octavo import AsyncClient, Client, ClientError, InvalidCall
from octavo.client import settings
from octavo.client.consumer import TopicsConsumer
from octavo.client.durable import AsyncStream
from octavo.client.producer import Producer
from octavo.client.subscription import Subscription
from tests.support.fake_service import FakeBroker
from tests.support.memory_cluster import Running, running

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


# ---- settings, and what a client makes


SETTINGS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "create_topic": (settings.TopicSettings, ("t",)),
    "update_topic": (settings.TopicChanges, ("t",)),
    "create_namespace": (settings.NamespaceSettings, ("n",)),
    "update_namespace": (settings.NamespaceSettings, ("n",)),
    "set_quota": (settings.Quota, ("user:a",)),
    "producer": (settings.ProducerSettings, ("t",)),
    "subscribe": (settings.SubscriptionSettings, ("t", "s")),
}
SETTING_CASES = [
    (name, setting)
    for name, (kind, _) in SETTINGS.items()
    for setting in (*get_type_hints(kind), "no_such_setting")
]


@pytest.mark.parametrize(("name", "setting"), SETTING_CASES)
async def test_a_setting_of_a_wrong_type_is_a_plain_error(
    client: AsyncClient, name: str, setting: str
) -> None:
    for value in WRONG.values():
        with contextlib.suppress(ClientError):
            async with asyncio.timeout(WITHIN_S):
                call: Any = getattr(client, name)
                found = call(*SETTINGS[name][1], **{setting: value})
                if inspect.isawaitable(found):
                    found = await found
                if isinstance(found, Producer):
                    await found.close()


@pytest.fixture
async def real() -> AsyncIterator[Running]:
    async with running(1) as cluster:
        yield cluster


INNER = {
    "acknowledge", "check", "close_if_forgotten", "forked", "item", "lease_s", "note", "opened",
    "receive_in_turn", "send_pairs", "take", "until_room",
}  # fmt: skip
"""Methods that the client itself calls."""
MAKERS: dict[type, Callable[[AsyncClient], Any]] = {
    Producer: lambda client: client.producer("t"),
    Subscription: lambda client: client.subscription("t", "s"),
    AsyncStream: lambda client: client.stream("u"),
    TopicsConsumer: lambda client: client.consume(["t"], "s"),
}
METHODS = [
    (kind, name, one)
    for kind in MAKERS
    for name, method in inspect.getmembers(kind, inspect.isfunction)
    if not name.startswith("_") and name not in INNER
    for one in inspect.signature(method).parameters.values()
    if one.name != "self"
]


@pytest.mark.parametrize(
    ("kind", "name", "argument"),
    METHODS,
    ids=[f"{kind.__name__}.{name}({one.name})" for kind, name, one in METHODS],
)
async def test_a_method_of_what_a_client_makes_says_what_is_wrong(
    real: Running, kind: type, name: str, argument: inspect.Parameter
) -> None:
    method = getattr(kind, name)
    async with AsyncClient(real.api.url, retry_s=0.0) as client:
        await client.create_topic("t")
        await client.subscribe("t", "s")
        await client.stream("u").create()
        await client.stream("u").append(1)
        for value in WRONG.values():
            given = {
                one.name: GOOD.get(one.name, "x")
                for one in arguments(method)
                if one.default is one.empty
            }
            extra: tuple[Any, ...] = ()
            if argument.kind is argument.VAR_POSITIONAL:
                extra = (value,)
            else:
                given[argument.name] = value
            with contextlib.suppress(ClientError):
                async with asyncio.timeout(WITHIN_S):
                    made = MAKERS[kind](client)
                    if inspect.isawaitable(made):
                        made = await made
                    found = method(made, *extra, **given)
                    if inspect.isawaitable(found):
                        await found
                    elif hasattr(found, "__anext__"):
                        if name == "deliveries":
                            await client.publish("t", "v")
                        async with contextlib.aclosing(found):
                            await anext(found)
                    if kind is Producer:
                        await made.close()


WRONG_CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an option": (lambda c: c.producer("t", window="4"), "window must be a whole number from 1 on"),
    "an unknown option": (lambda c: c.producer("t", windows=4), "no option 'windows'; it has"),
    "a wait": (
        lambda c: c.subscription("t", "s").receive(wait_s="1"),
        "wait_s must be a number of",
    ),
    "a partition": (
        lambda c: c.subscription("t", "s").peek(partition=["0"]),
        "a partition must be a n",
    ),
    "a delivery": (
        lambda c: c.subscription("t", "s").ack_up_to("0-1"),
        "delivery must be a Delivery",
    ),
    "a content type": (lambda c: c.stream("u").create(5), "content_type must be text, not 5"),
    "a time": (lambda c: c.stream("u").create(expires_at=5), "expires_at must be a datetime"),
    "a time to live": (lambda c: c.stream("u").create(ttl_s="1"), "ttl_s must be a whole"),
    "an offset": (lambda c: c.stream("u").read(5), "offset must be text, not 5"),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
async def test_the_error_names_the_argument_and_what_is_right(real: Running, name: str) -> None:
    """The synchronous client says the same."""
    call, told = WRONG_CALLS[name]

    def run_it() -> None:
        with Client(real.api.url, retry_s=1.0) as client:
            client.create_topic("t")
            with pytest.raises(InvalidCall, match=told):
                call(client)

    await asyncio.to_thread(run_it)
