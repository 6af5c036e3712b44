"""Parts of the data source API that Spark 4.0 or 4.1 lacks, under their newest names.

4.0 and 4.1 pass no limits to a Python source: an option that needs them is refused, and Spark never
sees the stand-ins. 4.0 passes Arrow batches to every writer that is a `DataSourceArrowWriter`, so
the stand-in for `DataSourceStreamArrowWriter` is both that and a writer of streams.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import datasource

read_limits = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether this Spark passes limits to a source, and tells it of `Trigger.AvailableNow`."""

if TYPE_CHECKING or read_limits:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        pass

    class ReadAllAvailable(ReadLimit):
        pass

    @dataclass
    class ReadMaxRows(ReadLimit):
        max_rows: int

    @dataclass
    class ReadMinRows(ReadLimit):
        min_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):
        max_bytes: int

    class SupportsTriggerAvailableNow:
        pass


if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(
        datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter
    ):
        pass


__all__ = [
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "read_limits",
]
