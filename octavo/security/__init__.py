"""Authentication and authorization: the caller's identity, and what the caller may do.

`principal` defines the words for callers. `rules` decides what a caller may do (pure). `policy`
reads and writes the rules: one record in the metadata store. `authority` keeps the policy in the
memory of a process.

Promises:
- In a secured cluster, a call is denied if no rule allows it. A deny rule wins over an allow rule.
- A withdrawn right ends within seconds in every process that reaches the metadata store. A process
  that cannot reach it keeps the rights that it read last.
- If the policy of a secured cluster disappears, everything is denied: the cluster does not open.

Relies on the metadata store's compare-and-set. Other rooms use `Identity`, `Authority`,
`PolicyStore`, `Resource` and `Operation`.
"""
