"""Gets what a URL of others has, for `security`: an issuer's keys. Bounded in time and length."""

from __future__ import annotations

import aiohttp

TIMEOUT_S = 5.0
BYTES_MAX = 1 << 20


async def fetch(url: str) -> bytes:
    """The body of the answer to GET. Raises `OSError` where there is none such: not 200, longer
    than `BYTES_MAX`, not within `TIMEOUT_S`. No redirect is followed: a URL that was checked leads
    to no other one."""
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
