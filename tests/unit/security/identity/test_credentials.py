"""Passwords: which are accepted, what is stored, and what is not normalised."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
import tracemalloc

import pytest
from cryptography.x509.oid import NameOID
from hypothesis import example, given
from hypothesis import strategies as st
from scramp import ScramClient, ScramMechanism
from structlog.testing import capture_logs

from octavo.security.identity import api_keys, files
from octavo.security.identity.api_keys import (
    KEY_PREFIX,
    identity_of_key,
    line_of,
    make_key,
    parse_api_keys,
)
from octavo.security.identity.authenticator import ScramLogin
from octavo.security.identity.certificates import identity_of, parse_revoked
from octavo.security.identity.failed_logins import (
    FORGOTTEN_S,
    FREE_TRIES,
    PAUSE_S_MAX,
    USERS_OF_ADDRESS_MAX,
    FailedLogins,
    LoginsPaused,
    source_of,
)
from octavo.security.identity.files import WatchedFile
from octavo.security.identity.passwords import (
    ITERATIONS,
    ITERATIONS_MAX,
    MECHANISMS,
    PASSWORD_CHARS_MAX,
    PASSWORD_CHARS_MIN,
    WRONG,
    Credential,
    InvalidPassword,
    checked_user,
    is_credential,
    is_password,
    made_up,
    make_credential,
    parse_basic,
    parse_plain,
)
from octavo.security.identity.scram import MESSAGE_BYTES_MAX, ScramServer
from octavo.security.principal import Unauthenticated
from octavo.security.settings import SecurityError
from tests.support.identities import NOW_S, PASSWORD, RNG, basic, certificate, lab, revocation_list

SALT = b"0123456789abcdef"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_only_the_password_is_the_password(mechanism):
    kept = make_credential(mechanism, PASSWORD, SALT)
    assert is_password(mechanism, PASSWORD, kept)
    for wrong in ("", PASSWORD + " ", PASSWORD[:-1], PASSWORD.upper(), "\0", "x" * 100_000):
        assert not is_password(mechanism, wrong, kept)


def test_letters_that_look_alike_are_the_same_password():
    kept = make_credential(MECHANISMS[0], "p\u00e4ssword", SALT)  # RFC 4013: NFKC
    assert is_password(MECHANISMS[0], "pa\u0308ssword", kept)


@pytest.mark.parametrize("password", ["", "short", "x" * (PASSWORD_CHARS_MAX + 1), "with\x07bell"])
def test_a_password_that_is_not_taken(password):
    with pytest.raises(InvalidPassword) as caught:
        make_credential(MECHANISMS[0], password, SALT)
    assert not password or password not in str(caught.value)


def test_nothing_that_is_kept_is_shown():
    kept = make_credential(MECHANISMS[0], PASSWORD, SALT)
    for secret in (kept.stored_key, kept.server_key, kept.salt):
        assert repr(secret)[2:-1] not in repr(kept)


@pytest.mark.parametrize(
    "change",
    [{"iterations": 4095}, {"iterations": ITERATIONS_MAX + 1}, {"iterations": -1},
     {"salt": b"short"}, {"stored_key": b""}, {"server_key": b"x" * 64}],
)  # fmt: skip
def test_keys_that_cannot_be_are_refused(change):
    kept = make_credential(MECHANISMS[0], PASSWORD, SALT)
    assert is_credential(MECHANISMS[0], kept)
    parts = {name: getattr(kept, name) for name in Credential.__slots__}
    assert not is_credential(MECHANISMS[0], Credential(**{**parts, **change}))


@pytest.mark.parametrize("name", ["alice", "a@b.example", "a:b", "é", "a/b", ".."])
def test_a_user_may_be_called(name):
    assert checked_user(name) == name


@pytest.mark.parametrize("name", ["", "a b", "*", "a\n", "a" * 250, "ﬁ", "a\u0308", "\u00ad"])
def test_a_user_may_not_be_called(name):
    with pytest.raises(InvalidPassword, match="cannot be a user's name"):
        checked_user(name)


def test_basic_and_plain():
    assert parse_basic(basic("alice", "a:b").removeprefix("Basic ")) == ("alice", "a:b")
    assert parse_plain(b"\0alice\0secret") == ("alice", "secret")
    assert parse_plain(b"alice\0alice\0secret") == ("alice", "secret")


@pytest.mark.parametrize(
    "value", ["", "!", "YQ", base64.b64encode(b"alice").decode(), "x" * 8193, "/w==", "YTpi\n=="]
)
def test_basic_that_is_none(value):
    with pytest.raises(Unauthenticated, match="Basic"):
        parse_basic(value)


@pytest.mark.parametrize(
    "message",
    [b"", b"alice", b"\0alice", b"\0\0secret", b"admin\0alice\0secret", b"\0a\0b\0c", b"\0\xff\0x",
     b"\0a\0" + b"x" * 8192],
)  # fmt: skip
def test_plain_that_is_none(message):
    with pytest.raises(Unauthenticated, match="PLAIN"):
        parse_plain(message)


@given(st.text(max_size=40), st.binary(max_size=40))
def test_whatever_comes_is_read_or_refused_in_words(text, data):
    for parse, given_ in ((parse_basic, text), (parse_plain, data)):
        try:
            parse(given_)  # type: ignore[operator]
        except Unauthenticated:
            pass


@pytest.mark.parametrize(
    "characters",
    [
        *(PASSWORD_CHARS_MIN + more for more in (-1, 0, 1)),
        *(PASSWORD_CHARS_MAX + more for more in (-1, 0, 1)),
    ],
)
def test_the_shortest_and_the_longest_password_are_taken(characters: int) -> None:
    password = "x" * characters
    if not PASSWORD_CHARS_MIN <= characters <= PASSWORD_CHARS_MAX:
        with pytest.raises(InvalidPassword, match=f"{PASSWORD_CHARS_MIN} to {PASSWORD_CHARS_MAX}"):
            make_credential(MECHANISMS[0], password, SALT)
    else:
        kept = make_credential(MECHANISMS[0], password, SALT)
        assert is_password(MECHANISMS[0], password, kept)
        assert not is_password(MECHANISMS[0], password + "x", kept), "it is not cut off before"


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


def pause(failures: FailedLogins, address: str, user: str, now_s: float) -> float:
    try:
        failures.check(address, user, now_s)
    except LoginsPaused as error:
        return error.retry_after_s
    return 0.0


def test_pauses_grow_up_to_a_minute_and_are_forgotten():
    here, now_s, pauses = FailedLogins(100), 1000.0, []
    for _ in range(FREE_TRIES + 10):
        here.failed("10.0.0.1", "alice", now_s)
        pauses.append(pause(here, "10.0.0.1", "alice", now_s))
        now_s += pauses[-1]
        assert not pause(here, "10.0.0.1", "alice", now_s)
    assert pauses == [0] * (FREE_TRIES - 1) + [1, 2, 4, 8, 16, 32, *[PAUSE_S_MAX] * 5]
    now_s += FORGOTTEN_S
    here.failed("10.0.0.1", "alice", now_s)
    assert not pause(here, "10.0.0.1", "alice", now_s)


def test_nobody_else_has_to_wait():
    here = FailedLogins(100)
    for _ in range(20):
        here.failed("10.0.0.1", "alice", 0)
    assert pause(here, "10.0.0.1", "alice", 0)
    assert not pause(here, "10.0.0.2", "alice", 0)
    assert not pause(here, "10.0.0.1", "bob", 0)


def test_who_gets_in_begins_anew():
    here = FailedLogins(100)
    for _ in range(20):
        here.failed("10.0.0.1", "alice", 0)
    here.succeeded("10.0.0.1", "alice")
    assert not len(here)
    here.failed("10.0.0.1", "alice", 0)
    assert not pause(here, "10.0.0.1", "alice", 0)


def test_who_tries_many_names_has_one_pause_for_all_new_ones():
    here = FailedLogins(1000)
    for number in range(USERS_OF_ADDRESS_MAX + 20):
        here.failed("10.0.0.1", f"user{number}", 0)
    assert len(here) == USERS_OF_ADDRESS_MAX + 1
    assert pause(here, "10.0.0.1", "yet another", 0)
    assert not pause(here, "10.0.0.1", "user0", 0)  # has its own
    assert not pause(here, "10.0.0.2", "yet another", 0)


@pytest.mark.parametrize(
    ("peer", "source"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("10.0.0.1:443", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2:ffff::1]:443", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("unknown", "unknown"),
        ("", ""),
    ],
)
def test_whom_an_address_stands_for(peer, source):
    assert source_of(peer) == source


def tried(here, count):
    """Try from as many addresses as there are, each with another name; return processor seconds."""
    begun = time.process_time()
    for number in range(count):
        here.failed(f"10.{number % 251}.{number % 241}.{number % 239}", f"u{number}", number)
    return time.process_time() - begun


def test_failures_cost_bounded_memory():
    here = FailedLogins(2_000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tried(here, 10_000)
        assert tracemalloc.get_traced_memory()[0] - before < 2 << 20
    finally:
        tracemalloc.stop()
    for number in range(10_000):  # all from the same address
        here.failed("10.0.0.1", f"v{number}", 10_000)
    assert len(here) <= 2_000


@pytest.mark.parametrize("count", [10_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_failure_costs_microseconds_whatever_came_before(count):
    here = FailedLogins(2_000)
    assert tried(here, count) / count < 0.001
    assert len(here) == 2_000
    assert len(here._users) <= 2_000


KEY = make_key(RNG)


def test_a_key_is_its_users():
    keys = parse_api_keys(f"# keys\n\n{line_of('shop', KEY, ['a', 'b'])}\n".encode())
    found = identity_of_key(KEY, keys)
    assert found[:3] == ("user:shop", frozenset({"group:a", "group:b"}), "api-key")
    for wrong in (KEY[:-1], KEY + "x", "", "é", "x" * 10_000, "\ud800"):
        with pytest.raises(Unauthenticated, match="not known here"):
            identity_of_key(wrong, keys)


def test_keys_have_256_bits_of_chance_and_are_known_for_keys():
    made = {make_key(RNG) for _ in range(100)}
    assert len(made) == 100
    assert all(one.startswith(KEY_PREFIX) and len(one) == len(KEY_PREFIX) + 43 for one in made)


@pytest.mark.parametrize(
    "line",
    [
        f"shop:{KEY}",  # the key where its hash belongs
        "shop",
        ":" + "0" * 64,
        "shop:" + "0" * 63,
        "shop:" + "A" * 64,
        "a b:" + "0" * 64,
        f"shop:{'0' * 64}:a,,b",
        f"shop:{'0' * 64}\nother:{'0' * 64}",
        "\udcff",
    ],
)
def test_a_line_that_is_none_is_named_and_not_shown(line):
    with pytest.raises(SecurityError) as caught:
        parse_api_keys(line.encode(errors="surrogateescape"))
    assert "octavo_" not in str(caught.value)
    assert "0000" not in str(caught.value)


def test_no_more_than_is_allowed(monkeypatch):
    monkeypatch.setattr(api_keys, "API_KEYS_MAX", 2)
    lines = "\n".join(line_of("a", make_key(RNG)) for _ in range(3))
    with pytest.raises(SecurityError, match="more than 2"):
        parse_api_keys(lines.encode())


@given(st.binary(max_size=100))
def test_whatever_is_in_the_file_is_read_or_refused_in_words(data):
    try:
        parse_api_keys(data)
    except SecurityError:
        pass


@pytest.mark.parametrize("count", [2, 3, 4])
def test_as_many_keys_as_are_allowed(monkeypatch, count):
    monkeypatch.setattr(api_keys, "API_KEYS_MAX", 3)
    lines = "\n".join(line_of("a", make_key(RNG)) for _ in range(count)).encode()
    if count > 3:
        with pytest.raises(SecurityError, match="more than 3"):
            parse_api_keys(lines)
    else:
        assert len(parse_api_keys(lines)) == count


NONE: frozenset[int] = frozenset()
DER = certificate()
ORGANIZATION = (NameOID.ORGANIZATION_NAME, "Acme, Inc")


def name(der: bytes, kind: str = "cn") -> str:
    return identity_of(der, kind, NONE).name


def test_each_setting_names_the_owner_by_another_part():
    der = certificate(ORGANIZATION, cn="bob", uris=("spiffe://acme/ns/a/sa/b",))
    assert name(der, "cn") == "user:bob"
    assert name(der, "dn") == "user:CN=bob,O=Acme\\,%20Inc"
    assert name(der, "uri") == "user:spiffe://acme/ns/a/sa/b"
    found = identity_of(der, "cn", NONE)
    assert (found.source, found.expires_at_s) == ("certificate", NOW_S + 86_400)


@pytest.mark.parametrize(
    ("cn", "safe"),
    [("Ann Lee", "Ann%20Lee"), ("Ann%20Lee", "Ann%2520Lee"), ("José", "José"), ("a\nb", "a%0Ab")],
)
def test_no_two_names_are_the_same_principal(cn, safe):
    assert name(certificate(cn=cn)) == f"user:{safe}"


@pytest.mark.parametrize(
    ("kind", "der"),
    [
        ("cn", certificate(ORGANIZATION, cn=None)),
        ("cn", certificate((NameOID.COMMON_NAME, "admin"), cn="bob")),
        ("cn", certificate(cn="*")),
        ("uri", certificate()),
        ("uri", certificate(uris=("https://acme/a",))),
        ("uri", certificate(uris=("spiffe://acme/a", "spiffe://acme/b"))),
        ("dn", certificate(*[(NameOID.ORGANIZATIONAL_UNIT_NAME, "x" * 60)] * 5)),
    ],
    ids=("no-cn", "two-cns", "any", "no-uri", "https", "two-uris", "long"),  # keys are drawn
)
def test_a_certificate_that_names_nobody_or_several(kind, der):
    with pytest.raises(Unauthenticated, match="certificate"):
        name(der, kind)


@given(st.binary(max_size=60))
def test_whatever_is_no_certificate_is_refused_in_words(data):
    with pytest.raises(Unauthenticated, match="cannot be read"):
        name(data)


@example(at=14, by=128)  # its serial number is negative
@given(st.integers(0, len(DER) - 1), st.integers(1, 255))
def test_a_damaged_certificate_is_read_or_refused_in_words(at, by):
    der = bytearray(DER)
    der[at] ^= by
    for kind in ("cn", "dn", "uri"):
        try:
            name(bytes(der), kind)
        except Unauthenticated:
            pass


def test_revoked_serial_numbers():
    assert parse_revoked(b"") == NONE
    assert parse_revoked(b"# none\n\n") == NONE
    assert parse_revoked(b"07\n0xff # stolen\n0A:0B\n") == {7, 255, 0x0A0B}
    assert parse_revoked(revocation_list(5, 7)) == {5, 7}
    with pytest.raises(Unauthenticated, match="revoked"):
        identity_of(certificate(serial=7), "cn", frozenset({7}))


@pytest.mark.parametrize("data", [b"serial=07", b"0x", b":", b"07 08", b"\xff", b"f" * 60,
                                  b"-----BEGIN X509 CRL-----\nx"])  # fmt: skip
def test_a_list_that_is_none_is_refused(data):
    with pytest.raises(SecurityError):
        parse_revoked(data)


def number(data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        raise SecurityError("no number") from None


def test_it_is_read_again_when_it_has_changed_and_only_then(tmp_path):
    path = tmp_path / "file"
    path.write_text("1")
    file = WatchedFile("some_file", str(path), number)
    assert (file.value, file.refresh()) == (1, False)
    path.write_text("22")
    assert (file.refresh(), file.refresh(), file.value, file.refresh()) == (False, True, 22, False)


def test_a_file_that_is_being_written_is_not_taken(tmp_path):
    path = tmp_path / "file"
    path.write_text("1")
    file = WatchedFile("some_file", str(path), number)
    for text in ("2", "23", "234"):
        path.write_text(text)
        assert not file.refresh()
    assert file.value == 1
    assert file.refresh()
    assert file.value == 234


def test_a_file_that_changes_while_it_is_read_is_not_taken(tmp_path):
    path = tmp_path / "file"
    path.write_text("1")

    def slow(data: bytes) -> int:
        if data == b"22":
            path.write_text("333")
        return number(data)

    file = WatchedFile("some_file", str(path), slow)
    path.write_text("22")
    assert [file.refresh() for _ in range(2)] == [False, False]
    assert file.value == 1
    assert [file.refresh() for _ in range(2)] == [False, True]
    assert file.value == 333


def test_what_cannot_be_used_changes_nothing_and_is_told_once(tmp_path):
    path = tmp_path / "file"
    path.write_text("1")
    file = WatchedFile("some_file", str(path), number)
    with capture_logs() as logs:
        path.write_text("half wri")
        assert [file.refresh() for _ in range(3)] == [False] * 3
        path.unlink()
        assert [file.refresh() for _ in range(3)] == [False] * 3
        path.write_text("333")
        assert [file.refresh() for _ in range(3)] == [False, True, False]
    assert file.value == 333
    assert [one["event"] for one in logs] == [
        *["security_file_not_loaded"] * 2, "security_file_loaded",
    ]  # fmt: skip


def test_a_process_does_not_begin_without(tmp_path, monkeypatch):
    path = tmp_path / "file"
    with pytest.raises(SecurityError, match=r"some_file = .*No such file"):
        WatchedFile("some_file", str(path), number)
    path.write_text("x")
    with pytest.raises(SecurityError, match=r"some_file = .*no number"):
        WatchedFile("some_file", str(path), number)
    monkeypatch.setattr(files, "FILE_BYTES_MAX", 2)
    path.write_text("123")
    with pytest.raises(SecurityError, match="longer than"):
        WatchedFile("some_file", str(path), number)
