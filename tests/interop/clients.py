"""Apache's own client against both bookies at once, and our reading of its ledgers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import random
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from octavo.ledger.client import LedgerClient
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.bookies import BookieInfo, BookieRegistry, encode_service_info
from octavo.metadata.cookie import encode_cookie
from octavo.metadata.ledger_codec import encode_ledger_metadata
from octavo.metadata.ledger_ids import ledger_path
from octavo.metadata.ledgers import LEDGERS_ROOT, Fragment, LedgerMetadata, LedgerState, LedgerStore
from octavo.metadata.store import MetadataStore
from octavo.protocol.answers import AddRefused, ReadAnswer
from octavo.protocol.codes import Code, OctavoError
from octavo.protocol.entry import DigestType, digest_for, master_key, pack_entry, unpack_entry
from octavo.protocol.frames import LENGTH as FRAME_LENGTH
from octavo.protocol.frames import add_prefix, read_request
from octavo.protocol.v3 import Op
from octavo.protocol.v3_schema import ResponseMessage
from tests.interop.conversation import FENCE, RECOVERY
from tests.interop.processes import Java, OurBookie, Peer
from tests.interop.talk import Checks, Talk, told
from tests.support.v3_frames import FENCE as V3_FENCE
from tests.support.v3_frames import PIGGYBACK, add_frame, read_frame, request_frame

APACHE_NAME = {DigestType.HMAC: "MAC"}


async def ours_by_apache(checks: Checks, peer: Peer, store: MetadataStore, node: OurBookie) -> None:
    checks.title("our records, read by Apache's shell")
    shell = asyncio.to_thread
    registry = BookieRegistry(store)
    await registry.register(BookieInfo("octavo-ro:3181", "127.0.0.1", 3181, True, {"rack": "/r2"}))

    out = await shell(peer.shell, "listbookies", "-rw")
    checks.contains(
        "listbookies -rw names our bookie", out, f"bookieAddr=BookieID:{node.bookie_id}"
    )
    checks.contains("and Apache's", out, f"bookieAddr=BookieID:{peer.bookie.bookie_id}")
    out = await shell(peer.shell, "listbookies", "-ro")
    checks.contains("listbookies -ro names our read-only one", out, "BookieID:octavo-ro:3181")

    cookie, _ = await registry.read_cookie(node.bookie_id)
    out = await shell(peer.shell, "endpointinfo", "-b", node.bookie_id)
    checks.contains(
        "endpointinfo knows its endpoint and properties",
        out,
        f"Address {{host=127.0.0.1, port={node.port}}}",
        "Protocol {protocol=bookie-rpc}",
        f"property {{key=incarnation, value={cookie.incarnation}}}",
        f"property {{key=rack, value={node.rack}}}",
    )

    out = await shell(peer.shell, "cookie_get", node.bookie_id)
    instance_id = await LedgerStore(store).instance_id()
    checks.contains(
        "cookie_get reads its cookie",
        out,
        f'bookieHost: "{node.bookie_id}"',
        f'journalDir: "{node.journal}"',
        f'ledgerDirs: "1\\t{node.ledgers}"',
        f'instanceId: "{instance_id}"',
    )
    await registry.unregister("octavo-ro:3181")

    ledgers = LedgerStore(store)
    for made in _some_ledgers(peer.bookie.bookie_id, node.bookie_id):
        metadata, _ = await ledgers.create(made)
        out = await shell(peer.shell, "ledgermetadata", "-ledgerid", str(metadata.ledger_id))
        checks.contains(
            f"ledgermetadata reads ledger {metadata.ledger_id}, {metadata.state.name}",
            out,
            _as_apache_prints(metadata),
        )
        await ledgers.delete(metadata.ledger_id)


def _some_ledgers(one: str, other: str) -> list[LedgerMetadata]:
    changed = (Fragment(0, (one, other)), Fragment(17, (other, one)))
    custom = {"app": b"octavo", "raw": bytes(range(256))}
    return [
        LedgerMetadata(-1, 1, 1, 1, (Fragment(0, (other,)),), digest_type=DigestType.DUMMY),
        LedgerMetadata(
            2_000_000_000,
            2,
            2,
            1,
            changed,
            LedgerState.CLOSED,
            41,
            4_200,
            DigestType.HMAC,
            b"secret",
            1_700_000_000_000,
            custom,
        ),
        LedgerMetadata(
            2**40, 2, 2, 2, changed, LedgerState.IN_RECOVERY, digest_type=DigestType.CRC32
        ),
        LedgerMetadata(2**62, 1, 1, 1, (Fragment(0, (one,)),), LedgerState.CLOSED, -1, 0),
    ]


def _as_apache_prints(metadata: LedgerMetadata) -> str:
    state = f"state={metadata.state.name}"
    if metadata.state is LedgerState.CLOSED:
        state += f", length={metadata.length}, lastEntryId={metadata.last_entry}"
    digest = APACHE_NAME.get(metadata.digest_type, metadata.digest_type.name)
    ensembles = ", ".join(
        f"{fragment.first_entry}=[{', '.join(fragment.bookies)}]" for fragment in metadata.fragments
    )
    custom = ", ".join(
        f"{key}=base64:{base64.b64encode(value).decode()}" for key, value in metadata.custom.items()
    )
    return (
        f"ensembleSize={metadata.ensemble_size}, writeQuorumSize={metadata.write_quorum}, "
        f"ackQuorumSize={metadata.ack_quorum}, {state}, digestType={digest}, "
        f"password=base64:{base64.b64encode(metadata.password).decode()}, "
        f"ensembles={{{ensembles}}}, customMetadata={{{custom}}}}}"
    )


async def apache_by_us(checks: Checks, peer: Peer, store: MetadataStore) -> None:
    checks.title("Apache's records, read by us")
    registry = BookieRegistry(store)
    await LedgerStore(store).initialize()
    checks.holds("its LAYOUT and INSTANCEID are taken as they are", True)

    info = (await registry.available()).get(peer.bookie.bookie_id)
    checks.equal(
        "its registration",
        info,
        BookieInfo(peer.bookie.bookie_id, "127.0.0.1", peer.bookie.port, False, {}),
    )
    if info is not None:
        value = (await store.get(f"{LEDGERS_ROOT}/available/{peer.bookie.bookie_id}")).value
        checks.equal("encoded again it has the same bytes", encode_service_info(info), value)

    cookie, _ = await registry.read_cookie(peer.bookie.bookie_id)
    checks.equal("its cookie names it", cookie.bookie_id, peer.bookie.bookie_id)
    checks.equal("and its folders", cookie.ledger_dirs, (f"{peer.folder}/ledgers",))
    checks.equal("and the cluster", cookie.instance_id, await LedgerStore(store).instance_id())
    value = (await store.get(f"{LEDGERS_ROOT}/cookies/{peer.bookie.bookie_id}")).value
    checks.equal("encoded again it has the same bytes", encode_cookie(cookie), value)


async def ledger_by_us(checks: Checks, store: MetadataStore, ledger_id: int) -> LedgerMetadata:
    metadata, _ = await LedgerStore(store).read(ledger_id)
    value = (await store.get(ledger_path(LEDGERS_ROOT, ledger_id))).value
    checks.equal(
        f"the record of ledger {ledger_id}, encoded again, has the same bytes",
        encode_ledger_metadata(metadata),
        value,
    )
    return metadata


SOURCE = Path(__file__).with_name("InteropClient.java")
ENTRIES = 200
PASSWORD = b"secret"


class JavaClient:
    def __init__(self, java: Java, zookeeper_port: int) -> None:
        self._java = java
        self._uri = f"zk+hierarchical://127.0.0.1:{zookeeper_port}/ledgers"
        self._classes = java.folder / "classes"

    def compile(self) -> None:
        self._java.compile(SOURCE, self._classes)

    async def run(self, *words: object) -> dict[str, str]:
        command = self._java.command(
            "InteropClient", self._uri, *map(str, words), classes=self._classes
        )
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=120
        )
        results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        assert len(results) == 1, f"{words}:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
        return dict(part.split("=", 1) for part in results[0].split()[1:])


def payload_of(entry: int) -> bytes:
    return b"entry %d " % entry * 10


CONTENT = [payload_of(entry) for entry in range(ENTRIES)]
SHA256 = hashlib.sha256(b"".join(CONTENT)).hexdigest()
LENGTH = sum(map(len, CONTENT))


async def apaches_client(
    checks: Checks, peer: Peer, store: MetadataStore, node: OurBookie, java: JavaClient
) -> None:
    """Apache's client writes, leaves open and recovers a ledger on one bookie of each kind."""
    for wire, digest_type in itertools.product(("v2", "v3"), (DigestType.CRC32C, DigestType.HMAC)):
        kind = APACHE_NAME.get(digest_type, digest_type.name)
        for end in ("close", "leave"):
            checks.title(f"Apache's client, {wire}, {kind}, E = Qw = Qa = 2 on both bookies, {end}")
            made = await java.run(wire, "write", 2, 2, 2, kind, PASSWORD.decode(), ENTRIES, end)
            checks.equal("it wrote all entries", (made["last"], made["length"]), _ends(ENTRIES - 1))
            ledger = int(made["ledger"])
            await both_replicas(checks, (peer.bookie.port, node.port), ledger, digest_type)
            if end == "leave":
                await _recovered(checks, java, store, wire, ledger, kind)
                await _old_writer(checks, (peer.bookie.port, node.port), ledger, digest_type)
            metadata = await ledger_by_us(checks, store, ledger)
            checks.equal(
                "our reading of it",
                (metadata.state, metadata.last_entry, metadata.length, metadata.digest_type),
                (LedgerState.CLOSED, ENTRIES - 1, LENGTH, digest_type),
            )
            checks.equal("and of its map", dict(metadata.custom), {"maker": b"apache"})
            read = await java.run(wire, "read", ledger, kind, PASSWORD.decode(), "plain")
            checks.equal("it reads every entry back", read["sha256"], SHA256)


