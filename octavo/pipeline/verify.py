"""The job `verify`: check that a topic holds what it promises. Changes nothing.

    chain      its ledgers follow each other without hole or overlap
    offsets    every offset of every ledger is there once, in the order of the entries
    sequences  each producer's messages are there once, in order, without gaps
    keys       all messages of a key are in the same partition, so in the order they were sent

Ledgers are read as stored, even where normal reads refuse them (`octavo.spark.as_stored`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from octavo.metadata.topics import PartitionRecord
from octavo.pipeline.outcome import SHOWN_MAX, Finding, Outcome
from octavo.pipeline.runner import Run, frame, look, with_whole_names
from octavo.spark.options import Selection
from octavo.spark.splits import View

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SEQUENCES = 2**31
"""Sequence numbers wrap to 0 here, as in Kafka."""


class LedgerRows(NamedTuple):
    first: int
    last: int


def verify(run: Run, selection: Selection) -> Outcome:
    outcome = Outcome("verify")
    looked = look(run.service, selection)
    seen = [view for view, _ in looked]
    rows = sum(view.end - view.earliest for view in seen)
    run.say(f"{len(seen)} partitions with {rows:,} messages: chains, offsets, sequences, keys")
    for view, record in looked:
        outcome.found(chain_findings(f"{view.topic}/{view.partition}", record))
    full = [view for view in seen if view.end > view.earliest]
    producers = read = 0
    if full:
        placed = _stored(
            run, full, "topic,partition,offset,ledger,entry,index,producer,epoch,sequence"
        )
        read = _offsets(outcome, placed, full)
        run.say(f"{read:,} messages read; sequences")
        producers = _sequences(outcome, placed, full)
        wide = [view for view in full if sum(one.topic == view.topic for one in seen) > 1]
        if wide:
            run.say("keys")
            _keys(outcome, _stored(run, wide, "topic,partition,key"))
    outcome.summary = {
        "topics": len({view.topic for view in seen}),
        "partitions": len(seen),
        "ledgers": sum(len(view.spans) for view in seen),
        "messages": read,
        "producers": producers,
    }
    return outcome


def chain_findings(where: str, record: PartitionRecord) -> list[Finding]:
    found = []
    if record.ledgers and record.ledgers[0].base_offset > record.trimmed_offset:
        found.append(
            Finding(
                "chain",
                where,
                f"offsets {record.trimmed_offset} to {record.ledgers[0].base_offset - 1} are not "
                "trimmed, but are in no ledger",
            )
        )
    for before, after in zip(record.ledgers, record.ledgers[1:], strict=False):
        pair = f"ledger {before.ledger_id}, then {after.ledger_id}"
        if before.count is None:
            found.append(Finding("chain", where, f"{pair}: the first is open, but not the last"))
        elif before.base_offset + before.count != after.base_offset:
            found.append(
                Finding(
                    "chain",
                    where,
                    f"{pair}: one ends before offset {before.base_offset + before.count}, the "
                    f"other begins at {after.base_offset}",
                )
            )
    return found


def span_findings(view: View, read: Mapping[int, LedgerRows]) -> list[Finding]:
    """Compare the offsets read from each ledger with its record. Pieces of large messages count
    too.
    """
    found = []
    where = f"{view.topic}/{view.partition}"
    for span in view.spans:
        rows = read.get(span.ledger_id)
        if span.end == span.shown:
            continue
        if rows is None:
            what = f"ledger {span.ledger_id}: no message of offsets {span.base} to {span.end - 1}"
            found.append(Finding("offset-missing", where, what))
        elif span.cut and (rows.first, max(rows.last, span.end - 1)) == (span.base, rows.last):
            continue  # entries after the cut do not belong to the fork
        elif (rows.first, rows.last) != (span.base, span.end - 1):
            what = (
                f"ledger {span.ledger_id} holds offsets {rows.first} to {rows.last}, but "
                f"the record says {span.base} to {span.end - 1}"
            )
            found.append(Finding("offset-missing", where, what))
    return found


def _stored(run: Run, seen: list[View], columns: str) -> DataFrame:
    from octavo.spark.as_stored import AsStored

    run.spark.dataSource.register(AsStored)
    return with_whole_names(frame(run, seen, columns, source=AsStored.name()))


def _offsets(outcome: Outcome, placed: DataFrame, seen: Iterable[View]) -> int:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    place = Window.partitionBy("topic", "partition", "ledger").orderBy("entry", "index")
    before = f.lag("offset").over(place)
    steps = placed.withColumn("before", before).withColumn(
        "kind",
        f.when(f.col("offset") > f.col("before") + 1, "offset-missing").when(
            f.col("offset") <= f.col("before"), "offset-repeated"
        ),
    )
    _collect(
        outcome,
        steps.where("kind is not null"),
        f.format_string(
            "ledger %d entry %d: offset %d follows %d", "ledger", "entry", "offset", "before"
        ),
    )
    by_ledger = (
        placed.groupBy("topic", "partition", "ledger")
        .agg(f.min("offset").alias("a"), f.max("offset").alias("b"), f.count("*").alias("n"))
        .collect()
    )
    for view in seen:
        mine = {
            row.ledger: LedgerRows(row.a, row.b)
            for row in by_ledger
            if (row.topic, row.partition) == (view.topic, view.partition)
        }
        outcome.found(span_findings(view, mine))
    return sum(row.n for row in by_ledger)


def _sequences(outcome: Outcome, placed: DataFrame, seen: Iterable[View]) -> int:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    of_one = Window.partitionBy("topic", "partition", "producer").orderBy(
        "offset", "ledger", "entry", "index"
    )
    steps = (
        placed.where("producer is not null")
        .withColumn("epoch_before", f.lag("epoch").over(of_one))
        .withColumn("before", f.lag("sequence").over(of_one))
    )
    whole = f.array(
        *(f.lit(f"{one.topic}/{one.partition}") for one in seen if one.earliest == 0), f.lit("")
    )
    is_whole = f.array_contains(whole, f.concat_ws("/", "topic", "partition"))
    ahead = f.pmod(f.col("sequence") - f.col("before"), f.lit(_SEQUENCES))
    fresh = f.col("sequence") == 0
    kind = (
        f.when(f.col("before").isNull(), f.when(is_whole & ~fresh, "sequence-missing"))
        .when(f.col("epoch") < f.col("epoch_before"), "epoch-back")
        .when(f.col("epoch") > f.col("epoch_before"), f.when(~fresh, "sequence-missing"))
        .when(ahead == 1, None)
        .when(fresh, "sequence-begun-again")
        .when((ahead == 0) | (ahead >= _SEQUENCES // 2), "sequence-repeated")
        .otherwise("sequence-missing")
    )
    _collect(
        outcome,
        steps.withColumn("kind", kind).where("kind is not null"),
        f.format_string(
            "offset %d: producer %d has epoch %d sequence %d after %s",
            "offset",
            "producer",
            "epoch",
            "sequence",
            f.coalesce(f.concat_ws(" sequence ", "epoch_before", "before"), f.lit("nothing")),
        ),
    )
    return placed.where("producer is not null").select("producer").distinct().count()


def _keys(outcome: Outcome, keyed: DataFrame) -> None:
    from pyspark.sql import functions as f

    strays = (
        keyed.where("key is not null")
        .groupBy("topic", "key")
        .agg(f.collect_set("partition").alias("partitions"))
        .where(f.size("partitions") > 1)
        .withColumn("kind", f.lit("key-in-several-partitions"))
        .withColumn("partition", f.array_min("partitions"))
    )
    text = f.make_valid_utf8(f.col("key").cast("string"))
    listed = f.concat_ws(", ", f.transform("partitions", lambda one: one.cast("string")))
    _collect(outcome, strays, f.format_string("key %s is in partitions %s", text, listed))


def _collect(outcome: Outcome, found: DataFrame, what: Column) -> None:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    of_kind = Window.partitionBy("kind")
    rows = (
        found.select("kind", f.concat_ws("/", "topic", "partition").alias("where"), what.alias("w"))
        .withColumn("all", f.count("*").over(of_kind))
        .withColumn("rank", f.row_number().over(of_kind.orderBy("where", "w")))
        .where(f.col("rank") <= SHOWN_MAX)
        .collect()
    )
    outcome.found(
        [Finding(row.kind, row["where"], row.w) for row in rows],
        {row.kind: row["all"] for row in rows},
    )
