"""A client took any text that began like a URL, and its first call ended in a trace of aiohttp.

Several URLs with commas, as `--url` and `OCTAVO_URL` have them, were one of these. Found as a user.
"""

from __future__ import annotations

import pytest

from octavo.client.client import AsyncClient
from octavo.client.errors import InvalidCall


@pytest.mark.parametrize(
    "url",
    ["http://a:80x", "http://a:99999", "http://a b:8080", "http://:8080", "http://a:8080/?x=1", ""],
)
async def test_it_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidCall, match="for example http"):
        AsyncClient(url)


async def test_several_may_stand_in_one_text() -> None:
    async with AsyncClient("http://a:8080, http://b:8081/") as client:
        assert client.transport._urls == ["http://a:8080", "http://b:8081"]
