"""A caller's identity: each way to prove it, which of them counts, and what ends it."""

from __future__ import annotations

import asyncio
import hashlib
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.metadata.store import MetadataUnavailable
from octavo.security.identity import authenticator, jwt_keys, tokens
from octavo.security.identity.api_keys import line_of, make_key
from octavo.security.identity.authenticator import VERIFIED_S, Keys
from octavo.security.identity.failed_logins import (
    FREE_TRIES,
    USERS_OF_ADDRESS_MAX,
    LoginsPaused,
)
from octavo.security.identity.opening import open_authenticator
from octavo.security.identity.passwords import is_password
from octavo.security.identity.token_form import Token
from octavo.security.identity.users import scram_records
from octavo.security.principal import ANONYMOUS, Identity, Shown, Standing, Unauthenticated
from tests.support.foreign_tokens import FOREIGN, OTHER_RSA, RSA, claims, public, signed
from tests.support.identities import (
    PASSWORD,
    RNG,
    Lab,
    basic,
    certificate,
    lab,
    no_network,
    revocation_list,
)

ALICE = frozenset({"group:staff"})


async def test_who_shows_nothing_is_anonymous(tmp_path):
    async with lab(tmp_path) as here:
        assert await here.authenticator.identify(Shown()) == ANONYMOUS
        assert here.authenticator.at_hand(Shown()) == ANONYMOUS


async def test_our_own_token_names_its_user_and_groups(tmp_path):
    async with lab(tmp_path) as here:
        token = here.token(groups=["group:staff"])
        shown = Shown(f"Bearer {token}")
        assert here.authenticator.at_hand(shown) is None
        found = await here.authenticator.identify(shown)
        assert found == Identity("user:alice", ALICE, "token", here.now_s + 3600)
        assert here.authenticator.at_hand(shown) == found
        here.now_s += 3601
        assert here.authenticator.at_hand(shown) is None
        with pytest.raises(Unauthenticated, match="expired"):
            await here.authenticator.identify(shown)


async def test_a_certificate_counts_where_there_is_no_header(tmp_path):
    async with lab(tmp_path) as here:
        der = certificate(cn="bob")
        assert (await here.authenticator.identify(Shown(None, der))).name == "user:bob"
        assert (await here.bearer(here.token(), certificate=der)).name == "user:alice"


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer x", "Bearer octavo_x", "Basic !", "Nego x"]
)
async def test_a_bad_header_is_an_error_beside_a_good_certificate(tmp_path, header):
    async with lab(tmp_path) as here:
        with pytest.raises(Unauthenticated):
            await here.authenticator.identify(Shown(header, certificate(cn="bob")))


async def test_a_password_is_checked_once_a_minute(tmp_path):
    async with lab(tmp_path) as here:
        await here.with_user("alice", groups=["staff"])
        found = await here.basic("alice", PASSWORD)
        assert found == Identity("user:alice", ALICE, "password", None, Standing(0))
        shown = Shown(basic("alice", PASSWORD))
        assert here.authenticator.at_hand(shown) == found
        here.now_s += 61
        assert here.authenticator.at_hand(shown) is None


async def test_a_wrong_password_and_no_such_user_are_told_in_the_same_words(tmp_path):
    async with lab(tmp_path) as here:
        await here.with_user("alice")
        told = []
        for user in ("alice", "nobody", "no\nname", ""):
            with pytest.raises(Unauthenticated) as caught:
                await here.basic(user, "wrong password")
            told.append(str(caught.value))
        assert len(set(told)) == 1


async def test_a_user_that_there_is_not_costs_the_same_check(tmp_path, monkeypatch):
    checked = []

    def counted(mechanism, password, credential):
        checked.append((mechanism, len(credential.salt), credential.iterations))
        return is_password(mechanism, password, credential)

    monkeypatch.setattr(authenticator, "is_password", counted)
    async with lab(tmp_path) as here:
        await here.with_user("alice")
        await here.users.create("tokens-only")
        for user in ("alice", "nobody", "tokens-only", "no name"):
            with pytest.raises(Unauthenticated):
                await here.basic(user, "wrong password")
    assert len(checked) == 4
    assert len(set(checked)) == 1


async def test_what_cannot_start_leaves_nothing_behind(tmp_path, monkeypatch):
    async with lab(tmp_path) as here:
        failing = await open_authenticator(here.config, here.store, lambda: 0, RNG, no_network)

        async def away(*_):
            raise MetadataUnavailable("away")

        with monkeypatch.context() as patched:
            patched.setattr(here.store, "sync", away)
            with pytest.raises(MetadataUnavailable):
                await failing.start()
        assert failing.users._followed._watch is None
        assert failing.users._followed._task is None


