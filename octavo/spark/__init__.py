"""Octavo for Apache Spark: topics as DataFrames, in batches and as streams.

    from octavo.spark import register
    register(spark)
    spark.read.format("octavo").option("service", "http://127.0.0.1:8080") \\
        .option("subscribe", "flights").load()

With the package installed where Spark runs, `format("octavo")` is found without `register` too.
Docs: docs/spark.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.assertions import MISSING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("octavo")` known to this session; the sure way where discovery is off."""
    from octavo.spark.source import OctavoDataSource

    spark.dataSource.register(OctavoDataSource)


if not __debug__:  # tasks write ledgers
    raise RuntimeError(MISSING)
