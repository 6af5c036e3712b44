"""Caches: every one is listed, bounded, and keyed by all that its values depend on."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import dataclasses
import itertools
import json
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import pytest

from octavo.bookie.read.read_ahead import ReadAhead
from octavo.broker.cluster.schema_registry import SchemaRegistry
from octavo.broker.errors import SchemaMismatch
from octavo.broker.http.api.fast_publish import shape_of
from octavo.broker.http.stream import Page, Pages
from octavo.broker.log.compaction_rules import Hints
from octavo.broker.log.open_batches import OpenBatches
from octavo.broker.log.reader import LedgerTimes, OpenReaders
from octavo.broker.operations import kinds
from octavo.broker.operations.gathered import RemoteBatchers
from octavo.broker.operations.upgrade import Nonces
from octavo.broker.schemas.engine import Answering, Check, Misfit
from octavo.broker.topic_rates import INTO, OUT_OF, Rates
from octavo.broker.types import Owner, PartitionName, Published, StoredBatch
from octavo.client.doubt import Doubts
from octavo.ledger.bookies.connection import BookieConnection
from octavo.metadata.ledgers import LedgerStore
from octavo.metadata.opening import open_store
from octavo.metadata.schemas import SchemaStore
from octavo.metadata.topic_settings import Policies
from octavo.protocol.batch import read_header
from octavo.protocol.codes import Code
from octavo.protocol.frames import read_answer
from octavo.protocol.records import Record, build_batch
from octavo.security.keys.data_keys import DataKeys
from octavo.security.keys.wrapped import Wrapped
from octavo.security.limits import Limits, Quota, Quotas
from octavo.security.principal import Identity, Shown, Standing, Unauthenticated
from octavo.security.rules import ALL, Kind, Operation, Pattern, Policy, Resource, Rule
from octavo.spark import commit, sink_driver
from octavo.spark.process_cache import ProcessCache
from octavo.spark.sink_options import sink_options
from tests.support.identities import PASSWORD, basic, certificate, lab
from tests.support.memory_metadata import MemoryMetadata, MemoryStore
from tests.support.sources import nodes_of
from tests.unit.caches_kept import HELD, KEPT

ROOT = Path(__file__).parent.parent.parent
PARTS = ("bookie", "broker", "ledger", "metadata", "octavo", "protocol")
_LEFT_OUT = ("standalone",)
_MEMO = re.compile(r"(functools\.)?(lru_cache|cache)\b")
_MADE = re.compile(r"(functools\.)?(lru_cache|cache)\(")


def _own_field(node: ast.expr) -> str | None:
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    return node.attr if is_own and node.value.id == "self" else None  # type: ignore[attr-defined]


def _memos(tree: ast.AST) -> Iterator[str]:
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if any(_MEMO.match(ast.unparse(one)) for one in node.decorator_list):
                yield node.name
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = _MADE.match(ast.unparse(node.value))
            yield from [ast.unparse(node.targets[0]).removeprefix("self.")] * bool(made)


def _name(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


_READS = ("get", "pop", "setdefault")


def _tables(owner: ast.AST, name_of: Callable[[ast.expr], str | None]) -> set[str]:
    """Return names that are read and filled by a key; of a module also sets."""
    read: set[str | None] = set()
    filled: set[str | None] = set()
    for node in nodes_of(owner):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = name_of(node.func.value)
            if node.func.attr in _READS:
                read.add(name)
            if node.func.attr == "setdefault" or (node.func.attr == "add" and name_of is _name):
                filled.add(name)
        elif isinstance(node, ast.Compare):
            if any(isinstance(one, ast.In | ast.NotIn) for one in node.ops):
                read.add(name_of(node.comparators[-1]))
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            filled.add(name_of(node.value))
    return {name for name in read & filled if name is not None}


def _of_module(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign):
            found |= {one.id for one in node.targets if isinstance(one, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def caches(source: str) -> set[str]:
    tree = ast.parse(source)
    found = set(_memos(tree))
    of_module = _of_module(tree)
    for node in nodes_of(tree):
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{field}" for field in _tables(node, _own_field)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found |= _tables(node, _name) & of_module
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = ast.unparse(node.value.func).startswith("ProcessCache")
            found |= {ast.unparse(node.targets[0])} if made else set()
    return found


def _all() -> set[str]:
    found = set()
    for part in PARTS:
        for path in sorted((ROOT / part).rglob("*.py")):
            within = path.relative_to(ROOT).with_suffix("")
            if path.resolve() == path and not set(within.parts) & set(_LEFT_OUT):
                module = ".".join(within.parts).removeprefix("octavo.")
                found |= {f"{module}:{name}" for name in caches(path.read_text())}
    return found


def test_each_is_held_by_a_test_or_says_why_not() -> None:
    """A new cache gets a property in this file, or a reason in caches_kept.py."""
    kept = [name for names in KEPT.values() for name in names.split()]
    known = [*HELD, *kept]
    assert len(known) == len(set(known)), "each stands there once"
    found = _all()
    assert found - set(known) == set(), "vary the fields of its key after a hit, or say why not"
    assert set(known) - found == set(), "these are gone"


@pytest.mark.parametrize("test", sorted(set(HELD.values())))
def test_the_tests_are_there(test: str) -> None:
    path, _, name = test.partition("::")
    assert re.search(rf"^(async )?def {name}\(", (ROOT / "tests" / path).read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("@functools.lru_cache(8)\ndef f(x): ...", {"f"}),
        ("@cache\ndef f(x): ...", {"f"}),
        ("class A:\n def g(self):\n  self._p = lru_cache(8)(h)", {"_p"}),
        ("class A:\n def g(self, k):\n  if k not in self._t:\n   self._t[k] = 1", {"A._t"}),
        ("class A:\n def g(self, k):\n  return self._t.setdefault(k, 1)", {"A._t"}),
        (
            "class A:\n def g(self, k):\n  return self._t.get(k)\n"
            " def h(self, k):\n  self._t[k] = 1",
            {"A._t"},
        ),
        ("_t = {}\ndef g(k):\n if k not in _t:\n  _t[k] = 1", {"_t"}),
        ("_t = set()\ndef g(k):\n if k not in _t:\n  _t.add(k)", {"_t"}),
        ("_t = ProcessCache[str, int](64)", {"_t"}),
        ("def g(k):\n t = {}\n if k not in t:\n  t[k] = 1", set()),
        ("class A:\n def g(self, k):\n  return self._t.get(k)", set()),
        ("class A:\n def g(self, k):\n  self._t[k] = 1", set()),
    ],
)
def test_what_counts_as_one(source: str, found: set[str]) -> None:
    assert caches(source) == found


# Caches and joined requests: after a hit each field of the key is varied alone.
Key = TypeVar("Key", bound=NamedTuple)


def varied(key: Key, **others: Any) -> Iterator[tuple[str, Key]]:
    assert set(others) == set(key._fields), "each field has another value"
    for name, other in others.items():
        assert getattr(key, name) != other
        yield name, key._replace(**{name: other})


IDENTITY = Identity("user:alice", frozenset({"group:staff"}), "token", 100.0, Standing(1))
OTHER_IDENTITY = {
    "name": "user:bob", "groups": frozenset({"group:guests"}), "source": "password",
    "expires_at_s": 200.0, "standing": Standing(2),
}  # fmt: skip


# ---- who a caller is, and its rights


class Asked(NamedTuple):
    name: str
    groups: frozenset[str]
    operation: Operation
    kind: Kind
    resource: str


@pytest.mark.parametrize("seed", range(100))
def test_decisions(seed: int) -> None:
    rng = random.Random(seed)
    names, groups = ["user:alice", "user:bob", "anonymous"], ["group:staff", "group:guests"]
    kinds, resources = [Kind.TOPIC, Kind.NAMESPACE, Kind.SUBSCRIPTION], ["a", "a/b", "a/b/c"]

    def rule() -> Rule:
        operations = ALL if rng.random() < 0.2 else frozenset(rng.sample(list(Operation), 3))
        pattern = Pattern(rng.choice(kinds), rng.choice(resources), rng.random() < 0.3)
        return Rule(rng.choice(names + groups), rng.random() < 0.7, operations, pattern)

    rules = [rule() for _ in range(12)]
    roles = {"group:staff": ["role:operators"]}
    asked = Policy(rules, roles, secured=True)
    hit = Asked(
        rng.choice(names), frozenset(groups[:1]), rng.choice(list(Operation)), kinds[0], "a/b"
    )
    others = [hit]
    for name, groups_of in itertools.product(names, ([], groups[:1], groups[1:], groups)):
        others.append(hit._replace(name=name, groups=frozenset(groups_of)))
    others += [hit._replace(operation=one) for one in Operation]
    others += [hit._replace(kind=one) for one in kinds]
    others += [hit._replace(resource=one) for one in resources]
    for one in (hit, *others, *others):
        caller = Identity(one.name, one.groups)
        resource = Resource(one.kind, one.resource)
        fresh = Policy(rules, roles, secured=True).decide(caller, one.operation, resource)
        assert asked.decide(caller, one.operation, resource) == fresh


async def test_who_was_verified(tmp_path: Path) -> None:
    """A header or a certificate with any difference was not verified."""
    async with lab(tmp_path) as here:
        token = f"Bearer {here.token()}"
        der = certificate(cn="alice")
        for hit in (Shown(token), Shown(None, der)):
            assert await here.authenticator.identify(hit)
            assert here.authenticator.at_hand(hit) is not None
        others = [Shown(token[:at] + "~" + token[at + 1 :]) for at in range(0, len(token), 7)]
        others += [
            Shown(None, der[:at] + bytes([der[at] ^ 1]) + der[at + 1 :])
            for at in range(0, len(der), 37)
        ]
        others += [
            Shown(token + " "),
            Shown(f"bearer{token[6:]}"),
            Shown(der.hex()),
            Shown("", der),
        ]
        others += [Shown(None, token.encode())]
        assert all(here.authenticator.at_hand(one) is None for one in others)
        # A certificate with a verified header says nothing.
        assert here.authenticator.at_hand(Shown(token, der)) == await here.bearer(token[7:])


async def test_passwords_that_are_checked_at_once(tmp_path: Path) -> None:
    async with lab(tmp_path, password_checks_max=8) as here:
        await here.with_user("alice")
        await here.with_user("bob")
        shown = [("alice", PASSWORD), ("alice", PASSWORD + "x"), ("bob", PASSWORD), ("bob", "x")]
        found = await asyncio.gather(
            *(here.basic(user, password, peer=f"10.0.0.{n}") for n in range(2)
              for user, password in shown),
            return_exceptions=True,
        )  # fmt: skip
        names = [one.name if isinstance(one, Identity) else type(one) for one in found]
        assert names == 2 * ["user:alice", Unauthenticated, "user:bob", Unauthenticated]
        assert here.authenticator.at_hand(Shown(basic("alice", PASSWORD + "x"))) is None


HEAD = (
    b"POST /v1/topics/public/one/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer abc\r\n"
    b"Content-Type: text/plain\r\nOctavo-Key: k1\r\nOctavo-Incarnation: i0\r\n"
    b"Content-Length: 17\r\nOctavo-Header-A: b\r\n\r\n"
)


def test_heads_of_the_short_way() -> None:
    """Heads have the same shape only if they differ in nothing but the key and the length."""
    shape, key = shape_of(HEAD)
    assert key == b"k1"
    free = {*_places(HEAD, b"k1"), *_places(HEAD, b"17")}
    for at in range(len(HEAD)):
        for other in (b"7", b"z", b"\r", b" ", b":", HEAD[at : at + 1].swapcase()):
            changed = HEAD[:at] + other + HEAD[at + 1 :]
            if changed != HEAD and at not in free:
                assert shape_of(changed)[0] != shape, changed
    same = shape_of(HEAD.replace(b"k1", b"other").replace(b"17", b"5"))
    assert same == (shape, b"other")


def _places(head: bytes, value: bytes) -> range:
    at = head.index(b": " + value + b"\r") + 2
    return range(at, at + len(value))


@pytest.mark.parametrize("subject", ["user:alice", "namespace:a"])
def test_quotas(subject: str) -> None:
    """A subject uses up nothing of another subject, nor of another kind."""
    quota = Quota(requests=1, publish_bytes=1, connections=1, streams=1)
    limits = Limits()
    limits.use(Quotas({subject: quota, "user:bob": quota, "namespace:b": quota}))
    assert not limits.hold(subject, "connections").wait_s
    assert limits.hold(subject, "connections").wait_s
    assert not limits.hold(subject, "streams").wait_s
    for other in ("user:bob", "namespace:b"):
        assert not limits.hold(other, "connections").wait_s
    by_name = {"user:alice": ("user:alice", ""), "namespace:a": ("", "a")}[subject]
    assert not limits.take(*by_name, now_s=0.0).wait_s
    assert limits.take(*by_name, now_s=0.0).wait_s
    assert not limits.take(*by_name, requests=None, bytes_in=1, now_s=0.0).wait_s
    assert not limits.take("user:bob", "b", now_s=0.0).wait_s


@pytest.mark.parametrize("name", [*INTO, *OUT_OF])
def test_rates_of_topics(name: str) -> None:
    """A topic uses up nothing of another topic, and new bounds begin with full buckets."""
    rates = Rates()
    bounds: dict[str, Any] = dict.fromkeys((*INTO, *OUT_OF), 10)
    policies = Policies(**bounds)
    names = INTO if name in INTO else OUT_OF
    amounts = (1000, 0) if name == names[0] else (0, 1000)
    rates.charge("a", policies, names, *amounts, 0.0)
    assert rates.wait("a", policies, names, 0.0).limit == name
    assert not rates.wait("b", policies, names, 0.0).wait_s
    for each in bounds:
        rates.charge("a", policies, names, *amounts, 0.0)
        assert rates.wait("a", policies, names, 0.0).wait_s
        assert not rates.wait("a", Policies(**(bounds | {each: 11})), names, 0.0).wait_s


def test_nonces_that_were_seen() -> None:
    """Each nonce begins one connection."""
    seen = Nonces()
    assert seen.is_new("a")
    assert not seen.is_new("a")
    assert seen.is_new("b")


async def test_data_keys() -> None:
    source: Any = SimpleNamespace()
    keys = DataKeys(source, random_bytes=random.Random(1).randbytes, recheck_s=1)
    hit = Wrapped("a", "k1", b"w")
    found = keys.of(hit)
    assert keys.of(Wrapped("a", "k1", b"w")) is found
    for _, other in varied(hit, namespace="b", key_id="k2", wrapped=b"v"):
        assert keys.of(other) is not found
        assert keys.of(other).wrapped == other


# ---- what brokers ask once for several


class Target(NamedTuple):
    """The owner and the caller of a forwarded message."""

    name: PartitionName
    owner: Owner
    identity: Identity


async def test_messages_that_are_passed_on_together() -> None:
    """Only messages of the same caller, for the same partition, owner and incarnation."""
    asked: list[tuple[Target, int]] = []
    go_on = asyncio.Event()

    async def publish(
        owner: Owner, identity: Identity, name: PartitionName, batches: list[bytes]
    ) -> kinds.Stored:
        count = read_header(batches[0]).record_count
        asked.append((Target(name, owner, identity), count))
        await go_on.wait()
        return kinds.Stored([kinds.Fate(Published(0, count - 1, 1, 0, count, False))], 1)

    remote: Any = SimpleNamespace(publish=publish)
    passed_on = RemoteBatchers(remote)
    name, owner = PartitionName("a", "t", 0), Owner("b1", "http://b1", False, "i1")
    hit = Target(name, owner, IDENTITY)
    names = [one for _, one in varied(name, namespace="b", topic="u", partition=1)]
    owners = [
        one
        for _, one in varied(owner, broker_id="b2", url="http://b2", local=True, incarnation="i2")
    ]
    callers = [one for _, one in varied(IDENTITY, **OTHER_IDENTITY)]
    targets = [hit, *(hit._replace(name=one) for one in names)]
    targets += [hit._replace(owner=one) for one in owners]
    targets += [hit._replace(identity=one) for one in callers]
    record = Record(None, b"x", (), 1)
    joined = [
        passed_on.join(target.name, target.owner, record, target.identity)
        for _ in range(8)
        for target in targets
    ]
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*(one.stored for one in joined))
    for target in targets:
        assert sum(count for whose, count in asked if whose == target) == 8
    assert sum(count for _, count in asked) == 8 * len(targets)


class Followed(NamedTuple):
    """The page that a stream wants; as `pages.Place`."""

    name: PartitionName
    incarnation: str
    offset: int
    as_stored: bool
    identity: Identity


async def test_pages_that_are_fetched_once() -> None:
    pages, go_on = Pages(), asyncio.Event()
    fetched: list[Followed] = []

    def fetch(place: Followed) -> Callable[[], Any]:
        async def page() -> Page:
            fetched.append(place)
            await go_on.wait()
            return Page([], place.offset)

        return page

    hit = Followed(PartitionName("a", "t", 0), "i1", 5, False, IDENTITY)
    places = [hit, hit]
    places += [hit._replace(name=one)
               for _, one in varied(hit.name, namespace="b", topic="u", partition=1)]  # fmt: skip
    places += [hit._replace(identity=one) for _, one in varied(IDENTITY, **OTHER_IDENTITY)]
    places += [hit._replace(incarnation="i2"), hit._replace(offset=6), hit._replace(as_stored=True)]
    asked = [asyncio.ensure_future(pages.at(one, fetch(one))) for one in places]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*asked)
    assert fetched == places[1:]


# ---- schemas

INT = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}
TEXT = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "string"}]}
_CASES = [
    ("json", json.dumps({"type": "integer"}), [b"1", b'"x"', b"{}"]),
    ("json", json.dumps({"type": "string"}), [b"1", b'"x"', b"{}"]),
    ("json", json.dumps({}), [b"1", b'"x"', b"{}"]),
    ("avro", json.dumps(INT), [b"\x02", b"\x02x", b'{"a": 1}']),
    ("avro", json.dumps(TEXT), [b"\x02", b"\x02x", b'{"a": 1}']),
]


@pytest.mark.parametrize("seed", range(20))
def test_schemas_that_were_compiled(seed: int) -> None:
    """The kind is a part of the key, for one text may be a schema of two kinds."""
    rng = random.Random(seed)
    kept = Answering()
    both = json.dumps({"type": "string"})
    questions = [Check(kind, text, [value]) for kind, text, values in _CASES for value in values]
    questions += [Check(kind, both, [b'"x"']) for kind in ("json", "avro")]
    rng.shuffle(questions)
    for question in (*questions, *questions):
        assert kept.answer(question) == Answering().answer(question)
    assert kept.answer(Check("json", both, [b'"x"'])) == Misfit()
    assert kept.answer(Check("avro", both, [b'"x"'])) != Misfit()


class Fitting(NamedTuple):
    namespace: str
    subject: str
    version: str


async def test_subjects_and_versions_that_are_known(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/metadata.db")
    await store.start()
    try:
        registry = SchemaRegistry(SchemaStore(store), lambda: 1, asyncio.ensure_future)
        kinds = {}
        for number, (namespace, subject) in enumerate(itertools.product("ab", "st")):
            for version, name in enumerate(("integer", "string", "boolean", "null")[number % 2 :]):
                await registry.set_compatibility((namespace, subject), "NONE")
                await registry.register((namespace, subject), "json", {"type": name})
                kinds[Fitting(namespace, subject, str(version + 1))] = name
        values = {"integer": b"1", "string": b'"x"', "boolean": b"true", "null": b"null"}
        for _ in range(2):
            for fitting, name in kinds.items():
                check = await registry.checker((fitting.namespace, fitting.subject))
                header = (("octavo-schema", fitting.version.encode()),)
                for kind, value in values.items():
                    found = await check.misfit([Record(None, value, header, 1)])
                    assert (found is None) == (kind == name), (fitting, kind)
        with pytest.raises(SchemaMismatch):
            await registry.checker(("c", "s"))
        registry.close()
    finally:
        await store.close()


# ---- what is open, and what was learned of ledgers


class Stored(NamedTuple):
    """A batch: its place and its value."""

    ledger_id: int
    entry_id: int
    value: bytes


async def test_batches_that_are_open() -> None:
    """A fork may have another batch in the same entry of the same ledger, because it was cut."""
    kept = OpenBatches(1 << 20)
    hit = Stored(7, 3, b"first")
    others = [one for _, one in varied(hit, ledger_id=8, entry_id=4, value=b"other")]
    for one in (hit, *others, hit, *others):
        data = build_batch([Record(None, one.value, (), 1)])
        stored = StoredBatch(0, one.ledger_id, one.entry_id, read_header(data), data)
        async with kept.opened(stored) as windows:
            assert windows.readable_window(0)[1][0].value == one.value
    assert len(kept._kept) == 4


async def test_readers_and_times_of_ledgers() -> None:
    class Reader:
        def __init__(self, ledger_id: int) -> None:
            self.ledger_id = ledger_id

        async def close(self) -> None: ...

        async def contents_of(self, segment: Any) -> int:
            return int(segment.ledger_id)

    readers = OpenReaders[Reader](8)
    times = LedgerTimes(Reader(0))  # type: ignore[arg-type]
    for ledger_id in (1, 2, 1, 2):

        async def opened(ledger_id: int = ledger_id) -> Reader:
            return Reader(ledger_id)

        assert (await readers.get_or_open(ledger_id, opened)).ledger_id == ledger_id
        segment: Any = SimpleNamespace(ledger_id=ledger_id)
        assert await times.of(segment) == ledger_id


def test_where_pages_of_a_view_ended() -> None:
    hints = Hints()
    data = build_batch([Record(None, b"x", (), 1)])
    for ledger_id, entry_id, offset in ((1, 5, 50), (2, 6, 50), (1, 7, 70)):
        header = read_header(data)
        hints.note(StoredBatch(offset, ledger_id, entry_id, header, data), is_last=True)
    assert hints.entry_of(1, 50) == 5
    assert hints.entry_of(2, 50) == 6
    assert hints.entry_of(1, 70) == 7
    assert hints.entry_of(2, 70) is None
    assert hints.entry_of(1, 51) is None


class Read(NamedTuple):
    ledger_id: int
    entry_id: int


def test_readers_that_read_ahead() -> None:
    """Several readers of a ledger do not disturb each other."""
    ahead, hit = ReadAhead(1 << 20, 1 << 30), Read(7, 3)
    ahead.ended(7, 0, 2, 0, 0.0)
    assert ahead.window(*hit, 0.0) != (0, 1)
    for _, other in varied(hit, ledger_id=8, entry_id=4):
        assert ahead.window(*other, 0.0) == (0, 1)


@pytest.mark.parametrize("seed", range(20))
async def test_reads_that_wait_on_a_connection(seed: int) -> None:
    """Answers come in any order, and each goes to a read of its ledger and entry."""
    rng = random.Random(seed)
    owner: Any = SimpleNamespace(connection_lost=lambda _: None, connection_writable=lambda: None)
    one = BookieConnection("b1", owner, bytearray(65_536), timeout_s=600, buffer_bytes_max=100)
    answered: list[tuple[Read, bytes]] = []
    hit = Read(7, 3)
    wanted = [hit, hit, *(other for _, other in varied(hit, ledger_id=8, entry_id=4))]
    for read in wanted:
        one.read(
            *read,
            lambda error, entry, read=read: answered.append((read, bytes(entry))),  # type: ignore[misc]
        )
    sent = list(wanted)
    rng.shuffle(sent)
    data = b"".join(read_answer(Code.OK, *read, b"%d/%d" % read) for read in sent)
    one._take(memoryview(data))
    assert sorted(answered) == sorted((read, b"%d/%d" % read) for read in wanted)
    assert one.describe()["reads"] == 0


# ---- the client


class Doubted(NamedTuple):
    """A silent owner, and the partition."""

    topic: str
    partition: int
    url: str


async def test_owners_that_are_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are asked once for all calls to the same owner of the same partition."""
    monkeypatch.setattr("octavo.client.doubt.SILENCE_S", 0.0)
    hit = Doubted("t", 0, "http://a")
    others = [one for _, one in varied(hit, topic="u", partition=1, url="http://b")]
    all_asked, moved = asyncio.Event(), asyncio.Event()
    asked: list[Doubted] = []

    async def ask(partition: tuple[str, int], url: str) -> str | None:
        asked.append(Doubted(*partition, url))
        if len(set(asked)) == 4:
            all_asked.set()
        await moved.wait()
        return "http://new" if Doubted(*partition, url) == hit else url

    doubts = Doubts(ask)

    async def call(one: Doubted) -> str:
        try:
            return await doubts.unless_moved(
                one.url, (one.topic, one.partition), _after(moved), 0.0
            )
        except TimeoutError:
            return "moved"

    calls = [asyncio.ensure_future(call(one)) for one in (hit, hit, *others)]
    async with asyncio.timeout(20):
        await all_asked.wait()
    assert sorted(asked) == sorted({hit, *others})
    moved.set()
    assert await asyncio.gather(*calls) == ["moved", "moved", "answered", "answered", "answered"]
    await doubts.close()


