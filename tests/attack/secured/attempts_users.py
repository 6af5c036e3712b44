"""False proofs of identity, and a tenant that uses its own rights."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from octavo.protocol.batch import read_header
from octavo.protocol.records import Record, build_batch
from tests.attack.attempts_requests import BATCH
from tests.attack.secured.world import (
    SEALED,
    VAULT,
    SecuredWorld,
    another_address,
    bearer,
    claims_of,
    enter_each,
    packed,
    request,
    signed,
    unsigned,
)
from tests.attack.secured.world import secured_attempt as secured
from tests.attack.world import TURN_S_MAX, Said

Make = Callable[[SecuredWorld], bytes]
RSA = rsa.generate_private_key(65537, 2048)
PUBLIC = RSA.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
ISSUER, AUDIENCE = "https://idp.example", "octavo-cluster"
ISSUER_KEY = rsa.generate_private_key(65537, 2048)
ISSUER_PEM = ISSUER_KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
NUMBERS = RSA.public_key().public_numbers()
JWK = {
    "kty": "RSA", "kid": "octavo", "alg": "RS256", "use": "sig",
    "n": packed(NUMBERS.n.to_bytes(256)), "e": packed(NUMBERS.e.to_bytes(3)),
}  # fmt: skip
ROOT = "root"


def token(make: Callable[[SecuredWorld], str]) -> Make:
    return lambda world: request(lines=[bearer(make(world))])


def good(world: SecuredWorld, name: str = ROOT, **changes: Any) -> str:
    return signed(world.key, claims_of(name, **changes))


def by_rsa(
    world: SecuredWorld,
    claims: dict[str, Any] | None = None,
    key: rsa.RSAPrivateKey = RSA,
    **head: Any,
) -> str:
    said = claims_of(ROOT) if claims is None else claims
    first = {"alg": "RS256", "typ": "JWT", "kid": "octavo", **head}
    first = {name: value for name, value in first.items() if value is not None}
    body = f"{packed(json.dumps(first).encode())}.{packed(json.dumps(said).encode())}"
    return f"{body}.{packed(key.sign(body.encode(), padding.PKCS1v15(), SHA256()))}"


def of_issuer(name: str = ROOT, **changes: Any) -> dict[str, Any]:
    return claims_of(name, **{"iss": ISSUER, "aud": AUDIENCE, **changes})


def exchanged(world: SecuredWorld) -> str:
    head, _, proof = world.tokens["mallory"].split(".")
    return f"{head}.{packed(json.dumps(claims_of(ROOT)).encode())}.{proof}"


def _now(more_s: int) -> int:
    return int(time.time()) + more_s


TOKENS: list[tuple[str, Callable[[SecuredWorld], str]]] = [
    ("expired", lambda w: good(w, exp=_now(-3600), iat=_now(-7200))),
    ("expired a moment ago", lambda w: good(w, exp=_now(-61), iat=_now(-3600))),
    ("of the future", lambda w: good(w, nbf=_now(3600), iat=_now(3600), exp=_now(7200))),
    ("for somebody else", lambda w: good(w, aud="another-service")),
    ("for the bookies' own", lambda w: good(w, aud="octavo-nodes")),
    ("for nobody", lambda w: good(w, aud=None)),
    ("for a list of others", lambda w: good(w, aud=["a", "b"])),
    ("of another issuer", lambda w: good(w, iss="https://evil.example")),
    ("without an end", lambda w: good(w, exp=None)),
    ("whose end is text", lambda w: good(w, exp="never")),
    ("whose end is true", lambda w: good(w, exp=True)),
    ("whose end is no number", lambda w: signed(w.key, json.dumps(claims_of(ROOT)).replace(
        f'"exp": {claims_of(ROOT)["exp"]}', '"exp": NaN'))),
    ("whose end has no end", lambda w: signed(w.key, json.dumps(claims_of(ROOT)).replace(
        f'"exp": {claims_of(ROOT)["exp"]}', '"exp": 1e999'))),
    ("of nobody", lambda w: good(w, sub=None)),
    ("of a number", lambda w: signed(w.key, {**claims_of(ROOT), "sub": 0})),
    ("of a list", lambda w: signed(w.key, {**claims_of(ROOT), "sub": [ROOT]})),
    ("of a name with a line's end", lambda w: good(w, "root\nx")),
    ("of a name with a space", lambda w: good(w, " root")),
    ("of everybody", lambda w: good(w, "*")),
    ("of nothing", lambda w: good(w, "")),
    ("whose claims are a list", lambda w: signed(w.key, "[]")),
    ("whose claims are no JSON", lambda w: signed(w.key, "{")),
    ("without signature, alg none", lambda w: unsigned(claims_of(ROOT), "none")),
    ("without signature, alg None", lambda w: unsigned(claims_of(ROOT), "None")),
    ("without signature, alg nOnE", lambda w: unsigned(claims_of(ROOT), "nOnE")),
    ("without signature, alg empty", lambda w: unsigned(claims_of(ROOT), "")),
    ("without signature, alg HS256", lambda w: unsigned(claims_of(ROOT), "HS256")),
    ("alg none, signed with the right key", lambda w: signed(w.key, claims_of(ROOT),
     algorithm="none")),
    ("signed with no key", lambda w: signed(b"", claims_of(ROOT))),
    ("signed with another key", lambda w: signed(bytes(32), claims_of(ROOT))),
    ("signed with the key of nodes", lambda w: signed(w.node_keys["nodes"], claims_of(ROOT))),
    ("signed with the key of calls between brokers", lambda w: signed(
        w.node_keys["calls between brokers"], claims_of(ROOT))),
    ("signed with the key of readers of bookies", lambda w: signed(
        w.node_keys["bookie readers"], claims_of(ROOT))),
    ("signed by HS512", lambda w: signed(w.key, claims_of(ROOT), algorithm="HS512")),
    ("signed by HS256 with a public key", lambda w: signed(PUBLIC, claims_of(ROOT))),
    ("signed by HS256 with a public key, called RS256", lambda w: signed(PUBLIC, claims_of(ROOT),
     algorithm="RS256")),
    ("signed by a key that it brings along", lambda w: by_rsa(w, jwk=JWK)),
    ("signed by a key at an address", lambda w: by_rsa(w, jku="https://evil.example/keys.json")),
    ("signed by a certificate at an address", lambda w: by_rsa(w, x5u="https://evil.example/x")),
    ("signed by a key in a file", lambda w: signed(b"", claims_of(ROOT), kid="../../../dev/null")),
    ("signed by a key of a query", lambda w: signed(b"x", claims_of(ROOT),
     kid="' UNION SELECT 'x")),
    ("signed by a key that is not named", lambda w: signed(bytes(32), claims_of(ROOT), kid=None)),
    ("a node's, of another key", lambda w: signed(bytes(32),
     claims_of("broker-1", aud="octavo-nodes"), kid="octavo-node")),
    ("a node's, for users", lambda w: signed(w.node_keys["nodes"], claims_of("broker-1"),
     kid="octavo-node")),
    ("of a user that says it is a node's", lambda w: signed(w.key, claims_of("broker-1",
     aud="octavo-nodes"), kid="octavo-node")),
    ("a token of a reader of bookies", lambda w: signed(w.node_keys["bookie readers"],
     {"sub": "user:root", "aud": "bookies", "iat": _now(-1), "exp": _now(600), "ledgers": [1]},
     kid="reader")),
    ("with parts that must be understood", lambda w: signed(w.key, claims_of(ROOT),
     crit=["b64", "x"], b64=False)),
    ("claims exchanged", exchanged),
    ("signature cut off", lambda w: good(w).rpartition(".")[0]),
    ("half of one", lambda w: good(w)[: len(good(w)) // 2]),
    ("a letter less", lambda w: good(w)[:-1]),
    ("its claims alone", lambda w: good(w).split(".")[1]),
    ("five parts", lambda w: good(w) + ".a.b"),
    ("dots", lambda w: ".."),
    ("a dot", lambda w: "."),
    ("no base64", lambda w: "!!!.???.***"),
    ("as long as a header may be", lambda w: good(w, filler="x" * 9_000)),
    ("of headers, one in the other", lambda w: ".".join([packed(b"[" * 4_000), "e30", "e30"])),
    ("two in one", lambda w: f"{good(w)},{good(w)}"),
    ("in quotes", lambda w: f'"{good(w)}"'),
    ("under the name of a key", lambda w: f"okey_{packed(bytes(32))}"),
]  # fmt: skip
enter_each("token", [(name, token(make)) for name, make in TOKENS], (401,))
enter_each("token", [("far too long", token(lambda w: "x" * 2_000_000))], (0, 400, 401, 431))


OTHER = rsa.generate_private_key(65537, 2048)
FOREIGN: list[tuple[str, Callable[[SecuredWorld], str]]] = [
    ("HS256, the key that is public", lambda w: signed(ISSUER_PEM, of_issuer())),
    ("HS256, the key that is public, no kid", lambda w: signed(ISSUER_PEM, of_issuer(), kid=None)),
    ("HS512, the key that is public", lambda w: signed(
        ISSUER_PEM, of_issuer(), algorithm="HS512", kid=None)),
    ("called RS256, made by HS256 of the public key", lambda w: signed(
        ISSUER_PEM, of_issuer(), algorithm="RS256", kid=None)),
    ("no signature", lambda w: unsigned(of_issuer(), "none", kid=None)),
    ("of another key", lambda w: by_rsa(w, of_issuer(), OTHER, kid=None)),
    ("of another key, which it brings along", lambda w: by_rsa(w, of_issuer(), jwk=JWK)),
    ("signed as another algorithm of the key", lambda w: by_rsa(
        w, of_issuer(), ISSUER_KEY, kid=None, alg="PS256")),
    ("in our own name", lambda w: by_rsa(w, claims_of(ROOT), ISSUER_KEY)),
    ("in our own name, no kid", lambda w: by_rsa(w, claims_of(ROOT), ISSUER_KEY, kid=None)),
    ("of our key, in the issuer's name", lambda w: signed(w.key, of_issuer())),
    ("of our key, in the issuer's name, no kid", lambda w: signed(w.key, of_issuer(), kid=None)),
    ("for another service", lambda w: by_rsa(w, of_issuer(aud="b"), ISSUER_KEY, kid=None)),
    ("for nobody", lambda w: by_rsa(w, of_issuer(aud=None), ISSUER_KEY, kid=None)),
    ("ended", lambda w: by_rsa(w, of_issuer(exp=_now(-600)), ISSUER_KEY, kid=None)),
    ("without an end", lambda w: by_rsa(w, of_issuer(exp=None), ISSUER_KEY, kid=None)),
    ("of the future", lambda w: by_rsa(w, of_issuer(nbf=_now(600)), ISSUER_KEY, kid=None)),
    ("issued in the future", lambda w: by_rsa(w, of_issuer(iat=_now(600)), ISSUER_KEY, kid=None)),
    ("of another issuer", lambda w: by_rsa(w, of_issuer(iss=ISSUER + "/"), ISSUER_KEY, kid=None)),
    ("of nobody", lambda w: by_rsa(w, of_issuer(sub=None), ISSUER_KEY, kid=None)),
    ("of a node", lambda w: by_rsa(w, of_issuer("x", sub=["node:b"]), ISSUER_KEY, kid=None)),
]  # fmt: skip
enter_each("issuer's token", [(name, token(make)) for name, make in FOREIGN], (401,))


@secured("issuer's token: a good one is somebody, who may do nothing here")
async def good_of_issuer(world: SecuredWorld) -> None:
    """Check that good tokens work: otherwise the attempts would show nothing. Names
    of nodes and roles may be users."""
    for name in ("visitor", "node:broker-1", "role:admin", "*", "group:staff"):
        shown = by_rsa(world, of_issuer(name), ISSUER_KEY, kid=None)
        statuses = (403,) if name == "visitor" else (401, 403)
        await world.refused(request(lines=[bearer(shown)]), statuses, source=another_address())


def basic(text: bytes) -> bytes:
    return b"Authorization: Basic " + base64.b64encode(text)


def lines(*found: bytes | Callable[[SecuredWorld], bytes]) -> Make:
    return lambda world: request(
        lines=[one if isinstance(one, bytes) else one(world) for one in found]
    )


def shown(world: SecuredWorld, name: str = ROOT) -> bytes:
    return bearer(world.tokens[name])


HEADERS: list[tuple[str, Make]] = [
    ("none", lines()),
    ("empty", lines(b"Authorization:")),
    ("a scheme alone", lines(b"Authorization: Bearer")),
    ("a scheme and spaces", lines(b"Authorization: Bearer    ")),
    ("an unknown scheme", lines(b"Authorization: Negotiate abcd")),
    ("a token without a scheme", lines(lambda w: b"Authorization: " + w.tokens[ROOT].encode())),
    ("a token under another scheme", lines(lambda w: b"Authorization: Token "
     + w.tokens[ROOT].encode())),
    ("a digest", lines(b'Authorization: Digest username="root", response="0"')),
    ("two, the good one first", lines(shown, lambda w: bearer("x.y.z"))),
    ("two, the good one last", lines(lambda w: bearer("x.y.z"), shown)),
    ("two that are both good", lines(shown, lambda w: shown(w, "mallory"))),
    ("a name that is almost it", lines(lambda w: b"X-" + shown(w))),
    ("with a dash in it", lines(lambda w: shown(w).replace(b"Author", b"Author-", 1))),
    ("for a proxy", lines(lambda w: b"Proxy-" + shown(w))),
    ("in a cookie", lines(lambda w: b"Cookie: token=" + w.tokens[ROOT].encode()
     + b"; Authorization=Bearer " + w.tokens[ROOT].encode())),
    ("said by a proxy", lines(
        b"X-Forwarded-User: root", b"X-Remote-User: root", b"Remote-User: root",
        b"X-Forwarded-For: 127.0.0.1", b"X-Real-IP: 127.0.0.1",
        b"Forwarded: for=127.0.0.1;by=root")),
    ("a certificate in a header", lines(
        b'X-Forwarded-Client-Cert: Subject="CN=root"', b"X-SSL-Client-S-DN: CN=root",
        b"SSL-Client-Verify: SUCCESS", b"X-SSL-Client-Verify: SUCCESS")),
    ("a method that is overridden", lines(
        b"X-HTTP-Method-Override: GET", b"X-Original-URL: /healthz", b"X-Rewrite-URL: /healthz")),
    ("said to come from this machine", lines(
        b"X-Forwarded-Host: localhost", b"X-Forwarded-Proto: https",
        b"Octavo-Principal: user:root", b"Octavo-Identity: user:root", b"Octavo-User: root")),
    ("root without a password", lines(basic(b"root:"))),
    ("root with a password that many have", lines(basic(b"root:root"))),
    ("root and no colon", lines(basic(b"root"))),
    ("a colon alone", lines(basic(b":"))),
    ("nobody known", lines(basic(b"nobody:secret"))),
    ("a zero byte in a name", lines(basic(b"root\0x:secret"))),
    ("a name that is not UTF-8", lines(basic(b"\xff\xfe:\xff"))),
    ("a name in other letters", lines(basic("ｒｏｏｔ:secret".encode()))),
    ("a password of 1 MiB", lambda w: request(lines=[basic(b"root:" + b"x" * 12_000)])),
    ("no base64", lines(b"Authorization: Basic $$$$")),
    ("SCRAM without a beginning", lines(b"Authorization: SCRAM-SHA-256 data=biws")),
    ("a folded line", lines(lambda w: shown(w).replace(b" Bearer", b"\r\n Bearer"))),
    ("a space before the colon", lines(lambda w: shown(w).replace(b"n:", b"n :"))),
    ("a line feed without its return", lines(lambda w: b"A: b\n" + shown(w))),
    ("a return without its line feed", lines(lambda w: b"A: b\r" + shown(w))),
    ("a zero byte before it", lines(lambda w: b"A: b\0" + shown(w))),
]  # fmt: skip
enter_each("header", HEADERS, (0, 400, 401, 429, 431))


@secured("a token behind the question mark")
async def in_the_query(world: SecuredWorld) -> None:
    for name in ("access_token", "token", "authorization", "Authorization", "jwt", "api_key"):
        path = f"{VAULT}/messages?from=earliest&{name}={world.tokens[ROOT]}"
        await world.refused(request(path=path), (400, 401, 414, 431))


@secured("a good token at another cluster's name")
async def under_another_name(world: SecuredWorld) -> None:
    data = request(lines=[bearer(world.tokens[ROOT])]).replace(b"localhost", b"evil.example")
    await world.refused(data, (421,))


@secured("a token that was good, by the letter")
async def letter_by_letter(world: SecuredWorld) -> None:
    text = world.tokens[ROOT]
    for at in range(0, len(text), max(1, len(text) // 40)):
        other = "A" if text[at] != "A" else "B"
        changed = request(lines=[bearer(text[:at] + other + text[at + 1 :])])
        await world.refused(changed, (401,), source=another_address())


@secured("forged tokens by the thousand", turn_s_max=TURN_S_MAX)
async def by_the_thousand(world: SecuredWorld) -> None:
    """A broker looks at few bad tokens of an address. A token that was good still works there,
    and so do other addresses."""
    source = another_address()
    forged = [
        request(lines=[bearer(by_rsa(world, of_issuer(f"u{n % 5}", jti=n), OTHER, kid=None))])
        for n in range(200)
    ]
    for broker in range(len(world.brokers)):
        seen: Counter[int] = Counter()
        for at in range(0, len(forged), 20):
            some = await asyncio.gather(*(
                world.refused(one, (401, 429), broker=broker, source=source)
                for one in forged[at : at + 20]
            ))  # fmt: skip
            seen.update(one.status for one in some)
        assert seen[429] > 0, seen
        said = await world.ask("GET", "/v1/cluster", who=ROOT, broker=broker)
        assert said.status == 200, said


@secured("answers tell nothing of a token, nor who there is")
async def tells_nothing(world: SecuredWorld) -> None:
    bodies = set()
    for name in ("root", "nobody", "keeper"):
        said = await world.refused(
            request(lines=[basic(name.encode() + b":Zx81hunter")]), (401, 429)
        )
        assert b"Zx81hunter" not in said.body, said
        bodies.add(said.body.replace(name.encode(), b"NAME"))
    assert len(bodies) <= 2, f"known and unknown users are answered differently: {bodies}"
    bad = signed(bytes(32), claims_of(ROOT))
    shown = request(lines=[bearer(bad)])
    said = await world.refused(shown, (401,), source=another_address())
    for part in bad.split("."):
        assert part.encode() not in said.body, said


@secured("topics that are there and not there are refused alike")
async def tells_no_names(world: SecuredWorld) -> None:
    for who in (None, "mallory"):
        bodies = set()
        for topic in ("secret", "nothing"):
            said = await world.ask("GET", f"/v1/topics/vault/{topic}/messages", who=who)
            assert said.status == (401 if who is None else 403), said
            bodies.add(said.body.replace(topic.encode(), b"TOPIC"))
        assert len(bodies) == 1, bodies


SHARED = "/v1/topics/shared"
LETTER_S = 20.0
SCHEMA_WORD = "pin-5c1f9be2"
"""A name in a schema that `alice` may not see."""


async def _must(
    world: SecuredWorld, method: str, path: str, body: Any = b"", *, who: str = "root",
    **headers: Any,
) -> Said:  # fmt: skip
    said = await world.ask(method, path, body, who=who, **headers)
    assert 200 <= said.status < 300, (method, path, said)
    return said


async def _values(world: SecuredWorld, path: str, who: str = "root") -> list[str]:
    said = await world.ask("GET", f"{path}/messages?from=earliest&limit=1000", who=who)
    if said.status == 204:
        return []
    assert said.status == 200, said
    return [str(one.get("value_text")) for one in json.loads(said.body)["messages"]]


async def _until_there(world: SecuredWorld, path: str, value: str) -> list[str]:
    until_s = time.monotonic() + LETTER_S
    while value not in (found := await _values(world, path)):
        assert time.monotonic() < until_s, f"{value} is not in {path}: {found}"
        await asyncio.sleep(0.1)
    return found


async def _deadly(world: SecuredWorld, path: str, who: str = "root", **more: Any) -> None:
    settings = {"type": "shared", "max_deliveries": 1, **more}
    await _must(world, "PUT", f"{path}/subscriptions/s", settings, who=who)


async def _refuse(world: SecuredWorld, path: str, value: str, who: str = "root") -> None:
    """Publish it, receive it and give it back: it becomes a dead letter."""
    await _must(world, "POST", f"{path}/messages", value.encode(), who=who)
    said = await _must(world, "POST", f"{path}/subscriptions/s/receive?wait=10", who=who)
    given = [one["ack_id"] for one in json.loads(said.body)["messages"]]
    await _must(world, "POST", f"{path}/subscriptions/s/ack", {"nack": given}, who=who)


async def _taken(world: SecuredWorld, path: str, last: int) -> None:
    """Mallory reads who stored the message at `last`, and publishes the next ids as that
    producer."""
    said = await world.ask(
        "GET", f"{path}/messages?from={last}&limit=1", who="mallory", Accept=BATCH
    )
    assert said.status == 200, said
    head = read_header(said.body)
    for more in range(1, 4):
        for epoch in (head.producer_epoch, head.producer_epoch + 1):
            batch = build_batch(
                [Record(None, b"forged", (), 0)],
                producer_id=head.producer_id,
                producer_epoch=epoch,
                base_sequence=head.base_sequence + more,
            )
            for broker in range(len(world.brokers)):
                said = await world.ask(
                    "POST", f"{path}/messages", batch, who="mallory", broker=broker,
                    Content_Type=BATCH,
                )  # fmt: skip
                assert said.status in (200, 409, 422), said


@secured("letters: forged under the producer id of one that was read")
async def forged_letters(world: SecuredWorld) -> None:
    """The broker's next letter was taken for a duplicate, and lost."""
    path, dead = f"{SHARED}/orders", f"{SHARED}/orders-s-dlq"
    await _must(world, "PUT", path, {})
    await _deadly(world, path)
    await _refuse(world, path, "first")
    await _until_there(world, dead, "first")
    await _taken(world, dead, 0)
    await _refuse(world, path, "second")
    await _until_there(world, dead, "second")


