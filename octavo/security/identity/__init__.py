"""Who somebody is: tokens, keys, passwords and certificates, and what proves what.

`authenticator` decides; `opening` makes it of settings. `tokens` are the cluster's own, `jwt_keys`
and `jwks` believe another issuer's, `api_keys` are a file, `users` have passwords (`passwords`,
`scram`), `certificates` come from TLS. `token_form` reads what comes from anybody.

Promises: nobody is taken for somebody without a proof that holds now; a disabled user, a revoked
token or certificate ends within seconds in every process that reaches the metadata store; reasons,
logs and reprs hold no secret and do not tell which users there are; wrong proofs cost bounded
work and memory. Relies on the cluster's secret, the metadata store, the clock, and on TLS having
checked certificates. After a crash all is read again; nothing is kept here. Others use
`open_authenticator`, `Authenticator`, `issue`, `UserStore`, `LoginsPaused` and, for SASL,
`ScramServer` and `parse_plain`.
"""