async def _after(moved: asyncio.Event) -> str:
    await moved.wait()
    await asyncio.sleep(0.05)
    return "answered"


class Proved(NamedTuple):
    service: str
    bulk_load: str


async def test_proofs_of_bulk_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream's proof is made once; each cluster and each id has its own."""
    ProcessCache.forget_all()
    connections: list[str] = []

    @contextlib.asynccontextmanager
    async def metadata_of(service: str) -> AsyncIterator[MemoryStore]:
        connections.append(service)
        store = MemoryStore(MemoryMetadata())
        await store.start()
        await LedgerStore(store).initialize()
        yield store

    monkeypatch.setattr(commit, "metadata_of", metadata_of)
    hit = Proved("http://a", "q")
    first = await commit._proof(_no_brokers(), *hit)
    assert await commit._proof(_no_brokers(), *hit) == first
    assert len(connections) == 1
    for name, other in varied(hit, service="http://b", bulk_load="r"):
        assert (await commit._proof(_no_brokers(), *other)).token != first.token, name
    assert len(connections) == 3
    ProcessCache.forget_all()


def _no_brokers() -> Any:
    return SimpleNamespace(why="")


async def test_targets_that_were_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream's target is looked for once; a target with any other option is looked for."""
    ProcessCache.forget_all()
    looked: list[str] = []

    @contextlib.asynccontextmanager
    async def metadata_of(service: str) -> AsyncIterator[str]:
        yield service

    async def settings_of(service: str, topic: str) -> Any:
        looked.append(f"{service} {topic}")
        return SimpleNamespace(partitions=4)

    monkeypatch.setattr(sink_driver, "metadata_of", metadata_of)
    monkeypatch.setattr(sink_driver, "TopicStore", lambda service: service)
    monkeypatch.setattr(sink_driver, "settings_of", settings_of)
    hit = sink_options({"service": "http://a", "topic": "t"}, streaming=True)
    for _ in range(2):
        await sink_driver.check_target(hit, once=True)
    assert looked == ["http://a public/t"]
    for changed in ({"service": "http://b"}, {"topic": "public/u"}, {"partition": 1}):
        await sink_driver.check_target(dataclasses.replace(hit, **changed), once=True)
    assert looked[1:] == ["http://b public/t", "http://a public/u", "http://a public/t"]
    ProcessCache.forget_all()
