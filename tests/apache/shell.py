"""BookKeeper's shell over a cluster, in the wanted wire protocol, and its output."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from octavo.metadata.bookies import BookieRegistry
from octavo.metadata.ledgers import LedgerStore
from octavo.metadata.store import MetadataStore, RecordNotFound
from tests.apache.grounds import Ask, Bookie, Grounds, Kind, flaws, ledgers_naming, write_ledgers
from tests.apache.matrix import Matrix
from tests.interop.processes import VERSION, OurBookie, Process, store_at
from tests.interop.talk import Checks

SOURCE = Path(__file__).with_name("Shells.java")
ANSWER_S = 180
ELECTION = "/ledgers/underreplication/auditorelection"
QUICK_AUTO_RECOVERY = """openLedgerRereplicationGracePeriod=2000
rwRereplicateBackoffMs=500
lockReleaseOfFailedLedgerGracePeriod=8000
"""
"""The defaults are 30 s for a ledger that may still be written, 5 s after each ledger that could
not be handled at once, up to five minutes for a failed ledger."""

_SAID = re.compile(r"^(?:INFO|WARN|ERROR) (\w*(?:Command|Cmd)) - (.*)$")


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    text: str

    @property
    def said(self) -> list[str]:
        found = (_SAID.match(line) for line in self.text.splitlines())
        return [f"{match[1]}: {match[2]}" for match in found if match]


def conf_of(grounds: Grounds, wire: str, bookie: Bookie | None = None, more: str = "") -> str:
    port, journal, ledgers = 3181, grounds.folder / "no-journal", grounds.folder / "no-ledgers"
    if isinstance(bookie, OurBookie):
        port, journal, ledgers = bookie.port, bookie.journal, bookie.ledgers
    elif bookie is not None:
        port, journal, ledgers = bookie.port, bookie.folder / "journal", bookie.folder / "ledgers"
    return (
        f"metadataServiceUri=zk+hierarchical://127.0.0.1:{grounds.zookeeper.port}/ledgers\n"
        f"journalDirectories={journal}\nledgerDirectories={ledgers}\nbookiePort={port}\n"
        "allowLoopback=true\nadvertisedAddress=127.0.0.1\nzkTimeout=4000\n"
        f"useV2WireProtocol={'true' if wire == 'v2' else 'false'}\n{more}"
    )


class Shells:
    """Runs commands one after another in one process: starting Java costs more than they do."""

    def __init__(self, grounds: Grounds) -> None:
        self._grounds = grounds
        classes = grounds.folder / "classes-of-shells"
        grounds.java.compile(SOURCE, classes)
        self._process = subprocess.Popen(
            grounds.java.command("Shells", classes=classes),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=grounds.folder,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def ask(self, wire: str, *words: str, bookie: Bookie | None = None) -> Answer:
        conf = self._grounds.folder / "asked.conf"
        conf.write_text(conf_of(self._grounds, wire, bookie))
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join([str(conf), *words]) + "\n")
        self._process.stdin.flush()
        deadline = time.monotonic() + ANSWER_S
        heard: list[str] = []
        while True:
            try:
                line = self._lines.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                said = "".join(heard)[-2000:]
                raise AssertionError(f"{words}: not done in {ANSWER_S} s:\n{said}") from None
            if line.startswith("EXIT "):
                return Answer(int(line.split()[1]), "".join(heard))
            heard.append(line)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def shells_on(grounds: Grounds) -> Iterator[Shells]:
    shells = Shells(grounds)
    try:
        yield shells
    finally:
        shells.close()


RECORDS = "records"
WIRES = ("v2", "v3")

LEDGERS = (Kind(3, 3, 2), Kind(2, 2, 2, digest="MAC"), Kind(3, 2, 2, is_open=True))
CLOSED, MAC, OPEN = range(3)

_VOLATILE = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<uuid>"),
    (re.compile(r"\b(free|total)=[^,}]*"), r"\1=<bytes>"),
    (re.compile(r"/\S+/(?:our-)?(journal|ledgers)"), r"<folder>/\1"),
)
_PROGRESS = re.compile(r"SimpleTestCommand: \d+ entries written \{")


@dataclass(slots=True)
class Place:
    grounds: Grounds
    shells: Shells
    bookies: list[Bookie]
    instance_id: str
    written: dict[str, dict[int, Kind]] = field(default_factory=dict)

    def ask(self, mode: str, line: str) -> Answer:
        return self.shells.ask(_wire(mode), *line.split(), bookie=self.bookies[0])

    def ledger(self, mode: str, number: int) -> int:
        return list(self.written[_wire(mode)])[number]

    def plain(self, answer: Answer) -> list[str]:
        """Return a command's output, without values that differ on each cluster."""
        said = "\n".join(line for line in answer.said if not _PROGRESS.match(line))
        for number, bookie in enumerate(self.bookies, 1):
            said = said.replace(bookie.bookie_id, f"<bookie {number}>")
        for pattern, instead in _VOLATILE:
            said = pattern.sub(instead, said)
        return [f"code {answer.code}", *said.splitlines()]


