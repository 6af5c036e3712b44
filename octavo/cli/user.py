"""`octavo user`: passwords and groups of users, in the metadata store."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.options import AsJson, BadOption, Data, Metadata, Yes, metadata_url
from octavo.cli.output import emit_json, emit_table, out, say
from octavo.cli.secrets import (
    Groups,
    PasswordFile,
    UserName,
    asked_password,
    group_names,
)
from octavo.cli.store import checked_store_url, with_store

if TYPE_CHECKING:
    from octavo.metadata.store import MetadataStore
    from octavo.security.identity.users import UserStore

app = typer.Typer(
    help="Manage users: passwords, groups, API keys; disable and delete.", no_args_is_help=True
)


def _users(store: MetadataStore) -> UserStore:
    from octavo.security.identity.users import UserStore

    return UserStore(store)


@app.command()
def create(
    name: UserName,
    groups: Groups = None,
    password_file: PasswordFile = None,
    no_password: Annotated[
        bool, typer.Option("--no-password", help="For a user with a token, key or certificate.")
    ] = False,
    metadata: Metadata = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Create a user. `octavo acl` gives rights.

    \b
    Example:
      octavo user create alice --data ./octavo-data                  (asks for the password)
    """
    from octavo.security.identity.passwords import checked_user
    from octavo.security.identity.users import scram_records

    if no_password and password_file is not None:
        raise BadOption("--no-password and --password-file: choose one")
    url, names = checked_store_url(metadata, data), group_names(groups)
    checked_user(name)
    password = None
    if not no_password:
        password = scram_records(asked_password(password_file), random.SystemRandom())
    with_store(url, lambda store: _users(store).create(name, password, names))
    _done(name, "created", as_json)


@app.command()
def password(
    name: UserName,
    password_file: PasswordFile = None,
    metadata: Metadata = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Give a user another password. Their tokens stay valid (see `octavo token revoke`).

    \b
    Example:
      octavo user password alice --data ./octavo-data
    """
    from octavo.security.identity.users import scram_records

    url = checked_store_url(metadata, data)
    with_store(url, lambda store: _users(store).get(name))  # fail before asking for a password
    records = scram_records(asked_password(password_file), random.SystemRandom())
    with_store(url, lambda store: _users(store).set_password(name, records))
    _done(name, "has another password", as_json)


@app.command()
def disable(
    name: UserName, metadata: Metadata = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Disable a user: passwords, tokens, keys and certificates are all refused.

    \b
    Example:
      octavo user disable alice --data ./octavo-data
    """
    with_store(metadata_url(metadata, data), lambda store: _users(store).set_disabled(name, True))
    _done(name, "disabled", as_json)


@app.command()
def enable(
    name: UserName, metadata: Metadata = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Enable a disabled user again.

    \b
    Example:
      octavo user enable alice --data ./octavo-data
    """
    with_store(metadata_url(metadata, data), lambda store: _users(store).set_disabled(name, False))
    _done(name, "enabled", as_json)


@app.command()
def delete(
    name: UserName,
    yes: Yes = False,
    metadata: Metadata = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Delete a user's password and groups, and revoke issued tokens. Rules stay.

    A certificate or foreign token still proves the name: to refuse these too, disable the user.

    \b
    Example:
      octavo user delete alice --data ./octavo-data
    """
    url = metadata_url(metadata, data)
    if not yes:
        typer.confirm(f"Delete the user {name}?", abort=True, err=True)
    with_store(url, lambda store: _users(store).delete(name, time.time()))
    _done(name, "deleted", as_json)


@app.command()
def groups(
    name: UserName,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUPS]", help="All groups of the user.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Remove the user from all groups.")] = False,
    metadata: Metadata = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Show a user's groups, or replace them.

    \b
    Example:
      octavo user groups alice --data ./octavo-data
    """
    if none and names:
        raise BadOption("--none and groups: choose one")
    wanted = group_names(names)

    async def work(store: MetadataStore) -> list[str]:
        users = _users(store)
        if wanted or none:
            await users.set_groups(name, wanted)
        return list((await users.get(name)).groups)

    found = with_store(metadata_url(metadata, data), work)
    if as_json:
        emit_json({"user": name, "groups": found})
    else:
        out.print("\n".join(found), markup=False)


@app.command("list")
def list_users(metadata: Metadata = None, data: Data = None, as_json: AsJson = False) -> None:
    """List the users.

    \b
    Example:
      octavo user list --data ./octavo-data
    """
    found = with_store(metadata_url(metadata, data), lambda store: _users(store).all())
    if as_json:
        emit_json(
            [
                {
                    "user": name,
                    "password": one.has_password,
                    "groups": list(one.groups),
                    "disabled": one.disabled,
                    "tokens_not_before_s": one.not_before_s,
                }
                for name, one in found.items()
            ]
        )
        return
    emit_table(
        ("user", "password", "groups", "disabled"),
        [(name, one.has_password, ", ".join(one.groups), one.disabled)
         for name, one in found.items()],
    )  # fmt: skip


@app.command()
def key(name: UserName, groups: Groups = None, as_json: AsJson = False) -> None:
    """Make an API key for a user. The key is shown once, and is not stored.

    Add its line to the file security.api_keys_file of every broker; to revoke it, remove the line.

    \b
    Example:
      octavo user key shop
    """
    from octavo.security.identity.api_keys import line_of, make_key
    from octavo.security.principal import checked_principal

    checked_principal(f"user:{name}", "user")
    if ":" in name:
        raise BadOption(f"{name!r}: the name of a user with an API key must not contain a colon")
    made = make_key(random.SystemRandom())
    line = line_of(name, made, group_names(groups))
    if as_json:
        emit_json({"user": name, "key": made, "line": line})
        return
    out.print(made, markup=False)
    say(f"for the file security.api_keys_file:\n{line}")


def _done(name: str, what: str, as_json: bool) -> None:
    if as_json:
        emit_json({"user": name, "done": what})
    else:
        say(f"{name} {what}")
