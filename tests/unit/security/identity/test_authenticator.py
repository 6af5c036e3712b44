"""A caller's identity: each way to prove it, which of them counts, and what ends it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from octavo.metadata.store import MetadataUnavailable
from octavo.security.identity import authenticator, jwt_keys, tokens
from octavo.security.identity.api_keys import line_of, make_key
from octavo.security.identity.authenticator import VERIFIED_S, Keys
from octavo.security.identity.failed_logins import FREE_TRIES, USERS_OF_ADDRESS_MAX, LoginsPaused
from octavo.security.identity.jwt_keys import PUBLIC_KEYS_MAX, parse_jwks, parse_keys
from octavo.security.identity.opening import open_authenticator
from octavo.security.identity.passwords import is_password
from octavo.security.identity.token_form import (
    GROUPS_MAX,
    TOKEN_CHARS_MAX,
    Claims,
    Token,
    read_token,
)
from octavo.security.identity.users import scram_records
from octavo.security.principal import ANONYMOUS, Identity, Shown, Standing, Unauthenticated
from octavo.security.settings import SecurityError
from tests.support.foreign_tokens import (
    EC,
    ED,
    FOREIGN,
    KEY,
    OTHER_RSA,
    RSA,
    claims,
    jwk,
    public,
    sealed,
    signed,
)
from tests.support.identities import (
    NOW_S,
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


SMALL_RSA = rsa.generate_private_key(65537, 1024)


def raw(header: Any, body: Any, signature: bytes = b"x" * 32) -> str:
    """Make a token of anything, also what a library would refuse."""
    parts = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in (header, body)]
    return ".".join(
        base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (*parts, signature)
    )


def own(**how: Any) -> str:
    """Sign as ours are, with our key."""
    return sealed(claims(**{"iss": "octavo", **how}), KEY, "HS256", "octavo")


def verified(token: str) -> Claims:
    return tokens.verify(KEY, read_token(token), now_s=NOW_S)


def test_a_good_one_is_taken():
    assert verified(own(groups=["staff", "a b", 7])).groups == {"staff"}


BAD_CLAIMS: dict[str, tuple[dict[str, Any], str]] = {
    "expired": ({"exp": NOW_S}, "expired"),
    "never expires": ({"exp": None}, "does not say when it expires"),
    "not yet": ({"nbf": NOW_S + 31}, "not valid yet"),
    "of the future": ({"iat": NOW_S + 31}, "in the future"),
    "for others": ({"aud": "another"}, "another audience"),
    "for many others": ({"aud": ["a", "b"]}, "another audience"),
    "for nobody": ({"aud": None}, "another audience"),
    "for an object": ({"aud": {"octavo": 1}}, "another audience"),
    "of others": ({"iss": "octavo2"}, "another issuer"),
    "of nobody": ({"iss": None}, "another issuer"),
    "of a list": ({"iss": ["octavo"]}, "another issuer"),
    "no user": ({"sub": None}, "names no user"),
    "user with a space": ({"sub": "a b"}, "names no user"),
    "any user": ({"sub": "*"}, "names no user"),
    "user with a line": ({"sub": "a\n"}, "names no user"),
    "a long user": ({"sub": "a" * 250}, "names no user"),
    "time as text": ({"exp": "9999999999"}, "exp is not a time"),
    "time as truth": ({"exp": True}, "exp is not a time"),
    "time beyond all": ({"exp": 10**300}, "exp is not a time"),
    "a time before all": ({"nbf": -1}, "nbf is not a time"),
    "groups as a number": ({"groups": 7}, "groups"),
    "too many groups": ({"groups": ["g"] * 257}, "groups"),
}


@pytest.mark.parametrize("case", BAD_CLAIMS)
async def test_what_it_says_does_not_fit(case, tmp_path):
    how, told = BAD_CLAIMS[case]
    with pytest.raises(Unauthenticated, match=told):
        verified(own(**how))
    async with foreign(tmp_path, RSA) as here:
        with pytest.raises(Unauthenticated, match=told):
            await here.bearer(sealed(claims(**how), RSA, "RS256"))


def test_clocks_may_be_half_a_minute_apart():
    verified(own(nbf=NOW_S + 30, iat=NOW_S + 30))
    with pytest.raises(Unauthenticated):  # but not for expired ones
        verified(own(exp=NOW_S - 1))


FORMS = {
    "nothing": "",
    "one part": "abc",
    "two parts": "e30.e30",
    "five parts (JWE)": "e30.e30.e30.e30.e30",
    "no signature": "e30.e30.",
    "not base64url": "e3+0.e30.e30",
    "padded": "e30=.e30.e30",
    "a header that is no JSON": raw(b"{", {}),
    "a header that is a list": raw([], {}),
    "not UTF-8": raw(b'{"alg":"\xff"}', {}),
    "UTF-16": raw('{"alg":"HS256"}'.encode("utf-16"), {}),
    "no alg": raw({}, claims()),
    "alg a number": raw({"alg": 7}, claims()),
    "kid a list": raw({"alg": "HS256", "kid": ["octavo"]}, claims()),
    "typ a number": raw({"alg": "HS256", "typ": 1}, claims()),
    "another typ": raw({"alg": "HS256", "typ": "logout+jwt"}, claims()),
    "crit": raw({"alg": "HS256", "kid": "octavo", "crit": ["x"], "x": 1}, claims()),
    "crit of nothing": raw({"alg": "HS256", "kid": "octavo", "crit": []}, claims()),
    "b64": raw({"alg": "HS256", "kid": "octavo", "b64": False}, claims()),
    "a header twice": raw(b'{"alg":"HS256","alg":"none"}', claims()),
    "a claim twice": raw({"alg": "HS256"}, b'{"sub":"alice","sub":"admin"}'),
    "a claim twice within": raw({"alg": "HS256"}, b'{"a":{"sub":"alice","sub":"admin"}}'),
    "NaN": raw({"alg": "HS256"}, b'{"exp":NaN}'),
    "endless": raw({"alg": "HS256"}, b'{"exp":Infinity}'),
    "deep": raw({"alg": "HS256"}, b"[" * 3000),
    "a number of 5000 digits": raw({"alg": "HS256"}, b'{"exp":' + b"9" * 5000 + b"}"),
}


@pytest.mark.parametrize("case", FORMS)
def test_it_is_none(case):
    with pytest.raises(Unauthenticated):
        read_token(FORMS[case])


def test_a_huge_one_is_not_read():
    with pytest.raises(Unauthenticated, match="longer than"):
        read_token(own(sub="a" * TOKEN_CHARS_MAX))


def test_each_truncated_one_is_refused():
    token = own()
    for length in range(len(token)):
        with pytest.raises(Unauthenticated):
            verified(token[:length])


def test_each_changed_character_is_refused():
    token = own()
    for at, old in enumerate(token):
        new = "A" if old != "A" else "B"
        with pytest.raises(Unauthenticated):
            verified(token[:at] + new + token[at + 1 :])


@given(st.text(max_size=200) | st.from_regex(r"[A-Za-z0-9_-]{0,60}(\.[A-Za-z0-9_-]{0,60}){2}"))
def test_whatever_comes_is_refused_in_words(text):
    with pytest.raises(Unauthenticated):
        verified(text)


NAMES = st.sampled_from(["iss", "aud", "sub", "exp", "iat", "groups"])
SAID = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=6),
    max_leaves=12,
)


@given(SAID, st.dictionaries(NAMES, SAID, max_size=3))
def test_whatever_is_signed_is_read_or_refused_in_words(said, other):
    for one in (said, claims(iss="octavo") | other):
        with contextlib.suppress(Unauthenticated):
            verified(sealed(one, KEY, "HS256", "octavo"))


def test_another_key_signed_it():
    with pytest.raises(Unauthenticated, match="signature"):
        verified(sealed(claims(iss="octavo"), b"other" * 8, "HS256", "octavo"))


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "HS384", "HS512", "RS256", "hs256"])
def test_ours_are_hs256_only(algorithm):
    with pytest.raises(Unauthenticated, match="not this cluster"):
        verified(raw({"alg": algorithm, "kid": "octavo"}, claims(iss="octavo")))


# ---- of another issuer, by keys in a file


class foreign:  # noqa: N801  a context
    def __init__(self, tmp_path: Any, *keys: Any, **config: Any) -> None:
        file = tmp_path / "keys.pem"
        file.write_bytes(b"".join(map(public, keys)))
        self._lab = lab(tmp_path, jwt_keys_file=str(file), **FOREIGN, **config)

    async def __aenter__(self) -> Lab:
        return await self._lab.__aenter__()

    async def __aexit__(self, *raised: Any) -> None:
        await self._lab.__aexit__(*raised)


GOOD = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), RSA),
    "ES256": EC,
    "EdDSA": ED,
}


@pytest.mark.parametrize("algorithm", GOOD)
async def test_a_token_of_the_issuer_is_taken(algorithm, tmp_path):
    async with foreign(tmp_path, RSA, EC, ED) as here:
        said = claims(groups=["staff"])
        found = await here.bearer(signed(GOOD[algorithm], algorithm, said, kid="any"))
        assert found.name == "user:alice"
        assert found.groups == {"group:staff"}
        assert found.expires_at_s == NOW_S + 600


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
async def test_a_public_key_is_no_secret_of_hs256(algorithm, tmp_path):
    digest = algorithm.replace("HS", "sha")
    async with foreign(tmp_path, RSA) as here:
        head = raw({"alg": algorithm}, claims()).rpartition(".")[0]
        for secret in (public(RSA), public(RSA).strip()):
            proof = hmac.digest(secret, head.encode(), digest)
            forged = head + "." + base64.urlsafe_b64encode(proof).decode().rstrip("=")
            with pytest.raises(Unauthenticated, match="no key"):
                await here.bearer(forged)


@pytest.mark.parametrize("algorithm", ["none", "nOnE", "", "RS1", "ES256K", "ES384"])
async def test_the_algorithm_follows_from_the_key(algorithm, tmp_path):
    async with foreign(tmp_path, RSA, EC) as here:
        with pytest.raises(Unauthenticated, match="no key"):
            await here.bearer(raw({"alg": algorithm}, claims()))


async def test_another_key_is_refused_also_under_the_same_name(tmp_path):
    async with foreign(tmp_path, RSA) as here:
        with pytest.raises(Unauthenticated, match="signature"):
            await here.bearer(signed(OTHER_RSA, "RS256", kid="one"))


@pytest.mark.parametrize("name", ["jwk", "jku", "x5u", "x5c"])
async def test_keys_that_a_token_brings_are_not_looked_at(name, tmp_path):
    value: Any = {"jwk": jwk(OTHER_RSA), "x5c": ["MII"]}.get(name, "https://evil.example/keys")
    async with foreign(tmp_path, RSA) as here:  # and nothing is fetched: `no_network`
        with pytest.raises(Unauthenticated, match="signature"):
            await here.bearer(signed(OTHER_RSA, "RS256", None, **{name: value}))
        assert (await here.bearer(signed(RSA, "RS256", None, **{name: value}))).name == "user:alice"


async def test_nobody_makes_our_own_token_with_the_issuers_key(tmp_path):
    async with foreign(tmp_path, RSA) as here:
        with pytest.raises(Unauthenticated, match="not this cluster"):
            await here.bearer(signed(RSA, "RS256", kid="octavo"))
        with pytest.raises(Unauthenticated, match="issuer"):
            await here.bearer(signed(RSA, "RS256", claims(iss="octavo", aud="octavo")))


async def test_other_claims_may_name_user_and_groups(tmp_path):
    how = {"jwt_principal_claim": "email", "jwt_groups_claim": "roles"}
    async with foreign(tmp_path, RSA, **how) as here:
        token = signed(RSA, "RS256", claims(email="a@b.example", roles="staff", sub=None))
        found = await here.bearer(token)
        assert (found.name, found.groups) == ("user:a@b.example", {"group:staff"})


async def test_without_an_issuer_only_ours_are_believed(tmp_path):
    async with lab(tmp_path) as here:
        with pytest.raises(Unauthenticated, match="no other issuer"):
            await here.bearer(signed(RSA, "RS256"))


PRIVATE = RSA.private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.NoEncryption(),
)
BAD_FILES = {
    "empty": (b"", "neither PEM nor JSON"),
    "no key": (b'{"keys": []}', "no public key"),
    "a private key": (PRIVATE, "private key"),
    "a private JWK": (
        json.dumps({"kty": "RSA", "d": "x", "n": "AQAB", "e": "AQAB"}).encode(),
        "private",
    ),
    "a secret": (json.dumps({"kty": "oct", "k": "c2VjcmV0"}).encode(), "not a signature key"),
    "another use": (json.dumps(jwk(RSA, use="enc")).encode(), "not a signature key"),
    "a short key": (public(SMALL_RSA), "1024 bits"),
    "a curve of bitcoin": (
        public(ec.generate_private_key(ec.SECP256K1())),
        "fits no supported algorithm",
    ),
    "another key's algorithm": (
        json.dumps(jwk(EC, alg="RS256")).encode(),
        "fits no supported algorithm",
    ),
    "HS256 for an RSA key": (
        json.dumps(jwk(RSA, alg="HS256")).encode(),
        "fits no supported algorithm",
    ),
    "half a key": (json.dumps({"kty": "RSA", "n": "AQAB"}).encode(), "not a valid RSA key"),
    "a damaged PEM": (public(RSA).replace(b"M", b"?", 9), "not a public key"),
    "too many": (json.dumps({"keys": [jwk(EC)] * 101}).encode(), "up to 100"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_file_of_keys_that_cannot_be_used_is_refused(case):
    data, told = BAD_FILES[case]
    with pytest.raises(SecurityError, match=told):
        parse_keys(data)


def test_of_an_issuers_keys_those_of_no_use_are_passed_over():
    keys = [jwk(RSA, kid="a"), {"kty": "oct", "k": "c2VjcmV0"}, 7, jwk(EC, use="enc"), jwk(ED)]
    found = parse_jwks(json.dumps({"keys": keys}).encode())
    assert [one.kid for one in found] == ["a", ""]


JWKS = st.lists(
    st.dictionaries(
        st.sampled_from(["kty", "n", "e", "crv", "x", "y", "alg", "kid"]),
        st.sampled_from(["RSA", "EC", "OKP", "P-256", "AQAB", "", 7]),
    )
)


@given(st.binary(max_size=100) | JWKS.map(lambda keys: json.dumps({"keys": keys}).encode()))
def test_whatever_an_issuer_says_is_read_or_refused_in_words(data):
    for parse in (parse_keys, parse_jwks):
        with contextlib.suppress(SecurityError):
            parse(data)


def long_token(size: int) -> str:
    """Make a token of `size` characters."""
    for pad in range(4):
        head = raw({"alg": "HS256", "kid": "octavo"}, {"sub": "a" * pad}).rpartition(".")[0]
        room = size - len(head) - 1
        if room % 4 != 1:  # no base64 has such a length
            return f"{head}.{'A' * room}"
    raise AssertionError(size)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_the_longest_token_is_read(more: int) -> None:
    token = long_token(TOKEN_CHARS_MAX + more)
    assert len(token) == TOKEN_CHARS_MAX + more
    if more > 0:
        with pytest.raises(Unauthenticated, match="longer than"):
            read_token(token)
    else:
        assert read_token(token).text == token


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_token_names_as_many_groups_as_it_may(more: int) -> None:
    token = own(groups=[f"g{number}" for number in range(GROUPS_MAX + more)])
    if more > 0:
        with pytest.raises(Unauthenticated, match=f"up to {GROUPS_MAX} groups"):
            verified(token)
    else:
        assert len(verified(token).groups) == GROUPS_MAX + more


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_an_issuer_has_as_many_keys_as_it_may(more: int) -> None:
    one = jwk(EC)
    given_keys = json.dumps({"keys": [one] * (PUBLIC_KEYS_MAX + more)}).encode()
    for parse in (parse_jwks, parse_keys):
        if more > 0:
            with pytest.raises(SecurityError, match=f"{PUBLIC_KEYS_MAX} keys"):
                parse(given_keys)
        else:
            assert len(parse(given_keys)) == PUBLIC_KEYS_MAX + more
