"""`octavo pipeline table`: a topic as an Iceberg table, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.options import AsJson, BadOption, Data, ServiceUrl, named_values
from octavo.cli.output import say
from octavo.cli.pipeline_run import Where, finish

if TYPE_CHECKING:
    from octavo.pipeline.outcome import Outcome

Catalog = Annotated[
    str | None,
    typer.Option(
        help="A catalog's URL (http:// for REST, postgresql+psycopg2://, sqlite:///), or its "
        "name in PyIceberg's configuration. Default: a catalog in the folder --to."
    ),
]
CatalogOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A property of the catalog; may be repeated."),
]
RowsPerCommit = Annotated[
    int, typer.Option(min=1, max=10_000_000, help="The most rows of a commit.")
]
MibPerCommit = Annotated[
    int, typer.Option("--mib-per-commit", min=1, max=4_096, help="A commit ends at this size.")
]


def table(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="topic or namespace/topic")],
    to: Annotated[
        str, typer.Option("--to", help="A folder, or an object store's URL: s3://…, gs://….")
    ] = "",
    catalog: Catalog = None,
    catalog_option: CatalogOption = None,
    name: Annotated[
        str | None,
        typer.Option("--table", metavar="NAMESPACE.NAME", help="Default: the topic's own names."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with new messages until interrupted.")
    ] = False,
    every_s: Annotated[
        float, typer.Option(min=0.1, help="With --follow: the seconds from commit to commit.")
    ] = 30.0,
    rows_per_commit: RowsPerCommit = 1_000_000,
    mib_per_commit: MibPerCommit = 256,
    schema: Annotated[
        str | None,
        typer.Option(help="A JSON Schema's file, or infer: the value's fields become columns."),
    ] = None,
    bad_rows: Annotated[
        str, typer.Option(help="For a value that breaks the schema: suspend (stop), or skip it.")
    ] = "suspend",
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="Go on after messages that retention has removed."),
    ] = False,
    keep_snapshots_s: Annotated[
        float, typer.Option(min=0, help="Older snapshots of the table are expired.")
    ] = 3_600.0,
    url: ServiceUrl = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Write a topic into an Iceberg table, each message once; a repeated run adds new messages.

    \b
    Example:
      octavo pipeline table flights --to /data/lake --follow
    """

    if bad_rows not in ("suspend", "skip"):
        raise typer.BadParameter("--bad-rows: use suspend or skip")

    def work() -> Outcome:
        from octavo.pipeline.table_libraries import check_libraries

        check_libraries()
        from octavo.client.types import TopicName
        from octavo.pipeline.table import TableOptions, place_of, table
        from octavo.pipeline.table_rules import Upkeep

        found = TopicName.of(topic)
        options = TableOptions(
            str(found),
            place_of(found, to, catalog, name, named_values("--catalog-option", catalog_option)),
            schema=None if schema in (None, "infer") else _json_file(Path(schema or "")),
            infer=schema == "infer",
            bad_rows=bad_rows,
            follow=follow,
            every_s=every_s,
            rows_max=rows_per_commit,
            bytes_max=mib_per_commit * 2**20,
            fail_on_data_loss=not skip_lost,
            upkeep=Upkeep(keep_ms=round(keep_snapshots_s * 1000)),
            as_json=as_json,
        )
        return table(Where(url, data).service, options, say)

    finish(work, as_json=as_json)


def _json_file(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadOption(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise BadOption(f"{path}: a schema must be a JSON object")
    return found
