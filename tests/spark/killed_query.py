"""The query that a campaign of kills kills: `python -m tests.spark.killed_query SERVICE FOLDER
COMMIT [--drain]`. It copies a topic into another until it is killed; with `--drain` it reads the
present messages and ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ORIGIN, COPY = "origin", "copy"
ROWS_PER_BATCH = 400


def run(service: str, folder: Path, commit: str, *, drain: bool) -> None:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2,4]")
        .appName("octavo kills")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("FATAL")
    rows = (
        spark.readStream.format("octavo")
        .options(service=service, subscribe=ORIGIN, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", str(ROWS_PER_BATCH))
        .option("maxRecordsPerPartition", "150")
        .load()
        .select("key", "value")
    )
    writer = (
        rows.writeStream.format("octavo")
        .options(service=service, topic=COPY, commit=commit)
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    query = (writer.trigger(availableNow=True) if drain else writer).start()
    query.awaitTermination()


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), sys.argv[3], drain="--drain" in sys.argv)
