"""The demo's table: offloaded objects, read by DuckDB and Polars, and compared with pandas."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from octavo.client.types import TopicName
from octavo.pipeline.offload import OffloadOptions, offload
from octavo.pipeline.offload_rules import OffloadPolicy
from octavo.pipeline.runner import Run, selection_of
from octavo.pipeline.table import place_of
from octavo.pipeline.table_iceberg import catalog_of

Figures = dict[str, tuple[int, float]]
"""Flights and miles of each carrier."""
NEEDED = ("pyiceberg", "duckdb", "polars")
_FLIGHTS = "flights"


def missing() -> list[str]:
    """Return the needed packages that are not installed."""
    return [name for name in NEEDED if find_spec(name) is None]


def as_table(run: Run, folder: Path) -> Any:
    """Offload the flights into `folder`; return the Iceberg table of the objects."""
    place = place_of(TopicName.of(_FLIGHTS), str(folder), None, None, {})
    options = OffloadOptions(
        selection_of(_FLIGHTS), folder.as_uri(), OffloadPolicy(), place_of=lambda _: place
    )
    offload(run, options)
    return catalog_of(place).load_table((place.namespace, place.name))


def by_duckdb(table: Any) -> Figures:
    import duckdb

    files = [one.file.file_path.removeprefix("file://") for one in table.scan().plan_files()]
    found = duckdb.execute(
        "select f.carrier, count(*), sum(f.distance) from (select from_json(decode(value), "
        """'{"carrier": "VARCHAR", "distance": "DOUBLE"}') as f from read_parquet(?)) """
        "where f.carrier is not null group by 1",
        [files],
    ).fetchall()
    return {carrier: (count, miles) for carrier, count, miles in found}


def by_polars(table: Any) -> Figures:
    import polars as pl

    text = pl.col("value").cast(pl.String)
    found = (
        pl.scan_iceberg(table)
        .select(
            carrier=text.str.json_path_match("$.carrier"),
            miles=text.str.json_path_match("$.distance").cast(pl.Float64),
        )
        .filter(pl.col("carrier").is_not_null())
        .group_by("carrier")
        .agg(pl.len(), pl.col("miles").sum())
        .collect()
    )
    return {carrier: (count, miles) for carrier, count, miles in found.rows()}


def by_pandas(tables: Path) -> Figures:
    """Return the figures of the CSV file that was ingested."""
    import pandas as pd

    every = pd.read_csv(tables / f"{_FLIGHTS}.csv", usecols=["carrier", "distance"])
    found = every.groupby("carrier")["distance"].agg(["count", "sum"])
    return {str(name): (int(row["count"]), float(row["sum"])) for name, row in found.iterrows()}
