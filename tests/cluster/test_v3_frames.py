"""A bookie over a real socket, in v3 frames: each operation, and protocol errors."""

from __future__ import annotations

import asyncio
import random
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.node import BookieNode
from octavo.protocol import extension, v3
from octavo.protocol.auth import AUTH_DISABLED
from octavo.protocol.codes import Code
from octavo.protocol.entry import DigestType, digest_for
from octavo.protocol.frames import LENGTH, Flag, read_request
from octavo.protocol.limits import FRAME_BYTES_MAX
from octavo.protocol.v3 import STATUS, Op
from tests.fuzz.test_v3_by_hand import (
    ADD_BODY,
    BODY,
    ENTRY,
    HEADER,
    LEDGER,
    MASTER_KEY,
    Field,
    add_fields,
    frame,
    header,
    message,
)
from tests.support.raw_bookie import (
    KEY,
    RawClient,
    TroubledDisk,
    add_of,
    entry_of,
    on_both_loops,
    running_bookie,
    tell_read_only,
    until,
)
from tests.support.v3_frames import (
    FENCE,
    PIGGYBACK,
    V3Client,
    add_frame,
    framed,
    read_frame,
    request_frame,
)

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")
event_loop_policy = on_both_loops

OK = STATUS[Code.OK]
OTHER_KEY = b"k" * 20


@pytest.fixture
async def bookie(tmp_path: Path) -> AsyncIterator[BookieNode]:
    async with running_bookie(tmp_path) as node:
        yield node


@pytest.fixture
async def client(bookie: BookieNode) -> AsyncIterator[V3Client]:
    client = await V3Client.connect(bookie)
    yield client
    client.close()


async def test_pipelined_adds_are_each_answered_and_read_back(client: V3Client) -> None:
    frames = [add_frame(1, entry, txn=entry + 5) for entry in range(3000)]
    client.send(b"".join(frames))
    for entry in range(3000):
        answer = await client.answer()
        assert (answer.header.version, answer.header.operation) == (3, Op.ADD)
        assert (answer.status, answer.header.txnId) == (OK, entry + 5)
        assert (answer.addResponse.ledgerId, answer.addResponse.entryId) == (1, entry)
    for entry in (0, 1500, 2999):
        assert (await client.read(1, entry)).body == entry_of(1, entry)
    last = await client.read(1, -1)
    assert (last.entryId, last.body, last.maxLAC) == (-1, entry_of(1, 2999), 2998)


async def test_mixed_ledgers_lengths_and_digests_in_one_write(client: V3Client) -> None:
    rng = random.Random(3)
    wanted: dict[tuple[int, int], bytes] = {}
    frames = []
    following = dict.fromkeys(range(5), 0)
    for txn in range(600):
        ledger = rng.randrange(5)
        entry = following[ledger]
        following[ledger] += rng.choice((1, 1, 1, 2))
        body = wanted[ledger, entry] = entry_of(ledger, entry, bytes(rng.choice((10, 10, 99))))
        flags = rng.choice((None, None, 1))
        frames.append(add_frame(ledger, entry, txn=txn, body=body, write_flags=flags))
    client.send(b"".join(frames))
    answers = [await client.answer() for _ in frames]
    assert {answer.status for answer in answers} == {OK}
    assert sorted(answer.header.txnId for answer in answers) == list(range(600))
    for (ledger, entry), body in wanted.items():
        assert (await client.read(ledger, entry)).body == body


async def test_both_protocols_hold_the_same_entries(bookie: BookieNode, client: V3Client) -> None:
    other = await RawClient.connect(bookie)
    assert await client.add(1, 0) == OK
    assert await other.read(1, 0) == entry_of(1, 0)
    assert await other.add(add_of(1, 1)) is Code.OK
    assert (await client.read(1, 1)).body == entry_of(1, 1)
    other.close()


