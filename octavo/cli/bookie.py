"""`octavo bookie`: start, examine and repair a bookie.

Commands that write lock the folders; commands that only read also work on a running bookie.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli import bookie_forget, nodes
from octavo.cli.admin_port import ask
from octavo.cli.inspect_output import byte_progress, short
from octavo.cli.options import AdminUrl, AsJson, BadOption
from octavo.cli.output import emit_json, emit_table, say

if TYPE_CHECKING:
    from octavo.bookie.disk.files import RealDisk
    from octavo.inspect.folders import BookieFolders

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})
app.callback(invoke_without_command=True)(nodes.bookie)
app.command("forget")(bookie_forget.forget)

Folders = Annotated[
    list[Path],
    typer.Argument(metavar="DIR", help="The bookie's data folder, or all of its folders."),
]
Limit = Annotated[int, typer.Option("--limit", min=0, help="Rows shown; 0: all.")]


@app.command("sizes")
def sizes(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR", help="The bookie's data folder; or use --url."),
    ] = None,
    url: AdminUrl = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Show the bytes of each ledger on this bookie, from its folders or its admin port.

    \b
    Examples:
      octavo bookie sizes /var/lib/octavo/b1
      octavo bookie sizes --url http://127.0.0.1:9181 --limit 10
    """
    if not folders:
        found = ask(url, f"/ledgers?limit={limit or 1_000_000}")
        _show_sizes(found["ledgers"], found["ledger_count"], found["bytes"], as_json, limit=0)
        return
    from octavo.bookie.disk.files import RealDisk
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


@app.command("check")
def check(folders: Folders, limit: Limit = 50, as_json: AsJson = False) -> None:
    """Check all files of a stopped bookie, and whether they agree. Exit code 1 on damage.

    \b
    Example:
      octavo bookie check /var/lib/octavo/b1
    """
    from octavo.bookie.disk.files import RealDisk
    from octavo.inspect.check import check_bookie

    disk, bookie = RealDisk(), _find(folders)
    with _alone(disk, bookie), byte_progress("reading", bookie.bytes, hidden=as_json) as advance:
        found = check_bookie(disk, bookie, advance)
    listed, report = [one.as_json() for one in found.damage], found.report
    if as_json:
        plain = {**report.as_json(), "refusals": found.problems, "damage": listed}
        emit_json({**plain, "ok": found.ok})
    else:
        say(
            f"{report.ledgers:,} ledgers · {report.log_records:,} runs, {report.log_bytes:,} bytes "
            f"of entry logs · {report.index_entries:,} entries in {report.index_runs:,} records of "
            f"the index · {report.journal_blocks:,} journal blocks after the mark"
        )
        for text in (*report.notes, *found.problems):
            say(text)
        show_damage(listed, limit)
    if not found.ok:
        raise typer.Exit(1)


@app.command("rebuild-index")
def rebuild_index(folders: Folders, as_json: AsJson = False) -> None:
    """Rebuild the index of a stopped bookie from its entry logs; then replace the old index.

    Run it as the user that runs the bookie.

    \b
    Example:
      octavo bookie rebuild-index /var/lib/octavo/b1
    """
    from octavo.bookie.disk.files import RealDisk
    from octavo.bookie.startup.index_rebuild import rebuild_index as rebuild
    from octavo.inspect.sizes import log_paths
    from octavo.logs import configure_logging

    configure_logging(form="console", level="error")
    disk, bookie = RealDisk(), _find(folders)
    _same_user(bookie)
    total = sum(path.stat().st_size for path in map(Path, log_paths(disk, bookie)))
    with _alone(disk, bookie), byte_progress("entry logs", total, hidden=as_json) as advance:
        done = rebuild(disk, bookie.ledgers, advance)
    if as_json:
        emit_json({"runs": done.runs, "logs": done.logs, "covered": list(done.covered)})
    else:
        say(
            f"{done.runs:,} runs of {done.logs:,} entry logs indexed, up to byte "
            f"{done.covered[1]:,} of log {done.covered[0]}"
        )