@secured("producer ids: another's is read from its batch, and its next number taken")
async def taken_ids(world: SecuredWorld) -> None:
    path = f"{SHARED}/numbered"
    await _must(world, "PUT", path, {})
    numbered: dict[str, str] = {"Producer_Id": "till-4", "Producer_Epoch": "0"}
    first = await _must(
        world, "POST", f"{path}/messages", b"first", who="alice", Producer_Seq="0", **numbered
    )
    await _taken(world, path, 0)
    for broker in range(len(world.brokers)):
        said = await world.ask(
            "POST", f"{path}/messages", b"second", who="alice", broker=broker, Producer_Seq="1",
            **numbered,
        )  # fmt: skip
        assert said.status == (204 if broker else 200), (first, said)
    found = await _values(world, path)
    assert found.count("first") == found.count("second") == 1, found


@secured("letters: of an encrypted namespace, which would lie in a clear one")
async def clear_letters(world: SecuredWorld) -> None:
    """A dead letter or a retry was stored in clear text, where its copy was sent."""
    word = f"sealed-{secrets.token_hex(12)}"
    path = f"/v1/topics/{SEALED}/plans"
    await _must(world, "PUT", path, {})
    await _must(world, "PUT", f"{SHARED}/clear", {})
    for field in ("dead_letter_topic", "retry_topic"):
        for target in ("shared/clear", "shared/clear-and-new"):
            settings = {"type": "shared", "max_deliveries": 1, field: target}
            for broker in range(len(world.brokers)):
                said = await world.ask(
                    "PUT", f"{path}/subscriptions/s", settings, who="root", broker=broker
                )
                assert said.status == 422, (field, target, said)
    await _deadly(world, path)
    await _refuse(world, path, word)
    await _until_there(world, f"{path}-s-dlq", word)
    assert word not in await _values(world, f"{SHARED}/clear")
    found = await asyncio.to_thread(_files_with, world.cluster.folder, word.encode())
    assert not found, f"in clear text in {found}"


