"""BookKeeper's shell over three bookies of ours: each command for a cluster is a row. The same
commands run first over three Apache bookies; comparable output must be equal."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace

from octavo.metadata.bookies import BookieRegistry
from octavo.metadata.ledgers import LedgerStore
from octavo.metadata.store import MetadataStore, RecordNotFound
from tests.apache.auto_recovery import an_auditor, start_auto_recovery
from tests.apache.grounds import Ask
from tests.apache.matrix import Matrix
from tests.apache.questions import LEDGERS, QUESTIONS, RECORDS, WIRES, Place
from tests.apache.replicas import Kind, flaws, ledgers_naming, write_ledgers
from tests.apache.shells import shells_on
from tests.interop.apache import VERSION
from tests.interop.checks import Checks
from tests.interop.ours import OurBookie, store_at

SHELL = f"BookieShell {VERSION}"
ASLEEP = ("--set", "keep_copies=false")
"""The shell, not our bookies, has to restore lost copies."""

Said = dict[tuple[str, str], list[str]]


def shell(matrix: Matrix, asked: Ask) -> None:
    with _three(replace(asked, folder=asked.folder / "apache"), apache=True) as theirs:
        said = _answers_of_apaches(theirs)
        auditors = _auditors_of_apaches(theirs)
        asyncio.run(_guest(matrix, theirs))
    with _three(replace(asked, folder=asked.folder / "octavo"), apache=False) as ours:
        _before_an_auditor(matrix, ours, auditors)
        _questions(matrix, ours, said)
        asyncio.run(_lost_bookies(matrix, ours))


@contextlib.contextmanager
def _three(asked: Ask, *, apache: bool) -> Iterator[Place]:
    with asked.grounds(laid_out=apache) as grounds, shells_on(grounds) as shells:
        for _ in range(3):
            grounds.add_apache() if apache else grounds.add_octavo(*ASLEEP)
        instance_id = asyncio.run(_instance_id(grounds.zookeeper.port))
        yield Place(grounds, shells, grounds.bookies, instance_id)


async def _instance_id(zookeeper_port: int) -> str:
    async with store_at(zookeeper_port) as store:
        return await LedgerStore(store).instance_id()


def _answers_of_apaches(theirs: Place) -> Said:
    theirs.written = {wire: write_ledgers(theirs.grounds, wire, LEDGERS) for wire in WIRES}
    return {
        (question.operation, mode): [
            line
            for words in question.lines(theirs, mode)
            for line in theirs.plain(theirs.ask(mode, words))
        ]
        for question in QUESTIONS
        for mode in question.modes
    }


def _questions(matrix: Matrix, ours: Place, said: Said) -> None:
    ours.written = {wire: write_ledgers(ours.grounds, wire, LEDGERS) for wire in WIRES}
    for question in QUESTIONS:
        for mode in question.modes:
            with matrix.row(SHELL, mode, question.operation, note=question.note) as checks:
                answers = [ours.ask(mode, words) for words in question.lines(ours, mode)]
                text = "\n".join(answer.text for answer in answers)
                checks.equal("it ends with", answers[-1].code, question.code)
                wanted = question.wanted(ours, mode)
                checks.contains(f"it says what it has to, {len(wanted)} things", text, *wanted)
                if question.compared:
                    plain = [line for answer in answers for line in ours.plain(answer)]
                    there = said[question.operation, mode]
                    checks.equal("the same as over Apache's bookies", plain, there)


def _auditors_of_apaches(theirs: Place) -> list[str]:
    never = theirs.ask(RECORDS, "whoisauditor")
    auditor = start_auto_recovery(theirs.grounds, "v3")
    asyncio.run(_auditor_at(theirs.grounds.zookeeper.port, here=True))
    auditor.kill()
    asyncio.run(_auditor_at(theirs.grounds.zookeeper.port, here=False))
    gone = theirs.ask(RECORDS, "whoisauditor")
    assert "NoNode" in never.text, never.text
    return theirs.plain(gone)


async def _auditor_at(zookeeper_port: int, *, here: bool) -> None:
    async with store_at(zookeeper_port) as store:
        await an_auditor(store, here=here)


def _before_an_auditor(matrix: Matrix, ours: Place, auditors: list[str]) -> None:
    note = "where Apache's fails with NoNode until an auditor has run once"
    with matrix.row(SHELL, RECORDS, "`whoisauditor`, none was ever", note=note) as checks:
        found = ours.plain(ours.ask(RECORDS, "whoisauditor"))
        checks.equal("it says what it says of Apache's when the auditor has gone", found, auditors)
        checks.contains("that none is elected", "".join(found), "No auditor elected")
    operation = "`lostbookierecoverydelay -get`, `-set`, no auditor was ever"
    with matrix.row(SHELL, RECORDS, operation, note=note) as checks:
        for words, wanted in (("-get", "delay=0"), ("-set 30", "delay=30"), ("-get", "delay=30")):
            answer = ours.ask(RECORDS, f"lostbookierecoverydelay {words}")
            checks.contains(f"{words}: {wanted}", "".join(answer.said), wanted)


async def _guest(matrix: Matrix, theirs: Place) -> None:
    async with store_at(theirs.grounds.zookeeper.port) as store:
        guest = theirs.grounds.add_octavo(*ASLEEP)
        operation = "an Octavo bookie joins three of Apache's, takes ledgers, is decommissioned"
        await _decommissioned(matrix, theirs, store, guest, operation)


async def _lost_bookies(matrix: Matrix, ours: Place) -> None:
    """Three bookies and a spare, lost one after another in every possible way."""
    ours.grounds.add_octavo(*ASLEEP)
    async with store_at(ours.grounds.zookeeper.port) as store:
        first, second, third = (one for one in ours.bookies[:3] if isinstance(one, OurBookie))
        await _recovered(matrix, ours, store, "v2", third, "-d")
        await _without_cookie(matrix, ours, store, third)
        await _recovered(matrix, ours, store, "v3", second, "")
        second.start()
        await _formatted(matrix, ours, store, second)
        operation = "`decommissionbookie`, next to Apache's AutoRecovery"
        await _decommissioned(matrix, ours, store, first, operation)


async def _recovered(
    matrix: Matrix, ours: Place, store: MetadataStore, wire: str, lost: OurBookie, flag: str
) -> None:
    written: dict[int, Kind] = {}
    for one in WIRES:
        written |= await asyncio.to_thread(write_ledgers, ours.grounds, one, LEDGERS * 2)
    lost.kill()
    await BookieRegistry(store).wait_until_gone(lost.bookie_id)
    operation = f"`{' '.join(['recover', *flag.split()])}` of a lost bookie"
    with matrix.row(SHELL, wire, operation) as checks:
        named = await ledgers_naming(store, lost.bookie_id)
        answer = ours.shells.ask(wire, *f"recover -f {flag} {lost.bookie_id}".split())
        checks.equal("it ends well", answer.code, 0)
        left = await ledgers_naming(store, lost.bookie_id)
        checks.equal(f"of {len(named)} ledgers that it held it keeps", left, [])
        await _whole(checks, store, written, named)


async def _whole(
    checks: Checks, store: MetadataStore, written: dict[int, Kind], named: list[int]
) -> None:
    live = set(await BookieRegistry(store).available())
    settled = {one: kind for one, kind in written.items() if one in named or not kind.is_open}
    checks.equal(
        f"each entry of {len(settled)} is on all its replicas",
        await flaws(store, settled, live),
        [],
    )


async def _without_cookie(
    matrix: Matrix, ours: Place, store: MetadataStore, bookie: OurBookie
) -> None:
    """Its cookie was deleted (`recover -d`): the folders belong to no bookie any more."""
    operation = "a bookie whose cookie `recover -d` deleted"
    note = "refuses to start and says why; with empty folders it starts fresh"
    with matrix.row("an Octavo bookie", RECORDS, operation, note=note) as checks:
        checks.holds("its cookie is gone", await _cookie(store, bookie) == "")
        checks.contains("it does not start", _refusal(bookie), "metadata has no cookie", "decomm")
        for folder in (bookie.journal, bookie.ledgers):
            shutil.rmtree(folder)
        bookie.start()
        checks.holds("it starts on empty folders", await _cookie(store, bookie) != "")


async def _cookie(store: MetadataStore, bookie: OurBookie) -> str:
    with contextlib.suppress(RecordNotFound):
        return (await BookieRegistry(store).read_cookie(bookie.bookie_id))[0].incarnation
    return ""


def _refusal(bookie: OurBookie) -> str:
    try:
        bookie.start()
    except AssertionError as error:
        return str(error)
    return "it started"


async def _formatted(matrix: Matrix, ours: Place, store: MetadataStore, bookie: OurBookie) -> None:
    with matrix.row(SHELL, RECORDS, "`bookieformat -deleteCookie` of a stopped bookie") as checks:
        before = await _cookie(store, bookie)
        bookie.kill()
        await BookieRegistry(store).wait_until_gone(bookie.bookie_id)
        words = ("bookieformat", "-nonInteractive", "-force", "-deleteCookie")
        checks.equal("it ends well", ours.shells.ask("v3", *words, bookie=bookie).code, 0)
        checks.equal("the cookie is gone", await _cookie(store, bookie), "")
        left = [*bookie.journal.iterdir(), *bookie.ledgers.iterdir()]
        checks.equal("the folders are empty", left, [])
        bookie.start()
        checks.holds("it starts as a new one", await _cookie(store, bookie) not in ("", before))


async def _decommissioned(
    matrix: Matrix, place: Place, store: MetadataStore, bookie: OurBookie, operation: str
) -> None:
    """With Apache's auditor and replicator running, as `decommissionbookie` needs."""
    auditor = start_auto_recovery(place.grounds, "v3")
    try:
        await an_auditor(store)
        with matrix.row(SHELL, RECORDS, "`whoisauditor`, `triggeraudit`, with one") as checks:
            said = "".join(place.ask(RECORDS, "whoisauditor").said)
            checks.contains("it is named", said, "auditor=127.0.0.1:3181")
            checks.equal("an audit is triggered", place.ask(RECORDS, "triggeraudit").code, 0)
        with matrix.row(SHELL, "v3", operation) as checks:
            written = await asyncio.to_thread(write_ledgers, place.grounds, "v3", LEDGERS * 2)
            words = ("decommissionbookie", "-bookieid", bookie.bookie_id)
            answer = place.shells.ask("v3", *words)
            checks.holds("it refuses while the bookie is up", answer.code != 0, answer.text[-1000:])
            named = await ledgers_naming(store, bookie.bookie_id)
            checks.holds(f"the bookie has {len(named)} ledgers", bool(named))
            bookie.kill()
            await BookieRegistry(store).wait_until_gone(bookie.bookie_id)
            checks.equal("it ends well", place.shells.ask("v3", *words).code, 0)
            checks.equal("no ledger names it", await ledgers_naming(store, bookie.bookie_id), [])
            checks.equal("its cookie is gone", await _cookie(store, bookie), "")
            await _whole(checks, store, written, named)
    finally:
        auditor.kill()
