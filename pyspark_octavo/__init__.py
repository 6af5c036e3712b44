"""Found by Spark on its own: it looks into every module whose name begins with `pyspark_`."""

from octavo.spark.source import OctavoDataSource as DefaultSource

__all__ = ["DefaultSource"]
