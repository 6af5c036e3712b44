"""Octavo for Apache Spark: reads and writes topics as DataFrames, in batches and as streams.

    from octavo.spark import register
    register(spark)
    spark.read.format("octavo").option("service", "http://127.0.0.1:8080") \\
        .option("subscribe", "flights").load()

Where the package is installed for Spark's Python, `format("octavo")` also works without `register`.
Docs: docs/spark.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.assertions import MISSING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register `format("octavo")` with this session. Needed where Spark's discovery is off.

    May be repeated, and called where Spark has found the source by itself.
    """
    from pyspark.errors import AnalysisException

    from octavo.spark.source import OctavoDataSource

    try:
        spark.dataSource.register(OctavoDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


if not __debug__:  # tasks write ledgers, which rely on assertions
    raise RuntimeError(MISSING)
