"""The policies of namespaces and topics: retention, limits, rates, durability.

metadata/topic_settings.py declares the policies; `rules` decides by them, pure. `ages` knows how
long messages have been stored, pure. `backlog` judges a subscription's unacked messages, pure.

Promises: a topic's own value takes precedence over its namespace's; a default changes nothing.
Relies on drivers in `partition` and `cluster`, which carry out the decisions. After a crash the
policies are read from the records, and the ages from the state ledger. Others use `why_never_due`
and `Ages`.
"""