async def test_a_new_password_ends_the_old_one(tmp_path):
    async with lab(tmp_path) as here:
        await here.with_user("alice")
        await here.basic("alice", PASSWORD)
        generation = here.authenticator.generation
        await here.users.set_password("alice", scram_records("another one", RNG))
        await here.until_changed(generation)
        with pytest.raises(Unauthenticated):
            await here.basic("alice", PASSWORD)
        assert (await here.basic("alice", "another one")).name == "user:alice"


async def test_a_disabled_user_is_nobody_whatever_they_show(tmp_path):
    key = make_key(RNG)
    (tmp_path / "keys").write_text(line_of("alice", key))
    async with lab(tmp_path, api_keys_file=f"{tmp_path}/keys") as here:
        await here.with_user("alice")
        shown = [
            Shown(basic("alice", PASSWORD)),
            Shown(f"Bearer {here.token()}"),
            Shown(f"Bearer {key}"),
            Shown(None, certificate(cn="alice")),
        ]
        sources = [(await here.authenticator.identify(one)).source for one in shown]
        assert sources == ["password", "token", "api-key", "certificate"]
        generation = here.authenticator.generation
        await here.users.set_disabled("alice", True)
        await here.until_changed(generation)
        for one in shown:
            assert here.authenticator.at_hand(one) is None
            with pytest.raises(Unauthenticated):
                await here.authenticator.identify(one)
        generation = here.authenticator.generation
        await here.users.set_disabled("alice", False)
        await here.until_changed(generation)
        for one in shown:
            await here.authenticator.identify(one)


async def test_a_change_of_one_user_leaves_what_is_known_of_others(tmp_path):
    async with lab(tmp_path) as here:
        await here.with_user("alice")
        await here.basic("alice", PASSWORD)
        await here.with_user("bob")
        assert here.authenticator.at_hand(Shown(basic("alice", PASSWORD))) is not None


@pytest.mark.parametrize("how", ["delete", "revoke_tokens"])
async def test_tokens_end_with_their_user_or_when_revoked_and_new_ones_count(tmp_path, how):
    async with lab(tmp_path) as here:
        await here.with_user("alice")
        old = here.token()
        await here.bearer(old)
        generation = here.authenticator.generation
        await getattr(here.users, how)("alice", here.now_s)
        await here.until_changed(generation)
        with pytest.raises(Unauthenticated, match="revoked"):
            await here.bearer(old)
        here.now_s += 1
        await here.bearer(here.token())


async def test_an_api_key_names_its_user_and_goes_with_its_line(tmp_path):
    key = make_key(RNG)
    file = tmp_path / "keys"
    file.write_text("# keys\n\n" + line_of("shop", key, ["writers"]) + "\n")
    async with lab(tmp_path, api_keys_file=str(file), files_reload_ms=5) as here:
        found = await here.bearer(key)
        mark = f"api-key:{hashlib.sha256(key.encode()).hexdigest()}"
        assert found == Identity(
            "user:shop", frozenset({"group:writers"}), "api-key", None, Standing(-1, mark)
        )
        with pytest.raises(Unauthenticated, match="API key"):
            await here.bearer(make_key(RNG))
        generation = here.authenticator.generation
        file.write_text("")
        await here.until_changed(generation)
        with pytest.raises(Unauthenticated, match="API key"):
            await here.bearer(key)


async def test_a_revoked_certificate_ends_when_the_list_changes(tmp_path):
    file = tmp_path / "revoked.pem"
    file.write_bytes(revocation_list(5))
    async with lab(tmp_path, revoked_file=str(file), files_reload_ms=5) as here:
        shown = Shown(None, certificate(serial=7))
        await here.authenticator.identify(shown)
        with pytest.raises(Unauthenticated, match="revoked"):
            await here.authenticator.identify(Shown(None, certificate(serial=5)))
        file.write_bytes(b"not a list of anything")  # changes nothing
        await asyncio.sleep(0.05)
        await here.authenticator.identify(shown)
        generation = here.authenticator.generation
        file.write_bytes(revocation_list(5, 7))
        await here.until_changed(generation)
        with pytest.raises(Unauthenticated, match="revoked"):
            await here.authenticator.identify(shown)


async def test_what_was_given_out_for_a_certificate_lapses_with_it(tmp_path):
    file = tmp_path / "revoked.pem"
    file.write_bytes(revocation_list(5))
    async with lab(tmp_path, revoked_file=str(file), files_reload_ms=5) as here:
        one, other = [
            await here.authenticator.identify(Shown(None, certificate(serial=serial)))
            for serial in (255, 256)
        ]
        assert one.standing == Standing(-1, "certificate:ff")
        generation = here.authenticator.generation
        file.write_bytes(revocation_list(5, 255))
        await here.until_changed(generation)
        lapsed = here.authenticator.lapsed
        assert lapsed(one, one.standing) == "the certificate of user:alice was revoked"
        assert lapsed(other, other.standing) == ""


