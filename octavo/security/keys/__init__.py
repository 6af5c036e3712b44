"""Encryption keys: the keys of namespaces, and the ledgers' data keys that they wrap.

`key_file` reads and changes the text of a key file (pure). `wrapped` encodes a data key for a
ledger's record (pure). `sources` wrap and unwrap data keys, with a key file or a key service behind
a plug-in. `data_keys` keeps unwrapped data keys in memory. `config` has the settings.

Promises:
- A data key is asked for again when `recheck_ms` have passed since its source last confirmed it. So
  a deleted key opens nothing after that time; if its source does not answer, it opens nothing
  either.
- Logs and errors hold no keys; the metadata holds only wrapped keys.

Relies on the library `cryptography` for every computation. Other rooms use `DataKeys`, `DataKey`,
`Wrapped`, `FileKeys`, `ServiceKeys` and the errors.
"""
