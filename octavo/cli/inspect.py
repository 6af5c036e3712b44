"""`octavo inspect`: show a bookie's files. Only reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octavo.cli.options import AsJson, BadOption
from octavo.protocol.entry import DigestType

app = typer.Typer(
    help="Show what a bookie's files contain, also while the bookie runs. Changes no file.",
    no_args_is_help=True,
)

Where = Annotated[Path, typer.Argument(metavar="PATH", help="A file, or a bookie's folder.")]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify", help="Check every checksum and digest; exit code 1 when damage is found."
    ),
]
LedgerOption = Annotated[
    int | None, typer.Option("--ledger", min=0, metavar="N", help="This ledger only.")
]
EntryOption = Annotated[
    int | None, typer.Option("--entry", min=0, metavar="N", help="This entry only, with payload.")
]
From = Annotated[int, typer.Option("--from", min=0, metavar="N", help="From this entry on.")]
To = Annotated[int | None, typer.Option("--to", min=0, metavar="N", help="Up to this entry.")]
Entries = Annotated[
    bool, typer.Option("--entries", help="A line for each entry, with a look at its payload.")
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit", min=0, metavar="N", help="Lines shown; 0: all. Default: 200, with --json all."
    ),
]
Digest = Annotated[
    str | None,
    typer.Option("--digest", help="How the ledger is protected: crc32c, crc32, hmac or dummy."),
]
Password = Annotated[str, typer.Option("--password", help="The ledger's password, for hmac.")]


@app.command("journal")
def journal(
    path: Where,
    verify: Verify = False,
    ledger: LedgerOption = None,
    entry: EntryOption = None,
    first: From = 0,
    last: To = None,
    entries: Entries = False,
    digest: Digest = None,
    password: Password = "",
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Show a journal: group commits, and the adds, fences, LACs and deletions in them.

    \b
    Example:
      octavo inspect journal /var/lib/octavo/b1 --verify
    """
    _show(
        *("journal", path, verify, ledger, entry, first, last, entries),
        *(digest, password, limit, as_json),
    )


@app.command("entrylog")
def entrylog(
    path: Where,
    verify: Verify = False,
    ledger: LedgerOption = None,
    entry: EntryOption = None,
    first: From = 0,
    last: To = None,
    entries: Entries = False,
    digest: Digest = None,
    password: Password = "",
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Show entry logs: their extents, entries and ledgers map.

    \b
    Example:
      octavo inspect entrylog /var/lib/octavo/b1 --verify
    """
    _show(
        *("entrylog", path, verify, ledger, entry, first, last, entries),
        *(digest, password, limit, as_json),
    )


@app.command("index")
def index(
    path: Where,
    verify: Verify = False,
    ledger: LedgerOption = None,
    first: From = 0,
    last: To = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Show the index: the place of each extent in the entry logs, as of the last flush.

    \b
    Example:
      octavo inspect index /var/lib/octavo/b1 --ledger 7
    """
    _show("index", path, verify, ledger, None, first, last, False, None, "", limit, as_json)


@app.command("cookie")
def cookie(path: Where, verify: Verify = False, as_json: AsJson = False) -> None:
    """Show the cookie: the bookie that owns these folders (the file VERSION).

    \b
    Example:
      octavo inspect cookie /var/lib/octavo/b1
    """
    _show("cookie", path, verify, None, None, 0, None, False, None, "", None, as_json)


@app.command("mark")
def mark(path: Where, verify: Verify = False, as_json: AsJson = False) -> None:
    """Show the journal mark: the position up to which journals may be deleted.

    \b
    Example:
      octavo inspect mark /var/lib/octavo/b1
    """
    _show("mark", path, verify, None, None, 0, None, False, None, "", None, as_json)


@app.command("state")
def state(
    path: Where,
    verify: Verify = False,
    ledger: LedgerOption = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Show ledger state: fence, deletion, LAC, last entry and key of each ledger.

    \b
    Example:
      octavo inspect state /var/lib/octavo/b1 --ledger 7
    """
    _show("state", path, verify, ledger, None, 0, None, False, None, "", limit, as_json)


@app.command("limbo")
def limbo(path: Where, verify: Verify = False, as_json: AsJson = False) -> None:
    """Show limbo: ledgers for which this bookie answers "unknown", because it lost data.

    \b
    Example:
      octavo inspect limbo /var/lib/octavo/b1
    """
    _show("limbo", path, verify, None, None, 0, None, False, None, "", None, as_json)


def _show(
    kind: str,
    path: Path,
    verify: bool,
    ledger: int | None,
    entry: int | None,
    first: int,
    last: int | None,
    entries: bool,
    digest: str | None,
    password: str,
    limit: int | None,
    as_json: bool,
) -> None:
    from octavo.bookie.disk.files import RealDisk
    from octavo.cli.inspect_output import Shown
    from octavo.inspect.line import Wish
    from octavo.inspect.walks import walks_of

    if entry is not None:
        first, last, entries = entry, entry, True
    wish = Wish(
        ledger=ledger,
        first=first,
        last=last,
        entries=entries,
        verify=verify,
        digest=_digest(digest),
        password=password.encode(),
    )
    walks, running = walks_of(RealDisk(), kind, str(path), wish)
    shown = Shown(kind, verify=verify, limit=limit, as_json=as_json, running=running)
    for walk in walks:
        shown.walk(walk)
    if not shown.summary():
        raise typer.Exit(1)


def _digest(name: str | None) -> DigestType | None:
    if name is None:
        return None
    try:
        return DigestType[name.upper()]
    except KeyError:
        raise BadOption(f"--digest {name}: use crc32c, crc32, hmac or dummy") from None
