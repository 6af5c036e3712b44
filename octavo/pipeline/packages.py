"""Connectors that Spark does not include: Maven packages that the user has to give.

A job checks for them before it starts, so that the error is one line, with the name and version to
give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from octavo.pipeline.session import SparkMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Package(NamedTuple):
    """A connector: what it does, a class to look for, and its Maven coordinates."""

    what: str
    known_by: str
    coordinates: str
    """With `{spark}` and `{scala}` in place of the versions."""


KAFKA = Package(
    "reading from Kafka",
    "org.apache.spark.sql.kafka010.KafkaSourceProvider",
    "org.apache.spark:spark-sql-kafka-0-10_{scala}:{spark}",
)


def needed(spark: SparkSession, package: Package) -> None:
    """Raise `SparkMissing` if the package is not there."""
    if not is_there(spark, package.known_by):
        raise SparkMissing(missing(package, spark.version, _scala(spark)))


def missing(package: Package, spark: str, scala: str) -> str:
    """Return the error message, with the versions of the session."""
    coordinates = package.coordinates.format(spark=spark, scala=scala)
    return (
        f"{package.what} needs the package {coordinates}, which this Spark {spark} does not have: "
        f"give --conf spark.jars.packages={coordinates}, or --packages to spark-submit"
    )


def is_there(spark: SparkSession, name: str) -> bool:
    """Return whether Spark finds this class."""
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(name, False, loader)
    except Py4JJavaError:
        return False
    return True


def _scala(spark: SparkSession) -> str:
    jvm: Any = spark._jvm
    return ".".join(str(jvm.scala.util.Properties.versionNumberString()).split(".")[:2])
