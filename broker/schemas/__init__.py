"""Schemas of messages: what fits one, and which may follow which.

`kinds` knows JSON Schema and Avro through their libraries: reads a schema, checks messages, tells
whether one schema reads what another one wrote. `avro_rules` is that question for Avro, pure.
`compatibility` says which versions a new one is held against, pure.

Promises: what `kinds` cannot prove to be compatible is not. Nothing is fetched from anywhere, and
no schema makes a check take long: patterns are matched in linear time.
After a crash nothing is left of it: compiled schemas are made anew. Relies on two optional
packages. Others use `parsed`, `Schema` and `problems_of`.
"""
