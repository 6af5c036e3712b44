"""Options that several commands share, each typed and worded once, and what their values mean."""

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

# ---- which cluster

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
        help="The folder of a standalone cluster: says where it listens.",
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

# ---- what of it, and how

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="topic or namespace/topic")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for scripts instead of a table.")]

# ---- a process

Host = Annotated[str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.")]
Port = Annotated[
    int | None,
    typer.Option(help="0 takes any free one. Default: 8080 of a broker, 3181 of a bookie."),
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

# ---- a job in Spark

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
        help="Do it once under this name: letters, digits, - and _. Default: made of what is done.",
        show_default=False,
    ),
]
BytesPerS = Annotated[
    int | None, typer.Option(min=1, help="Read no faster, all tasks together. Default: no bound.")
]
EveryS = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        help="Go on until interrupted, a batch in so many seconds. Default: once, then end.",
    ),
]
RowsPerBatch = Annotated[int, typer.Option(min=1, help="Rows in a batch, at most.")]


class BadOption(OctavoError):
    """An option whose value cannot be understood."""

    name = "bad-option"


def broker_urls(url: str | None, data: Path | None) -> list[str]:
    """Where brokers listen: `--url`, else the cluster in `--data`, else the default port."""
    if url:
        return [part.strip() for part in url.split(",") if part.strip()]
    if data is not None:
        return _known(data).urls
    return [BROKER_URL]


def metadata_url(metadata: str | None, data: Path | None) -> str:
    """The metadata store: `--metadata`, else the standalone cluster in `--data` or here."""
    if metadata:
        return metadata
    if data is None and not (DATA_FOLDER / "cluster.json").exists():
        raise BadOption(
            "which cluster? name its metadata store with --metadata URL, or a standalone "
            "cluster's folder with --data DIR"
        )
    return _known(data or DATA_FOLDER).metadata_url


def _known(folder: Path) -> ClusterFile:
    """A standalone cluster. What its TLS needs, and the file of its administrator's token, is set
    for all that this command opens, unless the environment says otherwise."""
    cluster = read_cluster(folder)
    if not any(name in os.environ for name in VARIABLES):
        os.environ.update(zip(VARIABLES, cluster.shown, strict=False))
    if cluster.token_file and TOKEN not in os.environ:
        os.environ.setdefault(TOKEN_FILE, cluster.token_file)
    return cluster


def named_values(option: str, pairs: list[str] | None) -> dict[str, str]:
    """`NAME=VALUE …` of an option that may be repeated. Raises `BadOption`."""
    found = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise BadOption(f"{option} {pair!r}: write {option} name=value")
        found[name] = value
    return found


def parse_sets(pairs: list[str] | None) -> dict[str, str]:
    """`--set name=value …`, the names as settings have them. Raises `BadOption`."""
    found = named_values("--set", pairs)
    return {name.strip().replace("-", "_"): value for name, value in found.items()}
