"""Keys of namespaces, and the data keys of ledgers that they wrap.

`key_file` reads and changes the text of a key file (pure), `wrapped` is what a ledger's record
says of its data key (pure), `sources` are where a namespace's keys are: a file, or a service behind
a plug-in; `data_keys` has the unwrapped ones in the memory of a process, `config` is what may be
set.

Promises: a key is asked for again when `recheck_ms` has passed since its source last confirmed it,
so one that is forgotten opens nothing any more from then on; without an answer of the source
nothing is opened either. No key stands in a log, an error or the metadata, but wrapped. Relies on
the library `cryptography` for every computation. Others use `DataKeys`, `DataKey`, `Wrapped`,
`FileKeys`, `ServiceKeys` and the errors.
"""
