"""Options that several commands share, and how their values are parsed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from octavo.client.trust import VARIABLES
from octavo.client.wire import DefaultUrl
from octavo.credentials import TOKEN, TOKEN_FILE
from octavo.protocol.codes import OctavoError
from octavo.standalone.cluster_file import ClusterFile, read_cluster

DATA_FOLDER = Path("octavo-data")
BROKER_URL = DefaultUrl("http://127.0.0.1:8080")


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="OCTAVO_URL",
        help=f"A broker's URL; several with commas. Default: {BROKER_URL}",
        show_default=False,
    ),
]
ServiceUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="OCTAVO_URL",
        help=f"A broker's URL, or the metadata store's (zk://…, file:///…). Default: {BROKER_URL}",
        show_default=False,
    ),
]
AdminUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="OCTAVO_ADMIN_URL",
        help="A bookie's admin port, e.g. http://127.0.0.1:9181 (its setting admin_port).",
        show_default=False,
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        envvar="OCTAVO_DATA",
        help="The folder of a standalone cluster, where its addresses are found.",
        show_default=False,
    ),
]
Metadata = Annotated[
    str | None,
    typer.Option(
        "--metadata",
        envvar="OCTAVO_METADATA_URL",
        help="The metadata store: zk://host:port[,…]/chroot or file:///path/metadata.db.",
        show_default=False,
    ),
]


TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="topic or namespace/topic")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for scripts instead of a table.")]


Host = Annotated[str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.")]
Port = Annotated[
    int | None,
    typer.Option(help="0 takes any free port. Default: 8080 of a broker, 3181 of a bookie."),
]
NodeName = Annotated[str | None, typer.Option(help="Name; default host:port.")]
Config = Annotated[
    Path | None,
    typer.Option("--config", envvar="OCTAVO_CONFIG", help="A TOML settings file."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other setting; may be repeated."),
]


Topics = Annotated[
    str | None,
    typer.Argument(metavar="[TOPICS]", help="topic or namespace/topic; several with commas."),
]
Every = Annotated[bool, typer.Option("--all", help="All topics.")]
Master = Annotated[
    str | None,
    typer.Option(help="Spark's master, e.g. spark://host:7077. Default: here, on all cores."),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Read all and check it; write nothing.")]
Once = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="NAME",
        help="Do the job once under this name: letters, digits, - and _. Default: made from the "
        "job's options.",
        show_default=False,
    ),
]
BytesPerS = Annotated[
    int | None,
    typer.Option(min=1, help="Bytes a second for all tasks together. Default: no bound."),
]
EveryS = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        help="Continue until interrupted, with a batch every SECONDS. Default: a single batch.",
    ),
]
RowsPerBatch = Annotated[int, typer.Option(min=1, help="Rows in a batch, at most.")]


class BadOption(OctavoError):
    name = "bad-option"


def broker_urls(url: str | None, data: Path | None) -> list[str]:
    """Return `--url`, else the brokers of the cluster in `--data`, else the default port."""
    if url:
        return [part.strip() for part in url.split(",") if part.strip()]
    if data is not None:
        return _known(data).urls
    return [BROKER_URL]


def metadata_url(metadata: str | None, data: Path | None) -> str:
    """Return `--metadata`, else the store of the standalone cluster in `--data` or here."""
    if metadata:
        return metadata
    if data is None and not (DATA_FOLDER / "cluster.json").exists():
        raise BadOption(
            "which cluster? name its metadata store with --metadata URL, or a standalone "
            "cluster's folder with --data DIR"
        )
    return _known(data or DATA_FOLDER).metadata_url


def _known(folder: Path) -> ClusterFile:
    """Read a standalone cluster's file.

    Sets the environment variables of its TLS files and its administrator's token for this command.
    """
    cluster = read_cluster(folder)
    if not any(name in os.environ for name in VARIABLES):
        os.environ.update(zip(VARIABLES, cluster.shown, strict=False))
    if cluster.token_file and TOKEN not in os.environ:
        os.environ.setdefault(TOKEN_FILE, cluster.token_file)
    return cluster


def named_values(option: str, pairs: list[str] | None) -> dict[str, str]:
    found = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise BadOption(f"{option} {pair!r}: write {option} name=value")
        found[name] = value
    return found


def parse_sets(pairs: list[str] | None) -> dict[str, str]:
    """Turn dashes in names into underscores. Raises `BadOption`."""
    found = named_values("--set", pairs)
    return {name.strip().replace("-", "_"): value for name, value in found.items()}
