"""Worthless tokens: each is refused with the reason, and none does harm."""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from octavo.security.identity import tokens
from octavo.security.identity.jwt_keys import PUBLIC_KEYS_MAX, parse_jwks, parse_keys
from octavo.security.identity.token_form import GROUPS_MAX, TOKEN_CHARS_MAX, Claims, read_token
from octavo.security.principal import Unauthenticated
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
from tests.support.identities import NOW_S, Lab, lab

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
