"""Read secrets from a prompt, a file or a pipe; never from an argument, which every user can
see.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli.options import BadOption

_SECRET_BYTES_MAX = 65_536

PasswordFile = Annotated[
    Path | None,
    typer.Option("--password-file", help="Holds the password ('-': stdin). Default: a prompt."),
]
Groups = Annotated[
    list[str] | None, typer.Option("--group", help="A group of the user; may be repeated.")
]
UserName = Annotated[str, typer.Argument(metavar="USER", help="A user's name, e.g. alice.")]


def read_secret(file: Path | None, what: str) -> str:
    """Read the first line of `file` (`-`, None: standard input). Raises `BadOption`, `OSError`."""
    if file is None or str(file) == "-":
        data = sys.stdin.buffer.read(_SECRET_BYTES_MAX)
    else:
        with file.open("rb") as opened:
            data = opened.read(_SECRET_BYTES_MAX)
    try:
        found = data.decode().split("\n", 1)[0].removesuffix("\r")
    except UnicodeDecodeError:
        raise BadOption(f"{what} must be UTF-8 text") from None
    if not found:
        raise BadOption(f"{what} is empty: it must be on the first line")
    return found


def asked_password(file: Path | None) -> str:
    if file is not None:
        return read_secret(file, "the password")
    found: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return found


def group_names(groups: list[str] | None) -> list[str]:
    from octavo.security.principal import checked_principal

    names = [one.removeprefix("group:") for one in groups or []]
    return [checked_principal(f"group:{one}", "group").partition(":")[2] for one in names]
