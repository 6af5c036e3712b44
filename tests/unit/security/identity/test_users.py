"""Users in the metadata and in the memory of a process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from octavo.metadata.opening import open_store
from octavo.metadata.store import BadRecord, MetadataUnavailable
from octavo.metadata.topic_records import encode_record
from octavo.process import fetching
from octavo.process.fetching import fetch
from octavo.security import record as record_module
from octavo.security.identity import users as module
from octavo.security.identity.passwords import MECHANISMS, InvalidPassword, is_password
from octavo.security.identity.token_form import LEEWAY_S
from octavo.security.identity.users import (
    CHANGES_PATH,
    NOBODY,
    RECENT,
    ScramRecord,
    TooManyGroups,
    TooManyUsers,
    UserExists,
    UserNotFound,
    UserRecord,
    Users,
    UserStore,
    path_of,
    scram_records,
)
from octavo.security.principal import Unauthenticated
from tests.support.foreign_tokens import EC, FOREIGN, OTHER_RSA, RSA, claims, jwk, signed
from tests.support.http_api import until
from tests.support.identities import NOW_S, PASSWORD, RNG, Lab, lab

KEYS = scram_records(PASSWORD, RNG)


@pytest.fixture
async def store(tmp_path):
    made = open_store(f"file://{tmp_path}/metadata.db")
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def users(store):
    made = Users(store)
    await made.start()
    yield made
    await made.close()


async def holds(what) -> None:
    async with asyncio.timeout(10):
        while not what():  # noqa: ASYNC110  what the metadata tells comes when it comes
            await asyncio.sleep(0.005)


async def test_a_user_is_made_changed_and_deleted(store):
    here = UserStore(store)
    await here.create("alice", KEYS, ["staff"])
    with pytest.raises(UserExists, match="alice"):
        await here.create("alice")
    found = await here.get("alice")
    for mechanism in MECHANISMS:
        credential = found.credential(mechanism)
        assert credential is not None
        assert is_password(mechanism, PASSWORD, credential)
    await here.set_groups("alice", ["a", "b"])
    await here.set_disabled("alice", True)
    assert (await here.get("alice")).groups == ("a", "b")
    assert await here.all() == {"alice": await here.get("alice")}
    await here.delete("alice", NOW_S)
    assert await here.all() == {}
    for call in (here.get("alice"), here.set_groups("alice", []), here.delete("alice", NOW_S)):
        with pytest.raises(UserNotFound, match="alice"):
            await call


async def test_who_is_made_anew_has_nothing_of_before_but_that_old_tokens_are_void(store):
    here = UserStore(store)
    await here.create("alice", KEYS, ["staff"])
    await here.delete("alice", NOW_S)
    await here.create("alice")
    assert await here.get("alice") == UserRecord(not_before_s=NOW_S + 1)


@pytest.mark.parametrize("name", ["a/b", ".", "..", "a%2Fb", "é", "user:x", "a b"])
async def test_a_name_is_no_way_to_another_record(store, name):
    here = UserStore(store)
    if name == "a b":
        with pytest.raises(InvalidPassword):
            await here.create(name)
        return
    await here.create(name)
    assert await here.names() == [name]
    assert path_of(name).startswith("/octavo/security/users/")
    assert path_of(name).count("/") == 4


async def test_no_more_users_than_are_allowed(store, monkeypatch):
    monkeypatch.setattr(module, "USERS_MAX", 3)
    here = UserStore(store)
    for number in range(3):
        await here.create(f"u{number}")
    with pytest.raises(TooManyUsers):
        await here.create("u3")


async def test_no_more_groups_than_are_allowed(store):
    here = UserStore(store)
    await here.create("alice", groups=["a", "b", "a"])
    assert (await here.get("alice")).groups == ("a", "b")
    many = [f"g{number}" for number in range(module.GROUPS_MAX + 1)]
    for call in (here.create("bob", groups=many), here.set_groups("alice", many)):
        with pytest.raises(TooManyGroups, match="64 at most"):
            await call


async def test_many_changes_at_once_are_all_made(store):
    here = UserStore(store)
    await here.create("alice")
    await asyncio.gather(
        here.set_groups("alice", ["a"]),
        here.set_disabled("alice", True),
        here.set_password("alice", KEYS),
        *(here.create(f"u{n}") for n in range(10)),
    )
    found = await here.get("alice")
    assert (found.groups, found.disabled, found.has_password) == (("a",), True, True)
    assert len(await here.all()) == 11


async def test_a_process_sees_each_change(store, users):
    here = UserStore(store)
    told: list[frozenset[str]] = []
    users.on_change(told.append)
    assert users.get("alice") is NOBODY
    await here.create("alice", KEYS)
    await holds(lambda: users.get("alice").has_password)
    await here.set_disabled("alice", True)
    await holds(lambda: users.get("alice").disabled)
    await here.delete("alice", NOW_S)
    await holds(lambda: not users.get("alice").has_password)
    assert set(told) == {frozenset({"alice"})}


async def test_a_process_that_missed_more_than_the_last_changes_reads_all(store, users):
    here = UserStore(store)
    for number in range(3 * RECENT):
        await here.create(f"u{number}", groups=["g"])
    await holds(lambda: all(users.get(f"u{n}").groups for n in range(3 * RECENT)))
    late = Users(store)
    await late.start()
    assert all(late.get(f"u{n}").groups for n in range(3 * RECENT))
    await late.close()


async def test_a_change_whose_maker_died_before_it_told_of_it_is_seen(store, users, monkeypatch):
    monkeypatch.setattr(record_module, "REREAD_S", 0.02)
    here = UserStore(store)
    await here.create("alice")
    await holds(lambda: users.get("alice") == UserRecord())
    tell, times = here._tell, 0

    async def dies(name):
        nonlocal times
        times += 1
        if times > 1:
            raise asyncio.CancelledError
        await tell(name)

    monkeypatch.setattr(here, "_tell", dies)
    with pytest.raises(asyncio.CancelledError):
        await here.set_disabled("alice", True)
    await holds(lambda: users.get("alice").disabled)


@pytest.mark.parametrize("value", [
    b"\xff", encode_record(UserRecord(ScramRecord("zz", 4096, "", ""))),
    encode_record(UserRecord(ScramRecord("00" * 16, 4095, "00" * 32, "00" * 32))),
    encode_record(UserRecord(ScramRecord("00" * 16, 4096, "00" * 31, "00" * 32))),
])  # fmt: skip
async def test_a_damaged_record_is_nobody_and_keeps_no_others_out(store, value):
    here = UserStore(store)
    await here.create("alice", KEYS)
    await here.create("bob", KEYS)
    _, version = await store.get(path_of("alice"))
    await store.put(path_of("alice"), value, version)
    with pytest.raises(BadRecord, match="alice"):
        await here.get("alice")
    users = Users(store)
    with capture_logs() as logs:
        await users.start()
    assert users.get("alice").disabled
    assert users.get("bob").has_password
    assert [one["event"] for one in logs] == ["user_unreadable"]
    await users.close()


async def test_while_the_store_is_away_users_are_as_last_known(store, users, monkeypatch):
    here = UserStore(store)
    await here.create("alice", KEYS)
    await holds(lambda: users.get("alice").has_password)
    monkeypatch.setattr(record_module, "REREAD_S", 0.01)

    async def away(*_):
        raise MetadataUnavailable("away")

    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(store, "sync", away)
        await here.set_groups("alice", ["late"])
        await holds(lambda: logs)
        await asyncio.sleep(0.05)
        assert users.get("alice").groups == ()
        assert [one["event"] for one in logs] == ["record_not_read"]
    await holds(lambda: users.get("alice").groups == ("late",))


async def test_records_of_tomorrow_keep_what_we_do_not_know(store):
    here = UserStore(store)
    await store.create(path_of("alice"), encode_record(UserRecord(extra={"shoe": 43})))
    await here.set_disabled("alice", True)
    assert (await here.get("alice")).extra == {"shoe": 43}
    assert (await store.get(CHANGES_PATH)).version >= 1


def test_nothing_secret_is_shown():
    shown = repr(UserRecord(*KEYS))
    for one in KEYS:
        assert one.stored_key not in shown
        assert one.server_key not in shown
        assert one.salt not in shown


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_a_user_is_in_as_many_groups_as_are_allowed(store, more):
    here = UserStore(store)
    many = [f"g{number}" for number in range(module.GROUPS_MAX + more)]
    if more > 0:
        with pytest.raises(TooManyGroups):
            await here.create("alice", groups=many)
    else:
        await here.create("alice", groups=many)
        assert (await here.get("alice")).groups == tuple(many)


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


@pytest.mark.usefixtures("quick")
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


@pytest.mark.usefixtures("quick")
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


@pytest.mark.usefixtures("quick")
async def test_away_at_the_start_it_fails_closed_and_is_asked_again(tmp_path):
    async with provider(jwk(RSA, kid="1")) as there:
        await there.stop()
        async with believing(tmp_path, there, jwks_retry_ms=1) as here:
            with pytest.raises(Unauthenticated, match="no key"):
                await here.bearer(signed(RSA, "RS256", kid="1"))
            await there.start()
            await asyncio.sleep(0.01)
            await here.bearer(signed(RSA, "RS256", kid="1"))


@pytest.mark.usefixtures("quick")
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


@pytest.mark.usefixtures("quick")
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


@pytest.mark.usefixtures("quick")
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


@pytest.mark.usefixtures("quick")
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
