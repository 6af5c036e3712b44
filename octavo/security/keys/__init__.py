"""Encryption keys: the keys of namespaces, and the ledgers' data keys that they wrap.

Promises:
- A key opens nothing once `recheck_ms` have passed since its source last confirmed it: not after
  the key was deleted, and not while the source is silent.
- Logs and errors hold no keys; the metadata holds only wrapped keys.

Relies on the library `cryptography` for every computation. Others use `DataKeys`, `DataKey`,
`Wrapped`, `FileKeys`, `ServiceKeys` and the errors.
"""