def _ends(last: int) -> tuple[str, str]:
    return str(last), str(LENGTH)


async def both_replicas(
    checks: Checks, ports: tuple[int, int], ledger: int, digest_type: DigestType
) -> None:
    digest = digest_for(digest_type, PASSWORD)
    found: list[list[bytes]] = []
    for port in ports:
        async with await Talk.with_bookie(port) as talk:
            asked = [read_request(ledger, entry) for entry in range(ENTRIES)]
            answers = [one for one in await talk.ask(*asked) if isinstance(one, ReadAnswer)]
            found.append([one.entry for one in sorted(answers, key=lambda one: one.entry_id)])
    checks.equal("both bookies hold the same bytes", found[0], found[1])
    opened = [unpack_entry(digest, ledger, number, entry) for number, entry in enumerate(found[1])]
    checks.equal("which hold what was written", [bytes(one.payload) for one in opened], CONTENT)


async def _recovered(
    checks: Checks, java: JavaClient, store: MetadataStore, wire: str, ledger: int, kind: str
) -> None:
    metadata = await ledger_by_us(checks, store, ledger)
    checks.equal("the ledger of a dead writer is open", metadata.state, LedgerState.OPEN)
    read = await java.run(wire, "read", ledger, kind, PASSWORD.decode(), "recover")
    checks.equal(
        "its recovery over both bookies ends where the writer ended",
        (read["last"], read["length"], read["closed"], read["sha256"]),
        (*_ends(ENTRIES - 1), "true", SHA256),
    )


