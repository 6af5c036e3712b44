"""Authenticate callers, and decide what they may do.

Promises:
- In a secured cluster, a call is denied if no rule allows it; a deny rule wins over allow rules.
- A withdrawn right ends within seconds in every process that reaches the metadata store. Other
  processes keep the rights that they read last.
- If the policy of a secured cluster disappears, everything is denied.

Relies on the metadata store's compare-and-set. Others use `Identity`, `Authority`, `PolicyStore`,
`Resource` and `Operation`.
"""