def _files_with(folder: Path, word: bytes) -> list[str]:
    found = []
    for path in folder.glob("bookie-*/**/*"):
        if path.is_file():
            with contextlib.suppress(OSError), path.open("rb") as file:
                last = b""
                while part := file.read(1 << 20):
                    if word in last + part:
                        found.append(str(path))
                        break
                    last = part[-len(word) :]
    return found


@secured("letters: a tenant whose letters cannot be stored delays no other tenant's", long=True)
async def stuck_letters(world: SecuredWorld) -> None:
    """16 turns of a broker waited a minute for a topic that takes nothing."""
    for number in range(20):
        path = f"/v1/topics/tenant/stuck-{number}"
        await _must(world, "PUT", path, {}, who="mallory")
        await _deadly(world, path, who="mallory", dead_letter_topic="tenant/full")
        if not number:
            await _must(world, "PUT", "/v1/topics/tenant/full", {}, who="mallory")
    await _must(world, "DELETE", "/v1/topics/tenant/full", who="mallory")
    for number in range(20):
        await _refuse(world, f"/v1/topics/tenant/stuck-{number}", "stuck", who="mallory")
    path = f"{SHARED}/beside"
    await _must(world, "PUT", path, {})
    await _deadly(world, path)
    began = time.monotonic()
    await _refuse(world, path, "letter")
    await _until_there(world, f"{SHARED}/beside-s-dlq", "letter")
    assert time.monotonic() - began < LETTER_S
    for number in range(20):
        await _must(world, "DELETE", f"/v1/topics/tenant/stuck-{number}", who="mallory")


