"""Files as Spark sees them, through Hadoop: local, HDFS, S3.

A certainly local path is checked without Hadoop: an error is reported before Spark starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from octavo.pipeline.runner import Run

_ELSEWHERE = ("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_GATEWAY_PORT")
"""If any is set, a path without a scheme may be on HDFS."""
_PATTERN = frozenset("*?[]{}\\")


class File(NamedTuple):
    """Size and time of change tell whether it was rewritten."""

    path: str
    bytes: int
    changed_ms: int


def find_files(spark: SparkSession, path: str) -> list[File]:
    """Return the files at or below the path, or that match the pattern; sorted.

    As everywhere in Spark, names that begin with `_` or `.` are skipped.
    """
    system, found = _path(spark, path)
    every = []
    for status in system.globStatus(found) or ():
        # Hadoop lists a single file as itself.
        below = system.listFiles(status.getPath(), True)
        base = status.getPath().toUri().getPath()
        while below.hasNext():
            one = below.next()
            inside = one.getPath().toUri().getPath()[len(base) :]
            if not any(part.startswith(("_", ".")) for part in inside.split("/")):
                name = str(one.getPath().toString())
                every.append(File(name, int(one.getLen()), int(one.getModificationTime())))
    return sorted(every)


def missing(run: Run, paths: Iterable[str]) -> str | None:
    for path in paths:
        here = local(run, path)
        if here is not None and not _PATTERN.intersection(path) and not here.exists():
            return path
    return None


def exists(run: Run, path: str) -> bool:
    if (here := local(run, path)) is not None:
        return here.exists()
    system, found = _path(run.spark, path)
    return bool(system.exists(found))


def listing(run: Run, path: str) -> list[str]:
    if (here := local(run, path)) is not None:
        return [one.name for one in here.iterdir()]
    system, found = _path(run.spark, path)
    return [str(one.getPath().getName()) for one in system.listStatus(found)]


def read_text(run: Run, path: str) -> str:
    if (here := local(run, path)) is not None:
        return here.read_text()
    system, found = _path(run.spark, path)
    jvm: Any = run.spark._jvm
    stream = system.open(found)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def write_text(spark: SparkSession, path: str, text: str) -> None:
    system, found = _path(spark, path)
    out = system.create(found, True)
    try:
        out.write(bytearray(text.encode()))
    finally:
        out.close()


def local(run: Run, path: str) -> Path | None:
    """Return the path if it is certainly local; None if only Hadoop can tell."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    told = any(name in os.environ for name in _ELSEWHERE)
    if ":" in path or told or any("fs.default" in name for name in run.options.settings):
        return None
    return Path(path)


def _path(spark: SparkSession, path: str) -> tuple[Any, Any]:
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext._jsc
    found = jvm.org.apache.hadoop.fs.Path(path)
    return found.getFileSystem(context.hadoopConfiguration()), found
