"""The Spark source `octavo`: batch and streaming reads and writes of topics.

Each process of Spark that plans or reads imports this module, and most need only the columns: so
the readers (readers.py) and the writers (sink.py), with the cluster's client, are imported where
they are used. That saves each process a second and more of start on a busy machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from octavo.spark.columns import checked_schema, options_in, schema_of, with_options
from octavo.spark.options import source_options, table_options, warn_if_empty

if TYPE_CHECKING:
    from octavo.spark.readers import OctavoReader, OctavoStreamReader, UnlimitedStreamReader
    from octavo.spark.sink import OctavoStreamWriter, OctavoWriter


class OctavoDataSource(DataSource):
    """The source of `spark.read.format("octavo")` and `spark.readStream.format("octavo")`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "octavo"

    def schema(self) -> StructType:
        """Return the columns of a query, or of a catalog table, that names none."""
        columns = schema_of(source_options(_without_ends(self.options), streaming=False))
        return with_options(columns, table_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> OctavoWriter:
        """Return the writer of a batch query's result."""
        from octavo.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite).with_target()

    def streamWriter(self, schema: StructType, overwrite: bool) -> OctavoStreamWriter:  # noqa: N802, ARG002
        """Return a stream's writer. In complete mode each batch appends the whole result, as in
        Kafka's sink."""
        from octavo.spark.sink import stream_writer

        return stream_writer(self.options, schema).with_target()

    def reader(self, schema: StructType) -> OctavoReader:
        """Return the reader of a batch query."""
        from octavo.spark.readers import OctavoReader

        options = source_options(options_in(schema) | dict(self.options), streaming=False)
        warn_if_empty(options)
        return OctavoReader(options, checked_schema(schema, options))

    def streamReader(  # noqa: N802
        self, schema: StructType
    ) -> OctavoStreamReader | UnlimitedStreamReader:
        """Return the reader of a stream."""
        from octavo.spark.readers import OctavoStreamReader, UnlimitedStreamReader
        from octavo.spark.versions import read_limits

        unlimited = None if read_limits else pyspark.__version__
        given = options_in(schema) | dict(self.options)
        options = source_options(given, streaming=True, unlimited=unlimited)
        of = OctavoStreamReader if read_limits else UnlimitedStreamReader
        return of(options, checked_schema(schema, options))


def _without_ends(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if not name.lower().startswith("ending")}
