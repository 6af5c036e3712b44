r"""Octavo for Apache Spark: reads and writes topics as DataFrames, in batches and as streams.

    from octavo.spark import register
    register(spark)
    spark.read.format("octavo").option("service", "http://127.0.0.1:8080") \
        .option("subscribe", "flights").load()

Where Spark's Python has the package, `register` is not needed. Docs: docs/spark.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.assertions import MISSING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["lag", "register"]


def register(spark: SparkSession) -> None:
    """Register `format("octavo")` with this session, where Spark's discovery is off. May be
    repeated.
    """
    from pyspark.errors import AnalysisException

    from octavo.spark.source import OctavoDataSource

    try:
        spark.dataSource.register(OctavoDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def lag(query: StreamingQuery) -> dict[tuple[str, int], int]:
    """Return how many messages of each partition (`namespace/topic`, number) the query has not
    read, as of its last progress report. Raises `LagUnknown` without one, and on Spark before 4.2.
    """
    from octavo.spark.progress import lag_of

    return lag_of(query.lastProgress)


if not __debug__:  # tasks write ledgers, which rely on assertions
    raise RuntimeError(MISSING)
