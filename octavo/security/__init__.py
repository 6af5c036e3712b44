"""Who somebody is, what they may do, and who decides it.

`principal` has the words for callers, `rules` decides what a caller may do (pure), `policy` is the
one record in the metadata that says so, `authority` has it in the memory of a process.

Promises: a cluster whose policy says that it is secured denies whatever no rule allows; a deny wins
over an allow; a right that is withdrawn ends within seconds in every process that reaches the
metadata store, and a process that does not goes on with the rights as last known. A policy that
vanishes denies everything, rather than opening a cluster that was closed. Relies on the metadata
store's compare-and-set. Others use `Identity`, `Authority`, `PolicyStore`, `Resource` and
`Operation`.
"""