def _wire(mode: str) -> str:
    return mode if mode in WIRES else "v3"


Lines = Callable[[Place, str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Question:
    """Consecutive commands. Their combined output must contain `wanted`."""

    operation: str
    lines: Lines
    wanted: Lines
    modes: tuple[str, ...] = (RECORDS,)
    compared: bool = True
    """Whether the output must equal that over Apache's bookies."""
    code: int = 0
    note: str = ""


def _ids(place: Place) -> list[str]:
    return [bookie.bookie_id for bookie in place.bookies]


def _read_lines(place: Place, mode: str) -> list[str]:
    closed, mac = place.ledger(mode, CLOSED), place.ledger(mode, MAC)
    alone = [f"readledger -l {closed} -b {one} -fe 0 -le 40" for one in _ids(place)]
    return [f"readledger -l {closed}", *alone, f"readledger -l {mac} -fe 0 -le 39"]


def _entries(place: Place, mode: str) -> list[str]:
    closed, mac = place.ledger(mode, CLOSED), place.ledger(mode, MAC)
    alone = [f"entryId={entry}, ledgerId={closed}" for entry in range(40)]
    return [*alone, f"entryId=39, entrySize=3500, ledgerId={mac}"]


QUESTIONS = (
    Question(
        "`whatisinstanceid`",
        lambda _, __: ["whatisinstanceid"],
        lambda place, _: [place.instance_id],
    ),
    Question(
        "`listbookies -rw`, `-ro`, `-a`",
        lambda _, __: ["listbookies -rw", "listbookies -ro", "listbookies -a"],
        lambda place, _: [f"BookieID:{one}" for one in _ids(place)],
        compared=False,
    ),
    Question(
        "`endpointinfo`",
        lambda place, _: [f"endpointinfo -b {one}" for one in _ids(place)],
        lambda place, _: [
            *(f"host=127.0.0.1, port={bookie.port}" for bookie in place.bookies),
            "protocol=bookie-rpc",
        ],
        compared=False,
        note="with the bookie's rack and incarnation, which Apache's has not",
    ),
    Question(
        "`clusterinfo`",
        lambda _, __: ["clusterinfo"],
        lambda _, __: ['"totalBookiesCount" : 3', '"writableBookiesCount" : 3'],
        compared=False,
    ),
    Question(
        "`cookie_get`",
        lambda place, _: [f"cookie_get {place.bookies[0].bookie_id}"],
        lambda place, _: [f'bookieHost: "{place.bookies[0].bookie_id}"', place.instance_id],
        compared=False,
    ),
    Question(
        "`cookie_generate`, `_create`, `_get`, `_update`, `_delete`",
        lambda place, _: [
            f"cookie_generate -j /j -l /l -o {place.grounds.folder}/cookie 127.0.0.1:9",
            f"cookie_create -cf {place.grounds.folder}/cookie 127.0.0.1:9",
            "cookie_get 127.0.0.1:9",
            f"cookie_update -cf {place.grounds.folder}/cookie 127.0.0.1:9",
            "cookie_delete 127.0.0.1:9",
        ],
        lambda place, _: ['bookieHost: "', place.instance_id],
    ),
    Question(
        "`autorecovery -disable`, `-enable`",
        lambda _, __: [
            "autorecovery -disable",
            "autorecovery -disable",
            "autorecovery -enable",
            "autorecovery -enable",
        ],
        lambda _, __: [
            "Disabling autorecovery",
            "Autorecovery already disabled",
            "Enabling autorecovery",
            "Autorecovery already enabled",
        ],
    ),
    Question(
        "`queryautorecoverystatus`",
        lambda _, __: ["queryautorecoverystatus"],
        lambda _, __: ["No Ledger is being recovered"],
    ),
    Question(
        "`listunderreplicated`",
        lambda _, __: ["listunderreplicated -pmr -prw"],
        lambda _, __: ["ledger count {count=0}"],
    ),
    Question(
        "`bookiesanity`",
        lambda _, __: ["bookiesanity -e 50 -t 30"],
        lambda _, __: ["Bookie sanity test succeeded"],
        WIRES,
    ),
    Question(
        "`simpletest`, three replicas",
        lambda _, __: ["simpletest -e 3 -w 3 -a 2 -n 200"],
        lambda _, __: ["200 entries written to ledger", "lastEntryId 199"],
        WIRES,
    ),
    Question(
        "`bookieinfo`",
        lambda _, __: ["bookieinfo"],
        lambda place, _: ["Total disk capacity", *(f"BookieID:{one}" for one in _ids(place))],
        WIRES,
        compared=False,
        note="free and total space of every bookie",
    ),
    Question(
        "`readledger`: a ledger, each replica of it alone, one with HMAC",
        _read_lines,
        _entries,
        WIRES,
    ),
    Question(
        "`readledger -r` recovers an open ledger",
        lambda place, mode: [
            f"readledger -l {place.ledger(mode, OPEN)} -r -fe 0 -le 39",
            f"ledgermetadata -l {place.ledger(mode, OPEN)}",
        ],
        lambda _, __: ["entryId=39", "state=CLOSED, length=3500, lastEntryId=39"],
        WIRES,
        compared=False,
    ),
    Question(
        "`recover -q`, `-dr`: what it would do",
        lambda place, _: [
            f"recover -q -f {place.bookies[2].bookie_id}",
            f"recover -f -dr {place.bookies[2].bookie_id}",
        ],
        lambda _, __: ["Done"],
        compared=False,
    ),
    Question(
        "`listledgers`, `-meta`, `-bookieid`",
        lambda place, _: [
            "listledgers",
            "listledgers -meta",
            f"listledgers -bookieid {place.bookies[1].bookie_id}",
        ],
        lambda place, _: [
            f"ledgerId={ledger_id}" for found in place.written.values() for ledger_id in found
        ],
        compared=False,
    ),
    Question(
        "`ledgermetadata`, `-dumptofile`, `-restorefromfile`",
        lambda place, mode: [
            f"ledgermetadata -l {place.ledger(mode, MAC)}",
            f"ledgermetadata -l {place.ledger(mode, MAC)} -dumptofile {place.grounds.folder}/dump",
            f"deleteledger -l {place.ledger(mode, MAC)} -f",
            f"ledgermetadata -l {place.ledger(mode, MAC)}"
            f" -restorefromfile {place.grounds.folder}/dump",
            f"readledger -l {place.ledger(mode, MAC)} -fe 0 -le 39",
        ],
        lambda place, mode: ["digestType=MAC", f"ledgerId={place.ledger(mode, MAC)}", "entryId=39"],
        compared=False,
        note="dumped, deleted, restored, read: within the quarantine our bookies have it still",
    ),
    Question(
        "`deleteledger`",
        lambda place, mode: [
            f"deleteledger -l {place.ledger(mode, MAC)} -f",
            f"ledgermetadata -l {place.ledger(mode, MAC)}",
        ],
        lambda _, __: ["No such ledger exists"],
        compared=False,
        code=-1,
    ),
)

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


def start_auto_recovery(grounds: Grounds, wire: str) -> Process:
    conf = grounds.folder / "auto_recovery.conf"
    conf.write_text(conf_of(grounds, wire, more=QUICK_AUTO_RECOVERY))
    main = "org.apache.bookkeeper.replication.AutoRecoveryMain"
    return grounds.start("auto_recovery", grounds.java.command(main, "--conf", str(conf)))


async def an_auditor(store: MetadataStore, *, here: bool = True) -> None:
    """Wait until an auditor is elected, or none is any more."""
    changed = asyncio.Event()
    watch = store.watch_children(ELECTION, changed.set)
    try:
        async with asyncio.timeout(60):
            while bool(await store.children(ELECTION)) != here:
                changed.clear()
                await changed.wait()
    finally:
        watch.cancel()
