"""One storage node: it keeps the entries that it is sent, and decides nothing.

At the top: `node` (a bookie's life from start to end), `storage` (the engine, as everybody sees
it), `back_pressure` (why a socket is unread), `adds` (what comes off the wire), `config`, `admin`
(the side port), `metrics` and `stats`, `error_code`. Beside them the rooms, the higher ones first:
`wire` the connections, `check`, `read`, `startup` and `gc`, `write`, `ledgers` and `index`,
`journal` and `entrylog`, `disk`. Each knows only those below it; pyproject.toml has the order, and
`lint-imports` holds it.

Promises: an entry is acknowledged when it is on disk, an entry never changes, a fence holds, and
what is damaged or lost is answered as unknown, never as absent. On a crash: what was acknowledged
is in the journal, and is replayed. Relies on `metadata` and `protocol`, and on nothing above.
Others use `BookieNode`, `BookieConfig` and `Storage`; tools also use the formats.
"""