async def test_what_adds_are_refused_for(bookie: BookieNode, client: V3Client) -> None:
    assert await client.add(1, 0) == OK
    assert await client.add(1, 0) == OK, "the same once more"
    assert await client.add(1, 0, body=entry_of(1, 0, b"other")) == STATUS[Code.BAD_REQUEST]
    assert await client.add(1, 1, key=OTHER_KEY) == STATUS[Code.UNAUTHORIZED]
    assert await client.add(1, 1, key=b"short") == STATUS[Code.UNAUTHORIZED]
    assert await client.add(1, 1, body=b"no entry") == STATUS[Code.BAD_REQUEST]
    assert await client.add(1, 1, body=entry_of(2, 1)) == STATUS[Code.BAD_REQUEST]
    assert await client.add(1, 1, body=entry_of(1, 2)) == STATUS[Code.BAD_REQUEST]
    assert await client.add(1, 1, body=entry_of(1, 1, lac=1)) == STATUS[Code.BAD_REQUEST]
    assert await client.add(-1, 1) == STATUS[Code.BAD_REQUEST]
    assert await client.add(1, 1) == OK
    await client.read(1, -1, flag=FENCE, masterKey=KEY)
    assert await client.add(1, 2) == STATUS[Code.FENCED]
    assert await client.add(1, 2, recovery=True) == OK
    tell_read_only(bookie, True)
    assert await client.add(2, 0) == STATUS[Code.READ_ONLY]
    assert await client.add(1, 3, recovery=True) == STATUS[Code.READ_ONLY], "the flag alone"
    assert await client.add(1, 3, recovery=True, priority=100) == OK


async def test_what_reads_are_refused_for(client: V3Client) -> None:
    assert (await client.read(404, 0)).status == STATUS[Code.NO_LEDGER]
    assert await client.add(1, 0) == OK
    assert (await client.read(1, 7)).status == STATUS[Code.NO_ENTRY]
    for key in (OTHER_KEY, b"short", None):
        answer = await client.read(1, -1, flag=FENCE, masterKey=key)
        assert answer.status == STATUS[Code.UNAUTHORIZED]
    assert await client.add(1, 1) == OK, "nobody has fenced it"


async def test_a_fencing_read_brings_no_lac(client: V3Client) -> None:
    assert await client.add(1, 0) == OK
    assert await client.add(1, 1) == OK
    assert (await client.read(1, 0)).maxLAC == 0
    answer = await client.read(1, -1, flag=FENCE, masterKey=KEY)
    assert answer.body == entry_of(1, 1)
    assert not answer.HasField("maxLAC")


@contextmanager
def held_syncs(disk: TroubledDisk) -> Iterator[threading.Event]:
    """Let no sync end within the block; the event says that a sync began."""
    gate, begun = threading.Event(), threading.Event()

    def hold(call: str, path: str) -> None:
        if call == "datasync":
            begun.set()
            gate.wait(20)

    disk.hook = hold
    try:
        yield begun
    finally:
        disk.hook = lambda call, path: None
        gate.set()


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize(("ledger", "code"), [(1, Code.NO_ENTRY), (9, Code.NO_ENTRY)])
async def test_no_is_as_durable_as_yes(tmp_path: Path, wire: str, ledger: int, code: Code) -> None:
    """For a known and an unknown ledger: the fence is on the disk first."""
    disk = TroubledDisk()
    async with running_bookie(tmp_path, disk=disk) as bookie:
        client = await V3Client.connect(bookie)
        assert await client.add(1, 0) == OK
        other = await RawClient.connect(bookie)
        with held_syncs(disk) as begun:
            if wire == "v3":
                client.send(read_frame(ledger, 5, flag=FENCE, masterKey=KEY))
                asking = asyncio.ensure_future(client.answer())
            else:
                other.send(read_request(ledger, 5, Flag.FENCE, KEY))
                asking = asyncio.ensure_future(other.answer())
            await until(begun.is_set)
            await asyncio.sleep(0.05)
            assert not asking.done()
        answer: Any = await asking
        assert (answer.status if wire == "v3" else answer.code) in (code, STATUS[code])
        client.close()
        other.close()


