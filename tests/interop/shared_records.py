"""The records in ZooKeeper: Apache's shell reads ours, and we read Apache's."""

from __future__ import annotations

import asyncio
import base64

from octavo.metadata.bookies import BookieInfo, BookieRegistry, encode_service_info
from octavo.metadata.cookie import encode_cookie
from octavo.metadata.ledger_codec import encode_ledger_metadata
from octavo.metadata.ledger_ids import ledger_path
from octavo.metadata.ledgers import LEDGERS_ROOT, Fragment, LedgerMetadata, LedgerState, LedgerStore
from octavo.metadata.store import MetadataStore
from octavo.protocol.entry import DigestType
from tests.interop.apache import Peer
from tests.interop.checks import Checks
from tests.interop.ours import OurBookie

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
