"""Schemas of messages: which values fit a schema, and which schema may follow which.

`kinds` uses the libraries of JSON Schema and Avro; `avro` and `json_cost` bound the cost of a
check.

Promises: schemas that cannot be proved compatible count as incompatible. No document is fetched,
and no schema makes a check slow.

A crash loses only compiled schemas.

Relies on two optional packages.

Others use `parsed`, `Schema` and `problems_of`.
"""
