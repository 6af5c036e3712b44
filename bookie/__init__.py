"""A storage node: it stores the entries that clients send, and makes no decisions.

At the top: `node` (a bookie's life from start to end), `storage` (the engine's interface),
`back_pressure` (when not to read a socket), `adds` (adds from the wire), `config`, `admin` (the
HTTP port for operators), `metrics` and `stats`, `error_code`. Below are the rooms, from top to
bottom: `wire` (the connections), `check`, `read`, `startup` and `gc`, `write`, `ledgers` and
`index`, `journal` and `entrylog`, `disk`. Each room imports only rooms below it; pyproject.toml has
the order, and `lint-imports` checks it.

Promises: a bookie acknowledges an entry when it is on disk; an entry never changes; a fence holds;
a bookie reports a damaged or lost entry as unknown, never as absent. After a crash the next start
replays acknowledged entries from the journal. Relies on `metadata` and `protocol`, and on no
package above. Others use `BookieNode`, `BookieConfig` and `Storage`; tools also use the formats.
"""