async def test_a_deleted_ledger_is_denied_once_that_is_durable(tmp_path: Path) -> None:
    """If a crash undid a deletion, its writer could continue after the fence."""
    disk = TroubledDisk()
    async with running_bookie(tmp_path, disk=disk) as bookie:
        client = await V3Client.connect(bookie)
        assert await client.add(1, 0) == OK
        with held_syncs(disk) as begun:
            deleting = asyncio.ensure_future(bookie.storage.delete_ledger(1))
            await until(begun.is_set)
            client.send(read_frame(1, -1, flag=FENCE, masterKey=KEY))
            asking = asyncio.ensure_future(client.answer())
            await asyncio.sleep(0.05)
            assert not asking.done()
        assert (await asking).status == STATUS[Code.NO_LEDGER]
        await deleting
        client.close()


async def test_a_long_poll_ends_with_the_lac_and_the_entry(
    bookie: BookieNode, client: V3Client
) -> None:
    assert await client.add(1, 0) == OK
    poll = {"flag": PIGGYBACK, "previousLAC": -1, "timeOut": 30_000}
    client.send(read_frame(1, -1, txn=9, **poll))
    await until(lambda: bookie.server.requests._parked)
    writer = await V3Client.connect(bookie)
    assert await writer.add(1, 1) == OK
    answer = await client.answer()
    assert (answer.header.txnId, answer.status) == (9, OK)
    found = answer.readResponse
    assert (found.entryId, found.maxLAC, found.body) == (0, 0, entry_of(1, 0))
    found = await client.read(1, -1, **poll)
    assert (found.entryId, found.maxLAC) == (0, 0)
    writer.close()


async def test_a_long_poll_that_finds_nothing(bookie: BookieNode, client: V3Client) -> None:
    assert await client.add(1, 5) == OK
    found = await client.read(1, -1, flag=PIGGYBACK, previousLAC=4, timeOut=20)
    assert (found.status, found.maxLAC) == (OK, 4)
    assert not found.HasField("body")
    found = await client.read(1, -1, flag=PIGGYBACK, previousLAC=0, timeOut=20)
    assert (found.status, found.maxLAC, found.entryId) == (OK, 4, -1), "entry 1 is not here"
    found = await client.read(1, 5, flag=PIGGYBACK, previousLAC=0, timeOut=20)
    assert found.status == STATUS[Code.BAD_REQUEST]
    found = await client.read(404, -1, flag=PIGGYBACK, previousLAC=0, timeOut=20)
    assert found.status == STATUS[Code.NO_LEDGER]
    found = await client.read(1, 5, previousLAC=4, timeOut=-5)
    assert (found.status, found.body) == (OK, entry_of(1, 5)), "without the flag: the entry itself"


async def test_who_vanishes_in_a_long_poll_leaves_nothing_behind(bookie: BookieNode) -> None:
    requests, watches = bookie.server.requests, bookie.storage.control._watches
    for end in ("abort", "write_eof"):
        client = await V3Client.connect(bookie)
        assert await client.add(1, 0) == OK
        for txn in range(5):
            poll = {"flag": PIGGYBACK, "previousLAC": 7, "timeOut": 60_000}
            client.send(read_frame(1, -1, txn=txn, **poll))
        await until(lambda: len(requests._parked) == 5)
        assert len(watches) == 5
        if end == "abort":
            client.writer.transport.abort()
        else:
            client.writer.write_eof()
        await until(lambda: not requests._parked and not len(watches))
        await until(lambda: not bookie.server._connections)
        client.close()


async def test_long_polls_are_bounded_together(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, long_polls_max=2) as bookie:
        client = await V3Client.connect(bookie)
        assert await client.add(1, 0) == OK
        for txn in range(3):
            client.send(read_frame(1, -1, txn=txn, flag=PIGGYBACK, previousLAC=5))
        answer = await client.answer()
        assert (answer.status, answer.header.txnId) == (STATUS[Code.TOO_MANY_REQUESTS], 2)
        client.close()


def signed(ledger: int, lac: int, kind: DigestType = DigestType.CRC32C) -> bytes:
    front = struct.pack(">qq", ledger, lac)
    return front + digest_for(kind, b"secret").compute(front, b"")


