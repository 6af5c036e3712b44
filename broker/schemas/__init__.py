"""Schemas of messages: which values fit a schema, and which schema may follow which.

`kinds` handles JSON Schema and Avro with their libraries: it reads a schema, checks messages, and
compares schemas. `avro` compares Avro schemas and, like `json_cost`, bounds the cost of a check;
both are pure. `compatibility` says which versions a new schema is compared with, pure. `engine`
defines the questions that a broker sends to a process with these libraries.

Promises: schemas that cannot be proved compatible count as incompatible. No document is fetched,
and no schema makes a check slow: patterns are matched in linear time. A crash loses only compiled
schemas, which are compiled again. Relies on two optional packages. Others use `parsed`, `Schema`
and `problems_of`.
"""