async def test_what_was_given_out_lapses_with_each_change_of_its_user(tmp_path):
    """And not before we hear of a change that its issuer knew already."""
    async with lab(tmp_path) as here:
        lapsed = here.authenticator.lapsed
        stranger = await here.bearer(here.token("user:carol"))
        assert lapsed(stranger, stranger.standing) == ""
        await here.with_user("alice", groups=["staff"])
        alice = await here.basic("alice", PASSWORD)
        assert alice.standing == Standing(0)
        assert lapsed(alice, alice.standing) == ""
        assert lapsed(alice, Standing(1)) == "", "its giver has heard of a change before us"
        generation = here.authenticator.generation
        await here.users.set_groups("alice", [])
        await here.until_changed(generation)
        assert "what the cluster knows of user:alice has changed" in lapsed(alice, alice.standing)
        assert lapsed(alice, Standing(1)) == ""
        generation = here.authenticator.generation
        await here.users.set_disabled("alice", True)
        await here.until_changed(generation)
        assert lapsed(alice, Standing(9)) == "user:alice is disabled"
        generation = here.authenticator.generation
        await here.users.revoke_tokens("carol", here.now_s)
        await here.until_changed(generation)
        assert "has changed since" in lapsed(stranger, stranger.standing)


async def test_what_was_given_out_for_a_key_lapses_with_the_key_and_its_groups(tmp_path):
    keys, file = [make_key(RNG) for _ in range(2)], tmp_path / "keys"
    file.write_text("".join(line_of("shop", key, ["writers"]) + "\n" for key in keys))
    async with lab(tmp_path, api_keys_file=str(file), files_reload_ms=5) as here:
        first, second = [await here.bearer(key) for key in keys]
        generation = here.authenticator.generation
        file.write_text(line_of("shop", keys[1]) + "\n")
        await here.until_changed(generation)
        lapsed = here.authenticator.lapsed
        assert lapsed(first, first.standing) == "the API key of user:shop is no longer known"
        assert lapsed(second, second.standing) == "the API key of user:shop has lost a group"
        again = await here.bearer(keys[1])
        assert lapsed(again, again.standing) == ""
        nonsense = Standing(-1, "api-key:xyz")
        assert lapsed(again, nonsense) == "the API key of user:shop is no longer known"


async def test_many_at_once_with_one_password_cost_one_check(tmp_path):
    async with lab(tmp_path) as here:
        await here.with_user("alice")
        found = await asyncio.gather(*(here.basic("alice", PASSWORD) for _ in range(200)))
        assert {one.name for one in found} == {"user:alice"}


async def test_who_fails_has_to_wait_and_others_need_not(tmp_path):
    async with lab(tmp_path) as here:
        await here.with_user("alice")
        paused = 0
        for number in range(20):
            with pytest.raises(Unauthenticated) as caught:
                await here.basic("alice", f"wrong {number}", peer="10.0.0.1:5000")
            paused += isinstance(caught.value, LoginsPaused)
        assert paused == 15
        with pytest.raises(LoginsPaused) as last:  # not looked at, even if it is right
            await here.basic("alice", PASSWORD, peer="10.0.0.1:5001")
        assert 0 < last.value.retry_after_s <= 1
        await here.basic("alice", PASSWORD, peer="10.0.0.2:5000")


FORGERIES: dict[str, Callable[[Lab, int], str]] = {
    "HS256": lambda here, n: tokens.issue(
        b"x" * 32, f"user:u{n}", ttl_s=600, now_s=here.now_s, rng=RNG
    ),
    "RS256": lambda here, n: signed(OTHER_RSA, "RS256", claims(sub=f"u{n}")),
    "PS512": lambda here, n: signed(OTHER_RSA, "PS512", claims(sub=f"u{n}")),
}