async def test_a_lac_that_comes_alone(tmp_path: Path) -> None:
    async def told(client: V3Client, ledger: int) -> tuple[int, bytes, bytes]:
        answer = await client.ask(Op.READ_LAC, "readLacRequest", ledgerId=ledger)
        body = answer.readLacResponse
        return body.status, body.lacBody, body.lastEntryBody

    async def tell(client: V3Client, ledger: int, lac: int, key: bytes, body: bytes) -> int:
        fields = {"ledgerId": ledger, "lac": lac, "masterKey": key, "body": body}
        answer = await client.ask(Op.WRITE_LAC, "writeLacRequest", **fields)
        assert answer.writeLacResponse.ledgerId == ledger
        return int(answer.status)

    async with running_bookie(tmp_path) as bookie:
        client = await V3Client.connect(bookie)
        assert (await told(client, 1))[0] == STATUS[Code.NO_ENTRY], "nothing is known of it"
        for entry in range(3):
            assert await client.add(1, entry) == OK
        assert await told(client, 1) == (OK, b"", entry_of(1, 2))
        assert await tell(client, 1, 2, KEY, signed(1, 2)) == OK
        assert await told(client, 1) == (OK, signed(1, 2), entry_of(1, 2))
        assert (await client.read(1, 0)).maxLAC == 2
        assert await tell(client, 1, 1, KEY, signed(1, 1)) == OK
        assert (await told(client, 1))[1] == signed(1, 2), "it never goes back"
        assert await tell(client, 1, 3, OTHER_KEY, signed(1, 3)) == STATUS[Code.UNAUTHORIZED]
        assert await tell(client, 1, 3, KEY, signed(1, 4)) == STATUS[Code.BAD_REQUEST]
        assert await tell(client, 1, 3, KEY, signed(2, 3)) == STATUS[Code.BAD_REQUEST]
        assert await tell(client, 1, 3, KEY, signed(1, 3) + bytes(99)) == STATUS[Code.BAD_REQUEST]
        assert await tell(client, -1, 3, KEY, signed(-1, 3)) == STATUS[Code.BAD_REQUEST]
        hmac = signed(2, 0, DigestType.HMAC)
        assert await tell(client, 2, 0, KEY, hmac) == OK
        assert await told(client, 2) == (OK, hmac, b"")
        tell_read_only(bookie, True)
        assert await tell(client, 1, 5, KEY, signed(1, 5)) == STATUS[Code.READ_ONLY]
        client.close()
    async with running_bookie(tmp_path) as bookie:
        client = await V3Client.connect(bookie)
        assert await told(client, 1) == (OK, signed(1, 2), entry_of(1, 2))
        assert (await told(client, 2))[0] == STATUS[Code.NO_ENTRY]
        client.close()


async def force(client: V3Client, ledger: int) -> int:
    answer = await client.ask(Op.FORCE, "forceLedgerRequest", ledgerId=ledger)
    assert (answer.status, answer.forceLedgerResponse.ledgerId) == (
        answer.forceLedgerResponse.status,
        ledger,
    )
    return int(answer.status)


@pytest.mark.parametrize("adds", [1, 100])
async def test_a_deferred_add_waits_for_no_sync_and_a_force_does(tmp_path: Path, adds: int) -> None:
    disk = TroubledDisk()
    async with running_bookie(tmp_path, disk=disk) as bookie:
        client, other = await V3Client.connect(bookie), await V3Client.connect(bookie)
        with held_syncs(disk) as begun:
            client.send(b"".join(add_frame(1, n, txn=n, write_flags=1) for n in range(adds)))
            assert {(await client.answer()).status for _ in range(adds)} == {OK}
            assert (await client.read(1, adds - 1)).body == entry_of(1, adds - 1)
            assert not begun.is_set()
            forced = asyncio.create_task(force(client, 1))
            await until(begun.is_set)
            assert not forced.done()
            synced = asyncio.create_task(other.add(2, 0, write_flags=6))
        assert await forced == OK
        assert await synced == OK, "another flag means nothing"
        client.close()
        other.close()


