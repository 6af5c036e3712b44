"""Options that several commands share, and how they find a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octavo.protocol.codes import OctavoError
from octavo.standalone.cluster_file import read_cluster

DATA_FOLDER = Path("octavo-data")
BROKER_URL = "http://127.0.0.1:8080"

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="OCTAVO_URL",
        help=f"A broker's URL; several with commas. Default: {BROKER_URL}",
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
AsJson = Annotated[bool, typer.Option("--json", help="JSON for scripts instead of a table.")]
Config = Annotated[
    Path | None,
    typer.Option("--config", envvar="OCTAVO_CONFIG", help="A TOML settings file."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other setting; may be repeated."),
]


class BadOption(OctavoError):
    """An option whose value cannot be understood."""

    name = "bad-option"


def broker_urls(url: str | None, data: Path | None) -> list[str]:
    """Where brokers listen: `--url`, else the cluster in `--data`, else the default port."""
    if url:
        return [part.strip() for part in url.split(",") if part.strip()]
    if data is not None:
        return read_cluster(data).urls
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
    return read_cluster(data or DATA_FOLDER).metadata_url


def parse_sets(pairs: list[str] | None) -> dict[str, str]:
    """`--set name=value …`. Raises `BadOption`."""
    found: dict[str, str] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise BadOption(f"--set {pair!r}: write --set name=value")
        found[name.strip().replace("-", "_")] = value
    return found
