"""Fetch an issuer's keys from a URL, within bounds of time and length."""

from __future__ import annotations

import aiohttp

TIMEOUT_S = 5.0
BYTES_MAX = 1 << 20


async def fetch(url: str) -> bytes:
    """Fetch a URL.

    Raises `OSError` for a status other than 200, a body above `BYTES_MAX`, or no answer in
    `TIMEOUT_S`. Redirects are not followed: they would lead away from the URL that was checked.
    """
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session,
            session.get(url, allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                raise OSError(f"answered with status {answer.status}")
            body = bytearray()
            async for part in answer.content.iter_any():
                body += part
                if len(body) > BYTES_MAX:
                    raise OSError(f"answered with more than {BYTES_MAX} bytes")
            return bytes(body)
    except aiohttp.ClientError as error:
        raise OSError(f"cannot be reached: {error}") from error
