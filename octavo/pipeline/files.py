"""Files as Spark itself sees them, through Hadoop: local, HDFS, S3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class File(NamedTuple):
    """A file, and what changes when somebody writes it anew."""

    path: str
    bytes: int
    changed_ms: int


def find_files(spark: SparkSession, path: str) -> list[File]:
    """The file, all files below the folder, or those that the pattern fits; sorted.

    Names that begin with `_` or `.` are no data, as everywhere in Spark.
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


def exists(spark: SparkSession, path: str) -> bool:
    """Whether there is a file or folder."""
    system, found = _path(spark, path)
    return bool(system.exists(found))


def listing(spark: SparkSession, path: str) -> list[str]:
    """The names in a folder."""
    system, found = _path(spark, path)
    return [str(one.getPath().getName()) for one in system.listStatus(found)]


def read_text(spark: SparkSession, path: str) -> str:
    """A small file."""
    system, found = _path(spark, path)
    jvm: Any = spark._jvm
    stream = system.open(found)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """A small file, in place of one that is there."""
    system, found = _path(spark, path)
    out = system.create(found, True)
    try:
        out.write(bytearray(text.encode()))
    finally:
        out.close()


def _path(spark: SparkSession, path: str) -> tuple[Any, Any]:
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext._jsc
    found = jvm.org.apache.hadoop.fs.Path(path)
    return found.getFileSystem(context.hadoopConfiguration()), found
