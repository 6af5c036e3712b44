"""The policies of namespaces and topics: retention, limits, rates, durability.

metadata/topic_settings.py declares the policies. Pure modules decide by them: `rules`, `ages` (how
long messages have been stored), `backlog` (unacked messages against quotas) and `rates`.

Promises: a topic's own value takes precedence over its namespace's.
Relies on drivers in `partition` and `cluster`, which carry out the decisions. After a crash the
policies are read from the records, and the ages from the state ledger. Others use `why_never_due`
and `Ages`.
"""
