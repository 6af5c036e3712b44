"""`octavo pipeline compact`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from octavo.cli.options import AsJson, BytesPerS, Conf, Data, Every, Master, ServiceUrl, Topics
from octavo.cli.pipeline_run import Job, Where, carry_out


def compact(
    topics: Topics = None,
    tombstones_s: Annotated[
        float,
        typer.Option(min=0, help="Keep a tombstone until this age.", show_default="a day"),
    ] = 86_400.0,
    drop_keyless: Annotated[
        bool, typer.Option("--drop-keyless", help="Leave out messages without a key.")
    ] = False,
    grace_s: Annotated[
        float,
        typer.Option(
            min=0, help="Keep a view this long after the next view.", show_default="a day"
        ),
    ] = 86_400.0,
    bytes_per_s: BytesPerS = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would stay; write nothing.")
    ] = False,
    every: Every = False,
    url: ServiceUrl = None,
    data: Data = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Make a compacted view of a topic: the newest message of each key. The topic stays as it is.

    \b
    Example:
      octavo pipeline compact accounts
    """

    def job() -> Job:
        from octavo.pipeline.compact import CompactOptions, compact
        from octavo.pipeline.compact_rules import CompactPolicy
        from octavo.pipeline.runner import selection_of

        policy = CompactPolicy(
            tombstones_ms=round(tombstones_s * 1000),
            grace_ms=round(grace_s * 1000),
            keyless=not drop_keyless,
        )
        options = CompactOptions(selection_of(topics, every=every), policy, bytes_per_s, dry_run)
        return partial(compact, options=options)

    carry_out("compact", job, Where(url, data, master, conf), as_json=as_json)
