"""A consumer group whose session timeout is 4 s, or 10, or 20, consumed nothing at all.

The client waited for a third of it, `wait=1.3333333333333333`, and the broker took six digits: a
400, which ended the consumer. So did any wait that a program had reckoned. 30 s, the default, has a
third that is a round number. Found as a user.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from octavo.broker.http.call import parse_duration_ms
from octavo.client.client import AsyncClient
from octavo.client.transport import _params
from tests.support.cluster import running_cluster


async def test_a_member_of_any_session_timeout_consumes(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, brokers=1) as cluster,
        AsyncClient([api.url for api in cluster.apis.values()]) as client,
    ):
        await client.create_topic("t")
        await client.publish("t", "one")
        consumer = client.consume("t", "s", group=True, session_timeout_s=4)
        async with asyncio.timeout(10), aclosing(consumer.deliveries()) as deliveries:
            assert (await anext(deliveries)).text() == "one"


@pytest.mark.parametrize(
    ("text", "wanted"), [(str(4 / 3), 1333), ("0.30000000000000004s", 300), ("1.5h", 5_400_000)]
)
def test_a_fraction_may_have_as_many_digits_as_programs_write(text: str, wanted: int) -> None:
    assert parse_duration_ms(text) == wanted


def test_the_client_writes_what_any_broker_reads() -> None:
    asked = {"wait": 10 / 3, "max": 5, "credits": None, "timeout": 1e-7}
    assert _params(asked) == {"wait": "3.333", "max": "5", "timeout": "0.000"}
