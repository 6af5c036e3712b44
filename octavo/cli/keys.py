"""`octavo keys`: the key file of encrypted namespaces, and the uses of each key.

Keys are never printed. Processes notice a changed file within half a second.
"""

from __future__ import annotations

import secrets
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.options import AsJson, BadOption, Data, Metadata, Yes, metadata_url
from octavo.cli.output import emit_json, emit_table, say

if TYPE_CHECKING:
    from octavo.ledger.client import LedgerClient
    from octavo.rewrap import Rewrapped

app = typer.Typer(
    help="Make, list, rotate and forget the keys of encrypted namespaces.", no_args_is_help=True
)

Namespace = Annotated[str, typer.Argument(metavar="NAMESPACE", help="A namespace's name.")]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--file",
        envvar="OCTAVO_KEYS_FILE",
        help="The key file (setting keys.file).",
        show_default=False,
    ),
]


def _path(file: Path | None) -> Path:
    if file is None:
        raise BadOption("which key file? give --file, or set OCTAVO_KEYS_FILE")
    return file


@app.command()
def add(namespace: Namespace, file: KeyFile = None) -> None:
    """Make a new key for a namespace: new ledgers use it, older keys stay for older ledgers.

    Creates the file if needed. Make the same change on every machine, and keep a copy of the file:
    without it the data are lost.

    \b
    Example:
      octavo keys add payments --file /etc/octavo/keys
    """
    from octavo.keys import change_text
    from octavo.protocol.encrypted import KEY_BYTES
    from octavo.protocol.names import NAME_RULE, is_name
    from octavo.security.keys.key_file import NamespaceKey, parse, with_key

    path = _path(file)
    if not is_name(namespace):
        raise BadOption(f"namespace {namespace!r}: {NAME_RULE}")
    key_id = f"k{datetime.now(UTC):%Y%m%d}-{secrets.token_hex(4)}"
    made = NamespaceKey(namespace, key_id, secrets.token_bytes(KEY_BYTES))

    def change(text: str) -> str:
        parse(f"key file {path}", text)  # refuses to overwrite another kind of file
        return with_key(text, made)

    change_text(path, change)
    say(f"new ledgers of namespace {namespace} use key {key_id} from now on")


@app.command("list")
def list_keys(
    file: KeyFile = None, metadata: Metadata = None, data: Data = None, as_json: AsJson = False
) -> None:
    """List the file's keys by their ids; with a cluster, also how many ledgers need each.

    \b
    Example:
      octavo keys list --file /etc/octavo/keys
    """
    from octavo.keys import file_keys

    names = file_keys(_path(file)).names()
    in_use: Counter[tuple[str, str]] | None = None
    if metadata is not None or data is not None:
        from octavo.cli.ledger import with_ledgers
        from octavo.rewrap import needed

        async def count(ledgers: LedgerClient) -> Counter[tuple[str, str]]:
            return await needed(ledgers.store)

        in_use = with_ledgers(metadata_url(metadata, data), count)
    first = dict(reversed(names))
    rows = [
        (namespace, key_id, "wraps" if first[namespace] == key_id else "unwraps")
        for namespace, key_id in names
    ]
    rows += [(*name, "not in the file") for name in sorted(in_use or ()) if name not in names]
    if as_json:
        for namespace, key_id, state in rows:
            fields: dict[str, object] = {"namespace": namespace, "key_id": key_id, "state": state}
            if in_use is not None:
                fields["ledgers"] = in_use[namespace, key_id]
            emit_json(fields)
    elif in_use is None:
        emit_table(("namespace", "key", "state"), rows)
    else:
        emit_table(
            ("namespace", "key", "state", "ledgers"),
            [(*row, in_use[row[0], row[1]]) for row in rows],
        )


@app.command()
def forget(
    namespace: Namespace,
    key: Annotated[str | None, typer.Option(help="Only this key of the namespace.")] = None,
    file: KeyFile = None,
    yes: Yes = False,
) -> None:
    """Remove a namespace's keys from the file: within a second its messages are unreadable.

    Only a copy of the file restores them. Change the copies on other machines too.

    \b
    Example:
      octavo keys forget payments --file /etc/octavo/keys
    """
    from octavo.keys import change_text, file_keys
    from octavo.security.keys.key_file import without_keys

    path = _path(file)
    names = file_keys(path).names()
    gone = [name for name in names if name[0] == namespace and key in (None, name[1])]
    if not gone:
        of = f"namespace {namespace}" if key is None else f"key {key} of namespace {namespace}"
        raise BadOption(f"key file {path} has no {of}; `octavo keys list` shows what it has")
    if not yes:
        what = ", ".join(key_id for _, key_id in gone)
        typer.confirm(
            f"Forget {what}? Messages that only they open are lost for ever.", abort=True, err=True
        )
    change_text(path, lambda text: without_keys(text, namespace, key))
    say(f"forgot {len(gone)} keys of namespace {namespace}")


@app.command()
def rewrap(
    namespace: Annotated[str | None, typer.Argument(help="Only this namespace.")] = None,
    metadata: Metadata = None,
    data: Data = None,
) -> None:
    """Wrap the ledgers' data keys again, with the current key of their namespace.

    Afterwards, older keys may be forgotten. Keys come from keys.file or keys.service
    (OCTAVO_KEYS_…).

    \b
    Example:
      OCTAVO_KEYS_FILE=/etc/octavo/keys octavo keys rewrap payments --data ./octavo-data
    """
    from octavo.cli.ledger import with_ledgers
    from octavo.rewrap import rewrap as rewrap_all

    async def work(ledgers: LedgerClient) -> Rewrapped:
        if ledgers.keys is None:
            raise BadOption("which keys? set OCTAVO_KEYS_FILE or OCTAVO_KEYS_SERVICE")
        return await rewrap_all(ledgers.store, ledgers.keys, namespace)

    found = with_ledgers(metadata_url(metadata, data), work)
    say(f"{found.changed:,} data keys wrapped again, {found.unchanged:,} left as they were")