async def test_what_recovery_adds_is_synced_whatever_it_asks_for(tmp_path: Path) -> None:
    disk = TroubledDisk()
    async with running_bookie(tmp_path, disk=disk) as bookie:
        client = await V3Client.connect(bookie)
        with held_syncs(disk) as begun:
            added = asyncio.create_task(client.add(1, 0, recovery=True, write_flags=1))
            await until(begun.is_set)
            assert not added.done()
        assert await added == OK
        client.close()


async def test_v2_adds_are_deferred_by_a_flag_of_ours(tmp_path: Path) -> None:
    disk = TroubledDisk()
    async with running_bookie(tmp_path, disk=disk) as bookie:
        client = await RawClient.connect(bookie)
        with held_syncs(disk) as begun:
            assert await client.add(add_of(1, 0, flags=Flag.DEFERRED_SYNC)) is Code.OK
            assert not begun.is_set()
            forced = asyncio.create_task(client.call(extension.Op.FORCE, ledger=1))
            await until(begun.is_set)
            assert not forced.done()
        assert (await forced).code is Code.OK
        client.close()


async def test_a_force_asks_for_nothing_but_a_sync(client: V3Client) -> None:
    """As in Apache's bookies, it succeeds for an unknown or a fenced ledger."""
    assert await force(client, 404) == OK
    await client.read(404, -1, flag=FENCE, masterKey=KEY)
    assert await client.add(404, 0, write_flags=1) == STATUS[Code.FENCED]
    assert await force(client, 404) == OK
    assert await force(client, -1) == STATUS[Code.BAD_REQUEST]


async def test_room_on_the_disk(client: V3Client) -> None:
    for requested, fields in ((3, 3), (1, 1), (2, 2), (None, 0)):
        answer = await client.ask(Op.BOOKIE_INFO, "getBookieInfoRequest", requested=requested)
        body = answer.getBookieInfoResponse
        assert (answer.status, body.status) == (OK, OK)
        assert body.HasField("totalDiskCapacity") == bool(fields & 1)
        assert body.HasField("freeDiskSpace") == bool(fields & 2)
        if fields == 3:
            assert 0 < body.freeDiskSpace <= body.totalDiskCapacity


async def test_the_list_of_entries(client: V3Client) -> None:
    for entry in (0, 1, 3, 4, 6, 7, 20):
        assert await client.add(1, entry) == OK
    answer = await client.ask(Op.LIST_ENTRIES, "getListOfEntriesOfLedgerRequest", ledgerId=1)
    found = answer.getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger
    assert found[:64] == struct.pack(">ii", 0, 2) + bytes(56)
    assert found[64:] == struct.pack(">qqiiqqii", 0, 6, 2, 3, 20, 20, 1, 0)
    answer = await client.ask(Op.LIST_ENTRIES, "getListOfEntriesOfLedgerRequest", ledgerId=404)
    assert answer.status == STATUS[Code.NO_LEDGER]


async def test_nobody_is_asked_who_he_is_and_tls_is_refused(client: V3Client) -> None:
    answer = await client.ask(Op.AUTH, "authRequest", authPluginName="SomePlugin", payload=b"token")
    assert (answer.status, answer.authResponse.authPluginName) == (OK, AUTH_DISABLED)
    assert (await client.ask(Op.START_TLS, "startTLSRequest")).status == STATUS[Code.BAD_REQUEST]
    assert await client.add(1, 0) == OK


@pytest.mark.parametrize("op", [0, 3, 4, 12, 13, 99, 2**31 - 1])
async def test_an_operation_that_is_not_served(client: V3Client, op: int) -> None:
    assert (await client.ask(op)).status == STATUS[Code.BAD_REQUEST]
    assert await client.add(1, 0) == OK, "the connection goes on"