@contextmanager
def _alone(disk: RealDisk, bookie: BookieFolders) -> Iterator[None]:
    from octavo.bookie.ledgers.cookies import FolderUnusable, lock_folders
    from octavo.inspect.folders import NoBookieHere

    if not bookie.ledgers:
        raise NoBookieHere(f"{', '.join(bookie.all)}: there are neither entry logs nor an index")
    if bookie.missing:
        raise NoBookieHere(
            f"folder {bookie.missing[0]}, which the cookie names, is not there: mount it first"
        )
    if bookie.running is not None:
        raise FolderUnusable(
            f"{bookie.all[0]} is held by process {bookie.running}, which runs this bookie: stop it "
            "first"
        )
    locks = lock_folders(disk, bookie.all)
    try:
        yield
    finally:
        for lock in locks:
            lock.close()


def _same_user(bookie: BookieFolders) -> None:
    """Raise `BadOption` if another user runs this: the bookie could not open its new files."""
    owner, me = Path(bookie.ledgers[0]).stat().st_uid if bookie.ledgers else 0, os.geteuid()
    if bookie.ledgers and owner != me:
        raise BadOption(
            f"{bookie.ledgers[0]} belongs to user {owner}, this is user {me}: run it as the user "
            "that runs the bookie, or the bookie cannot open the new files"
        )


@app.command("gc")
def gc(
    url: AdminUrl = None,
    start: Annotated[bool, typer.Option("--start", help="Begin a round now.")] = False,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Show garbage collection of a running bookie: each entry log, and why it is kept.

    \b
    Example:
      octavo bookie gc --url http://127.0.0.1:9181
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
    if not found.get("rounds"):
        say("no round since the start; --start begins one")
        return
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
    """Show the damage that a running bookie found on its disks. Exit code 1 if there is any.

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
    shown = listed[:limit] if limit else listed
    rows = [
        (
            one["kind"],
            short(one["path"]),
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
    count = "1 damaged place" if len(listed) == 1 else f"{len(listed):,} damaged places"
    say(f"{count}{more}" if listed else "no damage found")


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
    """Show the progress of a running bookie's scrubber, which searches entry logs for damage.

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


@app.command("copies")
def copies(
    url: AdminUrl = None,
    start: Annotated[bool, typer.Option("--start", help="Look at all ledgers now.")] = False,
    compare: Annotated[
        int | None,
        typer.Option("--compare", min=0, metavar="LEDGER", help="Compare all copies of a ledger."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the copies that a running bookie has fetched, and the ledgers that are not complete.

    With --compare it compares its copies of a ledger with all others, and replaces its own copy if
    most others prove it wrong.

    \b
    Example:
      octavo bookie copies --url http://127.0.0.1:9181
    """
    from octavo.cli.output import emit_fields

    path = "/copies" if compare is None else f"/copies?ledger={compare}"
    answer = ask(url, path, method="POST" if start or compare is not None else "GET")
    if as_json or not isinstance(answer, dict):
        emit_json(answer)
        return
    listed = answer.pop("ledgers")
    listed += [
        {"ledger": one["ledger"], "reason": f"copies of entry {one['entry']}: {one['reason']}"}
        for one in answer.pop("disagreeing", [])
    ]
    emit_fields({name.replace("_", " "): value for name, value in answer.items()})
    if listed:
        emit_table(("ledger", "reason"), [(one["ledger"], one["reason"]) for one in listed])


def _find(folders: list[Path]) -> BookieFolders:
    from octavo.bookie.disk.files import RealDisk
    from octavo.inspect.folders import find_folders

    found = find_folders(RealDisk(), [str(path) for path in folders])
    name = found.cookie.bookie_id if found.cookie is not None else "a bookie without a cookie"
    say(f"{name}: {', '.join(found.all)}")
    for path in found.missing:
        say(f"its cookie names {path}, which is not there")
    return found
