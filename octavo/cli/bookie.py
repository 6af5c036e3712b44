"""`octavo bookie`: starts a bookie; its subcommands look after one, running or stopped.

What only looks works on a running bookie too. What writes takes the locks of the folders, so it
refuses while a bookie holds them, and names the process.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli import nodes
from octavo.cli.admin_port import AdminUrl, ask
from octavo.cli.inspect_output import byte_progress
from octavo.cli.options import AsJson
from octavo.cli.output import emit_json, emit_table, say

if TYPE_CHECKING:
    from octavo.inspect.folders import BookieFolders

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})
app.callback(invoke_without_command=True)(nodes.bookie)

Folders = Annotated[
    list[Path],
    typer.Argument(metavar="DIR…", help="The bookie's data folder, or all of its folders."),
]
Limit = Annotated[int, typer.Option("--limit", min=0, help="Rows shown; 0: all.")]


@app.command("sizes")
def sizes(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR…]", help="The bookie's data folder; or use --url."),
    ] = None,
    url: AdminUrl = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Bytes of each ledger on this bookie, from its folders or its admin port.

    \b
    Examples:
      octavo bookie sizes /var/lib/octavo/b1
      octavo bookie sizes --url http://127.0.0.1:9181 --limit 10
    """
    if not folders:
        found = ask(url, f"/ledgers?limit={limit or 1_000_000}")
        _show_sizes(found["ledgers"], found["ledger_count"], found["bytes"], as_json, limit=0)
        return
    from bookie.disk import RealDisk
    from octavo.inspect.sizes import ledger_sizes, log_paths

    disk, bookie = RealDisk(), _find(folders)
    total = sum(path.stat().st_size for path in map(Path, log_paths(disk, bookie)))
    with byte_progress("entry logs", total, hidden=as_json) as advance:
        every = [asdict(one) for one in ledger_sizes(disk, bookie, lambda _, size: advance(size))]
    stored = sum(one["stored_bytes"] for one in every)
    _show_sizes(every, len(every), stored, as_json, limit=limit)


def _show_sizes(
    every: list[dict[str, Any]], count: int, stored: int, as_json: bool, *, limit: int
) -> None:
    shown = every[:limit] if limit else every
    if as_json:
        for one in shown:
            emit_json(one)
        return
    names = [name for name in ("entries", "logs", "live_bytes") if shown and name in shown[0]]
    columns = ("ledger", "bytes", *(name.replace("_", " ") for name in names))
    rows = [
        (one["ledger_id"], one["stored_bytes"], *(one[name] for name in names)) for one in shown
    ]
    emit_table(columns, rows)
    more = f", {count - len(shown):,} not shown" if len(shown) < count else ""
    say(f"{count:,} ledgers, {stored:,} bytes in entry logs{more}")


@app.command("gc")
def gc(
    url: AdminUrl = None,
    start: Annotated[bool, typer.Option("--start", help="Begin a round now.")] = False,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Garbage collection of a running bookie: each entry log, and why it is kept.

    \b
    Examples:
      octavo bookie gc --url http://127.0.0.1:9181
      octavo bookie gc --url http://127.0.0.1:9181 --start
    """
    if start:
        answer = ask(url, "/gc", method="POST")
        if as_json:
            emit_json(answer)
        else:
            say("a round begins")
        return
    found = ask(url, f"/gc?limit={limit or 1_000_000}")
    if as_json:
        emit_json(found)
        return
    rows = [
        (
            one["log_id"],
            one["bytes"],
            one["live_bytes"],
            f"{one['live_ratio']:.0%}",
            one["action"],
            one["reason"],
        )
        for one in found.get("logs", [])
    ]
    emit_table(("log", "bytes", "live bytes", "live", "action", "why"), rows)
    total = found.get("total", {})
    say(
        f"{found.get('log_count', len(rows)):,} logs · {found.get('rounds', 0):,} rounds"
        f"{', one under way' if found.get('running') else ''} · "
        f"{total.get('logs_removed', 0):,} logs removed, {total.get('reclaimed_bytes', 0):,} bytes "
        f"given back, {total.get('copied_bytes', 0):,} copied · "
        f"{found.get('quarantined_ledgers', 0):,} ledgers in quarantine"
    )
    error = (found.get("last_rounds") or [{}])[0].get("metadata_error")
    if error:
        say(f"the last round could not prove any ledger gone: {error}")


@app.command("damage")
def damage(url: AdminUrl = None, limit: Limit = 50, as_json: AsJson = False) -> None:
    """What a running bookie found damaged on its disks. Exit code 1 when there is any.

    \b
    Example:
      octavo bookie damage --url http://127.0.0.1:9181
    """
    found = ask(url, "/damage")
    listed = found["damage"] if isinstance(found, dict) else found
    if as_json:
        for one in listed:
            emit_json(one)
    else:
        show_damage(listed, limit)
    if listed:
        raise typer.Exit(1)


def show_damage(listed: list[dict[str, Any]], limit: int) -> None:
    """A row for each finding."""
    shown = listed[:limit] if limit else listed
    rows = [
        (
            one["kind"],
            one["path"],
            one["offset"],
            one["length"],
            one["ledger_id"],
            _span(one["first"], one["last"]),
        )
        for one in shown
    ]
    if rows:
        emit_table(("damage", "file", "from byte", "bytes", "ledger", "entries"), rows)
    more = f", {len(listed) - len(shown):,} not shown" if len(shown) < len(listed) else ""
    say(f"{len(listed):,} damaged places{more}" if listed else "no damage known")


def _span(first: int | None, last: int | None) -> str:
    if first is None:
        return ""
    return f"{first}" if last in (None, first) else f"{first}–{last}"


@app.command("scrub")
def scrub(
    url: AdminUrl = None,
    start: Annotated[bool, typer.Option("--start", help="Begin a pass now.")] = False,
    as_json: AsJson = False,
) -> None:
    """Where the scrubber of a running bookie stands; it reads all entry logs back for damage.

    \b
    Example:
      octavo bookie scrub --url http://127.0.0.1:9181 --start
    """
    from octavo.cli.output import emit_fields

    answer = ask(url, "/scrub", method="POST" if start else "GET")
    if as_json or not isinstance(answer, dict):
        emit_json(answer)
    else:
        emit_fields({name.replace("_", " "): value for name, value in answer.items()})


def _find(folders: list[Path]) -> BookieFolders:
    """The bookie in these folders; says whose they are."""
    from bookie.disk import RealDisk
    from octavo.inspect.folders import find_folders

    found = find_folders(RealDisk(), [str(path) for path in folders])
    name = found.cookie.bookie_id if found.cookie is not None else "a bookie without a cookie"
    say(f"{name}: {', '.join(found.all)}")
    for path in found.missing:
        say(f"its cookie names {path}, which is not there")
    return found