@pytest.mark.parametrize("op", list(Op))
async def test_an_operation_without_its_body_and_of_another_version(
    client: V3Client, op: Op
) -> None:
    wanted = Code.OK if op is Op.AUTH else Code.BAD_REQUEST
    assert (await client.ask(op)).status == STATUS[wanted]
    client.send(request_frame(op, 5, version=2))
    answer = await client.answer()
    assert (answer.header.version, answer.status) == (2, STATUS[Code.BAD_VERSION])
    assert await client.add(1, 0) == OK


async def test_v3_until_one_frame_is_none_then_v2_for_good(bookie: BookieNode) -> None:
    client = await V3Client.connect(bookie)
    assert await client.add(1, 0) == OK
    client.send(add_frame(1, 1) + add_of(1, 2))
    assert (await client.answer()).status == OK
    raw = RawClient(client.reader, client.writer)
    assert await raw.acked(1) == [(1, 2)]
    assert await raw.read(1, 1) == entry_of(1, 1)
    client.send(add_frame(1, 3))
    assert await client.is_closed()


BROKEN = {
    "nothing in it": framed(b""),
    "a header without its fields": framed(b"\x0a\x00" + bytes(0) + b"\x0a\x02\x08\x03"),
    "a header cut short": framed(b"\x0a\x06\x08\x03\x10\x02"),
    "an add without its fields": request_frame(Op.ADD, 1, "addRequest", ledgerId=1),
    "a read without its fields": request_frame(Op.READ, 1, "readRequest", ledgerId=1),
    "a varint that does not end": framed(b"\x0a" + b"\xff" * 40),
    "a group that does not end": framed(b"\x0a\x06\x08\x03\x10\x02\x18\x01\x0b"),
    "a body longer than its frame": framed(b"\x0a\x06\x08\x03\x10\x02\x18\x01\xaa\x06\x7f"),
    "a wire type that is none": framed(b"\x0e" * 20),
    "longer than the bound": struct.pack(">I", FRAME_BYTES_MAX - 3) + b"\x0a\x06",
}


@pytest.mark.parametrize("what", BROKEN)
async def test_broken_v3_ends_its_connection_only(
    bookie: BookieNode, client: V3Client, what: str
) -> None:
    other = await V3Client.connect(bookie)
    assert await other.add(1, 0) == OK
    other.send(BROKEN[what])
    assert await other.is_closed()
    assert bookie.metrics.registry.get_sample_value("octavo_bookie_protocol_errors_total") == 1
    assert await client.add(1, 1) == OK


async def test_adds_before_broken_bytes_count(bookie: BookieNode, client: V3Client) -> None:
    other = await V3Client.connect(bookie)
    adds = b"".join(add_frame(1, entry) for entry in range(40))
    other.send(adds + struct.pack(">I", 2**31) + bytes(9))
    await asyncio.wait_for(other.reader.read(), 10)
    async with asyncio.timeout(10):
        while (await client.read(1, 39)).body != entry_of(1, 39):
            pass


@pytest.mark.parametrize("size", [1, 7, 100])
async def test_frames_in_pieces(client: V3Client, size: int) -> None:
    data = b"".join(add_frame(1, entry, txn=entry) for entry in range(5)) + read_frame(1, 9)
    for start in range(0, len(data), size):
        client.send(data[start : start + size])
        await client.writer.drain()
        await asyncio.sleep(0)
    answers = [await client.answer() for _ in range(6)]
    assert sorted(answer.status for answer in answers) == [OK] * 5 + [STATUS[Code.NO_ENTRY]]


async def test_the_longest_frame_and_one_byte_more(bookie: BookieNode) -> None:
    for surplus in (0, 1):
        client = await V3Client.connect(bookie)
        front = len(add_frame(1, surplus, body=entry_of(1, surplus, bytes(2**22))))
        payload = bytes(2**22 + FRAME_BYTES_MAX - front + surplus)
        client.send(add_frame(1, surplus, body=entry_of(1, surplus, payload)))
        if surplus:
            assert await client.is_closed()
        else:
            assert (await client.answer()).status == OK
            assert (await client.read(1, 0)).body == entry_of(1, 0, payload)
        client.close()


