"""A storage node: it stores the entries that clients send, and makes no decisions.

Rooms, from top to bottom: `wire`, `check`, `read`, `startup`, `gc`, `write`, `ledgers`, `index`,
`journal`, `entrylog`, `disk`.
Promises: a bookie acknowledges an entry when it is on disk; an entry never changes; a fence holds;
a damaged or lost entry is unknown, never absent.
After a crash the next start replays the journal.
Relies on `metadata` and `protocol`.
Others use `BookieNode`, `BookieConfig` and `Storage`.
"""
