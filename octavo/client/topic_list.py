"""Lists all topics of a namespace; a long list takes several calls."""

from __future__ import annotations

from typing import NamedTuple

from octavo.client.transport import Transport
from octavo.client.types import path_part

TOPICS_AT_ONCE = 10_000
"""Names in an answer: a broker's maximum."""


class TopicList(NamedTuple):
    names: list[str]
    letters: frozenset[str]


async def list_topics(
    transport: Transport, namespace: str, *, with_letters: bool = False
) -> TopicList:
    path = f"/v1/topics/{path_part(namespace, 'namespace')}"
    names, letters = list[str](), set[str]()
    query: dict[str, object] = {"limit": TOPICS_AT_ONCE}
    if with_letters:
        query["letters"] = "true"
    while True:
        found = (await transport.call("GET", path, query=query)).json()
        names += map(str, found.get("topics", ()))
        letters.update(map(str, found.get("letters", ())))
        if not (last := found.get("next")):
            return TopicList(names, frozenset(letters))
        query["after"] = last