def counted_checks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Record each verified signature."""
    found: list[None] = []
    for signatures in (tokens._SIGNATURES, jwt_keys._SIGNATURES):
        decode = signatures.decode

        def counted(*args: Any, decode: Any = decode, **how: Any) -> Any:
            found.append(None)
            return decode(*args, **how)

        monkeypatch.setattr(signatures, "decode", counted)
    return found


@pytest.mark.parametrize("form", FORGERIES)
@pytest.mark.parametrize("names", [1, 1_000])
async def test_forged_tokens_of_an_address_are_refused_unread(form, names, tmp_path, monkeypatch):
    """A thousand cost a few checks, whatever they name; good tokens still work."""
    key = tmp_path / "keys.pem"
    key.write_bytes(public(RSA))
    checks = counted_checks(monkeypatch)
    monkeypatch.setattr(authenticator, "now_s", lambda: 1_000.0)  # no pause ends
    async with lab(tmp_path, jwt_keys_file=str(key), **FOREIGN) as here:
        good = signed(RSA, "RS256", claims(sub="u0"))
        await here.bearer(good, peer="10.0.0.1:5000")
        checks.clear()
        paused = 0
        for number in range(1_000):
            with pytest.raises(Unauthenticated) as caught:
                await here.bearer(FORGERIES[form](here, number % names), peer="10.0.0.1:5001")
            paused += isinstance(caught.value, LoginsPaused)
        assert len(checks) == 1_000 - paused <= FREE_TRIES * (USERS_OF_ADDRESS_MAX + 1)
        assert names > 1 or len(checks) == FREE_TRIES
        here.now_s += VERIFIED_S + 1  # it has to be verified again
        await here.bearer(good, peer="10.0.0.1:5000")
        other = signed(RSA, "RS256", claims(sub=f"u{names - 1}", jti="2"))
        with pytest.raises(LoginsPaused) as last:  # not looked at
            await here.bearer(other, peer="10.0.0.1:5000")
        assert 0 < last.value.retry_after_s <= 60
        await here.bearer(signed(RSA, "RS256", claims(sub="u0", jti="3")), peer="10.0.0.2:5000")


async def test_a_token_that_has_ended_is_no_forgery(tmp_path):
    """A client that still uses an old token does not lock out its next one."""
    async with lab(tmp_path) as here:
        old = here.token(ttl_s=10)
        here.now_s += 11
        for _ in range(50):
            with pytest.raises(Unauthenticated, match="expired"):
                await here.bearer(old, peer="10.0.0.1:5000")
        assert (await here.bearer(here.token(), peer="10.0.0.1:5000")).name == "user:alice"


async def test_passwords_of_one_address_do_not_wait_without_end(tmp_path):
    async with lab(tmp_path) as here:
        tries = [here.basic(f"user{n}", "wrong password", peer="10.0.0.1") for n in range(100)]
        ends = await asyncio.gather(*tries, return_exceptions=True)
        assert all(isinstance(one, Unauthenticated) for one in ends)
        assert sum(isinstance(one, LoginsPaused) for one in ends) == 92  # an eighth of 64 waited


async def test_the_log_tells_of_failures_once_a_minute_without_what_was_shown(tmp_path):
    async with lab(tmp_path) as here:
        with capture_logs() as logs:
            for number in range(50):
                with pytest.raises(Unauthenticated):
                    await here.basic("alice", f"canary{number}", peer=f"10.0.0.1:{number}")
                with pytest.raises(Unauthenticated):
                    await here.bearer(f"canary{number}", peer=f"10.0.0.1:{number}")
        [line] = logs
        assert line["event"] == "login_failed"
        assert line["peer"] == "10.0.0.1"
        assert "canary" not in str(logs)


def test_nothing_secret_is_in_a_repr():
    keys = Keys(b"canary1", b"canary2")
    shown = Shown("Bearer canary", b"canary", "10.0.0.1")
    token = Token("canary", "HS256", "octavo", {"sub": "canary"})
    assert "canary" not in repr((keys, shown, token))


@pytest.mark.long
async def test_each_of_a_million_bad_logins_costs_little_and_leaves_nothing(tmp_path):
    """A part of the million: no try costs more than the one before."""
    tries = 300
    async with lab(tmp_path) as here:
        good = here.token()
        forms = [
            lambda n: f"Bearer {good[:-8]}{n:08d}",
            lambda n: f"Bearer octavo_{n}",
            lambda n: "Bearer " + f"{n}." * 2_000,
            lambda n: "x" * 100_000 + str(n),
            lambda n: f"Basic {n}",
            lambda n: basic("alice", f"wrong {n}"),  # nearly all of them meet a pause
        ]
        for form in forms:
            begun = time.process_time()
            await _refused(here, form, 0, tries)
            assert (time.process_time() - begun) / tries < 0.002
            tracemalloc.start()
            try:
                await _refused(here, form, tries, tries)
                assert tracemalloc.get_traced_memory()[0] < 1 << 20
            finally:
                tracemalloc.stop()
        assert (await here.bearer(good)).name == "user:alice"


async def _refused(here: Lab, form: Callable[[int], str], first: int, tries: int) -> None:
    for number in range(first, first + tries):
        with pytest.raises(Unauthenticated):
            await here.authenticator.identify(Shown(form(number), peer=f"10.0.{number % 7}.1"))


async def test_no_more_is_remembered_than_is_allowed(tmp_path):
    async with lab(tmp_path, verified_max=10) as here:
        shown = [Shown(f"Bearer {here.token(f'user:u{n}')}") for n in range(20)]
        for one in shown:
            await here.authenticator.identify(one)
        at_hand = [here.authenticator.at_hand(one) is not None for one in shown]
        assert at_hand == [False] * 10 + [True] * 10