async def _old_writer(
    checks: Checks, ports: tuple[int, int], ledger: int, digest_type: DigestType
) -> None:
    digest = digest_for(digest_type, PASSWORD)
    key = master_key(PASSWORD)
    entry = pack_entry(digest, ledger, ENTRIES, ENTRIES - 1, LENGTH + 4, b"late")
    for port in ports:
        async with await Talk.with_bookie(port) as talk:
            answers = await talk.ask(add_prefix(key, len(entry)) + entry)
            checks.equal(
                f"the bookie on {port} refuses the fenced writer",
                answers,
                [AddRefused(Code.FENCED, ledger, ENTRIES)],
            )
            first = pack_entry(digest, ledger, 0, -1, len(CONTENT[0]), CONTENT[0])
            answers = await talk.ask(
                add_prefix(key, len(first), RECOVERY) + first,
                read_request(ledger, 0, FENCE, key),
            )
            checks.holds(
                "and lets recovery pass",
                all("OK" in told(one) or "added" in told(one) for one in answers),
                [told(one) for one in answers],
            )


async def our_client(
    checks: Checks, peer: Peer, store: MetadataStore, node: OurBookie, java: JavaClient
) -> None:
    client = LedgerClient(store, rng=random.Random(2))
    await client.start()
    ports = (peer.bookie.port, node.port)
    try:
        for digest_type in (DigestType.CRC32C, DigestType.HMAC):
            kind = APACHE_NAME.get(digest_type, digest_type.name)
            checks.title(f"our client, {kind}, E = Qw = Qa = 2 over both bookies")
            writer = await _written(client, digest_type)
            await both_replicas(checks, ports, writer.ledger_id, digest_type)
            closed = await writer.close()
            checks.equal("it closed", (closed.last_entry, closed.length), (ENTRIES - 1, LENGTH))
            read = await java.run("v2", "read", writer.ledger_id, kind, PASSWORD.decode(), "plain")
            checks.equal("Apache's client reads every entry", read["sha256"], SHA256)

            checks.title(f"our client's open ledger, {kind}, recovered by Apache's client")
            writer = await _written(client, digest_type)
            read = await java.run(
                "v2", "read", writer.ledger_id, kind, PASSWORD.decode(), "recover"
            )
            checks.equal(
                "it ends where our writer ended",
                (int(read["last"]), int(read["length"]), read["sha256"]),
                (ENTRIES - 1, LENGTH, SHA256),
            )
            checks.equal(
                "our writer learns it: its add may have been written, later ones are refused",
                (await _refusal(writer), await _refusal(writer)),
                ("outcome-unknown", "ledger-fenced"),
            )

            checks.title(f"Apache's client's open ledger, {kind}, recovered by ours")
            made = await java.run("v2", "write", 2, 2, 2, kind, PASSWORD.decode(), ENTRIES, "leave")
            ledger = int(made["ledger"])
            found = await client.recover(ledger, password=PASSWORD)
            checks.equal(
                "it ends where Apache's writer ended",
                (found.state, found.last_entry, found.length),
                (LedgerState.CLOSED, ENTRIES - 1, LENGTH),
            )
            reader = await client.open(ledger, password=PASSWORD)
            entries = await reader.read(0, ENTRIES - 1)
            checks.equal("we read every entry", [bytes(one.payload) for one in entries], CONTENT)
            read = await java.run("v2", "read", ledger, kind, PASSWORD.decode(), "plain")
            checks.equal("and so does Apache's client", read["sha256"], SHA256)
    finally:
        await client.close()


