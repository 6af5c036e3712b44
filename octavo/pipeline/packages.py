"""Connectors that Spark does not include: Maven packages that the user has to give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from octavo.pipeline.session import SparkMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Package(NamedTuple):
    what: str
    known_by: str
    newest: Mapping[str, str]
    """The newest coordinates for each Spark, `4.0` to `4.3`; `{scala}` is Scala's version. A Spark
    without a package is missing.
    """


KAFKA = Package(
    "reading from Kafka",
    "org.apache.spark.sql.kafka010.KafkaSourceProvider",
    {
        "4.0": "org.apache.spark:spark-sql-kafka-0-10_{scala}:4.0.4",
        "4.1": "org.apache.spark:spark-sql-kafka-0-10_{scala}:4.1.3",
        "4.2": "org.apache.spark:spark-sql-kafka-0-10_{scala}:4.2.0",
        "4.3": "org.apache.spark:spark-sql-kafka-0-10_{scala}:4.2.0",  # none for 4.3 yet
    },
)


def needed(spark: SparkSession, package: Package) -> None:
    if not is_there(spark, package.known_by):
        raise SparkMissing(missing(package, spark.version, _scala(spark)))


def missing(package: Package, spark: str, scala: str) -> str:
    minor = ".".join(spark.split(".")[:2])
    if minor not in package.newest:
        known = sorted(package.newest, key=lambda one: [int(part) for part in one.split(".")])
        return (
            f"{package.what} needs a package, and none for Spark {minor} was known when this "
            f"version of Octavo was made; there are for Spark {', '.join(known)}. Use that: "
            f"pip install 'pyspark=={known[-1]}.*'. Or give a package of your Spark with --conf "
            "spark.jars.packages=…"
        )
    coordinates = package.newest[minor].format(scala=scala)
    return (
        f"{package.what} needs the package {coordinates}, which this Spark {spark} does not have: "
        f"give --conf spark.jars.packages={coordinates}, or --packages to spark-submit"
    )


def is_there(spark: SparkSession, name: str) -> bool:
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
