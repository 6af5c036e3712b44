"""Questions for `bookkeeper shell` over a cluster: commands, and their expected output. The mode
is a wire protocol when a command speaks to a bookie, else `records`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.apache.grounds import Bookie, Grounds
from tests.apache.replicas import Kind
from tests.apache.shells import Answer, Shells

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
