"""An application for `spark-submit`, without any test code: `submitted.py SERVICE FROM TO`. It
copies a topic, and prints JSON: the number of rows, and from where driver and tasks imported
Octavo."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator

from pyspark.sql import SparkSession

from octavo import __file__ as octavo_file
from octavo.spark import register


def where(_: Iterable[int]) -> Iterator[tuple[str, str]]:
    import octavo

    yield octavo.__file__, os.getcwd()


def main() -> None:
    service, source, target = sys.argv[1:]
    spark = SparkSession.builder.appName("octavo submitted").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    rows = (
        spark.read.format("octavo")
        .options(service=service, subscribe=source, columns="key,value")
        .load()
    )
    rows.write.format("octavo").options(service=service, topic=target).mode("append").save()
    back = spark.read.format("octavo").options(service=service, subscribe=target).load()
    (task,) = spark.sparkContext.parallelize([0], 1).mapPartitions(where).collect()
    found = {"rows": back.count(), "driver": octavo_file, "task": task}
    print(json.dumps(found), flush=True)
    spark.stop()


main()
