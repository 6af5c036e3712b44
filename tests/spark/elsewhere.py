"""A Spark of another kind, as a process: `python -m tests.spark.elsewhere KIND SERVICE TOPIC`.
KIND is `local-cluster` or `connect`. Prints JSON: the values read, and the number of executors
that read."""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession

from octavo.spark import register


def main() -> None:
    kind, service, topic = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("octavo elsewhere")
    if kind == "connect":
        builder = builder.remote("local[2]")
    else:
        builder = builder.master("local-cluster[2,1,1024]").config("spark.executor.memory", "512m")
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    spark = builder.getOrCreate()
    register(spark)
    frame = (
        spark.read.format("octavo")
        .options(service=service, subscribe=topic, minPartitions=4, columns="value")
        .load()
    )
    values = sorted(int(row.value) for row in frame.collect())
    executors = 1
    if kind != "connect":
        status = spark.sparkContext._jsc.sc().getExecutorMemoryStatus()
        executors = status.size() - 1
    print(json.dumps({"values": values, "executors": executors}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