@secured("schemas: one that may not be seen is told by no error, whichever broker owns the topic")
async def schema_by_errors(world: SecuredWorld) -> None:
    schema = {"type": "object", "properties": {SCHEMA_WORD: {"type": "integer"}},
              "required": [SCHEMA_WORD]}  # fmt: skip
    await _must(world, "POST", "/v1/schemas/subjects/strict/kept/versions", {"schema": schema})
    hers = "/v1/topics/strict/hers"
    await _must(world, "PUT", hers, {})
    body = {"schema": {"subject": "kept"}}
    for broker in range(len(world.brokers)):
        said = await world.ask("PATCH", hers, body, who="alice", broker=broker)
        assert said.status == 403, said
    strict = [f"/v1/topics/strict/t{n}" for n in range(4)]
    bodies: Mapping[str, bytes] = {
        "text/plain": b"{}", "application/json": b'{"value":{}}',
        "application/x-ndjson": b'{"value":{}}\n', BATCH: build_batch([Record(None, b"{}", (), 0)]),
    }  # fmt: skip
    for path in strict:
        await _must(world, "PUT", path, {"schema": {"subject": "kept"}})
        for broker in range(len(world.brokers)):
            for kind, data in bodies.items():
                said = await world.ask(
                    "POST", f"{path}/messages", data, who="alice", broker=broker,
                    Content_Type=kind,
                )  # fmt: skip
                assert said.code == "schema-mismatch", said
                assert SCHEMA_WORD.encode() not in said.body, said
                said = await world.ask(
                    "POST", f"{path}/messages", data, broker=broker, Content_Type=kind
                )
                assert SCHEMA_WORD.encode() in said.body, "who may see it is told"


