"""Authenticate callers: tokens, API keys, passwords and certificates.

Promises:
- A caller has an identity only with a proof that holds now.
- A disabled user or a revoked proof is refused within seconds in every process that reaches the
  metadata store.
- Messages, logs and reprs hold no secret, and do not reveal which users exist.
- Wrong proofs cost bounded work and memory.

Relies on the cluster's secret, the metadata store, and TLS to verify certificates. Keeps nothing on
disk: after a crash everything is read again. Others use `open_authenticator`, `Authenticator`,
`issue`, `UserStore`, `LoginsPaused` and, for SASL, `ScramServer` and `parse_plain`.
"""
