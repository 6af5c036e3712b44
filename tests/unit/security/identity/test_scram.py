"""SCRAM as a server: the examples of the RFCs, scramp's client, and clients that cheat."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scramp import ScramClient, ScramMechanism

from octavo.security.identity.authenticator import ScramLogin
from octavo.security.identity.failed_logins import LoginsPaused
from octavo.security.identity.passwords import (
    ITERATIONS,
    MECHANISMS,
    WRONG,
    Credential,
    made_up,
    make_credential,
)
from octavo.security.identity.scram import MESSAGE_BYTES_MAX, ScramServer
from octavo.security.principal import Unauthenticated
from tests.support.identities import PASSWORD, lab

SALT_KEY = b"s" * 32
OF_256 = make_credential("SCRAM-SHA-256", PASSWORD, b"salt" * 4, 4096)
OF_512 = make_credential("SCRAM-SHA-512", PASSWORD, b"salt" * 4, 4096)
CREDENTIALS = {"SCRAM-SHA-256": OF_256, "SCRAM-SHA-512": OF_512}


def server(mechanism: str = "SCRAM-SHA-256", nonce: str = "servernonce") -> ScramServer:
    known = {"alice": CREDENTIALS[mechanism], "a=b,c": CREDENTIALS[mechanism]}
    return ScramServer(mechanism, known.get, salt_key=SALT_KEY, nonce=nonce)


def login(here: ScramServer | ScramLogin, client: ScramClient) -> None:
    client.set_server_first(here.step(client.get_client_first().encode()).decode())
    client.set_server_final(here.step(client.get_client_final().encode()).decode())


def test_the_example_of_rfc_7677():
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    # Our rule for new passwords demands a longer one.
    made = ScramMechanism("SCRAM-SHA-256").make_auth_info("pencil", 4096, salt)
    known = Credential(made[0], made[3], made[1], made[2])
    here = ScramServer(
        "SCRAM-SHA-256",
        {"user": known}.get,
        salt_key=SALT_KEY,
        nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    )
    assert here.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert here.user is None
    assert (
        here.step(
            b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
            b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        )
        == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    )
    assert here.user == "user"


def test_keys_are_computed_as_rfc_5802_says():
    salted = hashlib.pbkdf2_hmac("sha512", PASSWORD.encode(), b"salt" * 4, 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha512")
    assert OF_512.stored_key == hashlib.sha512(client_key).digest()
    assert OF_512.server_key == hmac.digest(salted, b"Server Key", "sha512")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", ["alice", "a=b,c"])
def test_a_client_logs_in_and_knows_that_the_server_knows_it(mechanism, user):
    here = server(mechanism)
    login(here, ScramClient([mechanism], user, PASSWORD))
    assert here.user == user
    with pytest.raises(Unauthenticated, match="over"):
        here.step(b"again")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_unknown_user_is_told_the_same_as_a_wrong_password_and_no_sooner(mechanism):
    ends = []
    for user, password in (("alice", "wrong password"), ("nobody", PASSWORD)):
        here = server(mechanism)
        with pytest.raises(Unauthenticated) as caught:
            login(here, ScramClient([mechanism], user, password))
        ends.append(str(caught.value))
        assert here.user is None
        with pytest.raises(Unauthenticated):
            here.step(b"c=biws,r=x,p=eA==")
    assert ends == [WRONG, WRONG]


def test_a_made_up_salt_is_the_same_each_time_and_as_long_as_a_real_one():
    firsts = {server().step(b"n,,n=nobody,r=abc") for _ in range(3)}
    assert len(firsts) == 1
    one, other = (made_up("SCRAM-SHA-256", name, SALT_KEY) for name in ("nobody", "noone"))
    assert one.salt != other.salt
    real = make_credential("SCRAM-SHA-256", PASSWORD, b"s" * 16)
    assert (len(one.salt), one.iterations) == (len(real.salt), real.iterations) == (16, ITERATIONS)


BAD_FIRST = {
    "nothing": b"",
    "another protocol": b"GET / HTTP/1.1",
    "channel binding asked for": b"p=tls-unique,,n=alice,r=abc",
    "channel binding of another kind": b"p=tls-exporter,,n=alice,r=abc",
    "to be somebody else": b"n,a=admin,n=alice,r=abc",
    "an extension that must be known": b"n,,m=x,n=alice,r=abc",
    "no user": b"n,,n=,r=abc",
    "no nonce": b"n,,n=alice,r=",
    "a nonce with a space": b"n,,n=alice,r=a b",
    "a user twice": b"n,,n=alice,n=bob,r=abc",
    "a name escaped wrongly": b"n,,n=al=ice,r=abc",
    "a name with control characters": b"n,,n=al\x07ice,r=abc",
    "no UTF-8": b"n,,n=\xff,r=abc",
    "too long": b"n,,n=alice,r=" + b"x" * MESSAGE_BYTES_MAX,
    "the last message first": b"c=biws,r=abc,p=eA==",
}


@pytest.mark.parametrize("case", BAD_FIRST)
def test_a_first_message_that_is_none(case):
    here = server()
    with pytest.raises(Unauthenticated) as caught:
        here.step(BAD_FIRST[case])
    with pytest.raises(Unauthenticated):  # a failed exchange is over
        here.step(b"n,,n=alice,r=abc")
    if "binding" in case and "another" not in case:
        assert "-PLUS" in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.replace("c=biws", "c=eSws"),  # it sent y first, or the other way round
        lambda m: m.replace("servernonce", "othernonce"),
        lambda m: m.replace("r=", "r=x"),
        lambda m: m[:-6],
        lambda m: m.partition(",p=")[0],
        lambda m: m.partition(",p=")[0] + ",p=eA==",
        lambda m: m + ",x=y",
        lambda m: m.replace(",p=", ",x=y,p="),
        lambda m: "",
    ],
)
def test_a_last_message_that_was_changed(change):
    here = server()
    client = ScramClient(["SCRAM-SHA-256"], "alice", PASSWORD)
    client.set_server_first(here.step(client.get_client_first().encode()).decode())
    with pytest.raises(Unauthenticated):
        here.step(change(client.get_client_final()).encode())
    assert here.user is None


def test_a_login_that_was_listened_to_cannot_be_played_again():
    client = ScramClient(["SCRAM-SHA-256"], "alice", PASSWORD)
    here = server(nonce="one")
    first = client.get_client_first().encode()
    client.set_server_first(here.step(first).decode())
    final = client.get_client_final().encode()
    here.step(final)
    again = server(nonce="two")
    again.step(first)
    with pytest.raises(Unauthenticated):
        again.step(final)


def test_a_256_proof_is_none_for_512():
    here = server("SCRAM-SHA-512")
    with pytest.raises(Unauthenticated):
        login(here, ScramClient(["SCRAM-SHA-256"], "alice", PASSWORD))


@given(st.binary(max_size=80) | st.text(max_size=60).map(lambda t: ("n,,n=alice,r=" + t).encode())
       | st.from_regex(rb"[nyp],,([a-z]=[a-z=2C3D]*,?){0,4}", fullmatch=True),
       st.binary(max_size=80) | st.from_regex(rb"c=biws,r=[ -~]*,p=[A-Za-z0-9+/=]*"))  # fmt: skip
def test_whatever_comes_ends_in_words(first, last):
    for opening in (first, b"n,,n=alice,r=abc"):
        here = server()
        try:
            here.step(opening)
            here.step(last)
        except Unauthenticated:
            pass
        assert here.user is None


async def test_by_the_authenticator_with_its_users_and_pauses(tmp_path):
    async with lab(tmp_path) as here:
        await here.with_user("alice", groups=["staff"])
        for mechanism in MECHANISMS:
            one = here.authenticator.scram(mechanism, "10.0.0.1")
            login(one, ScramClient([mechanism], "alice", PASSWORD))
            assert one.identity is not None
            assert one.identity.groups == {"group:staff"}
        ends = []
        for _ in range(8):
            client = ScramClient([MECHANISMS[0]], "alice", "wrong password")
            with pytest.raises(Unauthenticated) as caught:
                login(here.authenticator.scram(MECHANISMS[0], "10.0.0.1"), client)
            ends.append(type(caught.value))
        assert ends == [Unauthenticated] * 5 + [LoginsPaused] * 3
        with pytest.raises(LoginsPaused):  # by any way
            await here.authenticator.plain(b"\0alice\0" + PASSWORD.encode(), "10.0.0.1")
        found = await here.authenticator.plain(b"\0alice\0" + PASSWORD.encode(), "10.0.0.2")
        assert found.name == "user:alice"


async def test_a_disabled_user_logs_in_by_no_mechanism(tmp_path):
    async with lab(tmp_path) as here:
        await here.with_user("alice")
        generation = here.authenticator.generation
        await here.users.set_disabled("alice", True)
        await here.until_changed(generation)
        one = here.authenticator.scram(MECHANISMS[0], "10.0.0.1")
        client = ScramClient([MECHANISMS[0]], "alice", PASSWORD)
        client.set_server_first(one.step(client.get_client_first().encode()).decode())
        with pytest.raises(Unauthenticated, match=WRONG):
            one.step(client.get_client_final().encode())
