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

__all__ = ["register"]


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


if not __debug__:  # tasks write ledgers, which rely on assertions
    raise RuntimeError(MISSING)
