"""The Spark source `octavo`: batch and streaming reads and writes of topics.

Readers and writers are imported where they are used: most processes of Spark need only the columns,
and start a second sooner.
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
    @classmethod
    def name(cls) -> str:
        return "octavo"

    def schema(self) -> StructType:
        columns = schema_of(source_options(_without_ends(self.options), streaming=False))
        return with_options(columns, table_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> OctavoWriter:
        from octavo.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite).with_target()

    def streamWriter(self, schema: StructType, overwrite: bool) -> OctavoStreamWriter:  # noqa: N802, ARG002
        """Write a stream; in complete mode each batch appends all, as in Kafka's sink."""
        from octavo.spark.sink import stream_writer

        return stream_writer(self.options, schema).with_target()

    def reader(self, schema: StructType) -> OctavoReader:
        from octavo.spark.readers import OctavoReader

        options = source_options(options_in(schema) | dict(self.options), streaming=False)
        warn_if_empty(options)
        return OctavoReader(options, checked_schema(schema, options))

    def streamReader(  # noqa: N802
        self, schema: StructType
    ) -> OctavoStreamReader | UnlimitedStreamReader:
        from octavo.spark.readers import OctavoStreamReader, UnlimitedStreamReader
        from octavo.spark.versions import read_limits

        unlimited = None if read_limits else pyspark.__version__
        given = options_in(schema) | dict(self.options)
        options = source_options(given, streaming=True, unlimited=unlimited)
        of = OctavoStreamReader if read_limits else UnlimitedStreamReader
        return of(options, checked_schema(schema, options))


def _without_ends(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if not name.lower().startswith("ending")}
