"""Key files, key services, wrapped data keys, and how long an unwrapped key lives."""

from __future__ import annotations

import asyncio
import base64
import os
import stat
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from octavo.keys import change_text, data_keys_of, file_keys, key_source
from octavo.metadata.store import BadRecord
from octavo.protocol.encrypted import seal, unseal
from octavo.security.keys.config import KeysConfig
from octavo.security.keys.data_keys import DataKeys
from octavo.security.keys.errors import InvalidKeys, KeyMissing, KeySourceUnavailable
from octavo.security.keys.key_file import NamespaceKey, parse, with_key, without_keys
from octavo.security.keys.sources import ServiceKeys
from octavo.security.keys.wrapped import KEY_ID_CHARS_MAX, WRAPPED_BYTES_MAX, Wrapped
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
