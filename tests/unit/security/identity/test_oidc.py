"""An identity provider on this machine: its keys are fetched, rotate, and it goes away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from octavo.process import fetching
from octavo.process.fetching import fetch
from octavo.security.identity.token_form import LEEWAY_S
from octavo.security.principal import Unauthenticated
from tests.support.foreign_tokens import EC, FOREIGN, OTHER_RSA, RSA, claims, jwk, signed
from tests.support.http_api import until
from tests.support.identities import NOW_S, Lab, lab

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "TIMEOUT_S", 0.5)


class Provider:
    """Publishes `keys`; counts requests."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.keys, self.asked, self.port = list(keys), 0, 0
        self.answer: web.StreamResponse | None = None
        self.pause_s = 0.0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/keys"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/keys", self._give)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        [(_, self.port)] = self._runner.addresses

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _give(self, _request: web.Request) -> web.StreamResponse:
        self.asked += 1
        await asyncio.sleep(self.pause_s)
        return self.answer or web.json_response({"keys": self.keys})


@contextlib.asynccontextmanager
async def provider(*keys: dict[str, Any]) -> AsyncIterator[Provider]:
    made = Provider(*keys)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def believing(
    tmp_path: Any, of: Provider, **how: Any
) -> contextlib.AbstractAsyncContextManager[Lab]:
    return lab(tmp_path, fetch, jwks_url=of.url, **FOREIGN, **how)


async def test_keys_are_fetched_and_a_rotation_is_seen_by_the_first_new_token(tmp_path):
    async with (
        provider(jwk(RSA, kid="1"), jwk(EC, kid="2")) as there,
        believing(tmp_path, there, jwks_retry_ms=1) as here,
    ):
        assert (await here.bearer(signed(RSA, "RS256", kid="1"))).name == "user:alice"
        await here.bearer(signed(EC, "ES256", kid="2"))
        assert there.asked == 1
        there.keys = [jwk(OTHER_RSA, kid="3")]
        await here.bearer(signed(OTHER_RSA, "RS256", kid="3"))
        assert there.asked == 2
        await asyncio.sleep(0.01)
        with pytest.raises(Unauthenticated, match="no key"):  # not even from remembered keys
            await here.bearer(signed(RSA, "RS256", kid="1"))


async def test_the_provider_away_known_keys_serve_and_unknown_ones_fail(tmp_path):
    async with (
        provider(jwk(RSA, kid="1")) as there,
        believing(tmp_path, there, jwks_retry_ms=1, jwks_refresh_ms=10) as here,
    ):
        await here.bearer(signed(RSA, "RS256", kid="1"))
        await there.stop()
        await asyncio.sleep(0.1)
        await here.bearer(signed(RSA, "RS384", kid="1"))
        with pytest.raises(Unauthenticated, match="no key"):
            await here.bearer(signed(OTHER_RSA, "RS256", kid="3"))
        there.keys.append(jwk(OTHER_RSA, kid="3"))
        await there.start()
        await asyncio.sleep(0.01)
        await here.bearer(signed(OTHER_RSA, "RS256", kid="3"))


async def test_away_at_the_start_it_fails_closed_and_is_asked_again(tmp_path):
    async with provider(jwk(RSA, kid="1")) as there:
        await there.stop()
        async with believing(tmp_path, there, jwks_retry_ms=1) as here:
            with pytest.raises(Unauthenticated, match="no key"):
                await here.bearer(signed(RSA, "RS256", kid="1"))
            await there.start()
            await asyncio.sleep(0.01)
            await here.bearer(signed(RSA, "RS256", kid="1"))


async def test_however_many_unknown_keys_are_named_it_is_asked_once_in_a_while(tmp_path):
    async with provider(jwk(RSA, kid="1")) as there, believing(tmp_path, there) as here:
        ends = await asyncio.gather(
            *(here.bearer(signed(OTHER_RSA, "RS256", kid=f"k{n}")) for n in range(100)),
            return_exceptions=True,
        )
        assert all(isinstance(one, Unauthenticated) for one in ends)
        for number in range(20):
            with pytest.raises(Unauthenticated, match="no key"):
                await here.bearer(signed(OTHER_RSA, "RS256", kid=f"later{number}"))
        assert there.asked == 1


async def test_a_withdrawn_key_ends_what_was_verified_by_it(tmp_path):
    async with (
        provider(jwk(RSA, kid="1")) as there,
        believing(tmp_path, there, jwks_refresh_ms=20, jwks_retry_ms=1) as here,
    ):
        token = signed(RSA, "RS256", kid="1")
        await here.bearer(token)
        generation = here.authenticator.generation
        there.keys = []
        await here.until_changed(generation)
        with pytest.raises(Unauthenticated, match="no key"):
            await here.bearer(token)


@pytest.mark.parametrize(
    "how", ["slow", "an error", "a redirect", "no JSON", "too long", "a list", "no keys"]
)
async def test_an_answer_that_is_none_changes_nothing(how, tmp_path):
    async with (
        provider(jwk(RSA, kid="1")) as there,
        believing(tmp_path, there, jwks_retry_ms=1) as here,
    ):
        await here.bearer(signed(RSA, "RS256", kid="1"))
        if how == "slow":
            there.pause_s = 1
        else:
            there.answer = {
                "an error": web.Response(status=500, text="sorry"),
                "a redirect": web.Response(status=302, headers={"Location": there.url}),
                "no JSON": web.Response(text="<html>"),
                "too long": web.Response(body=b" " * (fetching.BYTES_MAX + 1)),
                "a list": web.Response(text="[]"),
                "no keys": web.Response(text='{"keys": 7}'),
            }[how]
        with capture_logs() as logs:
            with pytest.raises(Unauthenticated, match="no key"):
                await here.bearer(signed(OTHER_RSA, "RS256", kid="2"))
            assert [line["event"] for line in logs] == ["jwks_not_fetched", "login_failed"]
        await here.bearer(signed(RSA, "RS384", kid="1"))


@pytest.mark.parametrize("ahead_s", [0, 1, LEEWAY_S])
async def test_a_token_of_a_clock_that_is_ahead_ends_when_tokens_are_revoked(tmp_path, ahead_s):
    """It claimed to be issued after the revocation, and so outlived it."""
    async with provider(jwk(RSA, kid="1")) as there, believing(tmp_path, there) as here:
        await here.with_user("alice")
        token = signed(RSA, "RS256", claims(iat=NOW_S + ahead_s), kid="1")
        await here.bearer(token)
        await here.users.revoke_tokens("alice", here.now_s)
        await until(lambda: here.authenticator.users.get("alice").not_before_s)
        for later_s in (0, 1, 60, 300):
            here.now_s = NOW_S + later_s
            with pytest.raises(Unauthenticated, match="revoked"):
                await here.bearer(token)
        later = signed(RSA, "RS256", claims(iat=NOW_S + LEEWAY_S + 1), kid="1")
        await here.bearer(later)
