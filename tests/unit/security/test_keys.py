"""Key files, key services, wrapped data keys, and how long an unwrapped key lives."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import stat
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest

from octavo.keys import change_text, data_keys_of, file_keys, key_source
from octavo.metadata.secret import ClusterSecret
from octavo.metadata.store import BadRecord
from octavo.protocol.encrypted import seal, unseal
from octavo.protocol.entry import WHOLE, EntryRange
from octavo.security.bookie_tokens import (
    CLOCKS_APART_S,
    LEDGERS_MAX,
    NODE_TOKEN_S,
    READER_TOKEN_S,
    TOKEN_BYTES_MAX,
    BookieTokens,
    TooManyLedgers,
    prover,
)
from octavo.security.keys.config import KeysConfig
from octavo.security.keys.data_keys import DataKeys
from octavo.security.keys.errors import InvalidKeys, KeyMissing, KeySourceUnavailable
from octavo.security.keys.key_file import NamespaceKey, parse, with_key, without_keys
from octavo.security.keys.sources import ServiceKeys
from octavo.security.keys.wrapped import KEY_ID_CHARS_MAX, WRAPPED_BYTES_MAX, Wrapped
from octavo.security.principal import Identity, Standing, Unauthenticated
from tests.support.keys import MemoryKms, add_key, forget, key_file, key_of

SECRET = base64.b64encode(b"s" * 32).decode()


def keys_in(config: KeysConfig) -> DataKeys:
    found = data_keys_of(config)
    assert found is not None
    return found


# ---------------------------------------------------------------------- the file's text


def test_the_newest_key_stands_first_and_all_others_stay() -> None:
    text = with_key("", key_of(1))
    text = with_key(text, key_of(1, "other"))
    text = with_key(text, key_of(2))
    assert [(one.namespace, one.key_id) for one in parse("f", text)] == [
        ("public", "k2"),
        ("public", "k1"),
        ("other", "k1"),
    ]
    assert parse("f", without_keys(text, "public")) == (key_of(1, "other"),)
    assert len(parse("f", without_keys(text, "public", "k1"))) == 2
    assert parse("f", with_key("a k " + SECRET, key_of(1)))[1] == key_of(1)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("public k1", "2 words"),
        ("pub/lic k1 " + SECRET, "not a namespace"),
        ("public k,1 " + SECRET, "not a key id"),
        ("public k1 " + SECRET[:-4], "not 32 bytes"),
        ("public k1 *" + SECRET, "not 32 bytes"),
        (f"public k1 {SECRET}\npublic k1 {SECRET}", "line 3.*already"),
    ],
)
def test_what_is_no_key_is_named_by_its_line_and_never_shown(line: str, why: str) -> None:
    with pytest.raises(InvalidKeys, match=why) as told:
        parse("key file x", "# keys\n" + line)
    assert "key file x line" in str(told.value)
    assert SECRET[:8] not in str(told.value)


def test_a_key_does_not_print_itself() -> None:
    assert repr(b"s" * 32) not in repr(NamespaceKey("a", "b", b"s" * 32))
    assert "ssss" not in f"{key_of(115)}"


# ---------------------------------------------------------------------- the file


def test_a_file_is_its_owners_alone(tmp_path: Path) -> None:
    config = key_file(tmp_path, key_of(1))
    assert stat.S_IMODE(os.stat(config.file).st_mode) == 0o600
    os.chmod(config.file, 0o640)
    with pytest.raises(InvalidKeys, match=r"mode 0640.*chmod 600"):
        key_source(config)


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"public k1 nonsense"])
async def test_a_file_that_cannot_be_read_gives_no_key(
    tmp_path: Path, content: bytes | None
) -> None:
    config = key_file(tmp_path, key_of(1))
    source = file_keys(Path(config.file))
    wrapped = await source.wrap("public", bytes(32))
    spoil(Path(config.file), content)
    with pytest.raises(KeySourceUnavailable, match=str(tmp_path)):
        await source.unwrap(wrapped)
    spoil(Path(config.file), None)
    key_file(tmp_path, key_of(1))
    assert await source.unwrap(wrapped) == bytes(32)


def spoil(path: Path, content: bytes | None) -> None:
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    config = key_file(tmp_path, key_of(1))
    before = Path(config.file).read_text()
    with pytest.raises(RuntimeError):
        change_text(Path(config.file), lambda _: (_ for _ in ()).throw(RuntimeError()))
    assert Path(config.file).read_text() == before
    assert [one.name for one in tmp_path.iterdir()] == ["keys"]


# ---------------------------------------------------------------------- wrapping


async def test_the_first_key_wraps_and_every_one_unwraps(tmp_path: Path) -> None:
    config = key_file(tmp_path, key_of(1))
    source = file_keys(Path(config.file))
    old = await source.wrap("public", b"d" * 32)
    add_key(Path(config.file), key_of(2))
    new = await source.wrap("public", b"e" * 32)
    assert (old.key_id, new.key_id) == ("k1", "k2")
    assert await source.unwrap(old) == b"d" * 32
    assert await source.unwrap(new) == b"e" * 32
    forget(Path(config.file), key_id="k1")
    with pytest.raises(KeyMissing, match="k1 of namespace public"):
        await source.unwrap(old)
    with pytest.raises(KeyMissing, match="octavo keys add other"):
        await source.wrap("other", bytes(32))


async def test_rfc_3394_says_what_wrapping_gives() -> None:
    """Its example 4.6: 256 bits of key data with a 256-bit key."""
    from cryptography.hazmat.primitives.keywrap import aes_key_wrap

    key = bytes(range(32))
    data = bytes.fromhex("00112233445566778899aabbccddeeff000102030405060708090a0b0c0d0e0f")
    assert aes_key_wrap(key, data).hex() == (
        "28c9f404c4b810f4cbccb35cfb87f8263f5786e2d80ed326cbc7f0e71a99f43bfb988b9b7a02dd21"
    )


@pytest.mark.parametrize("place", range(40))
async def test_a_wrapped_key_that_was_changed_is_not_unwrapped(tmp_path: Path, place: int) -> None:
    source = file_keys(Path(key_file(tmp_path, key_of(1)).file))
    whole = await source.wrap("public", b"d" * 32)
    changed = bytearray(whole.wrapped)
    changed[place] ^= 1
    for wrong in (bytes(changed), whole.wrapped[:place]):
        with pytest.raises(KeyMissing, match="was changed"):
            await source.unwrap(whole._replace(wrapped=wrong))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"1 public k1",
        b"1 public k1 !!!!",
        b"1 pub/lic k1 AAAA",
        b"1 public k\xff AAAA",
        b"2 public k1 AAAA",
        b"1 public k1 " + base64.b64encode(bytes(WRAPPED_BYTES_MAX + 1)),
    ],
)
def test_a_record_that_names_no_key_is_refused(text: bytes) -> None:
    with pytest.raises(BadRecord, match="ledger 7"):
        Wrapped.decode("ledger 7", text)
    one = Wrapped("public", "arn:aws:kms:eu:1:key/2-3", b"xyz")
    assert Wrapped.decode("ledger 7", one.encode()) == one


# ---------------------------------------------------------------------- in memory


async def without_end(work: Callable[[], Awaitable[object]], seconds: float) -> None:
    """Repeat until it raises, for a bounded time."""
    async with asyncio.timeout(seconds):
        while True:
            await work()
            await asyncio.sleep(0.005)


async def test_a_forgotten_key_opens_nothing_after_its_recheck(tmp_path: Path) -> None:
    config = key_file(tmp_path, key_of(1))
    keys = keys_in(config)
    key = await keys.new("public")
    sealed = seal(key.sealing(), keys.writer_prefix(), 1, 0, b"canary")
    assert unseal(await key.opening(), 1, 0, sealed) == b"canary"
    again = keys.of(Wrapped.decode("it", key.wrapped.encode()))
    assert again is key, "one for all that use it"
    forget(Path(config.file))
    with pytest.raises(KeyMissing, match="k1 of namespace public"):
        await without_end(key.opening, 1)
    with pytest.raises(KeyMissing):
        key.sealing()
    add_key(Path(config.file), key_of(1))
    assert unseal(await key.opening(), 1, 0, sealed) == b"canary", "it was brought back"


async def test_a_writer_hears_of_it_without_waiting(tmp_path: Path) -> None:
    config = key_file(tmp_path, key_of(1))
    key = await keys_in(config).new("public")
    forget(Path(config.file))

    async def seal_on() -> None:
        key.sealing()

    with pytest.raises(KeyMissing):
        await without_end(seal_on, 1)


async def test_while_the_service_is_away_nothing_is_opened() -> None:
    kms = MemoryKms()
    kms.add("public", "k1")
    keys = DataKeys(ServiceKeys("kms", kms, 0.2), random_bytes=os.urandom, recheck_s=0.02)
    key = await keys.new("public")
    await key.opening()
    kms.away = RuntimeError("token=hunter2")
    await asyncio.sleep(0.05)
    with pytest.raises(KeySourceUnavailable) as told:
        await key.opening()
    assert "hunter2" not in str(told.value)
    assert "RuntimeError" in str(told.value)
    key.sealing()  # only the service can open data sealed now
    kms.away = None
    await key.opening()
    kms.keys.clear()
    await asyncio.sleep(0.05)
    with pytest.raises(KeyMissing, match="kms has no key k1 of namespace public"):
        await key.opening()


async def test_a_service_that_hangs_is_not_waited_for() -> None:
    kms = MemoryKms()
    kms.add("public", "k1")
    kms.unwrap = lambda *_: time.sleep(0.3) or bytes(32)  # type: ignore[method-assign,func-returns-value]
    source = ServiceKeys("kms", kms, 0.05)
    wrapped = await source.wrap("public", bytes(32))
    with pytest.raises(KeySourceUnavailable, match=r"no answer in 0.05 s"):
        await source.unwrap(wrapped)


async def test_a_service_that_gives_nonsense_is_not_believed() -> None:
    kms = MemoryKms()
    kms.add("public", "k1")
    source = ServiceKeys("kms", kms, 1)
    wrapped = await source.wrap("public", b"short")
    with pytest.raises(KeySourceUnavailable, match="5 bytes"):
        await source.unwrap(wrapped)
    kms.add("public", "no id")
    with pytest.raises(KeySourceUnavailable, match="invalid key id"):
        await source.wrap("public", bytes(32))


async def test_rewrapping_changes_the_wrapping_and_not_the_key(tmp_path: Path) -> None:
    config = key_file(tmp_path, key_of(1))
    keys = keys_in(config)
    key = await keys.new("public")
    sealed = seal(key.sealing(), keys.writer_prefix(), 1, 0, b"canary")
    assert await keys.rewrapped(key.wrapped) is None
    add_key(Path(config.file), key_of(2))
    again = await keys.rewrapped(key.wrapped)
    assert again is not None
    assert again.key_id == "k2"
    forget(Path(config.file), key_id="k1")
    assert unseal(await keys.of(again).opening(), 1, 0, sealed) == b"canary"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"file": "x", "service": "a:b"}, "give only one"),
        ({"service": "module"}, "module:factory"),
        ({"service": "no.such:thing"}, "ModuleNotFoundError"),
        ({"service": "os:getcwd"}, r"no wrap\(\)"),
        ({"file": "/does/not/exist"}, "No such file"),
        ({"recheck_ms": 0}, "recheck_ms"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidKeys, match=why):
        key_source(KeysConfig(**settings))  # type: ignore[arg-type]


def test_without_settings_there_are_no_keys() -> None:
    assert data_keys_of(KeysConfig()) is None
    assert key_source(KeysConfig(service="tests.support.keys:connect")) is not None


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_the_longest_id_and_the_longest_wrapped_key_are_read(more: int) -> None:
    long_id = Wrapped("public", "k" * (KEY_ID_CHARS_MAX + more), b"xyz")
    long_key = Wrapped("public", "k1", bytes(WRAPPED_BYTES_MAX + more))
    for one in (long_id, long_key):
        text = base64.b64encode(one.wrapped).decode()
        data = f"1 {one.namespace} {one.key_id} {text}".encode()
        if more > 0:
            with pytest.raises(BadRecord, match="ledger 7"):
                Wrapped.decode("ledger 7", data)
        else:
            assert one.encode() == data
            assert Wrapped.decode("ledger 7", data) == one


NOW_S = 1_700_000_000
SECRET_BOOKIE_TOKENS = ClusterSecret(b"s" * 32)
ALICE = Identity("user:alice", frozenset({"group:staff"}), "token", None)


def tokens(now_s: float = NOW_S, secret: ClusterSecret = SECRET_BOOKIE_TOKENS) -> BookieTokens:
    return BookieTokens(secret, lambda: int(now_s * 1000))


def signed(kid: str = "reader", key: bytes | None = None, **claims: Any) -> bytes:
    """Make a token with these claims added, by the right key by default."""
    usual = {
        "sub": "user:alice",
        "aud": "bookies" if kid == "reader" else "b1",
        "iat": NOW_S,
        "exp": NOW_S + 60,
        "ledgers": [1],
        "topic": "a/b",
    }
    made = {name: value for name, value in {**usual, **claims}.items() if value is not None}
    use = {"reader": "bookie readers", "node": "bookies"}[kid]
    return jwt.encode(
        made, key or SECRET_BOOKIE_TOKENS.key(use), algorithm="HS256", headers={"kid": kid}
    ).encode()


def refused(token: bytes, what: str, now_s: float = NOW_S, bookie: str = "b1") -> None:
    with pytest.raises(Unauthenticated, match=what) as raised:
        tokens(now_s).verify(token, bookie)
    assert token.decode("latin-1")[-20:] not in str(raised.value), "nothing of it is shown"


def test_a_node_is_known_by_one_bookie_for_a_minute() -> None:
    token = tokens().node("broker-1", "b1")
    proof = tokens(NOW_S + NODE_TOKEN_S + CLOCKS_APART_S - 1).verify(token, "b1")
    assert proof.identity == Identity("node:broker-1", source="node")
    assert proof.ledgers is None
    refused(token, "another bookie", bookie="b2")
    refused(token, "ended", NOW_S + NODE_TOKEN_S + CLOCKS_APART_S)
    assert tokens(NOW_S - CLOCKS_APART_S).verify(token, "b1") == proof
    refused(token, "clocks", NOW_S - CLOCKS_APART_S - 1)


def test_a_node_with_a_name_that_is_none_is_a_node_all_the_same() -> None:
    prove = prover(tokens(), "a b")
    assert tokens().verify(prove("b1"), "b1").identity.name == "node:unnamed"


def test_a_reader_has_its_ledgers_at_any_bookie() -> None:
    ids = [0, 5, 6, 2**40, 2**62]
    token, expires_at_s = tokens().reader(ALICE, "public/t", reversed(ids))
    assert expires_at_s == NOW_S + READER_TOKEN_S
    for bookie in ("b1", "b2"):
        proof = tokens().verify(token.encode(), bookie)
        assert proof.ledgers == dict.fromkeys(ids, WHOLE)
        assert proof.topic == "public/t"
        assert (proof.identity.name, proof.identity.groups) == (ALICE.name, ALICE.groups)
        assert proof.identity.expires_at_s == expires_at_s
    refused(token.encode(), "ended 0 s ago", expires_at_s)


def test_a_readers_token_ends_with_what_its_holder_has_proved() -> None:
    soon = ALICE._replace(expires_at_s=NOW_S + 30.5)
    assert tokens().reader(soon, "a/b", [1]).expires_at_s == NOW_S + 30


def test_a_readers_token_says_what_it_was_given_out_for() -> None:
    standing = Standing(7, "certificate:0a")
    token, _ = tokens().reader(ALICE._replace(standing=standing), "a/b", [1])
    assert tokens().verify(token.encode(), "b1").standing == standing
    assert tokens().verify(signed(), "b1").standing is None, "those of 0.1 say nothing of it"
    task, _ = tokens().reader(Identity("node:driver", source="node"), None, [1])
    assert tokens().verify(task.encode(), "b1").standing is None


def test_a_reader_has_a_bounded_number_of_ledgers() -> None:
    token, _ = tokens().reader(ALICE, "a/b", range(0, LEDGERS_MAX * 1000, 1000))
    assert len(token) < TOKEN_BYTES_MAX
    assert len(tokens().verify(token.encode(), "b").ledgers or ()) == LEDGERS_MAX
    with pytest.raises(TooManyLedgers, match="at most 10000"):
        tokens().reader(ALICE, "a/b", range(LEDGERS_MAX + 1))
    refused(signed(ledgers=[1] * (LEDGERS_MAX + 1)), "names no ledgers")


def test_a_reader_has_a_part_of_a_ledger() -> None:
    parts = {9: EntryRange(0, 4), 5: EntryRange(7), 2**62: EntryRange(3, 3)}
    token, _ = tokens().reader(ALICE, "a/b", [1, 5], parts=parts)
    assert tokens().verify(token.encode(), "b1").ledgers == {1: WHOLE, **parts}
    with pytest.raises(TooManyLedgers, match="at most 10000"):
        tokens().reader(ALICE, "a/b", range(LEDGERS_MAX), parts={10**6: EntryRange(1)})


def test_one_kind_never_passes_for_the_other() -> None:
    as_node = signed("node", SECRET_BOOKIE_TOKENS.key("bookie readers"), sub="node:x")
    refused(as_node, "secret")
    refused(signed("reader", SECRET_BOOKIE_TOKENS.key("bookies")), "secret")
    refused(signed("reader", SECRET_BOOKIE_TOKENS.key("nodes")), "secret")
    refused(signed("node", sub="user:alice"), "names no principal")
    refused(tokens(secret=ClusterSecret(b"o" * 32)).node("x", "b1"), "secret")


@pytest.mark.parametrize(
    "claims",
    [
        {"ledgers": None},
        {"ledgers": "1"},
        {"ledgers": [-1]},
        {"ledgers": [True]},
        {"ledgers": [1.0]},
        {"ledgers": [2**64]},
        {"ledgers": [[1]]},
        {"ledgers": {"1": 1}},
        {"parts": "1"},
        {"parts": [1]},
        {"parts": [[1, 0]]},
        {"parts": [[1, 0, True]]},
        {"parts": [[1, 0, -2]]},
        {"parts": [[1, -1, 3]]},
        {"parts": [[-1, 0, 3]]},
        {"parts": [[2**63, 0, 3]]},
        {"parts": [[1, 0, 2**63]]},
        {"parts": [[1, 0, 3.0]]},
        {"parts": {"1": [0, 3]}},
        {"sub": None},
        {"sub": "alice"},
        {"sub": "*"},
        {"sub": "role:admin"},
        {"sub": "group:staff"},
        {"sub": "user:" + "x" * 300},
        {"groups": "group:x"},
        {"groups": [1]},
        {"groups": ["role:admin"]},
        {"groups": ["user:bob"]},
        {"topic": 7},
        {"record": 1},
        {"mark": ""},
        {"record": True, "mark": ""},
        {"record": "1", "mark": ""},
        {"record": 1, "mark": 7},
        {"exp": None},
        {"exp": "soon"},
        {"exp": 1e300},
        {"iat": None},
        {"iat": True},
        {"aud": None},
        {"aud": "b1"},
        {"aud": 7},
    ],
    ids=str,
)
def test_claims_that_make_no_sense_prove_nothing(claims: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated):
        tokens().verify(_signed_as_it_is(claims), "b1")


def _signed_as_it_is(claims: dict[str, Any]) -> bytes:
    """Sign claims that the library would not sign, too."""
    head, _, _ = signed().split(b".")
    usual = jwt.decode(signed(), options={"verify_signature": False})
    made = {name: one for name, one in {**usual, **claims}.items() if one is not None}
    return _sealed(head, json.dumps(made).encode())


def _sealed(head: bytes, body: bytes) -> bytes:
    encoded = base64.urlsafe_b64encode(body).rstrip(b"=")
    signing = jwt.get_algorithm_by_name("HS256")
    signature = signing.sign(head + b"." + encoded, SECRET_BOOKIE_TOKENS.key("bookie readers"))
    return b".".join((head, encoded, base64.urlsafe_b64encode(signature).rstrip(b"=")))


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"7", b"{", b"\xff\xfe", b"[" * 50_000, b'{"a":' * 50_000, b"1" * 9_999],
    ids=lambda body: str(body[:12]),
)
def test_a_body_that_is_no_object_proves_nothing(body: bytes) -> None:
    with pytest.raises(Unauthenticated):
        tokens().verify(_sealed(signed().split(b".")[0], body), "b1")


@pytest.mark.parametrize("alg", ["none", "HS384", "HS512", "RS256", "", "hs256"])
def test_other_algorithms_prove_nothing(alg: str) -> None:
    head = base64.urlsafe_b64encode(json.dumps({"alg": alg, "kid": "reader"}).encode())
    _, body, signature = signed().split(b".")
    for shown in (signature, b""):
        with pytest.raises(Unauthenticated):
            tokens().verify(b".".join((head.rstrip(b"="), body, shown)), "b1")


@pytest.mark.parametrize(
    "head",
    [b"[]", b"7", b'{"alg":"HS256"}', b'{"alg":"HS256","kid":["reader"]}', b"[" * 300, b"\xff"],
    ids=str,
)
def test_headers_that_make_no_sense_prove_nothing(head: bytes) -> None:
    encoded = base64.urlsafe_b64encode(head).rstrip(b"=")
    with pytest.raises(Unauthenticated):
        tokens().verify(b".".join((encoded, *signed().split(b".")[1:])), "b1")


def test_what_is_too_long_is_not_looked_at() -> None:
    refused(b"a." * TOKEN_BYTES_MAX, f"at most {TOKEN_BYTES_MAX}")
    refused(b"a" * 1000 + b"." + b"b.c", "not a JWT")


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_the_longest_token_is_looked_at(more: int) -> None:
    head, _, rest = signed().partition(b".")
    token = head + b"." + rest + b"A" * (TOKEN_BYTES_MAX + more - len(head) - 1 - len(rest))
    with pytest.raises(Unauthenticated) as caught:
        tokens().verify(token, "b1")
    assert (f"at most {TOKEN_BYTES_MAX}" in str(caught.value)) == (more > 0)
