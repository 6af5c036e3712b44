"""Compute delays by hour and carrier twice: as a streaming query of Spark, and by pandas.

Both compute only sums of whole numbers, counts and maxima, so they must agree in every digit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LATE = "7 days"
"""How late a flight may arrive: partitions drift apart by up to 4 days 14 hours in these data."""
DELAYED_MIN = 15
SCHEMAS = {
    "flights": "carrier STRING, tailnum STRING, origin STRING, time_hour TIMESTAMP, "
    "dep_delay INT, arr_delay INT",
    "planes": "tailnum STRING, seats INT",
    "airlines": "carrier STRING, name STRING",
    "weather": "origin STRING, time_hour TIMESTAMP, wind_speed DOUBLE, precip DOUBLE",
}
_WHOLE = ("flights", "cancelled", "delayed", "in_rain")
_MAYBE = ("dep_delay_sum", "dep_delay_max", "arr_delay_sum", "seats")
COLUMNS = ("hour", "carrier", "airline", *_WHOLE, *_MAYBE, "wind_max")
RESULT_SCHEMA = {
    "type": "object",
    "required": ["hour", "carrier", "airline", *_WHOLE],
    "properties": {
        "hour": {"type": "string", "format": "date-time"},
        "carrier": {"type": "string"},
        "airline": {"type": "string"},
        **{name: {"type": "integer"} for name in (*_WHOLE, *_MAYBE)},
        "wind_max": {"type": "number"},
    },
}
Row = tuple[Any, ...]
"""In the order of `COLUMNS`; the hour as text, for example 2013-01-01T10:00:00+00:00."""


def typed(messages: DataFrame, topic: str) -> DataFrame:
    from pyspark.sql import functions as f

    value = f.from_json(f.col("value").cast("string"), SCHEMAS[topic])
    return messages.select(value.alias("row")).select("row.*")


def delays(flights: DataFrame, tables: dict[str, DataFrame]) -> DataFrame:
    """Write an hour's rows when all its flights must have arrived."""
    from pyspark.sql import functions as f

    planes = tables["planes"]
    airlines = tables["airlines"].withColumnRenamed("name", "airline")
    weather = tables["weather"].withColumnRenamed("time_hour", "measured")
    rows = (
        flights.withColumnRenamed("time_hour", "hour")
        .withWatermark("hour", LATE)
        .join(f.broadcast(planes), "tailnum", "left")
        .join(f.broadcast(airlines), "carrier", "left")
        .join(
            f.broadcast(weather.withColumnRenamed("origin", "at")),
            f.expr("origin = at AND hour = measured"),
            "left",
        )
    )
    return rows.groupBy("hour", "carrier", "airline").agg(
        f.count("*").alias("flights"),
        f.count_if(f.col("dep_delay").isNull()).alias("cancelled"),
        f.count_if(f.col("dep_delay") > DELAYED_MIN).alias("delayed"),
        f.count_if(f.col("precip") > 0).alias("in_rain"),
        f.sum("dep_delay").alias("dep_delay_sum"),
        f.max("dep_delay").alias("dep_delay_max"),
        f.sum("arr_delay").alias("arr_delay_sum"),
        f.sum("seats").alias("seats"),
        f.max("wind_speed").alias("wind_max"),
    )


def expected(folder: Path) -> list[Row]:
    import pandas as pd

    def table(name: str) -> Any:
        return pd.read_csv(folder / f"{name}.csv", float_precision="round_trip")

    rows = (
        table("flights")
        .merge(table("planes")[["tailnum", "seats"]], on="tailnum", how="left")
        .merge(table("airlines").rename(columns={"name": "airline"}), on="carrier", how="left")
        .merge(
            table("weather")[["origin", "time_hour", "wind_speed", "precip"]],
            on=["origin", "time_hour"],
            how="left",
        )
    )
    rows["hour"] = pd.to_datetime(rows["time_hour"])
    rows["cancelled"] = rows["dep_delay"].isna()
    rows["delayed"] = rows["dep_delay"] > DELAYED_MIN
    rows["in_rain"] = rows["precip"] > 0
    found = rows.groupby(["hour", "carrier", "airline"], as_index=False).agg(
        flights=("flight", "size"),
        cancelled=("cancelled", "sum"),
        delayed=("delayed", "sum"),
        in_rain=("in_rain", "sum"),
        dep_delay_sum=("dep_delay", lambda column: column.sum(min_count=1)),
        dep_delay_max=("dep_delay", "max"),
        arr_delay_sum=("arr_delay", lambda column: column.sum(min_count=1)),
        seats=("seats", lambda column: column.sum(min_count=1)),
        wind_max=("wind_speed", "max"),
    )
    return rows_of(found)


def exported(folder: Path) -> list[Row]:
    import pandas as pd

    files = sorted(folder.glob("export_batch=*/*.parquet"))
    if not files:
        return []
    return rows_of(pd.concat([pd.read_parquet(file) for file in files]))


def rows_of(table: Any) -> list[Row]:
    import pandas as pd

    hours = pd.to_datetime(table["hour"], utc=True).map(lambda hour: hour.isoformat())
    columns = [hours.tolist()]
    for name in COLUMNS[1:]:
        whole = name in _WHOLE or name in _MAYBE
        columns.append(
            [
                None if pd.isna(cell) else int(cell) if whole else cell
                for cell in table[name].tolist()
            ]
        )
    return list(zip(*columns, strict=True))


class Differences(NamedTuple):
    missing: list[Row]
    unexpected: list[Row]
    doubled: list[Row]
    altered: list[Row]


def differences(found: Iterable[Row], wanted: Iterable[Row]) -> Differences:
    every = list(found)
    counts = Counter(row[:2] for row in every)
    there = {row[:2]: row for row in every}
    right = {row[:2]: row for row in wanted}
    return Differences(
        missing=[row for key, row in right.items() if key not in there],
        unexpected=[row for key, row in there.items() if key not in right],
        doubled=[there[key] for key, count in counts.items() if count > 1],
        altered=[row for row in every if row != right.get(row[:2], row)],
    )
