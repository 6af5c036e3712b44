"""The Spark session of a job: the session of `spark-submit`, or a new one in this process."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.protocol.codes import OctavoError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
_LOCAL = "local[*]"
_VERSION = re.compile(r'version "(\d+)')


class SparkMissing(OctavoError):
    name = "spark-missing"


@dataclass(frozen=True)
class SparkOptions:
    """`master` None: in this process."""

    master: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


def check_packages() -> None:
    for name in ("pyspark", "pyarrow", "pandas"):
        if importlib.util.find_spec(name) is None:
            raise SparkMissing(
                f"jobs need {name}, which is not installed: pip install 'octavo[spark]', and have "
                f"Java {JAVA_MIN} or newer"
            )


def check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME is {home}" if home else "no java on the PATH, JAVA_HOME not set"
        raise SparkMissing(f"jobs need Java {JAVA_MIN} or newer: {where}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = _VERSION.search(said)
    if found is not None and int(found[1]) < JAVA_MIN:
        raise SparkMissing(f"jobs need Java {JAVA_MIN} or newer; {java} is Java {found[1]}")


@contextmanager
def session(job: str, options: SparkOptions) -> Iterator[SparkSession]:
    """Yield the session. It is stopped at the end, unless it was running before."""
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        check_packages()
        check_java()
    from pyspark.sql import SparkSession

    from octavo.spark import register

    running = _is_running()
    builder = SparkSession.builder.appName(f"octavo {job}")
    if not running and not submitted:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(options.master or _LOCAL).config("spark.ui.enabled", "false")
        builder = builder.config("spark.log.level", "ERROR")
        progress = str(sys.stderr.isatty()).lower()
        builder = builder.config("spark.ui.showConsoleProgress", progress)
        if options.master is None:
            # Spark's default of 200 partitions suits a cluster; here each costs more than its rows.
            builder = builder.config("spark.sql.shuffle.partitions", 2 * (os.cpu_count() or 1))
    for name, value in options.settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    # Spark's default, INT96, has no time zone, and few other readers support it.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    register(spark)
    try:
        yield spark
    finally:
        if not running:
            spark.stop()


def _is_running() -> bool:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None or bool(SparkContext._active_spark_context)
