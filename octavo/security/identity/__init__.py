"""Authentication: tokens, API keys, passwords and certificates.

`authenticator` decides; `opening` builds it from the settings. `tokens` are the cluster's own;
`jwt_keys` and `jwks` verify another issuer's; `api_keys` come from a file; `users` have passwords
(`passwords`, `scram`); `certificates` come from TLS. `token_form` parses untrusted tokens.

Promises:
- A caller has an identity only with a proof that holds now.
- A disabled user, a revoked token or a revoked certificate is refused within seconds in every
  process that reaches the metadata store.
- Messages, logs and reprs hold no secret. Messages do not reveal which users exist.
- Wrong proofs cost bounded work and memory.

Relies on the cluster's secret, the metadata store, the clock, and TLS to verify certificates. Keeps
nothing on disk: after a crash everything is read again. Other rooms use `open_authenticator`,
`Authenticator`, `issue`, `UserStore`, `LoginsPaused` and, for SASL, `ScramServer` and
`parse_plain`.
"""
