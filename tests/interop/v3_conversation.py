"""In v3 frames: one conversation with Apache's bookie and with ours, compared field by field;
and Apache's default client over bookies of ours alone."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from octavo.metadata.bookies import BookieRegistry
from octavo.metadata.store import MetadataStore
from octavo.protocol.entry import DigestType, digest_for, master_key, pack_entry
from octavo.protocol.frames import LENGTH
from octavo.protocol.v3 import Op
from octavo.protocol.v3_schema import ResponseMessage
from tests.interop.apache import Peer
from tests.interop.checks import Checks
from tests.interop.clients import APACHE_NAME, ENTRIES, SHA256, JavaClient
from tests.interop.ours import OurBookie
from tests.support.v3_frames import FENCE, PIGGYBACK, add_frame, read_frame, request_frame

ANSWER_S = 20
GONE_S = 60
KEY, OTHER_KEY = master_key(b""), master_key(b"another")
CRC32C = digest_for(DigestType.CRC32C, b"")
ABSENT = 404_404


class Said(NamedTuple):
    what: str
    frame: bytes
    apache_answers: bool = True
    """Its DbLedgerStorage does not answer requests for its entries."""


def entry_of(ledger: int, entry: int, payload: bytes = b"payload") -> bytes:
    return pack_entry(CRC32C, ledger, entry, entry - 1, (entry + 1) * len(payload), payload)


def add(ledger: int, entry: int, **how: Any) -> bytes:
    how.setdefault("key", KEY)
    how.setdefault("body", entry_of(ledger, entry))
    return add_frame(ledger, entry, txn=1000 + entry, **how)


def signed(ledger: int, lac: int) -> bytes:
    front = struct.pack(">qq", ledger, lac)
    return front + CRC32C.compute(front, b"")


def of_ledger(op: Op, field: str, ledger: int) -> bytes:
    return request_frame(op, 5, field, ledgerId=ledger)


def write_lac(ledger: int, lac: int, key: bytes = KEY) -> bytes:
    fields: dict[str, Any] = {
        "ledgerId": ledger,
        "lac": lac,
        "masterKey": key,
        "body": signed(ledger, lac),
    }
    return request_frame(Op.WRITE_LAC, 6, "writeLacRequest", **fields)


def conversation(ledger: int) -> Iterator[Said]:
    entries = "getListOfEntriesOfLedgerRequest"
    yield Said("read of an unknown ledger", read_frame(ABSENT, 0))
    yield Said("its last entry", read_frame(ABSENT, -1))
    yield Said("its LAC", of_ledger(Op.READ_LAC, "readLacRequest", ABSENT))
    yield Said("its entries", of_ledger(Op.LIST_ENTRIES, entries, ABSENT))
    poll = {"flag": PIGGYBACK, "previousLAC": -1, "timeOut": 100}
    yield Said("a long poll for it", read_frame(ABSENT, -1, **poll))
    for entry in (0, 1, 2, 4, 5):
        yield Said(f"add {entry}", add(ledger, entry))
    yield Said("deferred sync", add(ledger, 6, write_flags=1))
    yield Said("force", of_ledger(Op.FORCE, "forceLedgerRequest", ledger))
    yield Said("an urgent add", add(ledger, 7, priority=100))
    yield Said("a flag that nobody knows", add(ledger, 8, flag=9))
    yield Said("the same once more", add(ledger, 0))
    yield Said("a wrong key", add(ledger, 9, key=OTHER_KEY))
    for entry in (0, 2, 3, 8, 9, -1):
        yield Said(f"read {entry}", read_frame(ledger, entry))
    yield Said("an urgent read", read_frame(ledger, 1, priority=100))
    yield Said("LAC, none alone", of_ledger(Op.READ_LAC, "readLacRequest", ledger))
    yield Said("write LAC 8", write_lac(ledger, 8))
    yield Said("LAC, alone too", of_ledger(Op.READ_LAC, "readLacRequest", ledger))
    yield Said("write LAC with a wrong key", write_lac(ledger, 9, OTHER_KEY))
    yield Said("a read brings it", read_frame(ledger, 0))
    poll = {"flag": PIGGYBACK, "timeOut": 200}
    yield Said("poll, entry there", read_frame(ledger, -1, previousLAC=0, **poll))
    yield Said("poll, entry not there", read_frame(ledger, -1, previousLAC=2, **poll))
    yield Said("poll, in vain", read_frame(ledger, -1, previousLAC=8, **poll))
    yield Said("poll, beyond", read_frame(ledger, -1, previousLAC=90, **poll))
    yield Said("poll of one entry", read_frame(ledger, 0, previousLAC=8, **poll))
    yield Said("poll without piggyback", read_frame(ledger, 0, previousLAC=8, timeOut=200))
    yield Said("piggyback without poll", read_frame(ledger, 0, flag=PIGGYBACK))
    yield Said("the entries", of_ledger(Op.LIST_ENTRIES, entries, ledger), False)
    yield Said("auth", request_frame(Op.AUTH, 5, "authRequest", authPluginName="P", payload=b"p"))
    yield Said("TLS", request_frame(Op.START_TLS, 5, "startTLSRequest"))
    for op in (3, 4, 12):
        yield Said(f"operation {op}", request_frame(op, 5))
    yield Said("fence, wrong key", read_frame(ledger, -1, flag=FENCE, masterKey=OTHER_KEY))
    yield Said("fence, no key", read_frame(ledger, -1, flag=FENCE))
    yield Said("fence", read_frame(ledger, -1, flag=FENCE, masterKey=KEY))
    yield Said("fencing read", read_frame(ledger, 1, flag=FENCE, masterKey=KEY, priority=100))
    yield Said("of what is not there", read_frame(ledger, 3, flag=FENCE, masterKey=KEY))
    yield Said("add after it", add(ledger, 9))
    yield Said("recovery add", add(ledger, 9, recovery=True, priority=100))
    yield Said("the last entry now", read_frame(ledger, -1))
    yield Said("write LAC after it", write_lac(ledger, 9))
    other = ledger + 500
    yield Said("fence of an unknown ledger", read_frame(other, -1, flag=FENCE, masterKey=KEY))
    yield Said("add to it", add(other, 0))
    yield Said("LAC of an empty ledger", of_ledger(Op.READ_LAC, "readLacRequest", other))
    yield Said("entries of an empty ledger", of_ledger(Op.LIST_ENTRIES, entries, other), False)


async def answer(port: int, said: Said) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(said.frame)
        async with asyncio.timeout(ANSWER_S):
            length = LENGTH.unpack(await reader.readexactly(LENGTH.size))[0]
            message = ResponseMessage.FromString(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return f"{said.what}: the bookie hung up"
    except TimeoutError:
        return f"{said.what}: no answer"
    finally:
        writer.close()
    message.readResponse.ClearField("lacUpdateTimestamp")
    return f"{said.what}: {' '.join(str(message).split())}"


async def v3_conversation(checks: Checks, ports: tuple[int, int]) -> None:
    checks.title("one conversation in v3 frames")
    for said in conversation(9001):
        apache, octavo = ports
        ours = await answer(octavo, said)
        theirs = await answer(apache, said) if said.apache_answers else "status: 0"
        if said.apache_answers:
            checks.equal(said.what, ours, theirs)
        else:
            checks.contains(f"{said.what}: Apache's is silent", ours, theirs)


async def apaches_client_on_ours(
    checks: Checks, peer: Peer, store: MetadataStore, node: OurBookie, java: JavaClient
) -> None:
    checks.title("Apache's client as it comes (v3), over three bookies of ours")
    peer.bookie.kill()
    others = []
    try:
        for number in range(2):
            folder = peer.folder / f"ours-{number}"
            folder.mkdir()
            others.append(OurBookie(folder, peer.zookeeper.port))
            await asyncio.to_thread(others[-1].start)
        async with asyncio.timeout(GONE_S):
            await BookieRegistry(store).wait_until_gone(peer.bookie.bookie_id)
        for digest_type in DigestType:
            kind = APACHE_NAME.get(digest_type, digest_type.name)
            for end in ("close", "leave"):
                made = await java.run("v3", "write", 3, 3, 2, kind, "secret", ENTRIES, end)
                how = "plain" if end == "close" else "recover"
                read = await java.run("v3", "read", made["ledger"], kind, "secret", how)
                checks.equal(
                    f"{kind}: what it wrote it reads ({how})",
                    (read["last"], read["closed"], read["sha256"]),
                    (str(ENTRIES - 1), "true", SHA256),
                )
        for kind, write_quorum, held in (
            ("CRC32C", 3, "11100"),
            ("MAC", 3, "11100"),
            ("CRC32", 2, "01100,10100,11000"),
        ):
            found = await java.run("v3", "operations", 3, write_quorum, 2, kind, "secret")
            checks.equal(
                f"{kind}: long polls, LACs that come alone, lists of entries, room on the disks, "
                "deferred sync and force",
                found,
                {
                    "parked": "true",
                    "confirmed_first": "true",
                    "polled": "0",
                    "timed_out": "true",
                    "explicit": "2",
                    "confirmed": "2",
                    "held": held,
                    "bookies": "3",
                    "space": "true",
                    "deferred": "-1",
                    "forced": "9",
                },
            )
    finally:
        for one in others:
            one.kill()