@pytest.mark.parametrize("seed", range(8))
async def test_random_v3_bytes_never_harm(bookie: BookieNode, client: V3Client, seed: int) -> None:
    rng = random.Random(seed)
    fields: dict[int, tuple[str, dict[str, Any]]] = {
        Op.READ: ("readRequest", {"ledgerId": 1, "entryId": 0}),
        Op.WRITE_LAC: (
            "writeLacRequest",
            {"ledgerId": 1, "lac": 0, "masterKey": KEY, "body": signed(1, 0)},
        ),
        Op.READ_LAC: ("readLacRequest", {"ledgerId": 1}),
        Op.BOOKIE_INFO: ("getBookieInfoRequest", {"requested": 3}),
        Op.FORCE: ("forceLedgerRequest", {"ledgerId": 1}),
        Op.LIST_ENTRIES: ("getListOfEntriesOfLedgerRequest", {"ledgerId": 1}),
    }
    for _ in range(30):
        other = await V3Client.connect(bookie)
        frames = [add_frame(rng.randrange(3), entry) for entry in range(rng.randrange(1, 30))]
        for op in rng.sample(sorted(fields), 3):
            name, body = fields[op]
            frames.append(request_frame(op, rng.randrange(2**40), name, **body))
        frames.append(read_request(1, 0))
        rng.shuffle(frames)
        data = bytearray(b"".join(frames))
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        other.send(bytes(data))
        other.writer.write_eof()
        await asyncio.wait_for(other.reader.read(), 10)
        other.close()
    assert await client.add(999, 0) == OK
    assert not bookie.failed.done()


async def test_half_a_frame_of_five_mebibytes_costs_what_came(bookie: BookieNode) -> None:
    clients = [await V3Client.connect(bookie) for _ in range(20)]
    for client in clients:
        client.send(LENGTH.pack(FRAME_BYTES_MAX - 4) + add_frame(1, 0)[4:])
    await asyncio.sleep(0.1)
    assert bookie.server.frames.used <= 20 * FRAME_BYTES_MAX
    for client in clients:
        client.writer.transport.abort()
    await until(lambda: bookie.server.frames.used == 0)


def test_every_code_has_a_status_of_its_own() -> None:
    assert set(STATUS) == set(Code)
    assert len(set(STATUS.values())) == len(Code)
    assert v3.VERSION == 3


HEAD = header(v3.Op.ADD, 9)
FIELDS = {field.number: field for field in add_fields(7, 5)}
LONG = Field(BODY, 2, FIELDS[BODY].value, padded=5)
KEYLESS_BROKEN = {
    "no key": frame(HEAD, [FIELDS[n] for n in (LEDGER, ENTRY, ENTRY, ENTRY, BODY)]),
    "no key, five ledger ids": frame(HEAD, [FIELDS[n] for n in (*[LEDGER] * 5, ENTRY, BODY)]),
    "an entry's length in six bytes": frame(
        HEAD, [*(FIELDS[n] for n in (LEDGER, ENTRY, MASTER_KEY)), LONG]
    ),
    "an add's length in six bytes": framed(
        Field(HEADER, 2, message(HEAD)).encoded
        + Field(ADD_BODY, 2, message(add_fields(7, 5)), padded=5).encoded
    ),
}


@pytest.mark.parametrize("what", KEYLESS_BROKEN)
async def test_it_ends_its_connection_and_nothing_is_stored(tmp_path: Path, what: str) -> None:
    """A v3 add with its entry id three times and no master key was taken: the id counted for the
    missing field, and the ledger had a key of zeros. A length in six bytes, which protobuf does
    not read, was read."""
    async with running_bookie(tmp_path) as bookie:
        stranger = await V3Client.connect(bookie)
        stranger.send(KEYLESS_BROKEN[what])
        assert await stranger.is_closed()
        writer = await V3Client.connect(bookie)
        assert (await writer.read(7, 5)).status == v3.STATUS[Code.NO_LEDGER]
        assert await writer.add(7, 5) == v3.STATUS[Code.OK]
        writer.close()