@secured("streams: a PUT with a time to live, of a topic that another has made and not used")
async def stream_over_topic(world: SecuredWorld) -> None:
    """With `create` alone it removed the topic."""
    path = f"{SHARED}/unused"
    await _must(world, "PUT", path, {})
    for broker in range(len(world.brokers)):
        for lines in ({"Stream_TTL": "1"}, {"Stream_Expires_At": "2027-01-01T00:00:00Z"}, {}):
            said = await world.ask(
                "PUT", path.replace("topics", "durable-streams"), b"", who="mallory",
                broker=broker, Content_Type="text/plain", **lines,
            )  # fmt: skip
            assert said.status in (403, 409), said
    await asyncio.sleep(2.5)
    said = await _must(world, "GET", path)
    assert not json.loads(said.body).get("stream"), said


async def _quota(world: SecuredWorld, subject: str, **amounts: int) -> None:
    await _must(world, "PUT", f"/v1/quotas/{subject}", amounts)


@secured("quotas: topics of letters count, and so do groups, subscriptions and memory")
async def quotas_of_counts(world: SecuredWorld) -> None:
    tenant = "namespace:tenant"
    said = await _must(world, "GET", "/v1/topics/tenant?limit=10000", who="mallory")
    topics = len(json.loads(said.body)["topics"])
    try:
        await _quota(world, tenant, topics=topics)
        await asyncio.sleep(1.0)
        said = await world.ask(
            "PUT", "/v1/topics/tenant/own/subscriptions/lettered",
            {"type": "shared", "max_deliveries": 2}, who="mallory",
        )  # fmt: skip
        assert (said.status, said.code) == (422, "quota-exceeded"), said
        said = await world.ask("PUT", "/v1/durable-streams/tenant/one-more", b"", who="mallory",
                               Content_Type="text/plain")  # fmt: skip
        assert (said.status, said.code) == (422, "quota-exceeded"), said
        await _quota(world, tenant, subscriptions=1)
        await asyncio.sleep(1.0)
        said = await world.ask(
            "PUT", "/v1/topics/tenant/own/subscriptions/one-more", {}, who="mallory"
        )
        assert (said.status, said.code) == (422, "quota-exceeded"), said
        await _quota(world, "user:mallory", groups=1, memory=1_000_000)
        await asyncio.sleep(1.0)
        body = {"topics": ["own"]}
        statuses = [
            (await world.ask("POST", f"/v1/groups/tenant/q{n}/members/m", body, who="mallory")).code
            for n in range(4)
        ]
        assert "quota-exceeded" in statuses, statuses
        said = await world.ask(
            "POST", "/v1/topics/tenant/own/messages", b"x" * 2_000_000, who="mallory"
        )
        assert said.status == 429, said
    finally:
        for subject in (tenant, "user:mallory"):
            await _must(world, "DELETE", f"/v1/quotas/{subject}")
        for n in range(4):
            await world.ask("DELETE", f"/v1/groups/tenant/q{n}/members/m", who="mallory")
