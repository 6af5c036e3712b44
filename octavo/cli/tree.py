"""The commands of `octavo`: each command's module and its line in `octavo --help`.

Imports take longer than most commands run: only the typed command's module is imported, and help
does not use rich.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    # typer contains its own copy of click, whose classes have no public names.
    from typer._click import Command, Context, HelpFormatter


class Place(NamedTuple):
    module: str
    name: str
    summary: str


COMMANDS = {
    "standalone": Place(
        "standalone",
        "standalone",
        "Run a whole cluster on this machine: metadata, three bookies, two brokers, in one folder.",
    ),
    "bookie": Place(
        "bookie", "app", "Run a bookie, which keeps ledgers on disk, or examine and repair one."
    ),
    "broker": Place("broker", "app", "Run a broker, which serves topics; list or drain brokers."),
    "zookeeper": Place(
        "nodes",
        "zookeeper",
        "Run a ZooKeeper server for development (needs Java; jars from PySpark or Debian).",
    ),
    "namespace": Place("namespace", "app", "Create, show, change, list and delete namespaces."),
    "topic": Place("topic", "app", "Create, list, describe, change and delete topics."),
    "subscription": Place(
        "subscription", "app", "List, show, move and delete subscriptions, and show their backlog."
    ),
    "publish": Place("publish", "publish", "Publish messages; end when all are durable."),
    "consume": Place(
        "consume", "consume", "Print messages of a subscription, with acks, or by a plain read."
    ),
    "stream": Place(
        "stream", "app", "Create, append to, read, close, fork and delete durable streams."
    ),
    "ledger": Place(
        "ledger", "app", "List, show, read, recover and delete ledgers; show their password."
    ),
    "bookies": Place(
        "bookies", "bookies", "List the bookies that are up, and the bookies that should be up."
    ),
    "certs": Place(
        "certs", "certs", "Make a certificate for development, and a CA at the first call."
    ),
    "keys": Place("keys", "app", "Make, list, rotate and forget the keys of encrypted namespaces."),
    "quota": Place("quota", "app", "Set, list, show and remove quotas of users and namespaces."),
    "schema": Place("schema", "app", "Register, list, show and check schemas of messages."),
    "security": Place(
        "security", "app", "Show whether this cluster is secured; secure or open it."
    ),
    "acl": Place("acl", "app", "Allow and deny: list rules, explain decisions, give roles."),
    "user": Place("user", "app", "Manage users: passwords, groups, API keys; disable and delete."),
    "token": Place("token", "app", "Make, inspect and revoke tokens."),
    "inspect": Place(
        "inspect", "app", "Show what a bookie's files contain, also while the bookie runs."
    ),
    "pipeline": Place("pipeline", "app", "Examine and move whole topics with Spark."),
    "demo": Place(
        "demo",
        "app",
        "Publish 336,776 real flights while a bookie and a broker are killed; account for each.",
    ),
}


class Group(TyperGroup):
    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write whole sentences: typer would cut them to one line."""
        with formatter.section("Commands"):
            formatter.write_dl(self.summaries(ctx))

    def summaries(self, ctx: Context) -> list[tuple[str, str]]:
        del ctx
        return [
            (name, one.get_short_help_str(limit=1000))
            for name, one in self.commands.items()
            if not one.hidden
        ]


class Commands(Group):
    """Imports a command's module when that command is asked for."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Imported()  # type: ignore[assignment]  # read, never written

    def list_commands(self, ctx: Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def summaries(self, ctx: Context) -> list[tuple[str, str]]:
        del ctx
        return [(name, place.summary) for name, place in COMMANDS.items()]


class _Imported(Mapping[str, "Command"]):
    def __getitem__(self, name: str) -> Command:
        place = COMMANDS[name]
        found = getattr(importlib.import_module(f"octavo.cli.{place.module}"), place.name)
        around = typer.Typer(rich_markup_mode=None)
        if isinstance(found, typer.Typer):
            around.add_typer(found, name=name, cls=Group)
        else:
            around.command(name)(found)
        return typer.main.get_group(around).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)