async def _written(client: LedgerClient, digest_type: DigestType) -> LedgerWriter:
    writer = await client.create(
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=2,
        digest_type=digest_type,
        password=PASSWORD,
        custom={"maker": b"octavo"},
    )
    await asyncio.gather(*(writer.append(payload) for payload in CONTENT))
    return writer


async def _refusal(writer: LedgerWriter) -> str:
    try:
        await writer.append(b"late")
    except OctavoError as error:
        return error.name
    return "none"


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
    yield Said("fence, wrong key", read_frame(ledger, -1, flag=V3_FENCE, masterKey=OTHER_KEY))
    yield Said("fence, no key", read_frame(ledger, -1, flag=V3_FENCE))
    yield Said("fence", read_frame(ledger, -1, flag=V3_FENCE, masterKey=KEY))
    yield Said(
        "fencing read",
        read_frame(ledger, 1, flag=V3_FENCE, masterKey=KEY, priority=100),
    )
    yield Said("of what is not there", read_frame(ledger, 3, flag=V3_FENCE, masterKey=KEY))
    yield Said("add after it", add(ledger, 9))
    yield Said("recovery add", add(ledger, 9, recovery=True, priority=100))
    yield Said("the last entry now", read_frame(ledger, -1))
    yield Said("write LAC after it", write_lac(ledger, 9))
    other = ledger + 500
    yield Said(
        "fence of an unknown ledger",
        read_frame(other, -1, flag=V3_FENCE, masterKey=KEY),
    )
    yield Said("add to it", add(other, 0))
    yield Said("LAC of an empty ledger", of_ledger(Op.READ_LAC, "readLacRequest", other))
    yield Said("entries of an empty ledger", of_ledger(Op.LIST_ENTRIES, entries, other), False)


async def answer(port: int, said: Said) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(said.frame)
        async with asyncio.timeout(ANSWER_S):
            length = FRAME_LENGTH.unpack(await reader.readexactly(FRAME_LENGTH.size))[0]
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
